//! Errors of the store, and how they are reported.

use std::{error::Error, fmt, sync::Arc};

use lockcore::{BackendError, BackendErrorKind};

/// An error of a step.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{key}: {value:?} is not possible, {expected}")]
    Setting { key: &'static str, value: String, expected: &'static str },
    #[error("{key}: is not given, {expected}")]
    Missing { key: &'static str, expected: &'static str },
    #[error(transparent)]
    Request(Failure),
    #[error("the attempt was withdrawn before its request arrived")]
    Withdrawn,
    #[error("{0} is not in this library's form")]
    Corrupt(&'static str),
    #[error(
        "the object {0:?} cannot be read, another program wrote it: the locks of that session count as held until it is \
         removed"
    )]
    Session(String),
    #[error("an object has format {found}, this program knows format {known}: use a newer program")]
    Format { found: u32, known: u32 },
    #[error(
        "other processes wrote first at every try until the timeout: use one service for more tasks, or fewer processes"
    )]
    Contended { in_doubt: bool },
    #[error(
        "the table would have {bytes} bytes, at most {max} are possible: hold and queue for less, or use more namespaces"
    )]
    Full { bytes: usize, max: usize },
    #[error(
        "the store ignores the condition of a write ({0}): no lock would exclude anything; use a store with conditional writes"
    )]
    Unconditional(&'static str),
    #[error("no response had the service's time: it must have a Date and an id of the request")]
    NoTime,
    #[error("the runtime of the library ended")]
    Ended,
}

impl StoreError {
    fn kind(&self) -> BackendErrorKind {
        match self {
            StoreError::Setting { .. } | StoreError::Missing { .. } => BackendErrorKind::BadSetting,
            StoreError::Request(failure) => failure.kind,
            StoreError::Withdrawn => BackendErrorKind::Withdrawn,
            StoreError::Corrupt(_) | StoreError::Session(_) => BackendErrorKind::Corrupt,
            StoreError::Format { .. } | StoreError::Unconditional(_) => BackendErrorKind::Misconfigured,
            StoreError::Contended { .. } | StoreError::Full { .. } => BackendErrorKind::Busy,
            StoreError::NoTime | StoreError::Ended => BackendErrorKind::Unavailable,
        }
    }

    /// Returns whether the step may have taken place all the same.
    pub(crate) fn in_doubt(&self) -> bool {
        match self {
            StoreError::Request(failure) => failure.in_doubt,
            StoreError::Contended { in_doubt } => *in_doubt,
            StoreError::Ended => true,
            _ => false,
        }
    }

    /// Returns whether the same request may succeed when it is sent again.
    pub(crate) fn again(&self) -> bool {
        matches!(self, StoreError::Request(Failure { again: true, .. }))
    }

    /// Returns the same error, after which an earlier write may have been made.
    pub(crate) fn or_done_before(self, in_doubt: bool) -> Self {
        match self {
            StoreError::Request(failure) => {
                let in_doubt = failure.in_doubt || in_doubt;
                StoreError::Request(Failure { in_doubt, ..failure })
            }
            StoreError::Contended { .. } => StoreError::Contended { in_doubt },
            other => other,
        }
    }

    /// Returns the error as it leaves this crate; `place` names the bucket and the namespace.
    pub(crate) fn report(self, place: &str) -> BackendError {
        let backend = BackendError::new(self.kind(), format!("object store: {place}: {self}"));
        let backend = if self.in_doubt() { backend.possibly_done() } else { backend };
        backend.with_source(self)
    }
}

/// The failure of a request.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: BackendErrorKind,
    /// The store may have executed the request.
    pub(crate) in_doubt: bool,
    /// The same request may succeed when it is sent again.
    pub(crate) again: bool,
    pub(crate) what: Arc<str>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Failure {}

impl Failure {
    pub(crate) fn timed_out() -> Self {
        Failure {
            kind: BackendErrorKind::Timeout,
            in_doubt: true,
            again: true,
            what: "no answer in time".into(),
        }
    }

    /// Classifies an error by the status of the response, where there was one, and by its kind.
    pub(crate) fn of(error: &object_store::Error, status: Option<u16>) -> Self {
        use object_store::Error as E;
        let (kind, in_doubt, again) = match (status, error) {
            (Some(401 | 403), _) | (_, E::PermissionDenied { .. } | E::Unauthenticated { .. }) => {
                (BackendErrorKind::Denied, false, false)
            }
            // Of a bucket that does not exist: of an object it is no error.
            (Some(404), _) | (_, E::NotFound { .. }) => (BackendErrorKind::Misconfigured, false, false),
            // Two conditional writes at once: neither was refused, one has to be sent again.
            (Some(409), _) => (BackendErrorKind::Busy, false, true),
            (Some(429), _) => (BackendErrorKind::Busy, false, true),
            // A store that reports an overload may have done the work.
            (Some(503), _) => (BackendErrorKind::Busy, true, true),
            (Some(500..), _) => (BackendErrorKind::Unavailable, true, true),
            (Some(400..500), _) => (BackendErrorKind::Other, false, false),
            (_, E::NotImplemented { .. } | E::NotSupported { .. }) => {
                (BackendErrorKind::Misconfigured, false, false)
            }
            (_, E::InvalidPath { .. } | E::UnknownConfigurationKey { .. }) => {
                (BackendErrorKind::BadSetting, false, false)
            }
            _ => (BackendErrorKind::Unavailable, true, true),
        };
        // The type of the library's message says enough; its sources have the request's address, and no secret.
        Failure { kind, in_doubt, again, what: chain(error).into() }
    }

    /// The same of a bucket in this region.
    pub(crate) fn in_region(self, region: &str) -> Self {
        let what = format!(
            "the bucket is in the region {region}: name it, as `?region={region}` in the URL or by AWS_REGION: {self}"
        );
        Failure { kind: BackendErrorKind::Misconfigured, in_doubt: false, again: false, what: what.into() }
    }

    /// The same of a read of S3 that was refused.
    pub(crate) fn of_a_read(self) -> Self {
        let what = format!(
            "{self}; S3 answers so for what is missing, too, where s3:ListBucket is not allowed: see `lockctl migrate --print iam`"
        );
        Failure { what: what.into(), ..self }
    }

    /// The client could not be made.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn of_settings(error: &object_store::Error) -> Self {
        Failure {
            kind: BackendErrorKind::BadSetting,
            in_doubt: false,
            again: false,
            what: chain(error).into(),
        }
    }

    /// Nothing was sent: the store could not be reached.
    pub(crate) fn not_sent(error: &object_store::Error) -> Self {
        Failure {
            kind: BackendErrorKind::Unavailable,
            in_doubt: false,
            again: true,
            what: chain(error).into(),
        }
    }
}

/// The messages of an error and what caused it, each once, on one line.
fn chain(error: &object_store::Error) -> String {
    let mut message = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        next = cause.source();
    }
    let line: String = message.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    line.chars().take(500).collect()
}
