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

pub use lockcore_judge::history::{Claim, Line, Mode, Outcome, Stage};
use nix::time::{ClockId, clock_gettime};

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
