//! Errors of the service, and how they are reported.

use std::{error::Error, fmt, io};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
};
use lockcore::{BackendError, BackendErrorKind};

/// An error of a step. Classified by the service's codes and the SDK's kinds; by message only where the service has no code,
/// for an item that is too large.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{key}: {value:?} is not possible, {expected}")]
    Setting { key: &'static str, value: String, expected: &'static str },
    #[error("region: is not given, name the table's, as dynamodb://REGION/TABLE or by AWS_REGION")]
    NoRegion,
    #[error(transparent)]
    Service(Failure),
    #[error("the attempt was withdrawn before its request arrived")]
    Withdrawn,
    #[error("an item is not in this library's format: {0}")]
    Corrupt(&'static str),
    #[error("an item is not in this library's format: {what}")]
    Unreadable {
        what: &'static str,
        /// Not in the message, as the id may be secret: logs have the messages.
        #[source]
        item: InItem,
    },
    #[error("other clients changed the same items at every try until the timeout")]
    Contended { in_doubt: bool },
    #[error("the table cannot be used: {0}")]
    Table(String),
    #[error(transparent)]
    TooOld(lockcore::backend::ProgramTooOld),
    #[error("no response had the service's time: it must have a Date and an x-amzn-RequestId header")]
    NoTime,
    #[error(transparent)]
    InDoubt(Box<StoreError>),
    #[error("must be called within a tokio runtime")]
    NoRuntime,
}

/// The key of an item that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is the item {0:?}")]
pub(crate) struct InItem(pub(crate) String);

impl StoreError {
    fn kind(&self) -> BackendErrorKind {
        match self {
            StoreError::Setting { .. } | StoreError::NoRegion => BackendErrorKind::BadSetting,
            StoreError::Table(_) | StoreError::TooOld(_) | StoreError::NoRuntime => {
                BackendErrorKind::Misconfigured
            }
            StoreError::Service(failure) => failure.kind,
            StoreError::InDoubt(error) => error.kind(),
            StoreError::Withdrawn => BackendErrorKind::Withdrawn,
            StoreError::Corrupt(_) | StoreError::Unreadable { .. } => BackendErrorKind::Corrupt,
            StoreError::Contended { .. } => BackendErrorKind::Busy,
            StoreError::NoTime => BackendErrorKind::Unavailable,
        }
    }

    /// Returns the same error, in doubt.
    pub(crate) fn in_doubt_now(self) -> Self {
        match self {
            StoreError::Service(failure) => StoreError::Service(failure.or_done_before(true)),
            StoreError::Contended { .. } => StoreError::Contended { in_doubt: true },
            other => StoreError::InDoubt(Box::new(other)),
        }
    }

    fn in_doubt(&self) -> bool {
        match self {
            StoreError::InDoubt(_) => true,
            StoreError::Service(failure) => failure.in_doubt,
            StoreError::Contended { in_doubt } => *in_doubt,
            _ => false,
        }
    }

    /// Returns the error as it leaves this crate; `place` names the table and its location, if one was chosen.
    pub(crate) fn report(self, place: Option<&str>) -> BackendError {
        let message = match place {
            Some(place) => format!("dynamodb: {place}: {self}"),
            None => format!("dynamodb: {self}"),
        };
        let backend = BackendError::new(self.kind(), message);
        let backend = if self.in_doubt() { backend.possibly_done() } else { backend };
        backend.with_source(self)
    }
}

/// The failure of a request.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: BackendErrorKind,
    /// The service may have executed the request.
    pub(crate) in_doubt: bool,
    /// The same request may succeed when it is sent again.
    pub(crate) again: bool,
    /// The service's code, such as `ThrottlingException`.
    pub(crate) code: Option<String>,
    what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Failure {}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        StoreError::Service(failure)
    }
}

