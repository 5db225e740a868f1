//! Failures of a backend.

use std::{borrow::Cow, error::Error, fmt, sync::Arc};

/// The kind of failure that a [`BackendError`] is.
/// ```
/// use lockcore::{BackendError, BackendErrorKind};
///
/// fn advice(error: &BackendError) -> &'static str {
///     match error.kind() {
///         BackendErrorKind::Denied => "grant the rights that the backend's page lists",
///         BackendErrorKind::Misconfigured | BackendErrorKind::BadSetting => "the message names what to change",
///         _ if error.is_retryable() => "try again",
///         _ => "it needs a person",
///     }
/// }
/// # assert_eq!(advice(&BackendError::new(BackendErrorKind::Unavailable, "no route to host")), "try again");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store cannot be reached, dropped the connection, or does no such work at present: it starts, fails over, takes no
    /// writes, has no room.
    Unavailable,
    /// The store did not answer in time.
    Timeout,
    /// The store is busy, throttles, or had to abort a transaction.
    Busy,
    /// The store refuses the credentials or the permission.
    Denied,
    /// The store is not set up as needed: schema missing or of another version, evicting.
    Misconfigured,
    /// A setting of the backend is not possible; it was refused before anything was sent.
    BadSetting,
    /// The store holds something that is not ours under a key of ours.
    Corrupt,
    /// The backend does not have this ability.
    Unsupported,
    /// The request was withdrawn before it arrived.
    Withdrawn,
    /// Anything else.
    Other,
}

impl BackendErrorKind {
    /// Returns whether such a failure passes by itself, so that trying the same again later may help.
    pub fn is_retryable(self) -> bool {
        matches!(self, BackendErrorKind::Unavailable | BackendErrorKind::Timeout | BackendErrorKind::Busy)
    }
}

/// A failure of the store, never contention.
///
/// Cheap to clone. Holds no secret: a backend puts none into the message or the source.
#[derive(Clone)]
pub struct BackendError {
    kind: BackendErrorKind,
    in_doubt: bool,
    message: Cow<'static, str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl BackendError {
    /// Creates a failure after which the step certainly did not take place.
    pub fn new(kind: BackendErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        BackendError { kind, in_doubt: false, message: message.into(), source: None }
    }

    /// Creates the error of a store that did not answer in time.
    pub(crate) fn no_answer() -> Self {
        BackendError::new(BackendErrorKind::Timeout, "no answer in time").possibly_done()
    }

    /// Creates the refusal of a value of a setting, of which at most 64 letters are shown.
    pub fn bad_setting(key: &str, value: &str, expected: &str) -> Self {
        let value: String = value.chars().take(64).collect();
        let message = format!("{key}: {value:?} is not possible, {expected}");
        BackendError::new(BackendErrorKind::BadSetting, message)
    }

    /// Creates the refusal of an ability that is not declared.
    pub fn unsupported(what: &'static str) -> Self {
        BackendError::new(BackendErrorKind::Unsupported, format!("{what} is not supported by this backend"))
    }

    /// Adds what caused it. [`source`](Error::source) passes over a cause whose text is part of the message, so that a report shows
    /// it once.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Marks it as one after which the step may have taken place all the same.
    #[must_use]
    pub fn possibly_done(mut self) -> Self {
        self.in_doubt = true;
        self
    }

    /// Returns the same failure with another message, of which this one is the source.
    #[must_use]
    pub fn with_message(self, message: impl Into<Cow<'static, str>>) -> Self {
        let (kind, in_doubt) = (self.kind, self.in_doubt);
        BackendError { kind, in_doubt, message: message.into(), source: Some(Arc::new(self)) }
    }

    /// Returns the same failure with the place where it happened before its message.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        let message = format!("{place}: {self}");
        self.with_message(message)
    }

    /// Returns what kind of failure it is.
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// Returns whether the step may have taken place all the same.
    pub fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Returns whether trying the same again later may help.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendError")
            .field("kind", &self.kind)
            .field("in_doubt", &self.in_doubt)
            .field("message", &self.message)
            .field("source", &self.source.as_ref().map(ToString::to_string))
            .finish()
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let mut source = self.source.as_deref().map(|source| source as &(dyn Error + 'static));
        while let Some(cause) = source.filter(|cause| self.message.contains(&cause.to_string())) {
            source = cause.source();
        }
        source
    }
}
