//! What the processes of a run record: one line for each stage of an operation.
//!
//! A line is one `write` of a few hundred bytes, so that all lines of a killed process are whole. The moments are read from
//! the clock that goes on during suspend, which all processes of a machine share.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use lockcore_judge::check::{self, Report};
pub use lockcore_judge::history::{Claim, Line, Mode, Outcome, Stage};
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// Elsewhere the monotonic clock is the best there is.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

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

/// Reads the moment, in nanoseconds since the start of the machine.
pub fn now() -> u64 {
    let time = clock_gettime(CLOCK);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Checks the histories in a folder.
///
/// # Errors
/// When they cannot be read.
pub fn check(folder: &Path) -> io::Result<Report> {
    let mut histories = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let failed = |error| io::Error::other(format!("{}: {error}", path.display()));
            histories.insert(name, read(&path).map_err(failed)?);
        }
    }
    Ok(check::check(&histories))
}

/// Reads the history of one process.
///
/// # Errors
/// When the file cannot be read, or a line is not of this form.
pub fn read(path: &Path) -> io::Result<Vec<Line>> {
    let file = BufReader::new(File::open(path)?);
    file.lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
