//! The checks on two mounts of one folder of a server, as two hosts have them: by `sshfs`, which goes by names and attributes that are up to
//! 20 s old, and says nothing of links.

use std::{
    fs::{self, OpenOptions},
    io,
    net::{TcpListener, TcpStream},
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
    sshd: PathBuf,
    sshfs: PathBuf,
}

impl Programs {
    fn find() -> Result<Self, ServerError> {
        let find = |name: &str| {
            let mut paths =
                ["/usr/sbin", "/usr/bin", "/usr/local/bin"].iter().map(|folder| Path::new(folder).join(name));
            let path = paths.find(|path| path.exists());
            path.ok_or_else(|| ServerError::missing("sshfs", format!("{name} is not installed")))
        };
        Ok(Programs { sshd: find("sshd")?, sshfs: find("sshfs")? })
    }
}

/// A server and its mounts, which end when it is dropped.
pub(crate) struct Mounts {
    folder: TempDir,
    sshd: Child,
    sshfs: Vec<Child>,
    /// The number of those who opened it: they take turns with the mounts.
    opened: AtomicUsize,
    /// How far its time was set forward, in microseconds.
    ahead: Arc<AtomicU64>,
}

impl Mounts {
    fn start(Programs { sshd, sshfs }: &Programs) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        for name in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            succeeds(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path(name)))?;
        }
        fs::copy(path("user.pub"), path("authorized"))?;
        // Its folder for privileges, which a service would make.
        let _ = fs::create_dir_all("/run/sshd");
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (host, authorized) = (path("host"), path("authorized"));
        let settings = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
             Subsystem sftp internal-sftp\nUsePAM no\nPermitRootLogin yes\nMaxStartups 100\n",
            host.display(),
            authorized.display(),
        );
        fs::write(path("sshd.conf"), settings)?;
        let sshd = dying(sshd).args(["-D", "-f"]).arg(path("sshd.conf")).spawn()?;
        let mut mounts =
            Mounts { sshd, sshfs: Vec::new(), opened: AtomicUsize::new(0), ahead: Arc::default(), folder };
        until("sshd answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        // Within the share, as the book says.
        fs::create_dir_all(mounts.path("store/locks"))?;
        for name in ["first", "second"] {
            fs::create_dir(mounts.path(name))?;
            let mut mount = dying(sshfs);
            mount.args([
                "-f",
                "-p",
                &port.to_string(),
                "-o",
                "StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null",
            ]);
            mount.arg("-o").arg(format!("IdentityFile={}", mounts.path("user").display()));
            mount.arg(format!("127.0.0.1:{}", mounts.path("store").display())).arg(mounts.path(name));
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
        for child in self.sshfs.iter_mut().chain([&mut self.sshd]) {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program that ends with the thread that starts it.
fn dying(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn succeeds(command: &mut Command) -> io::Result<()> {
    match command.stdin(Stdio::null()).stdout(Stdio::null()).status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?} failed"))),
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
