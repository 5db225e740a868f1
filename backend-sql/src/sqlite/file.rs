//! The database file: how it is created and identified, and whether its file system will do.

use std::{fs, io, path::Path, sync::Mutex};

/// What differs between two files though they have the same path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// Creates the file where it is missing, empty, for its owner alone: ids, owners and contexts stand in it. SQLite gives
/// the files beside it the same permissions.
pub(super) fn create(path: &Path) -> io::Result<()> {
    // Closing a file drops all locks that the process has on it, those of another connection too. So nothing may open
    // the new file before it is closed here.
    static CREATING: Mutex<()> = Mutex::new(());
    let _creating = CREATING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created.map(drop),
    }
}

/// Which file lies at the path.
#[cfg(unix)]
pub(super) fn id(path: &Path) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;

    let file = fs::metadata(path)?;
    Ok(FileId { device: file.dev(), inode: file.ino() })
}

/// Which file lies at the path. Here an open file cannot be removed.
#[cfg(not(unix))]
pub(super) fn id(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|_| FileId { device: 0, inode: 0 })
}

/// Why the system does not let this process use the file. SQLite does not say.
pub(super) fn why_unusable(path: &Path) -> Option<io::Error> {
    match fs::metadata(path) {
        Ok(file) if file.is_dir() => Some(io::ErrorKind::IsADirectory.into()),
        Ok(_) => platform::why_denied(path),
        Err(error) => Some(error),
    }
}

/// What is known of a file system. Only Linux tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FileSystem {
    /// Nothing speaks against it.
    Local,
    /// A program serves it: perhaps from another host.
    Fuse,
    /// Other hosts, or other kernels on this one, may use it at the same time.
    Network(&'static str),
}

impl FileSystem {
    /// Identifies a file system by its magic number, as in statfs(2) or the kernel's source.
    fn of(magic: u32) -> Self {
        match magic {
            0x6969 => FileSystem::Network("NFS"),
            0x517b | 0xfe53_4d42 | 0xff53_4d42 => FileSystem::Network("SMB"),
            0x0102_1997 => FileSystem::Network("9P"),
            0x00c3_6400 => FileSystem::Network("Ceph"),
            0x0116_1970 => FileSystem::Network("GFS2"),
            0x7461_636f => FileSystem::Network("OCFS2"),
            0x0bd0_0bd0 => FileSystem::Network("Lustre"),
            0x4750_4653 => FileSystem::Network("GPFS"),
            0x1983_0326 => FileSystem::Network("BeeGFS"),
            0x5346_414f | 0x6b41_4653 => FileSystem::Network("AFS"),
            0x7375_7245 => FileSystem::Network("Coda"),
            0x564c => FileSystem::Network("NCP"),
            0x786f_4256 => FileSystem::Network("VirtualBox's shared folders"),
            0x6573_5546 => FileSystem::Fuse,
            _ => FileSystem::Local,
        }
    }
}

pub(super) use platform::file_system;

#[cfg(target_os = "linux")]
mod platform {
    use std::{io, path::Path};

    use rustix::fs::{Access, access, statfs};

    use super::FileSystem;

    /// The file system on which the file lies, or is to lie.
    pub(in crate::sqlite) fn file_system(path: &Path) -> io::Result<FileSystem> {
        let found = match (statfs(path), path.parent()) {
            (Err(rustix::io::Errno::NOENT), Some(folder)) => statfs(folder),
            (found, _) => found,
        };
        // A word of the machine, of which the kernel uses 32 bits.
        Ok(FileSystem::of(found?.f_type as u32))
    }

    pub(super) fn why_denied(path: &Path) -> Option<io::Error> {
        let denied = access(path, Access::READ_OK | Access::WRITE_OK).err();
        let folder = || access(path.parent()?, Access::WRITE_OK | Access::EXEC_OK).err();
        denied.or_else(folder).map(io::Error::from)
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use std::{io, path::Path};

    use super::FileSystem;

    pub(in crate::sqlite) fn file_system(_path: &Path) -> io::Result<FileSystem> {
        Ok(FileSystem::of(0))
    }

    pub(super) fn why_denied(_path: &Path) -> Option<io::Error> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_recognised_by_their_magic() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let missing = folder.path().join("locks.db");
        let found = file_system(&missing).expect("the folder is there");
        assert_eq!(found, file_system(folder.path()).expect("it is there"));
        assert!(file_system(&missing.join("locks.db")).is_err());
        assert_eq!(file_system(Path::new("/dev/shm")).expect("it is there"), FileSystem::Local);
        assert_eq!(FileSystem::of(0x6969), FileSystem::Network("NFS"));
        assert_eq!(FileSystem::of(0xfe53_4d42), FileSystem::Network("SMB"));
        assert_eq!(FileSystem::of(0x6573_5546), FileSystem::Fuse);
        assert_eq!(FileSystem::of(0xef53), FileSystem::Local);
    }
}
