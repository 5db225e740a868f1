//! Exit codes, and what leads to each.

use std::{error::Error, fmt::Write};

use lockcore::{BackendError, BackendErrorKind, Failure as Cause, LockError, LockingError, Phase, TimedOut};
use lockcore_any::ConnectError;
use serde_json::Value;

use crate::show;

/// The reason why `lockctl` itself ends, as opposed to the command that it runs. From 120 on, where commands seldom
/// have codes of their own; 124 to 127 as `timeout` and `env` have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    Other = 1,
    NotAcquired = 120,
    Lost = 121,
    NotHeld = 122,
    Backend = 123,
    TimedOut = 124,
    Usage = 125,
    CannotExecute = 126,
    CommandNotFound = 127,
    /// As of a process that SIGPIPE ended.
    ClosedPipe = 141,
}

/// Every code of its own and when it is given; shown by `--help`.
pub(crate) const CODES: [(Code, &str); 9] = [
    (Code::Other, "doctor found an error, torture a broken promise, or the output could not be written"),
    (
        Code::NotAcquired,
        "not acquired: others are in the way, and no wait was asked for; or there is no leader",
    ),
    (Code::Lost, "lost: locks were lost while the command ran, and it was stopped"),
    (Code::NotHeld, "not held: what was to be released, renewed or broken"),
    (Code::Backend, "the backend failed"),
    (Code::TimedOut, "timed out: not acquired within the wait; or torture on a machine that stood still"),
    (Code::Usage, "a mistake on the command line, in the configuration or in the request"),
    (Code::CannotExecute, "the command cannot be executed"),
    (Code::CommandNotFound, "there is no such command"),
];

impl Code {
    /// The word for scripts that read `--json`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Code::Other => "other",
            Code::NotAcquired => "not_acquired",
            Code::Lost => "lost",
            Code::NotHeld => "not_held",
            Code::Backend => "backend",
            Code::TimedOut => "timed_out",
            Code::Usage => "usage",
            Code::CannotExecute => "cannot_execute",
            Code::CommandNotFound => "command_not_found",
            Code::ClosedPipe => "closed_pipe",
        }
    }
}

/// Returns what `--help` says of exit codes.
pub(crate) fn help() -> String {
    let mut help = "Exit codes:\n".to_owned();
    for (code, when) in CODES {
        writeln!(help, "  {:<5} {when}", code as u8).expect("a string takes everything");
    }
    help.push_str("  128+n ended by signal n, or the command was\n  else  the command's own exit code\n");
    help
}

/// The reason why `lockctl` does not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// The conflicts in the way, as JSON.
    pub(crate) conflicts: Option<Value>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), conflicts: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(Code::Usage, message)
    }

    pub(crate) fn other(message: impl Into<String>) -> Self {
        Failure::new(Code::Other, message)
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Backend(error) => error.into(),
            _ => Failure::usage(error.to_string()),
        }
    }
}

/// Returns the message of an error, and those of its causes.
fn with_causes(error: &dyn Error) -> String {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let first = causes.next().map(ToString::to_string).unwrap_or_default();
    causes.fold(first, |text, cause| format!("{text}: {cause}"))
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let code = match error.kind() {
            BackendErrorKind::BadSetting => Code::Usage,
            _ => Code::Backend,
        };
        Failure::new(code, with_causes(&error))
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let code = match &error {
            LockingError::NotLocked { failures, timed_out } => {
                let failed = failures.iter().any(|failure| matches!(failure, Cause::Backend(_)));
                match timed_out {
                    _ if failed => Code::Backend,
                    // The store did not answer once, so that no holder is known to be in the way.
                    Some(TimedOut { phase: Phase::Asking, .. }) => Code::Backend,
                    Some(_) => Code::TimedOut,
                    None => Code::NotAcquired,
                }
            }
            LockingError::Lost { .. } => Code::Lost,
            _ => Code::Usage,
        };
        let conflicts = match &error {
            LockingError::NotLocked { failures, .. } => show::conflicts(failures),
            _ => None,
        };
        Failure { conflicts, ..Failure::new(code, with_causes(&error)) }
    }
}
