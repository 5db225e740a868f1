//! Two mounts of one folder of a server, as two hosts have them: by `sshfs`, which goes by names and attributes that are up to 20 s
//! old, and says nothing of links.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use super::ServerError;
use crate::PATIENCE;

/// Answers requests of SFTP by its standard input and output, without `ssh`.
const SERVER: &str = "/usr/lib/openssh/sftp-server";
const SSHFS: &str = "/usr/bin/sshfs";

/// The folders at which it is mounted.
const PLACES: [&str; 2] = ["first", "second"];

/// Two mounts of a folder, which end when this is dropped.
#[derive(Debug)]
pub struct Mounts {
    folder: TempDir,
    sshfs: Vec<Child>,
}

impl Mounts {
    /// Returns why nothing can be mounted here, if that is so.
    ///
    /// # Errors
    /// The reason.
    pub fn can_be_had() -> Result<(), &'static str> {
        OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|_| "there is no /dev/fuse")?;
        let mounts = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
        match mounts.is_ok_and(|ended| ended.success()) {
            true => Ok(()),
            false => Err("nothing may be mounted here"),
        }
    }

    /// Looks for the programs.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] names the one that is missing.
    pub fn find() -> Result<(), ServerError> {
        let missing = [SERVER, SSHFS].into_iter().find(|program| !Path::new(program).exists());
        missing.map_or(Ok(()), |program| Err(ServerError::missing("sshfs", format!("there is no {program}"))))
    }

    /// Mounts a new folder twice. The mounts end with the thread that calls this, too.
    ///
    /// # Errors
    /// If a program is missing, or does not mount it in time.
    pub fn start() -> io::Result<Self> {
        let mut mounts = Mounts { sshfs: Vec::new(), folder: tempfile::tempdir()? };
        // Within the share, as the book says.
        fs::create_dir_all(mounts.path("store/locks"))?;
        // In the place of `ssh`, whose arguments it ignores.
        let ssh = mounts.path("ssh");
        fs::write(&ssh, format!("#!/bin/sh\nexec {SERVER}\n"))?;
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700))?;
        for name in PLACES {
            fs::create_dir(mounts.path(name))?;
            let mut mount = Command::new("setpriv");
            mount.args(["--pdeathsig", "TERM", "--", SSHFS, "-f"]);
            mount.arg("-o").arg(format!("ssh_command={}", ssh.display()));
            mount.arg(format!("host:{}", mounts.path("store").display())).arg(mounts.path(name));
            mount.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            mounts.sshfs.push(mount.spawn()?);
            until("the folder is mounted", || device(&mounts.path(name)) != device(mounts.folder.path()))?;
        }
        Ok(mounts)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a folder within the share, as one of the two mounts has it.
    pub fn locks(&self, mount: usize) -> PathBuf {
        self.path(PLACES[mount % 2]).join("locks")
    }

    /// Has one of the mounts answer nothing any more, or again.
    ///
    /// # Errors
    /// If its process is gone.
    pub fn freeze(&self, mount: usize, frozen: bool) -> io::Result<()> {
        let pid = Pid::from_raw(self.sshfs[mount % 2].id().cast_signed());
        kill(pid, if frozen { Signal::SIGSTOP } else { Signal::SIGCONT }).map_err(Into::into)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // First, as one that is frozen gives no answer about its mount. It may have ended by itself.
        for child in &mut self.sshfs {
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in PLACES {
            // Lazily, as something may have it open. It fails where the test did before it was mounted.
            let _ = Command::new("umount").arg("-l").arg(self.path(name)).stderr(Stdio::null()).status();
        }
    }
}

fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|seen| seen.dev())
}

fn until(what: &'static str, is_so: impl Fn() -> bool) -> io::Result<()> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not in time: {what}")));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
