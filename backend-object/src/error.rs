//! Errors of settings and requests, as the engine and the user get them.

use std::error::Error;

use lockcore::{BackendError, BackendErrorKind};

/// Reports a setting that is not given and has no default.
#[cfg(feature = "s3")]
pub(crate) fn missing(key: &str, expected: &str) -> BackendError {
    BackendError::new(BackendErrorKind::BadSetting, format!("{key}: is not given, {expected}"))
}

pub(crate) fn timed_out() -> BackendError {
    BackendError::new(BackendErrorKind::Timeout, "no answer in time").possibly_done()
}

/// Classifies an error by the status of the response, where there was one, and by its kind. What is retryable by its kind is
/// repeated by the engine.
pub(crate) fn of(error: &object_store::Error, status: Option<u16>) -> BackendError {
    use object_store::Error as E;
    let (kind, in_doubt) = match (status, error) {
        (Some(401 | 403), _) | (_, E::PermissionDenied { .. } | E::Unauthenticated { .. }) => {
            (BackendErrorKind::Denied, false)
        }
        // Of a bucket that does not exist: of an object it is no error.
        (Some(404), _) | (_, E::NotFound { .. }) => (BackendErrorKind::Misconfigured, false),
        // Two conditional writes at once: neither was refused, one has to be sent again. A throttled one was not done.
        (Some(409 | 429), _) => (BackendErrorKind::Busy, false),
        // A store that reports an overload may have done the work.
        (Some(503), _) => (BackendErrorKind::Busy, true),
        (Some(500..), _) => (BackendErrorKind::Unavailable, true),
        (Some(408), _) => (BackendErrorKind::Timeout, true),
        // The rest of the request did not arrive: nothing was done.
        (Some(400), error) if has_code(error, &["RequestTimeout", "IncompleteBody", "ClientDisconnect"]) => {
            (BackendErrorKind::Timeout, false)
        }
        (Some(400..500), _) => (BackendErrorKind::Other, false),
        (_, E::NotImplemented { .. } | E::NotSupported { .. }) => (BackendErrorKind::Misconfigured, false),
        (_, E::InvalidPath { .. } | E::UnknownConfigurationKey { .. }) => {
            (BackendErrorKind::BadSetting, false)
        }
        _ => (BackendErrorKind::Unavailable, true),
    };
    // The type of the library's message says enough; its sources have the request's address, and no secret.
    let failed = BackendError::new(kind, chain(error));
    if in_doubt { failed.possibly_done() } else { failed }
}

/// Returns whether it is the bucket that is missing, and not an object.
pub(crate) fn is_of_bucket(error: &object_store::Error) -> bool {
    has_code(error, &["NoSuchBucket", "ContainerNotFound"])
}

/// Returns whether the service gave one of these codes: they are in the body of its response, which the library shows as text.
fn has_code(error: &object_store::Error, codes: &[&str]) -> bool {
    // All of it: the path of the object comes before the body.
    let text = messages(error);
    codes.iter().any(|code| text.contains(&format!("<Code>{code}</Code>")))
}

/// Reports that nothing was sent: the store could not be reached.
pub(crate) fn not_sent(error: &object_store::Error) -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, chain(error))
}

/// Reports that the bucket is in another region.
pub(crate) fn in_region(error: &object_store::Error, region: &str) -> BackendError {
    let what = format!(
        "the bucket is in the region {region}: name it, as `?region={region}` in the URL or by AWS_REGION: {}",
        chain(error)
    );
    BackendError::new(BackendErrorKind::Misconfigured, what)
}

/// Reports a read of S3 that was refused.
pub(crate) fn of_a_read(failed: &BackendError) -> BackendError {
    let what = format!(
        "{failed}; S3 answers so for what is missing, too, where s3:ListBucket is not allowed: see `lockctl migrate --print iam`"
    );
    BackendError::new(failed.kind(), what)
}

/// Reports that the client could not be made.
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub(crate) fn of_settings(error: &object_store::Error) -> BackendError {
    BackendError::new(BackendErrorKind::BadSetting, chain(error))
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub(crate) fn no_time() -> BackendError {
    let what = "no response had the service's time: it must have a Date and an id of the request";
    BackendError::new(BackendErrorKind::Unavailable, what)
}

/// Returns the messages of an error and of what caused it, each once, on one line that is not too long for a log.
fn chain(error: &object_store::Error) -> String {
    messages(error).chars().take(500).collect()
}

/// Returns all of them.
fn messages(error: &object_store::Error) -> String {
    let mut message = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        next = cause.source();
    }
    message.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
