//! One file: a head that says which version of which cell it is, and the content.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use lockcore::backend::unique_name;
use rustix::fs::OFlags;

/// The first word of each file, with the number of the form.
const FORM: &str = "lockcore-cell-1";

/// The most bytes of a head.
const HEAD: u64 = 160;

/// The version of a cell.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it"))]
pub struct Version {
    /// The name of the cell's life: a cell that is created again has another.
    pub(crate) life: String,
    /// Counts from 0 within it.
    pub(crate) number: u64,
    /// The name of the write, as unlike any other: of a number that was removed none is taken for the other.
    pub(crate) write: String,
}

impl Version {
    /// The first version of a life that none had.
    pub(crate) fn first() -> Self {
        Version { life: unique_name(), number: 0, write: unique_name() }
    }

    pub(crate) fn next(&self) -> Self {
        Version { life: self.life.clone(), number: self.number + 1, write: unique_name() }
    }

    /// Returns the name of its file.
    pub(crate) fn file_name(&self) -> String {
        file_name(&self.life, self.number)
    }

    fn head(&self, length: usize) -> String {
        let Version { life, number, write } = self;
        format!("{FORM} {life} {number} {write} {length}\n")
    }

    /// Reads a head; returns the length of what follows, too.
    fn read(head: &str) -> Option<(Self, usize)> {
        let mut words = head.split(' ');
        let is_ours = words.next()? == FORM;
        let (life, number) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let (write, length) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        (is_ours && words.next().is_none()).then_some((Version { life, number, write }, length))
    }
}

/// Returns the name of the file of a version.
pub(crate) fn file_name(life: &str, number: u64) -> String {
    format!("{life}.{number}")
}

/// Returns the life and the number that the name of a file says.
pub(crate) fn parse_name(name: &str) -> Option<(&str, u64)> {
    let (life, number) = name.split_once('.')?;
    Some((life, number.parse().ok()?))
}

/// A file that was written under a name that no other has. It is removed when this is dropped, but for its other names.
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    file: File,
    is_kept: bool,
}

impl Written {
    /// Writes and syncs a file.
    pub(crate) fn new(path: PathBuf, version: &Version, content: &[u8], mode: u32) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        let mut written = Written { path, file, is_kept: false };
        written.file.write_all(version.head(content.len()).as_bytes())?;
        written.file.write_all(content)?;
        set_mode(&written.file, mode);
        written.file.sync_all()?;
        Ok(written)
    }

    /// Writes a file that has no content; returns when it was modified, in seconds since 1970.
    pub(crate) fn modified(path: PathBuf, mode: u32) -> io::Result<u64> {
        let written = Written::new(path, &Version::first(), &[], mode)?;
        Ok(u64::try_from(mtime(&written.file)?).unwrap_or(0))
    }

    /// Gives it another name. Returns `false` if there is such a file, which is another one.
    pub(crate) fn link(&self, name: &Path, version: &Version) -> io::Result<bool> {
        let Err(error) = std::fs::hard_link(&self.path, name) else { return Ok(true) };
        // The file says what no error does: the answer to the first of two requests may be lost, and SFTP has no code for a name that is
        // taken.
        match head(name) {
            Ok(Some(found)) => Ok(found == *version),
            _ => Err(error),
        }
    }

    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if !self.is_kept {
            // A sweep removes it otherwise.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Sets the permissions of a file to those of the folder, whatever the umask is. A mount may decide them by itself.
pub(crate) fn set_mode(file: &File, mode: u32) {
    let _ = file.set_permissions(std::fs::Permissions::from_mode(mode));
}

/// Reads the head of a file; `None` if there is no file.
pub(crate) fn head(path: &Path) -> io::Result<Option<Version>> {
    let Some(file) = open(path)? else { return Ok(None) };
    let mut text = Vec::new();
    file.take(HEAD).read_to_end(&mut text)?;
    split(&text).map(|(version, _, _)| Some(version))
}

/// Reads a file; `None` if there is none.
pub(crate) fn load(path: &Path) -> io::Result<Option<(Version, Vec<u8>)>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let (version, begin, length) = split(&text)?;
    text.drain(..begin);
    if text.len() != length {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "it does not have all of its content"));
    }
    Ok(Some((version, text)))
}

/// Opens a file, not what a link leads to, without waiting for a writer as a pipe does. That asks the server: a file that was removed
/// there is not found, whatever is cached here.
fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    match OpenOptions::new().read(true).custom_flags(flags as i32).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn split(text: &[u8]) -> io::Result<(Version, usize, usize)> {
    let end = text.iter().take(HEAD as usize).position(|byte| *byte == b'\n');
    let read = end.and_then(|end| {
        let (version, length) = Version::read(std::str::from_utf8(&text[..end]).ok()?)?;
        Some((version, end + 1, length))
    });
    read.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it is not in this library's form"))
}

/// Returns whether there is no such file: a handle is stale if it was removed by another host.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle)
}

/// Returns when a file was modified, in seconds since 1970, by the server and not by a cache.
#[cfg(target_os = "linux")]
fn mtime(file: &File) -> io::Result<i64> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    Ok(statx(file, "", flags, StatxFlags::MTIME)?.stx_mtime.tv_sec)
}

/// Returns when a file was modified, in seconds since 1970.
#[cfg(not(target_os = "linux"))]
fn mtime(file: &File) -> io::Result<i64> {
    file.metadata().map(|seen| seen.mtime())
}

/// Makes the client forget which names a folder has not. Returns `false` if there is no such folder.
pub(crate) fn refresh(folder: &Path) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    let seen = {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        statx(CWD, folder, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)
            .map(drop)
            .map_err(io::Error::from)
    };
    #[cfg(not(target_os = "linux"))]
    let seen = std::fs::metadata(folder).map(drop);
    match seen {
        Ok(()) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the device and the number of a folder: another folder at the same path has others.
pub(crate) fn identity(folder: &Path) -> io::Result<(u64, u64)> {
    std::fs::metadata(folder).map(|seen| (seen.dev(), seen.ino()))
}
