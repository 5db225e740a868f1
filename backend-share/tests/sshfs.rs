//! The checks on two mounts of one folder of a server, as two hosts have them: by `sshfs`, which goes by names and attributes that are up to
//! 20 s old, and says nothing of links.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use lockcore_conformance::{
    Backend, PATIENCE,
    cell::Adapter,
    servers::{Completion, ServerError, Trial, cell_checks, checks},
};
use lockcore_share::{Files, ShareBuilder, ShareLockDao};
use tempfile::TempDir;
use uuid::Uuid;

use crate::conformance::{LEASE, micros};

pub(crate) fn trials() -> Vec<Trial> {
    if let Err(reason) = can_mount() {
        let ignored = move || Ok(Completion::ignored_with(reason));
        return vec![Trial::ignorable_test("sshfs::two_mounts", ignored)];
    }
    let cells = cell_checks("sshfs", async || Ok(TwoMounts(Programs::find()?)));
    let daos = checks("sshfs", async || Ok(TwoMounts(Programs::find()?)));
    cells.chain(daos.map(Trial::thorough)).map(|trial| trial.at_once("sshfs", 2)).collect()
}

/// Returns whether a file system can be mounted here.
fn can_mount() -> Result<(), &'static str> {
    OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|_| "there is no /dev/fuse")?;
    let mounts = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    match mounts.is_ok_and(|ended| ended.success()) {
        true => Ok(()),
        false => Err("nothing may be mounted here"),
    }
}

/// A folder that is mounted twice, for each test.
struct TwoMounts(Programs);

/// The paths of the programs.
#[derive(Clone)]
struct Programs {
    /// Answers requests of SFTP by its standard input and output, without `ssh`.
    server: PathBuf,
    sshfs: PathBuf,
}

impl Programs {
    fn find() -> Result<Self, ServerError> {
        let find = |path: &str| match Path::new(path).exists() {
            true => Ok(PathBuf::from(path)),
            false => Err(ServerError::missing("sshfs", format!("there is no {path}"))),
        };
        Ok(Programs { server: find("/usr/lib/openssh/sftp-server")?, sshfs: find("/usr/bin/sshfs")? })
    }
}

/// Two mounts of a folder, which end when this is dropped.
pub(crate) struct Mounts {
    folder: TempDir,
    sshfs: Vec<Child>,
    /// The number of those who opened it: they take turns with the mounts.
    opened: AtomicUsize,
    /// How far its time was set forward, in microseconds.
    ahead: Arc<AtomicU64>,
}

impl Mounts {
    fn start(Programs { server, sshfs }: &Programs) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut mounts =
            Mounts { sshfs: Vec::new(), opened: AtomicUsize::new(0), ahead: Arc::default(), folder };
        // Within the share, as the book says.
        fs::create_dir_all(mounts.path("store/locks"))?;
        // In the place of `ssh`, whose arguments it ignores.
        let ssh = mounts.path("ssh");
        fs::write(&ssh, format!("#!/bin/sh\nexec {}\n", server.display()))?;
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700))?;
        for name in ["first", "second"] {
            fs::create_dir(mounts.path(name))?;
            // It ends with the thread that starts it.
            let mut mount = Command::new("setpriv");
            mount.args(["--pdeathsig", "TERM", "--"]).arg(sshfs).arg("-f");
            mount.arg("-o").arg(format!("ssh_command={}", ssh.display()));
            mount.arg(format!("host:{}", mounts.path("store").display())).arg(mounts.path(name));
            mount.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            mounts.sshfs.push(mount.spawn()?);
            until("the folder is mounted", || device(&mounts.path(name)) != device(mounts.folder.path()));
        }
        Ok(mounts)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn builder(&self) -> ShareBuilder<String, Uuid> {
        let mount = ["first/locks", "second/locks"][self.opened.fetch_add(1, Relaxed) % 2];
        ShareLockDao::builder().folder(self.path(mount)).ahead(self.ahead.clone()).min_lease(LEASE)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for name in ["first", "second"] {
            // Lazily, as something may have it open. It fails where the test did before it was mounted.
            let _ = Command::new("umount").arg("-l").arg(self.path(name)).stderr(Stdio::null()).status();
        }
        for child in &mut self.sshfs {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn device(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|seen| seen.dev())
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

impl Adapter for TwoMounts {
    type Cell = Files;
    type Place = Mounts;

    async fn place(&self) -> Mounts {
        Mounts::start(&self.0).expect("the folder is mounted")
    }

    async fn open(&self, mounts: &Mounts) -> Files {
        mounts.builder().cells().await.expect("the folder can be opened")
    }
}

impl Backend for TwoMounts {
    type Dao = ShareLockDao;
    type Guard = Mounts;

    async fn build(&self) -> (Mounts, ShareLockDao) {
        let mounts = self.place().await;
        let dao = self.reopen(&mounts).await.expect("the folder was just mounted");
        (mounts, dao)
    }

    async fn reopen(&self, mounts: &Mounts) -> Option<ShareLockDao> {
        Some(mounts.builder().open().await.expect("the folder can be opened"))
    }

    async fn advance(&self, mounts: &Mounts, by: Duration) -> bool {
        mounts.ahead.fetch_add(micros(by), Relaxed);
        true
    }
}
