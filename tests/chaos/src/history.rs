//! What the processes of a run record: one line for each stage of an operation.
//!
//! A line is one `write` of a few hundred bytes, so that all lines of a killed process are whole. The moments are read from
//! the clock that goes on during suspend, which all processes of a machine share.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// One recorded stage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The moment, in nanoseconds since the machine started.
    pub at: u64,
    /// The operation, a number of its process; 0 for what concerns the process itself.
    pub op: u64,
    /// What happened.
    #[serde(flatten)]
    pub stage: Stage,
}

/// The stages of an operation, in order. A killed process leaves a beginning of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum Stage {
    /// The set was requested.
    Asked {
        /// The set.
        claims: Vec<Claim>,
        /// By a holder of other locks, which passes the queue.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        nested: bool,
    },
    /// The request was seen in the queue of the store.
    Queued,
    /// The callback began, and the locks were still held after the moment of this line was read.
    Entered {
        /// The fences, in the order of the claims.
        fences: Vec<u64>,
    },
    /// The locks were still held after the moment of this line was read.
    Inside,
    /// A guarded write.
    Wrote {
        /// The id.
        id: String,
        /// The fence of the write.
        fence: u64,
        /// The guard of the resource admitted it.
        admitted: bool,
    },
    /// The callback ended.
    Left,
    /// The call returned, or was dropped.
    Ended {
        /// With what.
        outcome: Outcome,
    },
    /// The process ended all of its operations.
    Finished,
    /// A fault began, as the driver caused it.
    Fault {
        /// Its kind.
        kind: String,
        /// How long it lasted, in milliseconds.
        millis: u64,
        /// The process that was disturbed; `None` for the store or the line to it.
        worker: Option<String>,
        /// The store may have forgotten or ended grants.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        loses_grants: bool,
    },
}

/// One id of a set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// The id.
    pub id: String,
    /// How it was claimed.
    pub mode: Mode,
}

/// A mode of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Excludes all others.
    Exclusive,
    /// Excludes all but shared ones.
    Shared,
    /// Permits of a limit.
    Slots {
        /// How many were claimed.
        permits: u32,
        /// How many may be held at once, as this claim saw it.
        limit: u32,
    },
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The callback's value was returned: nothing was lost.
    Done,
    /// The set was not locked, because of other holders.
    Refused,
    /// The set was not locked, because the store failed.
    Failed,
    /// Locks were lost.
    Lost,
    /// The call was dropped.
    Cancelled,
    /// The call returned a mistake of the caller, which no worker makes.
    Mistaken,
    /// The call panicked.
    Panicked,
}

/// The history of one process, in a file that outlives the process.
#[derive(Debug)]
pub struct Recorder {
    file: Mutex<File>,
    next: AtomicU64,
}

impl Recorder {
    /// Creates the file.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Recorder { file: Mutex::new(file), next: AtomicU64::new(1) })
    }

    /// Returns a number for an operation.
    pub fn next_op(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Records what happens now.
    ///
    /// # Panics
    /// If the file cannot be written: a history with holes proves nothing.
    pub fn now(&self, op: u64, stage: Stage) {
        self.at(now(), op, stage);
    }

    /// Records what happened at a moment.
    ///
    /// # Panics
    /// As [`now`](Self::now).
    pub fn at(&self, at: u64, op: u64, stage: Stage) {
        let mut line = serde_json::to_vec(&Line { at, op, stage }).expect("plain data has a form in JSON");
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).expect("the history can be written");
    }
}

/// Reads the moment.
///
/// # Panics
/// Where the system has no such clock.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
    u64::try_from(time.tv_sec() * 1_000_000_000 + time.tv_nsec())
        .expect("it counts from the start of the machine")
}

/// Reads the history of one process.
///
/// # Errors
/// When the file cannot be read, or a line is not of this form.
pub fn read(path: &Path) -> io::Result<Vec<Line>> {
    let file = BufReader::new(File::open(path)?);
    file.lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
