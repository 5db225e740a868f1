//! The cells of a namespace as files, step by step. All of it blocks.

use std::{
    collections::BTreeSet,
    fs::DirBuilder,
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockcore::{BackendError, BackendErrorKind, backend::unique_name};
use lockcore_cell::{CellPage, Found};

use crate::{
    error::{failed, not_linked},
    file::{self, Version, Written, is_missing},
};

/// The file that is there as long as its cell is.
const ORIGIN: &str = "origin.cell";

/// The number of versions that are kept: a reader or a writer that is slower than as many writes of others begins again.
const KEPT: u64 = 8;

/// The most tries of a step that other processes outrun.
const TRIES: usize = 8;

/// The most cells of a page.
const PAGE: usize = 250;

/// The time after which files of a process that died are removed: longer than any request is on its way.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);

/// The folder of a namespace.
#[derive(Debug)]
pub(crate) struct Folder {
    /// The folder that the user has made.
    root: PathBuf,
    /// The device and the number that it had when it was opened.
    identity: (u64, u64),
    namespace: PathBuf,
    /// Its permissions, which all that is made in it gets.
    mode: u32,
}

impl Folder {
    /// Opens a folder that is there.
    pub(crate) fn open(root: PathBuf, namespace: &str) -> Result<Self, BackendError> {
        let seen = std::fs::metadata(&root).map_err(|error| match is_missing(&error) {
            true => BackendError::new(
                BackendErrorKind::Misconfigured,
                format!(
                    "there is no folder {}: make it, within the share that is mounted there",
                    root.display()
                ),
            ),
            false => failed("opening", &root, error),
        })?;
        if !seen.is_dir() {
            let what = format!("{} is not a folder", root.display());
            return Err(BackendError::new(BackendErrorKind::Misconfigured, what));
        }
        let identity = file::identity(&root).map_err(|error| failed("opening", &root, error))?;
        let namespace = root.join(namespace);
        Ok(Folder { root, identity, namespace, mode: seen.permissions().mode() })
    }

    /// Refuses another folder at the same path: the share was unmounted, or replaced.
    pub(crate) fn check(&self) -> Result<(), BackendError> {
        let is_same = file::identity(&self.root).map(|found| found == self.identity);
        let why = match is_same {
            Ok(true) => return Ok(()),
            Ok(false) => "is another folder than was opened: was it replaced, or its share mounted again?",
            Err(error) if is_missing(&error) => "is not there any more: was its share unmounted?",
            Err(error) => return Err(failed("opening", &self.root, error)),
        };
        Err(BackendError::new(BackendErrorKind::Unavailable, format!("{} {why}", self.root.display())))
    }

    /// Returns the time of the server, in seconds since 1970.
    pub(crate) fn time(&self) -> Result<u64, BackendError> {
        let path = self.namespace.join(temporary());
        self.made_in(&self.namespace, || Written::modified(path.clone(), self.file_mode()))
            .map_err(|error| failed("writing", &path, error))
    }

    /// Reads a cell, unless it is of the version that is known.
    pub(crate) fn read(&self, name: &str, known: Option<&Version>) -> Result<Found<Version>, BackendError> {
        let cell = self.cell(name);
        let mut known = known;
        for _ in 0..TRIES {
            match self.try_read(name, &cell, known) {
                Ok(Some(found)) => return Ok(found),
                // Not from there again: it may have been removed.
                Ok(None) => known = None,
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(failed("reading", &cell, error)),
            }
        }
        let what =
            format!("reading {}: other processes replaced it faster than it could be read", cell.display());
        Err(BackendError::new(BackendErrorKind::Busy, what))
    }

    /// Returns `None` if others wrote or removed meanwhile.
    fn try_read(
        &self,
        name: &str,
        cell: &Path,
        known: Option<&Version>,
    ) -> io::Result<Option<Found<Version>>> {
        // Each folder on the way, from the outermost: one that another host has made may not be known here.
        let mut folder = self.namespace.clone();
        for part in name.split('/') {
            if !file::refresh(&folder)? {
                return Ok(Some(Found::Absent));
            }
            folder.push(part);
        }
        if !file::refresh(cell)? {
            return Ok(Some(Found::Absent));
        }
        let Some(origin) = file::head(&cell.join(ORIGIN))? else { return Ok(Some(Found::Absent)) };
        let from = match known {
            Some(known) if known.life == origin.life => Some(known.number),
            _ => highest(cell, &origin.life)?,
        };
        let Some(mut number) = from else { return Ok(None) };
        let file_of = |number| cell.join(file::file_name(&origin.life, number));
        while file::head(&file_of(number + 1))?.is_some() {
            number += 1;
        }
        // After it has no successor (S3).
        if let Some(known) = known.filter(|known| known.number == number) {
            match file::head(&file_of(number))? {
                Some(found) if found == *known => return Ok(Some(Found::Unchanged)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
        Ok(file::load(&file_of(number))?.map(|(version, content)| Found::Changed(version, content.into())))
    }

    /// Replaces a cell, or creates it; returns `None` if the condition does not hold.
    pub(crate) fn replace(
        &self,
        name: &str,
        at: Option<&Version>,
        content: &[u8],
    ) -> Result<Option<Version>, BackendError> {
        let cell = self.cell(name);
        match at {
            None => self.create(&cell, content),
            Some(at) => self.succeed(&cell, at, content),
        }
    }

    fn create(&self, cell: &Path, content: &[u8]) -> Result<Option<Version>, BackendError> {
        let (version, origin) = (Version::first(), cell.join(ORIGIN));
        let is_there = file::head(&origin).map_err(|error| failed("reading", &origin, error))?;
        if is_there.is_some() {
            return Ok(None);
        }
        let path = cell.join(version.file_name());
        let write = || Written::new(path.clone(), &version, content, self.file_mode());
        let written = self.made_in(cell, write).map_err(|error| failed("writing", &path, error))?;
        if !written.link(&origin, &version).map_err(|error| not_linked(&origin, error))? {
            return Ok(None);
        }
        written.keep();
        Ok(Some(version))
    }

    fn succeed(&self, cell: &Path, at: &Version, content: &[u8]) -> Result<Option<Version>, BackendError> {
        // It cannot be the newest if it is not there. This saves the write; what counts is the second look.
        if !self.is_there(cell, at)? {
            return Ok(None);
        }
        self.link_after(cell, at, content)
    }

    /// Writes the version after another one, if that is the newest.
    fn link_after(&self, cell: &Path, at: &Version, content: &[u8]) -> Result<Option<Version>, BackendError> {
        let version = at.next();
        let path = cell.join(temporary());
        let written = match Written::new(path.clone(), &version, content, self.file_mode()) {
            Ok(written) => written,
            // The cell was removed.
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(failed("writing", &path, error)),
        };
        let name = cell.join(version.file_name());
        if !written.link(&name, &version).map_err(|error| failed("linking", &name, error).possibly_done())? {
            return Ok(None);
        }
        match self.is_there(cell, at) {
            Ok(true) => {}
            // Others wrote KEPT versions since, or the cell was removed, before the link or after it (S2). This version is not the
            // newest in either case.
            Ok(false) => {
                let _ = std::fs::remove_file(&name);
                let what = format!("writing {}: others replaced or removed it meanwhile", cell.display());
                return Err(BackendError::new(BackendErrorKind::Busy, what).possibly_done());
            }
            Err(error) => return Err(error.possibly_done()),
        }
        if let Some(oldest) = version.number.checked_sub(KEPT) {
            // A later write or a sweep removes it otherwise.
            let _ = remove_up_to(cell, &version.life, oldest);
        }
        Ok(Some(version))
    }

    /// Returns whether this version is still there, and the cell has still the same life.
    fn is_there(&self, cell: &Path, version: &Version) -> Result<bool, BackendError> {
        let head = |path: PathBuf| file::head(&path).map_err(|error| failed("reading", &path, error));
        let is_origin = head(cell.join(ORIGIN))?.is_some_and(|origin| origin.life == version.life);
        Ok(is_origin && head(cell.join(version.file_name()))?.as_ref() == Some(version))
    }

    /// Removes a cell. It is gone with its origin; the rest follows.
    pub(crate) fn remove(&self, name: &str) -> Result<(), BackendError> {
        let cell = self.cell(name);
        let origin = cell.join(ORIGIN);
        let removed = || {
            let Some(found) = file::head(&origin)? else { return Ok(()) };
            removed(&origin)?;
            let versions = versions(&cell)?;
            for (life, number) in versions.iter().filter(|(life, _)| *life == found.life) {
                removed(&cell.join(file::file_name(life, *number)))?;
            }
            // Not if another cell is in it, or was just created.
            let _ = std::fs::remove_dir(&cell);
            Ok(())
        };
        removed().map_err(|error| failed("removing", &origin, error))
    }

    /// Lists the cells of a folder, and removes what processes that died have left in it.
    pub(crate) fn list(&self, folder: &str, after: Option<&str>, now: u64) -> Result<CellPage, BackendError> {
        let path = self.cell(folder);
        let list = || {
            let before = now.saturating_sub(LEFT_BEHIND.as_secs());
            if after.is_none() {
                tidy(&self.namespace, before)?;
            }
            let mut cells = Vec::new();
            let names: BTreeSet<_> =
                entries(&path)?.into_iter().map(|name| format!("{folder}/{name}")).collect();
            for name in names.iter().filter(|name| after.is_none_or(|after| name.as_str() > after)) {
                if cells.len() > PAGE {
                    break;
                }
                let cell = self.cell(name);
                if !name.contains('.') && cell.is_dir() {
                    tidy(&cell, before)?;
                    cells.extend(written(&cell)?.map(|written| (name.clone(), written)));
                }
            }
            let more = cells.len() > PAGE;
            cells.truncate(PAGE);
            Ok(CellPage { cells, more })
        };
        list().map_err(|error| failed("listing", &path, error))
    }

    fn cell(&self, name: &str) -> PathBuf {
        self.namespace.join(name)
    }

    fn file_mode(&self) -> u32 {
        self.mode & 0o666
    }

    /// Writes a file in a folder, which is made with those on the way to it if it is not there.
    fn made_in<T>(&self, folder: &Path, write: impl Fn() -> io::Result<T>) -> io::Result<T> {
        for _ in 0..TRIES {
            match write() {
                Err(error) if is_missing(&error) => self.make(folder)?,
                done => return done,
            }
        }
        // Another process removes it each time.
        write()
    }

    fn make(&self, folder: &Path) -> io::Result<()> {
        if folder != self.namespace
            && let Some(outer) = folder.parent()
        {
            self.make(outer)?;
        }
        let mode = self.mode & 0o7777;
        match DirBuilder::new().mode(mode).create(folder) {
            Ok(()) => {
                // Whatever the umask is. A mount may decide permissions by itself.
                let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns a name as unlike any other, which is no cell's.
fn temporary() -> String {
    format!("{}.tmp", unique_name())
}

/// Returns the names in a folder; none if it is not there.
fn entries(folder: &Path) -> io::Result<Vec<String>> {
    let listed = match std::fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    // Names that are not ours need not be UTF-8.
    let names = listed.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

/// Returns the versions whose files are in a folder, by life and number.
fn versions(cell: &Path) -> io::Result<BTreeSet<(String, u64)>> {
    let names = entries(cell)?;
    Ok(names
        .iter()
        .filter_map(|name| file::parse_name(name))
        .map(|(life, number)| (life.to_owned(), number))
        .collect())
}

/// Returns the highest version of a life that is listed.
fn highest(cell: &Path, life: &str) -> io::Result<Option<u64>> {
    let versions = versions(cell)?;
    Ok(versions.iter().filter(|(of, _)| of == life).map(|(_, number)| *number).max())
}

/// Removes a version and all before it, in ascending order (S1).
fn remove_up_to(cell: &Path, life: &str, number: u64) -> io::Result<()> {
    let path = cell.join(file::file_name(life, number));
    if let Some(before) = number.checked_sub(1)
        && file::head(&cell.join(file::file_name(life, before)))?.is_some()
    {
        remove_up_to(cell, life, before)?;
    }
    removed(&path)
}

/// Removes a file, if it is there.
fn removed(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if !is_missing(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Returns when a cell was last written, in microseconds since 1970; `None` if there is none.
fn written(cell: &Path) -> io::Result<Option<u64>> {
    let origin = cell.join(ORIGIN);
    let Some(head) = file::head(&origin)? else { return Ok(None) };
    let newest = highest(cell, &head.life)?.map(|number| cell.join(file::file_name(&head.life, number)));
    // One that was replaced meanwhile is as old as its origin at most.
    let seen = newest.and_then(|newest| modified(&newest)).or_else(|| modified(&origin));
    Ok(seen.map(|seen| u64::try_from(seen.as_micros()).unwrap_or(u64::MAX)))
}

fn modified(path: &Path) -> Option<Duration> {
    let modified: SystemTime = std::fs::symlink_metadata(path).and_then(|seen| seen.modified()).ok()?;
    modified.duration_since(UNIX_EPOCH).ok()
}

/// Removes what was left in a folder before a time, in seconds since 1970: files under their first names, versions of cells that were
/// removed, and the folder itself if nothing is in it.
fn tidy(folder: &Path, before: u64) -> io::Result<()> {
    let is_old = |name: &str| modified(&folder.join(name)).is_some_and(|seen| seen.as_secs() < before);
    for name in entries(folder)?.iter().filter(|name| name.ends_with(".tmp") && is_old(name)) {
        removed(&folder.join(name))?;
    }
    let versions = versions(folder)?;
    let life = file::head(&folder.join(ORIGIN))?.map(|origin| origin.life);
    for (of, number) in versions.iter().filter(|(of, _)| Some(of) != life.as_ref()) {
        let name = file::file_name(of, *number);
        if is_old(&name) {
            removed(&folder.join(name))?;
        }
    }
    match life {
        None if versions.is_empty() => drop(std::fs::remove_dir(folder)),
        None => {}
        // A writer that died left one behind.
        Some(life) => {
            if let Some(oldest) = highest(folder, &life)?.and_then(|newest| newest.checked_sub(KEPT + 1)) {
                remove_up_to(folder, &life, oldest)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
