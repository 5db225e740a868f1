//! One file: a head that says which version of which cell it is, and the content.

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use lockcore::backend::unique_name;

use crate::disk::{self, Access};

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

/// A file that was written under a name that no other has. That name is removed when this is dropped.
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    is_kept: bool,
}

impl Written {
    /// Writes, syncs and closes a file.
    pub(crate) fn new(path: PathBuf, version: &Version, content: &[u8], access: Access) -> io::Result<Self> {
        disk::write(&path, [version.head(content.len()).as_bytes(), content], access)?;
        Ok(Written { path, is_kept: false })
    }

    /// Gives it another name. Returns `false` if there is such a file, which is another one.
    pub(crate) fn link(&self, name: &Path, version: &Version) -> io::Result<bool> {
        let Err(error) = disk::link(&self.path, name) else { return Ok(true) };
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
            let _ = disk::remove(&self.path);
        }
    }
}

/// Reads the head of a file; `None` if there is no file.
pub(crate) fn head(path: &Path) -> io::Result<Option<Version>> {
    let Some(text) = disk::read(path, HEAD)? else { return Ok(None) };
    split(&text).map(|(version, _, _)| Some(version))
}

/// Reads a file; `None` if there is none.
pub(crate) fn load(path: &Path) -> io::Result<Option<(Version, Vec<u8>)>> {
    let Some(mut text) = disk::read(path, u64::MAX)? else { return Ok(None) };
    let (version, begin, length) = split(&text)?;
    text.drain(..begin);
    if text.len() != length {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "it does not have all of its content"));
    }
    Ok(Some((version, text)))
}

fn split(text: &[u8]) -> io::Result<(Version, usize, usize)> {
    let end = text.iter().take(HEAD as usize).position(|byte| *byte == b'\n');
    let read = end.and_then(|end| {
        let (version, length) = Version::read(std::str::from_utf8(&text[..end]).ok()?)?;
        Some((version, end + 1, length))
    });
    read.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it is not in this library's form"))
}
