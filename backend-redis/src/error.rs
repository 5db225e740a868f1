//! Errors of the server or the connection, as errors of the backend.

use lockcore::{BackendError, BackendErrorKind, backend::CertificateFault};
use redis::{ErrorKind, RedisError};

/// Classifies an error by kind and code. `sent`: a request may have been under way.
pub(crate) fn failure(error: RedisError, sent: bool) -> BackendError {
    named("redis", error, sent)
}

/// Classifies an error of connecting to the server at `address`, which the driver's text does not name.
pub(crate) fn unconnected(error: RedisError, address: &str) -> BackendError {
    named(&format!("redis at {address}"), error, false)
}

fn named(place: &str, error: RedisError, sent: bool) -> BackendError {
    use BackendErrorKind::{BadSetting, Busy, Corrupt, Denied, Misconfigured, Other, Timeout, Unavailable};
    if let Some(fault) = CertificateFault::find(&error.to_string()) {
        return refused(place, &fault).with_source(error);
    }
    // The second value: whether the script may have run, wholly or in part.
    let (kind, may_have_run, hint) = match error.kind() {
        ErrorKind::Io if error.is_timeout() => (Timeout, true, ""),
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => (Unavailable, true, ""),
        ErrorKind::MasterNameNotFoundBySentinel => (Unavailable, false, ""),
        ErrorKind::AuthenticationFailed => (Denied, false, ""),
        ErrorKind::InvalidClientConfig | ErrorKind::EmptySentinelList => (BadSetting, false, ""),
        ErrorKind::RESP3NotSupported => (Misconfigured, false, "; Redis 6.2 or later is needed"),
        _ => match code(&error) {
            Some("NOPERM") => (Denied, true, ""),
            Some("NOAUTH" | "WRONGPASS" | "DENIED") => (Denied, false, ""),
            Some("READONLY" | "MASTERDOWN") => (Unavailable, false, "; the server has become a replica"),
            Some("LOADING" | "CLUSTERDOWN" | "NOREPLICAS") => (Unavailable, false, ""),
            Some("MISCONF") => {
                (Unavailable, false, "; the server could not save its data, and takes no writes until it can")
            }
            Some("ERR") if error.detail().is_some_and(is_full) => (Busy, false, ""),
            Some("TRYAGAIN") => (Busy, false, ""),
            Some("OOM") => (Busy, false, "; the server's memory is full"),
            Some("BUSY") => (Busy, false, "; the server is busy with a long script"),
            Some("MOVED" | "ASK" | "CROSSSLOT") => (
                Misconfigured,
                false,
                "; the server is part of a cluster: the URL must begin with redis+cluster",
            ),
            Some("WRONGTYPE") => (Corrupt, true, "; another program uses a key of this namespace"),
            _ => (Other, true, ""),
        },
    };
    let failure = BackendError::new(kind, format!("{place}: {error}{hint}")).with_source(error);
    if sent && may_have_run { failure.possibly_done() } else { failure }
}

/// Says what is wrong with the server's certificate, and what to do.
fn refused(place: &str, fault: &CertificateFault) -> BackendError {
    let advice = match fault {
        CertificateFault::UnknownIssuer => {
            "root_certificate names the file of those to trust, tls_verify=none verifies nothing"
        }
        CertificateFault::OtherName(_) => "tls_verify=ca accepts other names",
        _ => "tls_verify=none verifies nothing",
    };
    BackendError::new(BackendErrorKind::Misconfigured, format!("{place}: {fault}; {advice}"))
}

/// Returns whether the connection has to be replaced after this error. A replica was the master when the connection was
/// made: its name or a sentinel may lead to another server by now.
pub(crate) fn ends_connection(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
        || matches!(code(error), Some("READONLY" | "MASTERDOWN"))
        || error.is_unrecoverable_error()
}

/// Returns the code of a server's error.
fn code(error: &RedisError) -> Option<&str> {
    match (error.code()?, error.detail()) {
        ("ERR", Some(detail)) => code_in_script(detail).or(Some("ERR")),
        (code, _) => Some(code),
    }
}

/// Returns whether the server has as many clients as it may have. There is no code for that.
fn is_full(detail: &str) -> bool {
    detail.starts_with("max number of clients")
}

/// Before 7.0 an error inside a script is `ERR` with `Error running script (call to f_HASH): @user_script:7: WRONGTYPE ..`,
/// or `.. @user_script: 7: -READONLY ..` where the server refuses the command.
fn code_in_script(detail: &str) -> Option<&str> {
    let (_, raised) = detail.strip_prefix("Error running script")?.rsplit_once("@user_script:")?;
    let (_line, error) = raised.split_once(": ")?;
    error.trim_start_matches('-').split(' ').next()
}

/// Reports a reply that the script never makes.
pub(crate) fn unexpected(what: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Corrupt, format!("redis: unexpected reply of the script: {what}"))
        .possibly_done()
}

/// Reports a setting out of bounds.
pub(crate) fn bad_setting(message: String) -> BackendError {
    BackendError::new(BackendErrorKind::BadSetting, message)
}
