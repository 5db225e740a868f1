//! The faults, and where each can be caused.

use std::{fmt, str::FromStr};

use anyhow::bail;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A worker is killed (SIGKILL) and another one takes its place.
    Kill,
    /// A worker is stopped (SIGSTOP), often past its lease, and goes on.
    Stop,
    /// A lock is broken by administration.
    Break,
    /// An id is frozen for a while.
    Freeze,
    /// Connections are reset.
    Cut,
    /// A connection is reset after a few more messages.
    CutAfter,
    /// New connections are refused too.
    Refuse,
    /// What workers send does not arrive.
    LoseRequests,
    /// What the server answers does not arrive.
    LoseReplies,
    /// Everything is late.
    Delay,
    /// The open connections carry nothing any more, and are not closed.
    Silence,
    /// The server's processes are stopped for a while.
    Pause,
    /// The server is killed and started again, with what it had answered.
    Restart,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 13] = [
        Kind::Kill,
        Kind::Stop,
        Kind::Break,
        Kind::Freeze,
        Kind::Cut,
        Kind::CutAfter,
        Kind::Refuse,
        Kind::LoseRequests,
        Kind::LoseReplies,
        Kind::Delay,
        Kind::Silence,
        Kind::Pause,
        Kind::Restart,
    ];

    /// Returns whether there must be processes other than the driver.
    pub fn needs_processes(self) -> bool {
        matches!(self, Kind::Kill | Kind::Stop)
    }

    /// Returns whether there must be a server that the driver started.
    pub fn needs_server(self) -> bool {
        !self.needs_processes() && !matches!(self, Kind::Break | Kind::Freeze)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        f.write_str(&name)
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        match Self::ALL.into_iter().find(|kind| kind.to_string() == name) {
            Some(kind) => Ok(kind),
            None => bail!(
                "no such fault: {name}; there are {}",
                Self::ALL.map(|kind| kind.to_string()).join(", ")
            ),
        }
    }
}
