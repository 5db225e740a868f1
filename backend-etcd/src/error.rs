//! Errors of settings and requests, as the engine and the user get them.

use std::{error::Error, fmt::Display, io};

use lockcore::{BackendError, BackendErrorKind, backend::CertificateFault};

use crate::message::Refusal;

/// The reason why a request has no answer that can be used.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: BackendErrorKind,
    message: String,
    /// Set if a write may have been made.
    in_doubt: bool,
    pub(crate) next: Next,
}

/// The next thing to do after a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    Report,
    /// To ask another member: this one has certainly done nothing, and others may (E1).
    Member,
    /// To get a new token: nothing was done, as there was none that counts.
    Token,
    /// To do without one: user and password are not asked for.
    NoToken,
    /// To read in another way: etcd has no room, and refuses some that write nothing, too.
    Plainly,
    /// To read again: what was asked for is of a moment that is not kept any more.
    Again,
}

impl Failure {
    fn new(kind: BackendErrorKind, member: impl Display, message: impl Display) -> Self {
        // One line that is not too long for a log.
        let message = format!("{member}: {message}").replace(char::is_control, " ");
        Failure { kind, message: message.chars().take(500).collect(), in_doubt: false, next: Next::Report }
    }

    fn in_doubt(self) -> Self {
        Failure { in_doubt: true, ..self }
    }

    /// Returns the failure of something that precedes a request: of that itself nothing was sent.
    pub(crate) fn before_request(self) -> Self {
        Failure { in_doubt: false, ..self }
    }

    /// Returns whether it may be the member's alone.
    pub(crate) fn is_of_member(&self) -> bool {
        self.next == Next::Member
            || (self.kind.is_retryable() && !matches!(self.next, Next::Plainly | Next::Again))
    }

    /// Returns whether the member takes no request at all: there is no connection, or no leader.
    pub(crate) fn is_of_all_requests(&self) -> bool {
        self.next == Next::Member && self.kind == BackendErrorKind::Unavailable
    }

    /// Returns the failure of a request with a token that the cluster has just given: user and password are right, and this member has
    /// not heard of the token. So nothing was done.
    pub(crate) fn after_login(self) -> Self {
        match self.next {
            Next::Token => Failure { kind: BackendErrorKind::Unavailable, next: Next::Member, ..self },
            _ => self,
        }
    }

    pub(crate) fn timed_out(member: &str) -> Self {
        Self::new(BackendErrorKind::Timeout, member, "no answer in time").in_doubt()
    }

    /// Reports that there was no response.
    pub(crate) fn of_transport(member: &str, error: &reqwest::Error) -> Self {
        let text = chain(error);
        let failed = match CertificateFault::find(&text) {
            Some(fault) => {
                let advice = match fault {
                    CertificateFault::UnknownIssuer => "; root_certificate sets those to trust",
                    _ => "",
                };
                Self::new(BackendErrorKind::Misconfigured, member, format_args!("{fault}{advice}"))
            }
            None if is_of_tls(error) => Self::new(BackendErrorKind::Misconfigured, member, text),
            None => Self::new(BackendErrorKind::Unavailable, member, text),
        };
        match error.is_connect() {
            true => Failure { next: Next::Member, ..failed },
            false => failed.in_doubt(),
        }
    }

    /// Reports a response that says that it failed.
    pub(crate) fn of_response(member: &str, status: u16, body: &[u8]) -> Self {
        use BackendErrorKind::{Misconfigured, Unavailable};
        let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
        // Nothing was done, and another member may be set up in another way.
        let elsewhere =
            |message: String| Failure { next: Next::Member, ..Self::new(Misconfigured, member, message) };
        match (refusal.code, status) {
            // That of a path that is not known.
            (5, _) | (0, 404) => {
                let what = "there is no gateway at /v3: it needs etcd 3.4 or later, with enable-grpc-gateway";
                elsewhere(what.to_owned())
            }
            (0, 400) => {
                let text = String::from_utf8_lossy(body);
                let hint = if text.contains("HTTPS") { ": begin the URL with etcds" } else { "" };
                elsewhere(format!("{text}{hint}"))
            }
            (0, 300..400) => elsewhere("a redirect, which etcd never sends: is there a proxy?".to_owned()),
            (0, _) => Self::new(Unavailable, member, format_args!("status {status}")).in_doubt(),
            (code, _) => Self::of_code(member, code, &refusal.message),
        }
    }

