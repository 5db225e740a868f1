//! Why a server cannot be had or controlled.

use std::{error::Error, fmt};

use super::Kind;

/// Why a server cannot be had or controlled. It never contains a password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerError {
    /// This machine has no such server: the test is to show as ignored.
    Unavailable {
        /// The kind of the server asked for.
        kind: &'static str,
        /// What was looked for and not found.
        reason: String,
    },
    /// The server comes from a URL in the environment and is not ours to pause or kill.
    NotControllable {
        /// The server asked for.
        kind: Kind,
    },
    /// There is such a server, and something went wrong with it: the test is to fail.
    Failed {
        /// The server asked for.
        kind: Kind,
        /// What was being done: "start", "pause", ...
        doing: &'static str,
        /// What went wrong.
        reason: String,
    },
}

impl ServerError {
    pub(super) fn unavailable(kind: Kind, reason: impl fmt::Display) -> Self {
        Self::missing(kind.name(), reason)
    }

    /// Reports that a server which a test starts by itself cannot be had here.
    #[must_use]
    pub fn missing(kind: &'static str, reason: impl fmt::Display) -> Self {
        Self::Unavailable { kind, reason: reason.to_string() }
    }

    pub(super) fn failed(kind: Kind, doing: &'static str, reason: impl fmt::Display) -> Self {
        let reason = reason.to_string();
        Self::Failed { kind, doing, reason }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { kind, reason } => write!(f, "no {kind} server: {reason}"),
            Self::NotControllable { kind } => {
                write!(f, "the {kind} server of {} is not controllable", kind.url_variable())
            }
            Self::Failed { kind, doing, reason } => write!(f, "{doing} {kind}: {reason}"),
        }
    }
}

impl Error for ServerError {}
