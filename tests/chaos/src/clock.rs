//! The wall clock of a process, set by libfaketime: a library that is loaded before others and answers for the system's
//! clock. The monotonic clocks stay as they are.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// How far a clock is set at most, in seconds.
pub const FURTHEST: i64 = 7200;

/// A process notices within this time that its clock was set.
pub const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// Returns the library, if this machine has it.
pub fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1")).find(|file| file.exists())
}

/// Returns the environment of a process whose clock is set by `file`; nothing without the library.
pub fn environment(file: &Path) -> Vec<(&'static str, String)> {
    let Some(library) = library() else { return Vec::new() };
    vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_CACHE_DURATION", SEEN_WITHIN.as_secs().to_string()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// Sets the clocks that go by `file` so many seconds ahead of the machine's.
///
/// # Errors
/// When the file cannot be written.
pub fn set(file: &Path, ahead: i64) -> io::Result<()> {
    // Replaced in one step: a process may read it at any time.
    let new = file.with_extension("new");
    fs::write(&new, format!("{ahead:+}s\n"))?;
    fs::rename(new, file)
}