    /// Classifies by the code of gRPC, and by the text where several errors of etcd share one.
    fn of_code(member: &str, code: u32, text: &str) -> Self {
        use BackendErrorKind::{Busy, Denied, Misconfigured, Other, Timeout, Unavailable};
        let says = |part: &str| text.contains(part);
        let failed = |kind| Self::new(kind, member, text);
        let too_large =
            || Self::new(Other, member, format_args!("{text}: raise --max-request-bytes of the members"));
        match code {
            // UNAUTHENTICATED: the token is not known, or over. A member that was restarted has forgotten all tokens.
            16 => Failure { next: Next::Token, ..failed(Denied) },
            // INVALID_ARGUMENT, or UNKNOWN before 3.5: users or roles were changed since the token was made. All members refuse it alike
            // when they come to it.
            2 | 3 if says("revision of auth store is old") || says("revision in header is old") => {
                Failure { next: Next::Token, ..failed(Denied) }
            }
            // There was no token, as there was no need when it was asked for.
            3 if says("user name is empty") => Failure { next: Next::Token, ..failed(Denied) },
            3 if says("authentication failed") => failed(Denied),
            3 if says("too large") => too_large(),
            3 if says("too many operations") => {
                Self::new(Other, member, format_args!("{text}: raise --max-txn-ops of the members to 128"))
            }
            8 if says("larger than max") => too_large(),
            3 => failed(Other),
            4 => failed(Timeout).in_doubt(),
            7 => failed(Denied),
            // RESOURCE_EXHAUSTED. NOSPACE leaves a write in doubt: etcd applies the one that exceeds the quota and still reports an error.
            8 if says("too many requests") => failed(Busy).in_doubt(),
            8 => {
                let what = format_args!(
                    "{text}: etcd takes no writes until it is compacted, defragmented and its alarm disarmed"
                );
                Failure { next: Next::Plainly, ..Self::new(Unavailable, member, what).in_doubt() }
            }
            9 if says("authentication is not enabled") => {
                Failure { next: Next::NoToken, ..failed(Misconfigured) }
            }
            11 if says("compacted") => Failure { next: Next::Again, ..failed(Unavailable) },
            12 => Failure { next: Next::Member, ..failed(Misconfigured) },
            // UNAVAILABLE. As each request asks for a member with a leader, it was refused before anything else.
            14 if says("no leader") => Failure { next: Next::Member, ..failed(Unavailable) },
            // A change of the leader, a member that ends, and what is not known.
            _ => failed(Unavailable).in_doubt(),
        }
    }

    /// Reports a body that etcd does not send.
    pub(crate) fn of_body(error: impl Display) -> Self {
        Self::new(BackendErrorKind::Unavailable, "this is not an answer of etcd", error).in_doubt()
    }

    /// Reports a token that cannot be sent. It is not shown.
    pub(crate) fn no_token() -> Self {
        Self::new(BackendErrorKind::Other, "authentication", "the token is not possible as a header")
    }

    /// Reports a response of another cluster than the first, or of an earlier state of it (E4).
    pub(crate) fn other_cluster() -> Self {
        let what = "the members belong to different clusters, or the cluster was replaced or restored: open it again";
        Self::new(BackendErrorKind::Misconfigured, "cluster_id", what).in_doubt()
    }
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        let error = BackendError::new(failure.kind, failure.message);
        if failure.in_doubt { error.possibly_done() } else { error }
    }
}

/// Reports a value that is not in the form of this library.
pub(crate) fn corrupt(name: &str) -> BackendError {
    let what = format!("the value of {name} is not in this library's form: another program wrote it");
    BackendError::new(BackendErrorKind::Corrupt, what)
}

pub(crate) fn no_time() -> BackendError {
    let what = "no response told the time by a Date (it passed a proxy: Age, Via or Server): reach the members directly or by a TCP balancer";
    BackendError::new(BackendErrorKind::Unavailable, what)
}

/// Reports that two members' clocks are further apart than all leases allow for, in microseconds. It passes when a clock is set right,
/// as that of a member that was suspended is.
pub(crate) fn apart(apart: u64, most: u64) -> BackendError {
    let what = format!(
        "clock_difference: the clocks of two members differ by {} ms at least, and it is {} ms: set the clocks right, or raise it in all processes",
        apart / 1000,
        most / 1000
    );
    BackendError::new(BackendErrorKind::Unavailable, what)
}

