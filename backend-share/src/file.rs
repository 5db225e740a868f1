//! One file: a head that says which version of which cell it is, and the content.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

use lockcore::backend::unique_name;
use rustix::fs::OFlags;

/// The first word of each file, with the number of the form.
const FORM: &str = "lockcore-cell-1";

/// The most bytes of a head.
const HEAD: u64 = 200;

/// The write before the first one of a life.
const NONE: &str = "-";

/// The version of a cell.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it"))]
pub struct Version {
    /// The name of the cell's life: a cell that is created again has another.
    pub(crate) life: String,
    /// Counts from 0 within it.
    pub(crate) number: u64,
    /// The name of the write, as unlike any other: a number that was removed may be written again by one that comes late.
    pub(crate) write: String,
    /// The name of the write that it replaced.
    previous: String,
}

impl Version {
    /// The first version of a life that none had.
    pub(crate) fn first() -> Self {
        Version { life: unique_name(), number: 0, write: unique_name(), previous: NONE.to_owned() }
    }

    pub(crate) fn next(&self) -> Self {
        let Version { life, number, write, .. } = self;
        Version { life: life.clone(), number: number + 1, write: unique_name(), previous: write.clone() }
    }

    /// Returns the name of its file.
    pub(crate) fn file_name(&self) -> String {
        file_name(&self.life, self.number)
    }

    /// Returns whether it replaced that version.
    pub(crate) fn follows(&self, before: &Version) -> bool {
        self.life == before.life && self.number == before.number + 1 && self.previous == before.write
    }

    fn head(&self, length: usize) -> String {
        let Version { life, number, write, previous } = self;
        format!("{FORM} {life} {number} {write} {previous} {length}\n")
    }

    /// Reads a head; returns the length of what follows, too.
    fn read(head: &str) -> Option<(Self, usize)> {
        let mut words = head.split(' ');
        if words.next()? != FORM {
            return None;
        }
        let (life, number) = (name(words.next()?)?, number(words.next()?)?);
        let (write, previous) = (name(words.next()?)?, words.next()?);
        let previous = if previous == NONE { NONE.to_owned() } else { name(previous)? };
        let length = words.next()?.parse().ok()?;
        words.next().is_none().then_some((Version { life, number, write, previous }, length))
    }
}

/// Returns a name of ours, and nothing that leads elsewhere as a path.
fn name(word: &str) -> Option<String> {
    let is_ours = word.len() == 32 && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_ours.then(|| word.to_owned())
}

/// Returns a number in its usual form, to which one can be added.
fn number(word: &str) -> Option<u64> {
    word.parse().ok().filter(|number: &u64| *number < u64::MAX / 2 && number.to_string() == word)
}

/// Returns the name of the file of a version.
pub(crate) fn file_name(life: &str, number: u64) -> String {
    format!("{life}.{number}")
}

/// Returns the life and the number that the name of a file says, if it is one of ours.
pub(crate) fn parse_name(file: &str) -> Option<(String, u64)> {
    let (life, of) = file.split_once('.')?;
    Some((name(life)?, number(of)?))
}

/// Returns a name for a file that is written, as unlike any other.
pub(crate) fn temporary() -> String {
    format!("{}.tmp", unique_name())
}

pub(crate) fn is_temporary(file: &str) -> bool {
    file.strip_suffix(".tmp").and_then(name).is_some()
}

/// The permissions that what is made in a folder gets: those of the folder, whatever the umask is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) mode: u32,
    pub(crate) group: u32,
}

impl Access {
    /// Gives them to a file, or to a folder. A mount may decide them by itself, and who is not in the group may not give to it.
    pub(crate) fn give(self, file: &File, mode: u32) {
        let _ = fchown(file, None, Some(self.group));
        let _ = file.set_permissions(std::fs::Permissions::from_mode(mode));
    }
}

/// A file that was written under a name that no other has. That name is removed when this is dropped.
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    is_kept: bool,
}

impl Written {
    /// Writes, syncs and closes a file.
    pub(crate) fn new(path: PathBuf, version: &Version, content: &[u8], access: Access) -> io::Result<Self> {
        let mode = access.mode & 0o666;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        let written = Written { path, is_kept: false };
        file.write_all(version.head(content.len()).as_bytes())?;
        file.write_all(content)?;
        access.give(&file, mode);
        file.sync_all()?;
        Ok(written)
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

/// Opens a file, not what a link leads to, and without waiting for a writer as a pipe does.
fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    match OpenOptions::new().read(true).custom_flags(flags as i32).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
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

/// Asks the server about a file or a folder, and not a cache: when it was modified, in seconds since 1970. After that the client knows which
/// names a folder has. `None` if it is not there.
pub(crate) fn refresh(path: &Path) -> io::Result<Option<i64>> {
    #[cfg(target_os = "linux")]
    let seen = {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        let seen = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        seen.map(|seen| seen.stx_mtime.tv_sec).map_err(io::Error::from)
    };
    #[cfg(not(target_os = "linux"))]
    let seen = std::fs::metadata(path).map(|seen| std::os::unix::fs::MetadataExt::mtime(&seen));
    match seen {
        Ok(modified) => Ok(Some(modified)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
