//! The failures of the database, and what they mean to a caller.

use std::{io, path::Path};

use lockcore::{BackendError, BackendErrorKind, backend::ProgramTooOld};
use rusqlite::ffi;

use super::file::{self, OtherName};

/// A failure of an operation. Classified by SQLite's result codes, never by message.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("{}", shown(.0))]
    Sqlite(#[from] rusqlite::Error),
    #[error("{0}")]
    File(#[source] io::Error),
    #[error(
        "it lies on a network file system ({0}), where SQLite excludes no other host: put it on a local one, or choose a \
         store that has a server"
    )]
    NetworkFile(&'static str),
    #[error("{0}")]
    OtherName(OtherName),
    #[error(
        "another program has it open and keeps its log (-wal, -shm) elsewhere: the log was removed, or the file has a second name; \
         end the programs that have it open"
    )]
    OtherLog(#[source] rusqlite::Error),
    #[error("another process kept the write lock for the whole busy timeout")]
    Busy(#[source] rusqlite::Error),
    #[error("commit failed: {}", shown(source))]
    Commit { source: rusqlite::Error, rolled_back: bool },
    #[error("the attempt was withdrawn before its request arrived")]
    Withdrawn,
    #[error("{key}: {value:?} is not possible, {expected}")]
    Setting { key: &'static str, value: String, expected: &'static str },
    #[error("the schema has version {found}, this program knows {known}: {advice}")]
    Schema { found: u32, known: u32, advice: &'static str },
    #[error(transparent)]
    TooOld(#[from] ProgramTooOld),
    #[error("the database is in journal mode {0:?} and could not be put into WAL")]
    JournalMode(String),
    #[error(
        "/proc is not mounted, so that this process cannot tell whether its clock and process numbers are those \
         of the other programs"
    )]
    NoClock,
    #[error("{0} holds what this program did not write")]
    Corrupt(&'static str),
    #[error("the file or its log (-wal, -shm) was removed or replaced while it was open")]
    Replaced,
    #[error("it was opened before this process was forked: open it again after the fork")]
    Forked,
    #[error("a step panicked")]
    Panicked,
    #[error("the thread that serves the database could not be started")]
    NoThread(#[source] io::Error),
    #[error("the thread that serves the database has ended")]
    ThreadGone { sent: bool },
}

impl StoreError {
    /// For the caller: with the path of the database, and the system's reason where SQLite has not given it.
    pub(super) fn at(self, path: &Path) -> BackendError {
        if let StoreError::File(error) = &self
            && error.kind() == io::ErrorKind::NotFound
            && let Some(folder) = file::missing_folder(path)
        {
            let message =
                format!("sqlite: {}: the folder {} does not exist", path.display(), folder.display());
            return BackendError::new(self.kind(), message);
        }
        let mut message = format!("sqlite: {}: {self}", path.display());
        if let StoreError::Sqlite(error) = &self
            && let Some(ffi::SQLITE_CANTOPEN | ffi::SQLITE_READONLY | ffi::SQLITE_PERM) = primary_code(error)
            && let Some(reason) = file::why_unusable(path)
        {
            message += &format!(": {reason}");
        }
        self.into_backend_error(message)
    }

    fn into_backend_error(self, message: String) -> BackendError {
        let error = BackendError::new(self.kind(), message);
        let error = if self.in_doubt() { error.possibly_done() } else { error };
        error.with_source(self)
    }

    /// Returns whether the same may work later.
    pub(super) fn may_pass(&self) -> bool {
        self.kind().is_retryable()
    }

    pub(super) fn kind(&self) -> BackendErrorKind {
        match self {
            StoreError::Sqlite(error) | StoreError::Commit { source: error, .. } => kind_of(error),
            StoreError::Busy(_) | StoreError::OtherLog(_) => BackendErrorKind::Busy,
            StoreError::Withdrawn => BackendErrorKind::Withdrawn,
            StoreError::Setting { .. } => BackendErrorKind::BadSetting,
            StoreError::File(error) => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BackendErrorKind::Unavailable,
                _ => BackendErrorKind::Misconfigured,
            },
            StoreError::NetworkFile(_)
            | StoreError::OtherName(_)
            | StoreError::Schema { .. }
            | StoreError::TooOld(_)
            | StoreError::JournalMode(_)
            | StoreError::NoClock => BackendErrorKind::Misconfigured,
            StoreError::Corrupt(_) => BackendErrorKind::Corrupt,
            StoreError::Replaced | StoreError::NoThread(_) | StoreError::ThreadGone { .. } => {
                BackendErrorKind::Unavailable
            }
            StoreError::Forked | StoreError::Panicked => BackendErrorKind::Other,
        }
    }

    fn in_doubt(&self) -> bool {
        match self {
            StoreError::Commit { rolled_back, .. } => !rolled_back,
            StoreError::ThreadGone { sent } => *sent,
            // It may have been after the commit.
            StoreError::Panicked => true,
            _ => false,
        }
    }
}

impl From<StoreError> for BackendError {
    fn from(error: StoreError) -> Self {
        let message = format!("sqlite: {error}");
        error.into_backend_error(message)
    }
}

/// Returns what SQLite says; of a failing device with its code, which names the operation.
fn shown(error: &rusqlite::Error) -> String {
    match error.sqlite_error() {
        Some(code) if is_io(error) => format!("{error} (SQLite's code {})", code.extended_code),
        _ => error.to_string(),
    }
}

/// Returns whether this is SQLite saying that another connection is in the way.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(primary_code(error), Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED))
}

/// Returns whether the device failed, so that not even a roll-back tells what is on it.
pub(super) fn is_io(error: &rusqlite::Error) -> bool {
    primary_code(error) == Some(ffi::SQLITE_IOERR)
}

fn primary_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code & 0xff)
}

