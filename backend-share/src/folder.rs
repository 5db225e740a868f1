//! The cells of a namespace as files, step by step. All of it blocks. The front page of the crate has the rules S1 to S4.

use std::{
    collections::BTreeSet,
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lockcore::{BackendError, BackendErrorKind};
use lockcore_cell::{CellPage, Found};
use rustix::io::Errno;

use crate::{
    disk::{self, Access},
    error::{failed, not_linked},
    file::{self, Version, Written, temporary},
    kind::{self, Kind},
};

/// The file that is there as long as its cell is.
const ORIGIN: &str = "origin.cell";

/// The file that tells a folder of a namespace from others at the same path.
const IDENTITY: &str = "identity.cell";

/// The least number of versions that are kept: a step that is slower than as many writes of others begins again. Twice as many are removed
/// at a time.
const KEPT: u64 = 8;

/// The most tries of a step that other processes outrun.
const TRIES: usize = 8;

/// One in so many reads that find nothing new looks past all caches.
pub(crate) const POLLS: u64 = 8;

/// The most cells of a page.
const PAGE: usize = 250;

/// The time after which files of a process that died are removed: longer than any request is on its way.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);

/// The bits of a folder's mode that what is made in it gets: not the sticky one, by which a process could not remove the files of others.
const OF_FOLDERS: u32 = 0o2777;

/// The folder of a namespace.
#[derive(Debug)]
pub(crate) struct Folder {
    namespace: PathBuf,
    /// The version in the file that identifies it.
    identity: Version,
    access: Access,
    /// The kind of its file system.
    pub(crate) kind: Kind,
    /// The number of reads so far that found nothing new.
    polls: AtomicU64,
}

impl Folder {
    /// Opens the namespace of a folder that is there.
    pub(crate) fn open(root: &Path, namespace: &str) -> Result<Self, BackendError> {
        let seen = std::fs::metadata(root).map_err(|error| match error.kind() {
            ErrorKind::NotFound => BackendError::new(
                BackendErrorKind::Misconfigured,
                format!(
                    "there is no folder {}: make it, within the share that is mounted there",
                    root.display()
                ),
            ),
            _ => failed("opening", root, error),
        })?;
        if !seen.is_dir() {
            let what = format!("{} is not a folder", root.display());
            return Err(BackendError::new(BackendErrorKind::Misconfigured, what));
        }
        let mut folder = Folder {
            namespace: root.join(namespace),
            identity: Version::first(),
            access: Access { mode: seen.mode() & OF_FOLDERS, group: seen.gid() },
            kind: kind::of(root),
            polls: AtomicU64::new(1),
        };
        folder.make(&folder.namespace, root).map_err(|error| failed("making", &folder.namespace, error))?;
        folder.identity = folder.identify()?;
        Ok(folder)
    }

    /// Opens the namespace in a simulated share.
    #[cfg(test)]
    pub(crate) fn simulated(root: &Path) -> Result<Self, BackendError> {
        let access = Access { mode: 0o700, group: 0 };
        let namespace = root.join("n");
        let mut folder = Folder {
            namespace,
            identity: Version::first(),
            access,
            kind: kind::UNKNOWN,
            polls: AtomicU64::new(1),
        };
        folder.make(&folder.namespace, root).map_err(|error| failed("making", &folder.namespace, error))?;
        folder.identity = folder.identify()?;
        Ok(folder)
    }

    /// Reads what identifies the folder; writes it if nothing does.
    fn identify(&self) -> Result<Version, BackendError> {
        let path = self.namespace.join(IDENTITY);
        for _ in 0..TRIES {
            if let Some(found) = file::head(&path).map_err(|error| failed("reading", &path, error))? {
                return Ok(found);
            }
            let version = Version::first();
            let written = Written::new(self.namespace.join(temporary()), &version, &[], self.access);
            let written = written.map_err(|error| failed("writing", &path, error))?;
            let linked = written.link(&path, &version);
            linked.map_err(|error| not_linked(&written, &path, error))?;
        }
        Err(BackendError::new(BackendErrorKind::Busy, format!("{} cannot be read again", path.display())))
    }

    /// Refuses another folder at the same path: the share was unmounted, or the folder replaced.
    pub(crate) fn check(&self) -> Result<(), BackendError> {
        let path = self.namespace.join(IDENTITY);
        let why = match file::head(&path) {
            Ok(Some(found)) if found == self.identity => return Ok(()),
            Ok(Some(_)) => "is another one than was opened: was it replaced?",
            Ok(None) => "is not there any more: was its share unmounted?",
            Err(error) => return Err(failed("reading", &path, error)),
        };
        let what = format!("the folder {} {why}", self.namespace.display());
        Err(BackendError::new(BackendErrorKind::Unavailable, what))
    }

    /// Returns the time of the server, in seconds since 1970.
    pub(crate) fn time(&self) -> Result<u64, BackendError> {
        let path = self.namespace.join(temporary());
        let modified = || {
            let _written = Written::new(path.clone(), &Version::first(), &[], self.access)?;
            disk::refresh(&path)?.ok_or_else(|| ErrorKind::NotFound.into())
        };
        let modified = modified().map_err(|error| failed("writing", &path, error))?;
        self.check()?;
        Ok(u64::try_from(modified).unwrap_or(0))
    }

    /// Reads a cell, unless it is of the version that is known.
    pub(crate) fn read(&self, name: &str, known: Option<&Version>) -> Result<Found<Version>, BackendError> {
        let cell = self.namespace.join(name);
        let (mut known, mut is_sure) = (known, false);
        for _ in 0..TRIES {
            match self.try_read(&cell, known) {
                // Looked for again, past all caches, in the folder that was opened (S4).
                Ok(Some(Found::Absent)) if !is_sure => {
                    is_sure = true;
                    self.disturb(&cell).map_err(|error| failed("reading", &cell, error))?;
                    std::thread::sleep(self.kind.absence);
                }
                // A client may miss a change within one tick of the server's clock, for as long as nothing else changes in the folder.
                Ok(Some(Found::Unchanged))
                    if !is_sure && self.polls.fetch_add(1, Relaxed).is_multiple_of(POLLS) =>
                {
                    is_sure = true;
                    self.disturb(&cell).map_err(|error| failed("reading", &cell, error))?;
                }
                Ok(Some(Found::Absent)) => return self.check().map(|()| Found::Absent),
                Ok(Some(found)) => return Ok(found),
                // Not from there again: it may have been removed.
                Ok(None) => known = None,
                Err(error) => return Err(failed("reading", &cell, error)),
            }
        }
        let has_versions = versions(&cell).map_or(true, |versions| !versions.is_empty());
        let why = match has_versions {
            true => "others replaced it faster than it could be read",
            // Another process may remove it just now.
            false => "its versions are gone: if that lasts, remove this cell's folder",
        };
        let what = format!("reading {}: {why}", cell.display());
        Err(BackendError::new(BackendErrorKind::Busy, what))
    }

    /// Returns `None` if others wrote or removed meanwhile.
    fn try_read(&self, cell: &Path, known: Option<&Version>) -> io::Result<Option<Found<Version>>> {
        let Some(life) = self.life(cell)? else { return Ok(Some(Found::Absent)) };
        let from = match known.filter(|known| known.life == life) {
            Some(known) => Some(known.number),
            None => {
                self.disturb(cell)?;
                highest(cell, &life)?
            }
        };
        let Some(mut number) = from else { return Ok(None) };
        let file_of = |number| cell.join(file::file_name(&life, number));
        while file::head(&file_of(number + 1))?.is_some() {
            number += 1;
        }
        // After it has no successor (S3).
        if let Some(known) = known.filter(|known| known.life == life && known.number == number)
            && file::head(&file_of(number))?.as_ref() == Some(known)
        {
            return Ok(Some(Found::Unchanged));
        }
        let Some((version, content)) = file::load(&file_of(number))? else { return Ok(None) };
        if let Some(before) = number.checked_sub(1) {
            // One that came late follows a version that is not there.
            let before = file::head(&file_of(before))?;
            if !before.is_some_and(|before| version.follows(&before)) {
                return Ok(None);
            }
        }
        Ok(Some(Found::Changed(version, content.into())))
    }

    /// Returns the name of a cell's life; `None` if there is no cell.
    fn life(&self, cell: &Path) -> io::Result<Option<String>> {
        // Each folder on the way, from the outermost: one that another host has made may not be known here.
        let mut folders: Vec<&Path> =
            cell.ancestors().take_while(|folder| **folder != *self.namespace).collect();
        folders.push(&self.namespace);
        for folder in folders.into_iter().rev() {
            if disk::refresh(folder)?.is_none() {
                return Ok(None);
            }
        }
        Ok(file::head(&cell.join(ORIGIN))?.map(|origin| origin.life))
    }

    /// Makes the client forget what it knows of the names in a folder, or in the first around it that is there: by a file that is made and
    /// removed there.
    fn disturb(&self, folder: &Path) -> io::Result<()> {
        if self.kind.is_local {
            return Ok(());
        }
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(&self.namespace)) {
            let path = folder.join(temporary());
            match disk::touch(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                made => {
                    made?;
                    return disk::remove(&path);
                }
            }
        }
        Err(ErrorKind::NotFound.into())
    }

    /// Replaces a cell, or creates it; returns `None` if the condition does not hold.
    pub(crate) fn replace(
        &self,
        name: &str,
        at: Option<&Version>,
        content: &[u8],
    ) -> Result<Option<Version>, BackendError> {
        let cell = self.namespace.join(name);
        let Some(at) = at else { return self.create(&cell, content) };
        // It cannot be the newest if it is not there. This saves the write; what counts is the second look.
        if !self.is_there(&cell, at)? {
            return Ok(None);
        }
        self.link_after(&cell, at, content)
    }

    fn create(&self, cell: &Path, content: &[u8]) -> Result<Option<Version>, BackendError> {
        let (version, origin) = (Version::first(), cell.join(ORIGIN));
        let is_there = file::head(&origin).map_err(|error| failed("reading", &origin, error))?;
        if is_there.is_some() {
            return Ok(None);
        }
        self.check()?;
        let path = cell.join(version.file_name());
        let write = || Written::new(path.clone(), &version, content, self.access);
        let written = self.made_in(cell, write).map_err(|error| failed("writing", &path, error))?;
        match written.link(&origin, &version) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                // The origin may be there, and is nothing without it.
                written.keep();
                return Err(failed("linking", &origin, error).possibly_done());
            }
        }
        written.keep();
        if !self.is_there(cell, &version).map_err(BackendError::possibly_done)? {
            // It took so long that it was removed as left behind.
            let what = format!("writing {}: it was removed meanwhile", cell.display());
            return Err(BackendError::new(BackendErrorKind::Busy, what).possibly_done());
        }
        disk::sync(cell);
        Ok(Some(version))
    }

    /// Writes the version after another one, if that is the newest.
    fn link_after(&self, cell: &Path, at: &Version, content: &[u8]) -> Result<Option<Version>, BackendError> {
        let (version, path) = (at.next(), cell.join(temporary()));
        let written = match Written::new(path.clone(), &version, content, self.access) {
            Ok(written) => written,
            // The cell was removed.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("writing", &path, error)),
        };
        let name = cell.join(version.file_name());
        let linked = written.link(&name, &version);
        if !linked.map_err(|error| failed("linking", &name, error).possibly_done())? {
            return Ok(None);
        }
        if !self.is_there(cell, at).map_err(BackendError::possibly_done)? {
            // Others wrote KEPT versions since, or the cell was removed, before the link or after it (S2). What came late is read by none
            // (S3), and removed with those of its number.
            let what = format!("writing {}: others replaced or removed it meanwhile", cell.display());
            return Err(BackendError::new(BackendErrorKind::Busy, what).possibly_done());
        }
        disk::sync(cell);
        if version.number.is_multiple_of(KEPT) {
            // A later write or a sweep removes them otherwise.
            let _ = remove_old(cell, &version.life, version.number);
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
        let cell = self.namespace.join(name);
        let origin = cell.join(ORIGIN);
        let Some(found) = file::head(&origin).map_err(|error| failed("reading", &origin, error))? else {
            return Ok(());
        };
        disk::remove(&origin).map_err(|error| failed("removing", &origin, error).possibly_done())?;
        // A sweep removes them otherwise.
        let _ = remove_versions(&cell, |life, _| *life == *found.life);
        // Not if another cell is in it, or was just created.
        let _ = disk::remove_folder(&cell);
        Ok(())
    }

    /// Lists the cells of a folder, until a deadline at most, and removes what processes that died have left: of before a time, in seconds
    /// since 1970.
    pub(crate) fn list(
        &self,
        folder: &str,
        after: Option<&str>,
        now: u64,
        deadline: Instant,
    ) -> Result<CellPage, BackendError> {
        let before = UNIX_EPOCH + Duration::from_secs(now).saturating_sub(LEFT_BEHIND);
        let path = self.namespace.join(folder);
        let all = || {
            let mut names = BTreeSet::new();
            for entry in disk::names(&path)?.into_iter().filter(|name| is_cell(name)) {
                names.insert(format!("{folder}/{entry}"));
            }
            let mut cells: Vec<(String, u64)> = Vec::new();
            for name in names.into_iter().filter(|name| after.is_none_or(|after| name.as_str() > after)) {
                if cells.len() > PAGE || (!cells.is_empty() && Instant::now() > deadline) {
                    return Ok(CellPage { more: true, cells: cells.into_iter().take(PAGE).collect() });
                }
                let cell = self.namespace.join(&name);
                self.tidy(&cell, before);
                cells.extend(written(&cell)?.map(|written| (name, written)));
            }
            let more = cells.len() > PAGE;
            cells.truncate(PAGE);
            Ok(CellPage { cells, more })
        };
        if after.is_none() {
            // The folder of the namespace, and the cells that are in no other folder.
            self.tidy(&self.namespace, before);
            for name in disk::names(&self.namespace).unwrap_or_default().iter().filter(|name| is_cell(name)) {
                self.tidy(&self.namespace.join(name), before);
            }
        }
        all().map_err(|error| failed("listing", &path, error))
    }

    /// Removes what was left in a folder before a time: files under their first names, versions that are over, and the folder itself if
    /// nothing is in it. What cannot be removed is left for the next time.
    fn tidy(&self, folder: &Path, before: SystemTime) {
        let tidied = || {
            let names = disk::names(folder)?;
            let is_old =
                |name: &str| disk::modified(&folder.join(name)).is_some_and(|modified| modified < before);
            for name in names.iter().filter(|name| file::is_temporary(name)) {
                let path = folder.join(name);
                if is_old(name) {
                    disk::remove(&path)?;
                } else if disk::modified_folder(&path).is_some_and(|modified| modified < before) {
                    // One that was not renamed; something in it is not ours.
                    let _ = disk::remove_folder(&path);
                }
            }
            let is_over = |life: &Option<String>, of: &str, number: u64| {
                life.as_deref() != Some(of) && is_old(&file::file_name(of, number))
            };
            let mut life = self.life(folder)?;
            let versions = versions(folder)?;
            if life.is_none() && versions.iter().any(|(of, number)| is_over(&life, of, *number)) {
                // As a read does (S4).
                self.disturb(folder)?;
                std::thread::sleep(self.kind.absence);
                life = self.life(folder)?;
                self.check().map_err(io::Error::other)?;
            }
            remove_versions(folder, |of, number| is_over(&life, of, number))?;
            match life {
                Some(life) => {
                    highest(folder, &life)?.map_or(Ok(()), |newest| remove_old(folder, &life, newest))
                }
                // Fails if something is in it.
                None => disk::remove_folder(folder),
            }
        };
        let _: io::Result<()> = tidied();
    }

    /// Writes a file in a folder, which is made with those on the way to it if it is not there.
    fn made_in<T>(&self, folder: &Path, write: impl Fn() -> io::Result<T>) -> io::Result<T> {
        for _ in 0..TRIES {
            match write() {
                Err(error) if error.kind() == ErrorKind::NotFound => self.make(folder, &self.namespace)?,
                done => return done,
            }
        }
        // Another process removes it each time.
        write()
    }

    /// Makes a folder within `outermost`, which has to be there, with those on the way.
    fn make(&self, folder: &Path, outermost: &Path) -> io::Result<()> {
        if folder == outermost || disk::is_folder(folder) {
            return Ok(());
        }
        let outer = folder.parent().ok_or(ErrorKind::NotFound)?;
        self.make(outer, outermost)?;
        // Under another name, until it has its permissions: none is ever shut out.
        let made = outer.join(temporary());
        disk::make_folder(&made, self.access)?;
        let named = disk::rename_folder(&made, folder);
        if named.is_err() {
            let _ = disk::remove_folder(&made);
        }
        match named {
            // Another process was faster.
            Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty) => {
                Ok(())
            }
            Err(error) if !disk::is_folder(folder) => Err(error),
            _ => {
                disk::sync(outer);
                Ok(())
            }
        }
    }
}

