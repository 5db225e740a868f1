//! Observations of responses besides their results.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

/// The rules that the bucket applies to objects, as far as responses said so.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// Their versions are kept.
    pub(crate) keep: AtomicBool,
    /// They are deleted after some time.
    pub(crate) expire: AtomicBool,
    /// They cannot be replaced or deleted for some time.
    pub(crate) retain: AtomicBool,
}

/// The fate of a request, noted by the client. A request has it among its extensions.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Noted>);

#[derive(Default)]
struct Noted {
    status: AtomicU32,
    region: OnceLock<String>,
    is_there: AtomicBool,
}

const NOT_SENT: u32 = 1;

impl Seen {
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn answered(&self, status: u16) {
        self.0.status.store(u32::from(status), Relaxed);
    }

    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn not_sent(&self) {
        self.0.status.store(NOT_SENT, Relaxed);
    }

    /// Notes in which region the bucket is.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn in_region(&self, region: &str) {
        let _ = self.0.region.set(region.to_owned());
    }

    /// Notes that the object to be created is there.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn is_there(&self) {
        self.0.is_there.store(true, Relaxed);
    }

    /// Returns the status of the response; `None` if there was none.
    pub(crate) fn status(&self) -> Option<u16> {
        u16::try_from(self.0.status.load(Relaxed)).ok().filter(|status| u32::from(*status) > NOT_SENT)
    }

    /// Returns whether no connection was made.
    pub(crate) fn was_not_sent(&self) -> bool {
        self.0.status.load(Relaxed) == NOT_SENT
    }

    /// Returns the bucket's region, where the response of the service names it.
    pub(crate) fn region(&self) -> Option<&str> {
        self.0.region.get().map(String::as_str)
    }

    /// Returns whether the write was refused as its object is there.
    pub(crate) fn was_there(&self) -> bool {
        self.0.is_there.load(Relaxed)
    }
}
