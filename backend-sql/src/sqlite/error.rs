//! What goes wrong with the database, and what that means to a caller.

use lockcore::{BackendError, BackendErrorKind};
use rusqlite::ffi;

/// A failure on the database's thread. Classified by SQLite's result codes, never by message.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("sqlite: {0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("sqlite: another process kept the write lock for the whole busy timeout")]
    Busy(#[source] rusqlite::Error),
    #[error("sqlite: commit failed: {source}")]
    Commit { source: rusqlite::Error, rolled_back: bool },
    #[error("sqlite: the attempt was withdrawn before its request arrived")]
    Withdrawn,
    #[error("sqlite: {key}: {value:?} is not possible, {expected}")]
    Setting { key: &'static str, value: String, expected: &'static str },
    #[error("sqlite: the schema has version {found}, this program knows {known}: {advice}")]
    Schema { found: i64, known: i64, advice: &'static str },
    #[error("sqlite: the database is in journal mode {0:?} and could not be put into WAL")]
    JournalMode(String),
    #[error(
        "sqlite: /proc is not mounted, so that this process cannot tell whether its clock and process numbers are those \
         of the other programs"
    )]
    NoClock,
    #[error("sqlite: {0} holds what this program did not write")]
    Corrupt(&'static str),
    #[error("sqlite: the file was removed or replaced while it was open")]
    Replaced,
    #[error("sqlite: a step panicked")]
    Panicked,
    #[error("sqlite: the thread that serves the database could not be started")]
    NoThread(#[source] std::io::Error),
    #[error("sqlite: the thread that serves the database has ended")]
    ThreadGone { sent: bool },
}

impl StoreError {
    fn kind(&self) -> BackendErrorKind {
        match self {
            StoreError::Sqlite(error) | StoreError::Commit { source: error, .. } => kind_of(error),
            StoreError::Busy(_) => BackendErrorKind::Busy,
            StoreError::Withdrawn => BackendErrorKind::Withdrawn,
            StoreError::Setting { .. } => BackendErrorKind::BadSetting,
            StoreError::Schema { .. } | StoreError::JournalMode(_) | StoreError::NoClock => {
                BackendErrorKind::Misconfigured
            }
            StoreError::Corrupt(_) => BackendErrorKind::Corrupt,
            StoreError::Replaced | StoreError::NoThread(_) | StoreError::ThreadGone { .. } => {
                BackendErrorKind::Unavailable
            }
            StoreError::Panicked => BackendErrorKind::Other,
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
        let backend = BackendError::new(error.kind(), error.to_string());
        let backend = if error.in_doubt() { backend.possibly_done() } else { backend };
        backend.with_source(error)
    }
}

/// Whether this is SQLite saying that another connection is in the way.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(primary_code(error), Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED))
}

/// Whether the device failed, so that not even a roll-back tells what is on it.
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
        // What rusqlite finds by itself: a column that is not of the type that we wrote.
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
    fn failures_are_told_apart_by_code() {
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
