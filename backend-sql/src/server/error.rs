//! The failures of a database server, and what they mean to a caller.

use std::sync::Arc;

use lockcore::{
    BackendError, BackendErrorKind,
    backend::{CertificateFault, ProgramTooOld, StoreVersion},
};
use sqlx::error::DatabaseError;

/// A failure. Each engine classifies by the server's codes, never by message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// The server, or the way to it, failed. `in_doubt`: the step may have taken place; `transient`: the same again at
    /// once may help (a deadlock, a serialization failure); `broken`: the connection is of no use any more.
    #[error("{backend}: {source}")]
    Database {
        backend: &'static str,
        kind: BackendErrorKind,
        in_doubt: bool,
        transient: bool,
        broken: bool,
        source: sqlx::Error,
    },
    /// The failure of a batch, for each of its requests.
    #[error("{0}")]
    Batch(Arc<ServerError>),
    #[error("{backend}: no answer within {after:?}")]
    NoAnswer { backend: &'static str, after: std::time::Duration },
    #[error("{backend}: no connection was free within {after:?}, all {max} are in use")]
    NoConnection { backend: &'static str, after: std::time::Duration, max: usize },
    #[error("{backend}: the attempt was withdrawn before its request arrived")]
    Withdrawn { backend: &'static str },
    #[error("{backend}: {key}: {value:?} is not possible, {expected}")]
    Setting { backend: &'static str, key: &'static str, value: String, expected: &'static str },
    #[error("{backend}: {place}: {source}")]
    TooOld { backend: &'static str, place: String, source: ProgramTooOld },
    #[error(
        "{backend}: {place}: {}, this program needs version {}: let a user who may create tables run `lockctl migrate`, or \
         what `lockctl migrate --print sql` prints",
        found.map_or("there is no schema".to_owned(), |found| format!("the schema has version {}", found.version)),
        program.version
    )]
    Schema { backend: &'static str, place: String, found: Option<StoreVersion>, program: StoreVersion },
    #[error(
        "{backend}: {place}: the schema is incomplete, {} of it are missing: {}; perhaps it was restored from a dump without \
         routines: let a user who may create them run `lockctl migrate`, or what `lockctl migrate --print sql` prints",
        missing.len(),
        few(missing)
    )]
    Incomplete { backend: &'static str, place: String, missing: Vec<String> },
    #[error("{backend}: {what}")]
    Misconfigured { backend: &'static str, what: String },
    #[error("{backend}: an answer cannot be read: {what}")]
    Answer { backend: &'static str, what: String },
}

/// The options of a URL by which a backend is set to verify less of a certificate.
pub(crate) struct Certificate {
    pub(crate) backend: &'static str,
    /// Names the file of authorities to trust.
    pub(crate) roots: &'static str,
    /// Accepts other names.
    pub(crate) any_name: &'static str,
    /// Verifies nothing.
    pub(crate) any: &'static str,
    /// Goes without TLS.
    pub(crate) plain: &'static str,
}

impl Certificate {
    /// Returns the error that says what is wrong with the server's certificate, if that is why there is no connection.
    pub(crate) fn refused(&self, source: &sqlx::Error) -> Option<ServerError> {
        let Certificate { backend, roots, any_name, any, plain } = self;
        let fault = CertificateFault::find(&source.to_string())?;
        let what = match &fault {
            // The driver verifies by the certificate's key that the server has it, in every mode.
            CertificateFault::VersionOne => format!("{fault}; {plain} goes without TLS"),
            CertificateFault::UnknownIssuer => {
                format!("{fault}; {roots} names the file of those to trust, {any} verifies nothing")
            }
            CertificateFault::OtherName(_) => format!("{fault}; {any_name} accepts other names"),
            _ => format!("{fault}; {any} verifies nothing"),
        };
        Some(ServerError::Misconfigured { backend, what })
    }
}

/// Returns whether the driver cannot use the server's certificate though it verifies nothing.
pub(crate) fn is_unusable(error: &sqlx::Error) -> bool {
    CertificateFault::find(&error.to_string()) == Some(CertificateFault::VersionOne)
}

/// Names a few of what is missing.
fn few(missing: &[String]) -> String {
    let shown = missing.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    if missing.len() > 3 { format!("{shown}, ..") } else { shown }
}

/// The meaning of a failure; see [`ServerError::Database`].
pub(crate) struct Meaning {
    pub(crate) kind: BackendErrorKind,
    pub(crate) in_doubt: bool,
    pub(crate) transient: bool,
    pub(crate) broken: bool,
}

impl Meaning {
    pub(crate) fn of(kind: BackendErrorKind) -> Self {
        Meaning { kind, in_doubt: false, transient: false, broken: false }
    }
}

impl ServerError {
    /// Classifies a failure of sqlx, and by `reported` one that the server reports. `asked`: of an exchange that had begun, so
    /// that whatever broke the connection may have come after the commit; else nothing was asked for yet.
    pub(crate) fn classify(
        backend: &'static str,
        source: sqlx::Error,
        asked: bool,
        reported: impl FnOnce(&dyn DatabaseError) -> Meaning,
    ) -> Self {
        use BackendErrorKind as Kind;
        use sqlx::Error;

        let broken = |kind| Meaning { in_doubt: true, broken: true, ..Meaning::of(kind) };
        let Meaning { kind, in_doubt, transient, broken } = match &source {
            Error::Database(error) => reported(&**error),
            Error::Io(_) | Error::Tls(_) | Error::Protocol(_) | Error::WorkerCrashed => {
                broken(Kind::Unavailable)
            }
            Error::PoolTimedOut | Error::PoolClosed => Meaning::of(Kind::Unavailable),
            Error::Configuration(_) | Error::InvalidArgument(_) => Meaning::of(Kind::BadSetting),
            Error::ColumnDecode { .. } | Error::Decode(_) | Error::ColumnNotFound(_) | Error::RowNotFound => {
                broken(Kind::Corrupt)
            }
            _ => broken(Kind::Other),
        };
        // Unless `asked`, nothing had been sent yet, so nothing is in doubt, and the pool's other connections are not known
        // to be broken.
        ServerError::Database {
            backend,
            kind,
            in_doubt: in_doubt && asked,
            transient,
            broken: broken && asked,
            source,
        }
    }

    /// Reports whether the same again at once may help: the server gave the transaction up in favour of another.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            ServerError::Database { transient, .. } => *transient,
            ServerError::Batch(error) => error.is_transient(),
            _ => false,
        }
    }

    /// Reports whether the connection it happened on is of no use any more.
    pub(crate) fn broke_connection(&self) -> bool {
        match self {
            ServerError::Database { broken, .. } => *broken,
            ServerError::Batch(error) => error.broke_connection(),
            ServerError::NoAnswer { .. } => true,
            _ => false,
        }
    }

    /// Reports whether a notification came to a connection that does not listen: a pooler has let another client's LISTEN
    /// reach its connection to the server.
    pub(crate) fn is_stray_notification(&self) -> bool {
        let ServerError::Database { source: sqlx::Error::Protocol(text), .. } = self else { return false };
        text.contains("NotificationResponse")
    }

    /// Reports whether the step may have taken place all the same.
    pub(crate) fn in_doubt(&self) -> bool {
        match self {
            ServerError::Database { in_doubt, .. } => *in_doubt,
            ServerError::Batch(error) => error.in_doubt(),
            ServerError::NoAnswer { .. } | ServerError::Answer { .. } => true,
            _ => false,
        }
    }

    /// Marks the step as one that may have taken place, because an earlier try of it may have.
    pub(crate) fn possibly_done(mut self) -> Self {
        if let ServerError::Database { in_doubt, .. } = &mut self {
            *in_doubt = true;
        }
        self
    }

    /// Converts it for the user, with the address at which it happened.
    pub(crate) fn at(self, address: &str) -> BackendError {
        let located = self.located(address);
        self.with_message(located)
    }

    /// Converts the failure of a read, which leaves nothing in doubt.
    pub(crate) fn of_read_at(self, address: &str) -> BackendError {
        let backend = BackendError::new(self.kind(), self.located(address));
        self.causing(backend)
    }

    fn located(&self, address: &str) -> String {
        let text = self.to_string();
        match text.split_once(": ") {
            Some((backend, rest)) => format!("{backend} at {address}: {rest}"),
            None => text,
        }
    }

    fn with_message(self, message: String) -> BackendError {
        let backend = BackendError::new(self.kind(), message);
        let backend = if self.in_doubt() { backend.possibly_done() } else { backend };
        self.causing(backend)
    }

    /// Adds the driver's error as the cause. What else this one has is in the message.
    fn causing(self, backend: BackendError) -> BackendError {
        match self {
            ServerError::Database { source, .. } => backend.with_source(source),
            _ => backend,
        }
    }

    /// Returns its kind.
    pub(crate) fn kind(&self) -> BackendErrorKind {
        match self {
            ServerError::Database { kind, .. } => *kind,
            ServerError::Batch(error) => error.kind(),
            ServerError::NoAnswer { .. } => BackendErrorKind::Timeout,
            ServerError::NoConnection { .. } => BackendErrorKind::Busy,
            ServerError::Withdrawn { .. } => BackendErrorKind::Withdrawn,
            ServerError::Setting { .. } => BackendErrorKind::BadSetting,
            ServerError::TooOld { .. }
            | ServerError::Schema { .. }
            | ServerError::Incomplete { .. }
            | ServerError::Misconfigured { .. } => BackendErrorKind::Misconfigured,
            ServerError::Answer { .. } => BackendErrorKind::Corrupt,
        }
    }
}

impl From<ServerError> for BackendError {
    fn from(error: ServerError) -> Self {
        let message = error.to_string();
        error.with_message(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_leaves_in_doubt_only_what_was_asked() {
        for asked in [true, false] {
            let lost = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
            let error = ServerError::classify("test", lost, asked, |_| Meaning::of(BackendErrorKind::Other));
            assert_eq!((error.in_doubt(), error.broke_connection()), (asked, asked));
        }
    }
}
