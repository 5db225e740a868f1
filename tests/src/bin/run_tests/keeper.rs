//! One test server of each kind, for this run and the next.
//!
//! A process of its own, the keeper, starts the servers and owns them. A run takes those of a keeper that is there, and starts one
//! if there is none, or if its servers have the routines of other sources. The keeper ends, and its servers with it, when no run
//! used them for [`IDLE`], at `run-tests stop`, or when its folder in `target` is gone; in CI each run ends its keeper.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File, OpenOptions, TryLockError},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Write},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::join_all;
use lockcore_conformance::servers::{Cluster, Kind, Server, ServerError, wire};
use tokio::runtime::Runtime;

use crate::{Failure, checkout};

/// The command by which this program is the keeper.
pub(crate) const COMMAND: &str = "keep-servers";

/// For how long servers stay that no run uses.
const IDLE: Duration = Duration::from_secs(600);
/// For how long a run waits for a keeper to start or to end its servers.
const READY: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(100);

/// The folder's files: what the servers are, for what sources, who keeps them, when they were used, that they are to end.
const ENVIRONMENT: &str = "environment";
const LOCK: &str = "lock";
const USED: &str = "used";
const STOP: &str = "stop";
const LOG: &str = "log";

/// Where the keeper of this build keeps its files.
pub(crate) fn folder() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or(io::ErrorKind::NotFound)?;
    let folder = target.join("test-servers");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The servers, as environment variables.
#[derive(Default, Debug)]
pub(crate) struct Servers {
    folder: PathBuf,
    environment: BTreeMap<String, String>,
}

