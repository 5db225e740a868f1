//! The calls to the file system. Each of them may hang, may fail although it was done, and may be answered by what a client
//! remembers.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown},
    path::Path,
    time::SystemTime,
};

use rustix::fs::OFlags;

/// The permissions that what is made in a folder gets: those of the folder, whatever the umask is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) mode: u32,
    pub(crate) group: u32,
}

impl Access {
    /// Gives them to a file, or to a folder. A mount may decide them by itself, and who is not in the group may not give to it.
    fn give(self, file: &File, mode: u32) {
        let _ = fchown(file, None, Some(self.group));
        let _ = file.set_permissions(std::fs::Permissions::from_mode(mode));
    }
}

/// Takes the answer of the simulated server, if this thread is a client of it.
macro_rules! simulated {
    ($client:ident => $answer:expr) => {
        #[cfg(test)]
        if let Some($client) = crate::simulated::client() {
            return $answer;
        }
    };
}

/// Reads so many bytes of a file at most; `None` if there is none. It follows no link, and does not wait for a writer as a pipe does.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    simulated!(client => client.read(path, most));
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = match OpenOptions::new().read(true).custom_flags(flags as i32).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(most).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// Writes, syncs and closes a file that was not there.
pub(crate) fn write(path: &Path, content: [&[u8]; 2], access: Access) -> io::Result<()> {
    simulated!(client => client.write(path, &content.concat()));
    let mode = access.mode & 0o666;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    let written = content.into_iter().try_for_each(|part| file.write_all(part)).and_then(|()| {
        access.give(&file, mode);
        file.sync_all()
    });
    if written.is_err() {
        // A sweep removes it otherwise.
        let _ = remove(path);
    }
    written
}

/// Gives a file another name.
pub(crate) fn link(path: &Path, name: &Path) -> io::Result<()> {
    simulated!(client => client.link(path, name));
    std::fs::hard_link(path, name)
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    simulated!(client => client.remove(path));
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes an empty file that was not there.
pub(crate) fn touch(path: &Path) -> io::Result<()> {
    simulated!(client => client.write(path, &[]));
    File::create_new(path).map(drop)
}

/// Returns when a file was modified; `None` if there is none, or that is not known.
pub(crate) fn modified(path: &Path) -> Option<SystemTime> {
    simulated!(client => client.modified(path));
    let seen = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
    seen.modified().ok()
}

/// Returns when a folder was modified; `None` if there is none, or a link, or that is not known.
pub(crate) fn modified_folder(path: &Path) -> Option<SystemTime> {
    simulated!(client => client.modified(path).filter(|_| client.is_folder(path)));
    let seen = path.symlink_metadata().ok().filter(std::fs::Metadata::is_dir)?;
    seen.modified().ok()
}

/// Asks the server about a file or a folder, and not a cache: when it was modified, in seconds since 1970. After that the client knows which
/// names a folder has. `None` if it is not there.
pub(crate) fn refresh(path: &Path) -> io::Result<Option<i64>> {
    simulated!(client => client.refresh(path));
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

/// Returns the names in a folder, those that are UTF-8; none if it is not there.
pub(crate) fn names(folder: &Path) -> io::Result<Vec<String>> {
    simulated!(client => client.names(folder));
    let listed = match std::fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let names = listed.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

/// Returns whether there is a folder.
pub(crate) fn is_folder(path: &Path) -> bool {
    simulated!(client => client.is_folder(path));
    path.is_dir()
}

/// Makes a folder that was not there.
pub(crate) fn make_folder(path: &Path, access: Access) -> io::Result<()> {
    simulated!(client => client.make_folder(path));
    DirBuilder::new().mode(access.mode).create(path)?;
    access.give(&File::open(path)?, access.mode);
    Ok(())
}

/// Gives a folder another name, which no other has but an empty one.
pub(crate) fn rename_folder(path: &Path, name: &Path) -> io::Result<()> {
    simulated!(client => client.rename_folder(path, name));
    std::fs::rename(path, name)
}

/// Removes a folder; fails if something is in it.
pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
    simulated!(client => client.remove_folder(path));
    std::fs::remove_dir(path)
}

/// Has the server keep the names in a folder, where it can.
pub(crate) fn sync(folder: &Path) {
    #[cfg(test)]
    if crate::simulated::client().is_some() {
        return;
    }
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}
