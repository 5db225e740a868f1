//! What a test process writes down for the process that started it, line by line into the file that [`FILE`] names:
//!
//! ```text
//! start TAB <test>
//! end TAB <milliseconds> TAB <test>
//! void TAB <test> TAB <reason>
//! failed TAB <test> TAB <reason>
//! ```

use std::{
    env,
    fmt::Display,
    fs::OpenOptions,
    io::Write,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// The environment variable with the path of the file. Where it is set, the process that set it repeats the void runs.
pub const FILE: &str = "LOCKCORE_TEST_JOURNAL";

static VOIDS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A test that runs; dropped when it ended.
pub(crate) struct Entry<'t> {
    test: &'t str,
    began: Instant,
}

impl<'t> Entry<'t> {
    pub(crate) fn new(test: &'t str) -> Self {
        write(&format!("start\t{test}\n"));
        Entry { test, began: Instant::now() }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        write(&format!("end\t{}\t{}\n", self.began.elapsed().as_millis(), self.test));
    }
}

/// A run was void. Returns whether another process repeats it.
pub(crate) fn void(test: &str, reason: impl Display) -> bool {
    let elsewhere = write(&format!("void\t{test}\t{}\n", in_a_line(&reason.to_string())));
    if !elsewhere {
        VOIDS.lock().unwrap_or_else(PoisonError::into_inner).push(test.to_owned());
    }
    elsewhere
}

/// A run failed.
#[cfg(feature = "servers")]
pub(crate) fn failed(test: &str, failure: &str) {
    write(&format!("failed\t{test}\t{}\n", in_a_line(failure)));
}

/// Returns the first line of a text that has one, as a word of a journal.
fn in_a_line(text: &str) -> String {
    let first = text.lines().find(|line| !line.trim().is_empty());
    first.unwrap_or("no reason").trim().replace('\t', " ")
}

/// The tests with void runs that this process has to repeat.
#[cfg(feature = "servers")]
pub(crate) fn voids_of_this_process() -> Vec<String> {
    std::mem::take(&mut *VOIDS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Appends a line, in one write; `false` where there is no file.
fn write(line: &str) -> bool {
    let Some(path) = env::var_os(FILE) else { return false };
    let file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the journal of the tests can be written");
    true
}