impl Failure {
    /// Classifies an error of the SDK.
    pub(crate) fn of<E>(error: &SdkError<E, HttpResponse>) -> Failure
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let plain = |kind, in_doubt, again, what: String| Failure { kind, in_doubt, again, code: None, what };
        match error {
            SdkError::ConstructionFailure(_) => {
                let what = format!("the request could not be made: {}", chain(error));
                plain(BackendErrorKind::Denied, false, false, what)
            }
            SdkError::TimeoutError(_) => {
                plain(BackendErrorKind::Timeout, true, true, "no answer in time".to_owned())
            }
            SdkError::DispatchFailure(failure) => {
                if causes(error).any(|cause| cause.is::<CredentialsError>()) {
                    let what = format!("no credentials: {}", chain(error));
                    return plain(BackendErrorKind::Denied, false, false, what);
                }
                // Only a request without a connection was certainly not received.
                let refused = io::ErrorKind::ConnectionRefused;
                let mut io = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
                let sent = !io.any(|cause| cause.kind() == refused);
                let kind = if failure.is_timeout() {
                    BackendErrorKind::Timeout
                } else {
                    BackendErrorKind::Unavailable
                };
                plain(
                    kind,
                    sent,
                    !failure.is_user(),
                    format!("the service cannot be reached: {}", chain(error)),
                )
            }
            SdkError::ResponseError(answer) => {
                let what =
                    format!("the answer ({}) could not be read: {}", answer.raw().status(), chain(error));
                plain(BackendErrorKind::Unavailable, true, true, what)
            }
            SdkError::ServiceError(refusal) => {
                let status = refusal.raw().status().as_u16();
                Failure::coded(refusal.err().code(), refusal.err().message(), status)
            }
            _ => {
                let what = format!("the request failed: {}", chain(error));
                plain(BackendErrorKind::Other, true, false, what)
            }
        }
    }

    /// Returns what a code of the service's means.
    pub(crate) fn coded(code: Option<&str>, message: Option<&str>, status: u16) -> Failure {
        use BackendErrorKind::{Busy, Denied, Misconfigured, Other, Timeout, Unavailable};
        let is_full = matches!(code, Some("ValidationException" | "ValidationError"))
            && message.is_some_and(|message| message.to_ascii_lowercase().contains("item size"));
        let (kind, in_doubt, again) = match code.unwrap_or_default() {
            "ProvisionedThroughputExceededException"
            | "ProvisionedThroughputExceeded"
            | "ThrottlingException"
            | "ThrottlingError"
            | "Throttling"
            | "RequestLimitExceeded"
            | "LimitExceededException"
            | "TransactionConflictException"
            | "TransactionConflict"
            | "ReplicatedWriteConflictException"
            | "ResourceInUseException" => (Busy, false, true),
            // The same transaction, sent before, is still under way.
            "TransactionInProgressException" => (Busy, true, true),
            // Nothing was done: the service knows another request by this token. The next try has a token of its own.
            "IdempotentParameterMismatchException" => (Busy, false, true),
            "InternalServerError" | "InternalServerErrorException" | "InternalFailure" => {
                (Unavailable, true, true)
            }
            "ServiceUnavailable" | "ServiceUnavailableException" => (Unavailable, true, true),
            "RequestTimeout" | "RequestTimeoutException" => (Timeout, true, true),
            "ResourceNotFoundException" | "TableNotFoundException" => (Misconfigured, false, false),
            // Not at once, but there is room again as soon as a holder leaves.
            _ if is_full => (Busy, false, false),
            "ValidationException" | "ValidationError" => (Misconfigured, false, false),
            "ItemCollectionSizeLimitExceeded" | "ItemCollectionSizeLimitExceededException" => {
                (Misconfigured, false, false)
            }
            "AccessDeniedException"
            | "UnrecognizedClientException"
            | "ExpiredTokenException"
            | "ExpiredToken"
            | "InvalidClientTokenId"
            | "IncompleteSignature"
            | "IncompleteSignatureException"
            | "InvalidSignatureException"
            | "MissingAuthenticationToken"
            | "MissingAuthenticationTokenException"
            | "NotAuthorized"
            | "OptInRequired"
            | "RequestExpired"
            | "RequestTimeTooSkewed"
            | "SignatureDoesNotMatch" => (Denied, false, false),
            _ if status >= 500 => (Unavailable, true, true),
            _ => (Other, false, false),
        };
        let advice = match code {
            Some("ResourceNotFoundException") => ": the table is missing; `lockctl migrate` creates it",
            _ if is_full => ": the service's limit is 400 KB, and too many hold the id at once",
            _ => "",
        };
        let message: String = message.unwrap_or("no message").chars().take(200).collect();
        let what = format!("{} ({status}): {message}{advice}", code.unwrap_or("an unnamed error"));
        Failure { kind, in_doubt, again, code: code.map(str::to_owned), what }
    }

    /// The signature was refused for its time: the SDK knows the service's time from that answer, and the next is right.
    pub(crate) fn is_about_the_clock(&self) -> bool {
        matches!(
            self.code.as_deref(),
            Some(
                "InvalidSignatureException"
                    | "RequestTimeTooSkewed"
                    | "RequestExpired"
                    | "SignatureDoesNotMatch"
            )
        )
    }

    /// Returns it as the failure of a request that changes nothing.
    pub(crate) fn of_reading(mut self) -> Self {
        self.in_doubt = false;
        self
    }

    /// Returns it as in doubt, if an earlier try may have been done.
    pub(crate) fn or_done_before(mut self, doubt: bool) -> Self {
        self.in_doubt |= doubt;
        self
    }
}

/// Returns the causes of an error, the nearest first.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// All that caused an error, in one line.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_exit_codes_of_their_own() {
        use BackendErrorKind::{Busy, Denied, Misconfigured, Other, Unavailable};
        for (code, status, kind, in_doubt) in [
            ("ThrottlingException", 400, Busy, false),
            ("TransactionConflictException", 400, Busy, false),
            ("TransactionInProgressException", 400, Busy, true),
            ("InternalServerError", 500, Unavailable, true),
            ("ResourceNotFoundException", 400, Misconfigured, false),
            ("ValidationException", 400, Misconfigured, false),
            ("ExpiredTokenException", 400, Denied, false),
            ("AccessDeniedException", 400, Denied, false),
            ("SomethingNew", 503, Unavailable, true),
            ("SomethingNew", 400, Other, false),
        ] {
            let failure = Failure::coded(Some(code), Some("message"), status);
            assert_eq!((failure.kind, failure.in_doubt), (kind, in_doubt), "{code}");
            let error = StoreError::from(failure).report(Some("table locks"));
            assert!(error.to_string().starts_with("dynamodb: table locks: "), "{error}");
            assert_eq!(error.is_retryable(), matches!(kind, Busy | Unavailable), "{code}");
            assert!(error.to_string().contains(code), "{error}");
        }
        for code in ["ValidationException", "ValidationError"] {
            let message = "Item size to update has exceeded the maximum allowed size";
            let failure = Failure::coded(Some(code), Some(message), 400);
            assert_eq!((failure.kind, failure.in_doubt, failure.again), (Busy, false, false));
            assert!(failure.to_string().contains("400 KB"), "{failure}");
        }
    }
}
