//! A store, a folder, and the processes that work in both.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use assert_cmd::cargo::cargo_bin;
use lockcore::Capabilities;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

use crate::stores::Place;

/// More than anything here takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Processes that a test may start one after the other within the shortest lease.
const PROCESSES_PER_LEASE: u32 = 10;

/// A store of the test's own, and a folder that is the current directory of every process.
pub(crate) struct Store {
    folder: TempDir,
    place: Place,
    namespace: Option<String>,
    pub(crate) capabilities: Capabilities,
    /// How long a process took to start, connect and end: how fast this machine is now.
    process: Duration,
}

impl Store {
    pub(crate) fn new(place: Place, capabilities: Capabilities) -> Self {
        let namespace = place.shared.then(|| format!("e2e-{}", Uuid::new_v4().simple()));
        let folder = tempfile::tempdir().expect("a folder");
        let mut store = Store { folder, place, namespace, capabilities, process: Duration::ZERO };
        assert_eq!(store.run(&["migrate"]).stderr, "");
        let began = Instant::now();
        store.run(&["ls"]);
        store.process = began.elapsed();
        store
    }

    /// Where the locks are.
    pub(crate) fn url(&self) -> &str {
        &self.place.url
    }

    /// Where the server is.
    pub(crate) fn address(&self) -> Option<String> {
        self.place.address()
    }

    /// A namespace beside the one of [`command`](Self::command).
    pub(crate) fn namespace(&self, name: &str) -> String {
        self.namespace.as_ref().map_or_else(|| name.to_owned(), |own| format!("{own}-{name}"))
    }

    /// The namespace of [`command`](Self::command), where others share the store.
    pub(crate) fn own_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// A lease of this length, or a longer one: the shortest that the backend has, or so long that some processes start and end
    /// within it; and its text.
    /// A client that is told of a lock when its lease is over does not have it, so none is to be shorter than a machine may stall.
    pub(crate) fn lease(&self, wanted: Duration) -> (Duration, String) {
        let lease = wanted.max(self.capabilities.min_lease).max(self.process * PROCESSES_PER_LEASE);
        (lease, format!("{}ms", lease.as_millis()))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `program` on this store: `lockctl` is in its path, and nothing of the caller's configuration is left.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOCK")) {
            command.env_remove(name);
        }
        let bin = cargo_bin("lockctl").parent().expect("in a folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(&self.folder)
            .env("LOCKCORE_URL", &self.place.url)
            .env("PATH", format!("{bin}:{path}"))
            .stdin(Stdio::null());
        if let Some(namespace) = &self.namespace {
            command.env("LOCKCORE_NAMESPACE", namespace);
        }
        command
    }

    pub(crate) fn lockctl(&self, args: &[&str]) -> Command {
        let mut command = self.command(cargo_bin("lockctl"));
        command.args(args);
        command
    }

    /// Runs `lockctl` to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        Ended::of(self.lockctl(args))
    }

    /// Starts `lockctl` in a process group of its own.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::of(self.lockctl(args))
    }

    /// What `lockctl ARGS --json` says.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let ended = self.run(&[args, &["--json"]].concat());
        assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
        serde_json::from_str(&ended.stdout).expect("JSON")
    }

    /// What the store is called in messages.
    pub(crate) fn shown(&self) -> String {
        let findings = self.json(&["doctor"]);
        assert_eq!(findings[0]["check"], "store");
        findings[0]["detail"].as_str().expect("text").to_owned()
    }

    pub(crate) fn assert_nothing_is_locked(&self) {
        assert_eq!(self.run(&["ls"]).stdout, format!("nothing is locked in {}\n", self.shown()));
    }

    pub(crate) fn holders(&self, id: &str) -> usize {
        self.json(&["show", id])["holders"].as_array().expect("an array").len()
    }

    pub(crate) fn waiters(&self, id: &str) -> usize {
        self.json(&["show", id])["waiters"].as_array().expect("an array").len()
    }

    pub(crate) fn fence(&self, id: &str) -> String {
        self.json(&["show", id])["holders"][0]["fence"].to_string()
    }

    /// Waits until a file is there.
    pub(crate) fn until_file(&self, name: &str) {
        until(&format!("the file {name}"), || self.path(name).exists());
    }
}

/// How a process ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// What `lockctl` itself wrote to stderr, without what the command's shell did.
    pub(crate) fn own_lines(&self) -> String {
        self.stderr.split_inclusive('\n').filter(|line| line.starts_with("lockctl: ")).collect()
    }

    pub(crate) fn of(mut command: Command) -> Self {
        command.output().expect("it starts").into()
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Ended {
            code: output.status.code().expect("it ended by itself"),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

/// A process that is killed with the test. It writes to files: those who outlive it may keep them open.
pub(crate) struct Running {
    child: Child,
    stdout: File,
    stderr: File,
}

impl Running {
    pub(crate) fn of(mut command: Command) -> Self {
        let file = || tempfile::tempfile().expect("a file");
        let (stdout, stderr) = (file(), file());
        let same = |file: &File| file.try_clone().expect("one more descriptor");
        command.stdout(same(&stdout)).stderr(same(&stderr)).process_group(0);
        Running { child: command.spawn().expect("it starts"), stdout, stderr }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// To this process alone, not to its group.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    /// Waits for the end.
    pub(crate) fn end(self) -> Ended {
        self.end_within(PATIENCE)
    }

    /// Waits for the end of something that takes long.
    pub(crate) fn end_within(mut self, patience: Duration) -> Ended {
        let status = self.status(patience);
        Ended::from(Output { status, stdout: all_of(&self.stdout), stderr: all_of(&self.stderr) })
    }

    /// Waits for the end of a process that is killed.
    pub(crate) fn killed(mut self) {
        assert_eq!(self.status(PATIENCE).signal(), Some(Signal::SIGKILL as i32));
    }

    fn status(&mut self, patience: Duration) -> ExitStatus {
        let mut status = None;
        until_within(patience, "the end of a process", || {
            status = self.child.try_wait().expect("it is ours");
            status.is_some()
        });
        status.expect("it ended")
    }
}

fn all_of(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("a file");
    file.read_to_end(&mut bytes).expect("it can be read");
    bytes
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // First gently, so that its command ends too, which is in a group of its own.
            self.signal(Signal::SIGCONT);
            self.signal(Signal::SIGTERM);
            let deadline = Instant::now() + Duration::from_secs(2);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// Looks again and again until it is so.
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(PATIENCE, what, is_so);
}

/// Looks again and again until it is so, which may take this lease.
pub(crate) fn until_over(lease: Duration, what: &str, is_so: impl FnMut() -> bool) {
    until_within(PATIENCE + lease, what, is_so);
}

fn until_within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is there and not a zombie.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}
