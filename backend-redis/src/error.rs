//! What the server or the connection said, as a failure of the backend.

use lockcore::{BackendError, BackendErrorKind};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Classifies by kind and code. `sent`: a request may have been under way.
pub(crate) fn failure(error: RedisError, sent: bool) -> BackendError {
    use BackendErrorKind::{BadSetting, Busy, Corrupt, Denied, Misconfigured, Other, Timeout, Unavailable};
    // Whether the script may have run, wholly or in part.
    let (kind, may_have_run, hint) = match error.kind() {
        ErrorKind::Io if error.is_timeout() => (Timeout, true, ""),
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => (Unavailable, true, ""),
        ErrorKind::MasterNameNotFoundBySentinel => (Unavailable, false, ""),
        ErrorKind::AuthenticationFailed => (Denied, false, ""),
        ErrorKind::InvalidClientConfig | ErrorKind::EmptySentinelList => (BadSetting, false, ""),
        ErrorKind::RESP3NotSupported => (Misconfigured, false, "; Redis 6.2 or later is needed"),
        ErrorKind::Server(server) => match server {
            ServerErrorKind::NoPerm => (Denied, true, ""),
            ServerErrorKind::ReadOnly => (Unavailable, false, "; it is a replica by now"),
            ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown => {
                (Unavailable, false, "")
            }
            ServerErrorKind::TryAgain => (Busy, false, ""),
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::CrossSlot => (
                Misconfigured,
                false,
                "; the server is part of a cluster: the URL must begin with redis+cluster",
            ),
            _ => (Other, true, ""),
        },
        ErrorKind::Extension => match error.code() {
            Some("NOAUTH" | "WRONGPASS" | "DENIED") => (Denied, false, ""),
            Some("OOM") => (Busy, false, "; the server's memory is full"),
            Some("BUSY") => (Busy, false, "; the server runs somebody's long script"),
            Some("NOREPLICAS") => (Unavailable, false, ""),
            Some("MISCONF") => (Misconfigured, false, ""),
            Some("WRONGTYPE") => (Corrupt, true, "; another program uses a key of this namespace"),
            _ => (Other, true, ""),
        },
        _ => (Other, true, ""),
    };
    let failure = BackendError::new(kind, format!("redis: {error}{hint}")).with_source(error);
    if sent && may_have_run { failure.possibly_done() } else { failure }
}

/// Whether the connection is of no use after this.
pub(crate) fn ends_connection(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse | ErrorKind::Server(ServerErrorKind::ReadOnly))
        || error.is_unrecoverable_error()
}

/// That a reply is none that our scripts give.
pub(crate) fn strange(what: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Corrupt, format!("redis: a script's reply makes no sense: {what}"))
        .possibly_done()
}
