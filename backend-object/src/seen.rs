//! What is seen of responses besides their results.

use std::sync::{
    Arc,
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

/// What became of a request, noted by the client. A request has it among its extensions.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<AtomicU32>);

const NOT_SENT: u32 = 1;

impl Seen {
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn answered(&self, status: u16) {
        self.0.store(u32::from(status), Relaxed);
    }

    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn not_sent(&self) {
        self.0.store(NOT_SENT, Relaxed);
    }

    /// Returns the status of the response; `None` if there was none.
    pub(crate) fn status(&self) -> Option<u16> {
        u16::try_from(self.0.load(Relaxed)).ok().filter(|status| u32::from(*status) > NOT_SENT)
    }

    /// Returns whether no connection was made.
    pub(crate) fn was_not_sent(&self) -> bool {
        self.0.load(Relaxed) == NOT_SENT
    }
}
