//! The database file: how it is created and identified, and whether its file system will do.
//!
//! A database is three files: SQLite keeps its log, `-wal` and `-shm`, beside the *name* under which a program opens it. Two names of
//! one file are two logs, and two programs that do not see each other.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
};

/// The difference between two files that have the same path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// An open database: the file and its log.
#[derive(Debug)]
pub(super) struct Files {
    /// The path that was given, and those beside which SQLite keeps the log.
    names: [PathBuf; 3],
    ids: Vec<FileId>,
}

impl Files {
    /// Identifies the file at the path. The log is not there yet.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        // SQLite follows symbolic links too.
        let name = fs::canonicalize(path)?;
        let file = id(path)?;
        if id(&name)? != file {
            return Err(io::Error::other(
                "SQLite would open another file: give a path without links of /proc",
            ));
        }
        let beside = |suffix| {
            let mut beside = name.clone().into_os_string();
            beside.push(OsStr::new(suffix));
            PathBuf::from(beside)
        };
        Ok(Files { names: [path.to_owned(), beside("-wal"), beside("-shm")], ids: vec![file] })
    }

    /// The file itself.
    pub(super) fn file(&self) -> FileId {
        self.ids[0]
    }

    /// Returns whether a program has a log beside this name.
    pub(super) fn has_log(&self) -> bool {
        fs::exists(&self.names[2]).unwrap_or(true)
    }

    /// Returns whether a program made another log beside this name.
    pub(super) fn have_another_log(&self) -> bool {
        id(&self.names[2]).is_ok_and(|found| Some(&found) != self.ids.get(2))
    }

    /// Notes which files are the log. From the first transaction until the last program closes the database they stay.
    pub(super) fn identify_log(&mut self) -> io::Result<()> {
        let log = self.names[1..].iter().map(|name| id(name)).collect::<io::Result<Vec<_>>>()?;
        self.ids.splice(1.., log);
        Ok(())
    }

    /// Returns whether all files are still those at their names.
    pub(super) fn are_there(&self) -> io::Result<bool> {
        for (name, file) in self.names.iter().zip(&self.ids) {
            match id(name) {
                Ok(found) if found == *file => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Counts the files as removed.
    pub(super) fn give_up(&mut self) {
        self.ids = vec![FileId { device: 0, inode: 0 }];
    }
}

/// The other names under which programs may use the file, and keep logs that are not seen here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum OtherName {
    #[error(
        "it has {0} names (hard links), and SQLite keeps a log beside each, so that programs would not see each other's locks: \
         leave it one name"
    )]
    Links(u64),
    #[error(
        "it is mounted by itself, and SQLite keeps a log beside each of its names, so that programs would not see each other's \
         locks: mount the folder in which it lies, not the file"
    )]
    Mount,
}

/// Looks for another name of the file besides the path. A symbolic link to it is none, nor is one by another mount of
/// its folder.
pub(super) fn other_name(path: &Path) -> io::Result<Option<OtherName>> {
    let file = fs::metadata(path)?;
    if !file.is_file() {
        return Ok(None);
    }
    #[cfg(unix)]
    if let names @ 2.. = std::os::unix::fs::MetadataExt::nlink(&file) {
        return Ok(Some(OtherName::Links(names)));
    }
    Ok(platform::is_mount_point(path)?.then_some(OtherName::Mount))
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

/// Identifies the file at the path.
#[cfg(unix)]
pub(super) fn id(path: &Path) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;

    let file = fs::metadata(path)?;
    Ok(FileId { device: file.dev(), inode: file.ino() })
}

/// Identifies the file at the path. Here an open file cannot be removed.
#[cfg(not(unix))]
pub(super) fn id(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|_| FileId { device: 0, inode: 0 })
}

/// Returns the folder that the file would be in, if it is not there.
pub(super) fn missing_folder(path: &Path) -> Option<&Path> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    matches!(folder.try_exists(), Ok(false)).then_some(folder)
}

/// Returns why the system does not let this process use the file. SQLite does not say.
pub(super) fn why_unusable(path: &Path) -> Option<io::Error> {
    match fs::metadata(path) {
        Ok(file) if file.is_dir() => Some(io::ErrorKind::IsADirectory.into()),
        Ok(_) => platform::why_denied(path),
        Err(error) => Some(error),
    }
}

/// The kind of a file system, as far as it is known. Only Linux tells.
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
    use std::{fs, io, os::unix::ffi::OsStrExt, path::Path};

    use rustix::fs::{Access, AtFlags, CWD, StatxAttributes, StatxFlags, access, statfs, statx};

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

    /// Returns whether the file itself is mounted there, and not a folder above it.
    pub(super) fn is_mount_point(path: &Path) -> io::Result<bool> {
        match statx(CWD, path, AtFlags::empty(), StatxFlags::empty()) {
            Ok(file) if file.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
                Ok(file.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
            }
            // Kernels before 5.8.
            _ => Ok(lists_mount(&fs::read("/proc/self/mountinfo")?, &fs::canonicalize(path)?)),
        }
    }

    /// Returns whether a list of mounts, as in proc(5), has one at the path.
    pub(super) fn lists_mount(mounts: &[u8], path: &Path) -> bool {
        let mut escaped = Vec::new();
        for &byte in path.as_os_str().as_bytes() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").bytes()),
                _ => escaped.push(byte),
            }
        }
        mounts
            .split(|byte| *byte == b'\n')
            .any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(&*escaped))
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

    pub(super) fn is_mount_point(_path: &Path) -> io::Result<bool> {
        Ok(false)
    }

    pub(super) fn why_denied(_path: &Path) -> Option<io::Error> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_file_is_found_in_the_list_of_mounts() {
        let mounts = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n36 22 8:1 /l.db /data/my\\040locks.db rw - ext4 /dev/sda rw\n";
        assert!(platform::lists_mount(mounts, Path::new("/data/my locks.db")));
        assert!(!platform::lists_mount(mounts, Path::new("/l.db")));
        assert!(
            !platform::is_mount_point(&std::env::current_exe().expect("a file")).expect("it can be asked")
        );
        assert!(platform::is_mount_point(Path::new("/proc")).expect("it can be asked"));
        assert!(platform::lists_mount(
            &fs::read("/proc/self/mountinfo").expect("a list"),
            Path::new("/proc")
        ));
    }

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