fn kind_of(error: &rusqlite::Error) -> BackendErrorKind {
    match primary_code(error) {
        Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL) => BackendErrorKind::Busy,
        Some(ffi::SQLITE_FULL | ffi::SQLITE_IOERR | ffi::SQLITE_NOMEM) => BackendErrorKind::Unavailable,
        Some(ffi::SQLITE_PERM | ffi::SQLITE_AUTH) => BackendErrorKind::Denied,
        Some(ffi::SQLITE_READONLY | ffi::SQLITE_CANTOPEN | ffi::SQLITE_NOTADB | ffi::SQLITE_SCHEMA) => {
            BackendErrorKind::Misconfigured
        }
        Some(ffi::SQLITE_CORRUPT | ffi::SQLITE_CONSTRAINT | ffi::SQLITE_MISMATCH) => {
            BackendErrorKind::Corrupt
        }
        Some(_) => BackendErrorKind::Other,
        // An error that rusqlite finds by itself: a column that is not of the type that we wrote.
        None => BackendErrorKind::Corrupt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: i32) -> BackendError {
        StoreError::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).into()
    }

    #[test]
    fn failures_have_exit_codes_of_their_own() {
        assert_eq!(failure(ffi::SQLITE_BUSY).kind(), BackendErrorKind::Busy);
        assert_eq!(failure(ffi::SQLITE_BUSY_SNAPSHOT).kind(), BackendErrorKind::Busy);
        assert_eq!(failure(ffi::SQLITE_READONLY_DIRECTORY).kind(), BackendErrorKind::Misconfigured);
        assert_eq!(failure(ffi::SQLITE_IOERR_FSYNC).kind(), BackendErrorKind::Unavailable);
        assert_eq!(failure(ffi::SQLITE_FULL).kind(), BackendErrorKind::Unavailable);
        assert_eq!(failure(ffi::SQLITE_PERM).kind(), BackendErrorKind::Denied);
        assert!(!failure(ffi::SQLITE_FULL).in_doubt());
    }

    #[test]
    fn only_a_commit_that_was_not_rolled_back_is_in_doubt() {
        let commit = |rolled_back| {
            let source = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR), None);
            BackendError::from(StoreError::Commit { source, rolled_back })
        };
        assert!(commit(false).in_doubt());
        assert!(!commit(true).in_doubt());
    }
}
