//! Errors of settings and of files, as the engine and the user get them.

use std::{
    io::{self, ErrorKind},
    path::Path,
};

use lockcore::{BackendError, BackendErrorKind};
use rustix::io::Errno;

use crate::{
    disk,
    file::{Written, temporary},
};

/// Reports that an operation on a file failed. Nothing was written, unless the caller says otherwise.
pub(crate) fn failed(what: &str, path: &Path, error: io::Error) -> BackendError {
    let kind = match (Errno::from_io_error(&error), error.kind()) {
        (Some(Errno::ACCESS), _) => BackendErrorKind::Denied,
        (_, ErrorKind::NotADirectory | ErrorKind::InvalidFilename) => BackendErrorKind::Misconfigured,
        (_, ErrorKind::InvalidData) | (Some(Errno::LOOP | Errno::ISDIR), _) => BackendErrorKind::Corrupt,
        (_, ErrorKind::TimedOut) => BackendErrorKind::Timeout,
        // Full, over quota, read-only, stale, not mounted, away: all may pass. `sshfs` says EPERM for each of them.
        _ => BackendErrorKind::Unavailable,
    };
    BackendError::new(kind, format!("{what} {}: {error}", path.display())).with_source(error)
}

/// Reports that the first link in a folder could not be made, which file systems without hard links say in several ways.
pub(crate) fn not_linked(written: &Written, path: &Path, error: io::Error) -> BackendError {
    let lacks_links = match Errno::from_io_error(&error) {
        Some(Errno::OPNOTSUPP | Errno::NOSYS) => true,
        // `sshfs` says so of a name that is taken, too.
        Some(Errno::PERM) => {
            let other = path.with_file_name(temporary());
            let again = disk::link(&written.path, &other);
            let _ = disk::remove(&other);
            again.is_err_and(|again| Errno::from_io_error(&again) == Some(Errno::PERM))
        }
        _ => false,
    };
    if lacks_links {
        let what = format!(
            "the file system has no hard links, which this backend needs: {}: {error}",
            path.display()
        );
        return BackendError::new(BackendErrorKind::Misconfigured, what).with_source(error);
    }
    // A server may do later what it did not answer.
    failed("linking", path, error).possibly_done()
}

pub(crate) fn timed_out(timeout: std::time::Duration) -> BackendError {
    BackendError::new(BackendErrorKind::Timeout, format!("the file system did not answer within {timeout:?}"))
}