impl Servers {
    /// Takes the servers that are there, or starts them.
    pub(crate) fn get(folder: &Path) -> Result<Self, Failure> {
        let key = key()?;
        fs::write(folder.join(USED), "")?;
        let runtime = Runtime::new()?;
        if is_kept(folder)? {
            let servers = Self::await_keeper(folder)?;
            if servers.environment.get("key") == Some(&key) && runtime.block_on(servers.answer()) {
                println!("test servers: those of the last run");
                return Ok(servers);
            }
            Self::stop(folder)?;
        }
        println!("test servers: starting");
        let _ = fs::remove_file(folder.join(ENVIRONMENT));
        Command::new(env::current_exe()?)
            .args([COMMAND, &key])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join(LOG))?)
            // Outside the terminal's group: Ctrl-C is for the tests.
            .process_group(0)
            .spawn()?;
        let servers = Self::await_keeper(folder)?;
        let required = env::var_os("LOCKCORE_REQUIRE_SERVERS").is_some_and(|value| value == "1");
        for (name, reason) in &servers.environment {
            if let Some(kind) = name.strip_prefix("missing ") {
                if required {
                    return Err(format!("no {kind}: {reason}").into());
                }
                println!("test servers: the tests of {kind} are skipped: {reason}");
            }
        }
        Ok(servers)
    }

    fn await_keeper(folder: &Path) -> Result<Self, Failure> {
        let began = Instant::now();
        while began.elapsed() < READY {
            if let Ok(text) = fs::read_to_string(folder.join(ENVIRONMENT)) {
                let pairs = text.lines().filter_map(|line| line.split_once('='));
                let environment = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                return Ok(Servers { folder: folder.to_owned(), environment });
            }
            // It locks at once.
            if began.elapsed() > POLL * 20 && !is_kept(folder)? {
                break;
            }
            thread::sleep(POLL);
        }
        let log = fs::read_to_string(folder.join(LOG)).unwrap_or_default();
        Err(format!("the test servers did not start: {log}").into())
    }

    /// Whether all answer.
    async fn answer(&self) -> bool {
        let answers = Kind::ALL.into_iter().map(|kind| async move {
            let Some(url) = self.environment.get(&kind.url_variable()) else { return true };
            let address = url.rsplit(['@', '/']).find(|part| part.contains(':'));
            match address {
                Some(address) => wire::until_answers(kind, address, Duration::from_secs(5)).await.is_ok(),
                None => false,
            }
        });
        join_all(answers).await.into_iter().all(|answers| answers)
    }

    /// Names them to a process.
    pub(crate) fn name_in(&self, command: &mut Command) {
        command.envs(self.environment.iter().filter(|(name, _)| name.starts_with("LOCKCORE_TEST_")));
    }

    /// Says that they are in use.
    pub(crate) fn in_use(&self) {
        // Without the folder there is no keeper any more that would read it.
        let _ = fs::write(self.folder.join(USED), "");
    }

    /// Ends the use of this run.
    pub(crate) fn leave(&self) -> Result<(), Failure> {
        if env::var_os("CI").is_some() {
            return Self::stop(&self.folder);
        }
        self.in_use();
        println!("test servers: they stay for {} minutes; `./test.sh stop` ends them", IDLE.as_secs() / 60);
        Ok(())
    }

    /// Ends the keeper and its servers, if there are any.
    pub(crate) fn stop(folder: &Path) -> Result<(), Failure> {
        let began = Instant::now();
        while is_kept(folder)? {
            fs::write(folder.join(STOP), "")?;
            if began.elapsed() > READY {
                return Err("the test servers do not end".into());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

/// Whether there is a keeper.
fn is_kept(folder: &Path) -> io::Result<bool> {
    match lock_file(folder)?.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn lock_file(folder: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(folder.join(LOCK))
}

/// Starts the servers, and keeps them.
pub(crate) fn keep(folder: &Path, key: &str) -> Result<(), Failure> {
    let lock = lock_file(folder)?;
    lock.lock()?;
    for name in [ENVIRONMENT, STOP] {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let wanted: Vec<Kind> =
        Kind::ALL.into_iter().filter(|kind| env::var_os(kind.url_variable()).is_none()).collect();
    let runtime = Runtime::new()?;
    let (started, cluster) = runtime.block_on(async {
        tokio::join!(join_all(wanted.iter().map(|&kind| Server::start_for_many(kind))), cluster())
    });
    let (mut servers, mut lines) = (Vec::new(), vec![("key".to_owned(), key.to_owned())]);
    for (kind, server) in wanted.into_iter().zip(started) {
        match server {
            Ok(server) => {
                lines.push((kind.url_variable(), server.url()));
                servers.push(server);
            }
            Err(missing @ ServerError::Unavailable { .. }) => {
                lines.push((format!("missing {kind}"), one_line(&missing)))
            }
            Err(error) => return Err(error.into()),
        }
    }
    let cluster = match cluster {
        Ok(cluster) => {
            lines.push((Cluster::VARIABLE.to_owned(), cluster.addresses().to_owned()));
            Some(cluster)
        }
        Err(missing @ ServerError::Unavailable { .. }) => {
            lines.push(("missing redis cluster".to_owned(), one_line(&missing)));
            None
        }
        Err(error) => return Err(error.into()),
    };
    write_environment(folder, &lines)?;
    while used_since(folder, IDLE) && !folder.join(STOP).exists() {
        thread::sleep(POLL);
    }
    drop((servers, cluster));
    Ok(())
}

async fn cluster() -> Result<Cluster, ServerError> {
    match Cluster::from_environment() {
        Some(cluster) => Ok(cluster),
        None => Cluster::start().await,
    }
}

fn one_line(error: &ServerError) -> String {
    error.to_string().replace('\n', " ")
}

/// Writes it whole: a run reads it as soon as it is there.
fn write_environment(folder: &Path, lines: &[(String, String)]) -> io::Result<()> {
    let unfinished = folder.join("unfinished");
    // The URLs have passwords.
    let mut file =
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&unfinished)?;
    for (name, value) in lines {
        writeln!(file, "{name}={value}")?;
    }
    fs::rename(unfinished, folder.join(ENVIRONMENT))
}

/// Whether a run used the servers a short time ago; not if the folder is gone.
fn used_since(folder: &Path, time: Duration) -> bool {
    let used = fs::metadata(folder.join(USED)).and_then(|used| used.modified());
    used.is_ok_and(|used| {
        SystemTime::now().duration_since(used).is_ok_and(|since| since < time) || used > SystemTime::now()
    })
}

/// What the servers hold that depends on the sources: the routines that the first test of a run creates.
fn key() -> io::Result<String> {
    let mut hasher = DefaultHasher::new();
    let mut folders = vec![checkout().join("backend-sql/src")];
    let mut files = vec![checkout().join("lockcore/src/protocol.rs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    for file in files {
        file.hash(&mut hasher);
        fs::read(file)?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}
