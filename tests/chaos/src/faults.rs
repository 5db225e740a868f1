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
    /// A proxy sends each write twice.
    Double,
    /// The server's processes are stopped for a while, or one of two mounts, or of three members.
    Pause,
    /// The server, or one of three members, is killed and started again, with what it had answered.
    Restart,
    /// The wall clock of a worker is set to another time, up to two hours away.
    StepClock,
    /// Connections are reset, and all that the server allows are taken by others for a while.
    Exhaust,
    /// The master, primary or leader stops answering, and another takes its place.
    Failover,
    /// The slots of one node of a cluster move to another.
    Reshard,
    /// The disk of the server is full for a while.
    FillDisk,
    /// The server is killed and starts again without data.
    Forget,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 20] = [
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
        Kind::Double,
        Kind::Pause,
        Kind::Restart,
        Kind::StepClock,
        Kind::Exhaust,
        Kind::Failover,
        Kind::Reshard,
        Kind::FillDisk,
        Kind::Forget,
    ];

    /// Returns those that are caused unless others are asked for by name.
    pub fn usual() -> Vec<Kind> {
        Self::ALL.into_iter().filter(|kind| !kind.is_special()).collect()
    }

    /// Returns whether it is caused only where it is asked for by name: it needs a server of another set-up, or grants may be
    /// lost by it.
    fn is_special(self) -> bool {
        matches!(self, Kind::FillDisk | Kind::Forget)
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