/// Adds the place to an error that leaves this crate before there is a DAO.
pub(crate) fn reported(place: &str, error: BackendError) -> BackendError {
    if error.kind() == BackendErrorKind::BadSetting { error } else { error.at(place) }
}

/// Returns the messages of what caused an error, each once. The error's own has nothing but the address.
fn chain(error: &reqwest::Error) -> String {
    let mut message = String::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !message.contains(&text) {
            message = if message.is_empty() { text } else { format!("{message}: {text}") };
        }
        next = cause.source();
    }
    if message.is_empty() { "the connection failed".to_owned() } else { message }
}

/// Returns whether the two sides do not agree on TLS, which does not pass by itself.
fn is_of_tls(error: &reqwest::Error) -> bool {
    let mut next = error.source();
    while let Some(cause) = next {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if cause.is::<rustls::Error>() || inner.is_some_and(|inner| inner.is::<rustls::Error>()) {
            return true;
        }
        next = cause.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_done_is_in_doubt() {
        use BackendErrorKind::{Busy, Denied, Misconfigured, Other, Timeout, Unavailable};
        // As etcd 3.4 to 3.6 answer, all with `message`.
        for (status, code, text, kind, in_doubt, next) in [
            (401, 16, "etcdserver: invalid auth token", Denied, false, Next::Token),
            (400, 3, "etcdserver: revision of auth store is old", Denied, false, Next::Token),
            (500, 2, "auth: revision in header is old", Denied, false, Next::Token),
            (400, 3, "etcdserver: user name is empty", Denied, false, Next::Token),
            (
                400,
                3,
                "etcdserver: authentication failed, invalid user ID or password",
                Denied,
                false,
                Next::Report,
            ),
            (400, 3, "etcdserver: request is too large", Other, false, Next::Report),
            (403, 7, "etcdserver: permission denied", Denied, false, Next::Report),
            (429, 8, "grpc: received message larger than max (3 vs. 2)", Other, false, Next::Report),
            (429, 8, "etcdserver: mvcc: database space exceeded", Unavailable, true, Next::Plainly),
            (429, 8, "etcdserver: too many requests", Busy, true, Next::Report),
            (412, 9, "etcdserver: authentication is not enabled", Misconfigured, false, Next::NoToken),
            (412, 9, "etcdserver: not leader", Unavailable, true, Next::Report),
            (503, 14, "etcdserver: no leader", Unavailable, false, Next::Member),
            (503, 14, "etcdserver: leader changed", Unavailable, true, Next::Report),
            (503, 14, "etcdserver: request timed out", Unavailable, true, Next::Report),
            (503, 14, "transport is closing", Unavailable, true, Next::Report),
            (504, 4, "context deadline exceeded", Timeout, true, Next::Report),
            (500, 2, "anything", Unavailable, true, Next::Report),
            (500, 13, "anything", Unavailable, true, Next::Report),
            (404, 5, "Not Found", Misconfigured, false, Next::Member),
            (400, 3, "etcdserver: too many operations in txn request", Other, false, Next::Report),
            (
                400,
                11,
                "etcdserver: mvcc: required revision has been compacted",
                Unavailable,
                false,
                Next::Again,
            ),
            (501, 12, "unknown service", Misconfigured, false, Next::Member),
        ] {
            let body = format!("{{\"error\":{text:?},\"message\":{text:?},\"code\":{code}}}");
            let failed = Failure::of_response("a:1", status, body.as_bytes());
            assert_eq!((failed.kind, failed.in_doubt, failed.next), (kind, in_doubt, next), "{failed:?}");
            assert!(failed.message.starts_with("a:1: "), "{failed:?}");
        }
        for (status, body, kind, in_doubt, next) in [
            (404, "404 page not found", Misconfigured, false, Next::Member),
            (400, "Client sent an HTTP request to an HTTPS server.", Misconfigured, false, Next::Member),
            (302, "", Misconfigured, false, Next::Member),
            (502, "<html>", Unavailable, true, Next::Report),
            (500, "", Unavailable, true, Next::Report),
        ] {
            let failed = Failure::of_response("a:1", status, body.as_bytes());
            assert_eq!((failed.kind, failed.in_doubt, failed.next), (kind, in_doubt, next), "{failed:?}");
        }
    }
}