/// Returns whether a file has the name of a cell.
fn is_cell(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the versions whose files are in a folder, by life and number.
fn versions(cell: &Path) -> io::Result<BTreeSet<(String, u64)>> {
    Ok(disk::names(cell)?.iter().filter_map(|name| file::parse_name(name)).collect())
}

/// Returns the highest version of a life that is listed.
fn highest(cell: &Path, life: &str) -> io::Result<Option<u64>> {
    let versions = versions(cell)?;
    Ok(versions.iter().filter(|(of, _)| of == life).map(|(_, number)| *number).max())
}

/// Removes the versions of a life that are older than those kept.
fn remove_old(cell: &Path, life: &str, newest: u64) -> io::Result<()> {
    let Some(last) = newest.checked_sub(KEPT) else { return Ok(()) };
    // A list that was cached may lack the first.
    let first =
        versions(cell)?.into_iter().find(|(of, _)| of == life).and_then(|(_, first)| first.checked_sub(1));
    if let Some(before) = first
        && file::head(&cell.join(file::file_name(life, before)))?.is_some()
    {
        return Ok(());
    }
    remove_versions(cell, |of, number| *of == *life && number <= last)
}

/// Removes versions in ascending order; ends with the first that cannot be removed (S1).
fn remove_versions(cell: &Path, is_over: impl Fn(&str, u64) -> bool) -> io::Result<()> {
    for (life, number) in versions(cell)?.iter().filter(|(life, number)| is_over(life, *number)) {
        disk::remove(&cell.join(file::file_name(life, *number)))?;
    }
    Ok(())
}

/// Returns when a cell was last written, in microseconds since 1970; `None` if there is none, or it is just written, or not ours.
fn written(cell: &Path) -> io::Result<Option<u64>> {
    use ErrorKind::{InvalidData, NotADirectory, PermissionDenied};
    let is_of_others = |error: &io::Error| {
        matches!(error.kind(), InvalidData | NotADirectory | PermissionDenied)
            || Errno::from_io_error(error) == Some(Errno::LOOP)
    };
    let origin = match file::head(&cell.join(ORIGIN)) {
        Ok(Some(origin)) => origin,
        Ok(None) => return Ok(None),
        Err(error) if is_of_others(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(newest) = highest(cell, &origin.life)? else { return Ok(None) };
    let seen = disk::modified(&cell.join(file::file_name(&origin.life, newest)));
    let modified = seen.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
    Ok(modified.map(|modified| u64::try_from(modified.as_micros()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
