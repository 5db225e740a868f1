//! The driver: starts the store and the workers, causes faults until all operations are done, and has the checker look at
//! what was recorded.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use fastrand::Rng;
use futures_util::future;
use lockcore::{BreakMode, LockDao, LockError, LockingService, Target, Uuid, Wait};
use lockcore_any::Config;
use lockcore_conformance::servers::{self, Mode as Line, Proxy, Server};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{process::Command, time::sleep};

use crate::{
    check::{self, AUDIT, Report},
    faults::Kind,
    history::{self, Claim, Mode, Recorder, Stage},
    worker::{self, Cheat, Plan},
};

/// A backend to run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// In the driver's process; there are tasks instead of workers.
    Memory,
    /// A file.
    Sqlite,
    /// A server that the driver starts.
    Server(servers::Kind),
}

impl FromStr for Backend {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        match name {
            "memory" => Ok(Backend::Memory),
            "sqlite" => Ok(Backend::Sqlite),
            name => match servers::Kind::ALL.into_iter().find(|kind| kind.name() == name) {
                Some(kind) => Ok(Backend::Server(kind)),
                None => bail!("no such backend: {name}"),
            },
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Memory => "memory",
            Backend::Sqlite => "sqlite",
            Backend::Server(kind) => kind.name(),
        })
    }
}

impl Backend {
    /// The lease of all locks: short, so that stopped processes outlast it.
    fn lease(self) -> Duration {
        match self {
            Backend::Server(servers::Kind::DynamoDb) => Duration::from_secs(5),
            _ => Duration::from_secs(1),
        }
    }

    /// Returns whether a kind of fault can be caused.
    pub fn can(self, fault: Kind) -> bool {
        match self {
            Backend::Memory => !fault.needs_processes() && !fault.needs_server(),
            Backend::Sqlite => !fault.needs_server(),
            // The engine keeps its data in memory.
            Backend::Server(servers::Kind::DynamoDb) => fault != Kind::Restart,
            Backend::Server(_) => true,
        }
    }
}

/// What a run does.
#[derive(Clone, Debug)]
pub struct Run {
    /// The backend.
    pub backend: Backend,
    /// The seed of all choices.
    pub seed: u64,
    /// How many operations there are in all.
    pub operations: u64,
    /// How many worker processes.
    pub workers: u64,
    /// How many tasks each of them has.
    pub actors: u64,
    /// How many ids are locked.
    pub ids: u64,
    /// The kinds of faults to cause; those that the backend cannot have are left out.
    pub faults: Vec<Kind>,
    /// The longest pause between two faults.
    pub every: Duration,
    /// A way for the workers to cheat.
    pub cheat: Option<Cheat>,
    /// This program, to be started again as a worker.
    pub program: PathBuf,
    /// Where the histories go.
    pub folder: PathBuf,
}

/// The store of a run.
struct Store {
    /// What all connect to, the driver too: a server that is started again may have another port, which the proxy knows.
    url: String,
    server: Option<(Server, Proxy)>,
}

impl Run {
    /// Runs it, and checks the histories.
    ///
    /// # Errors
    /// What kept it from running. A violation is none.
    pub async fn run(&self) -> anyhow::Result<Report> {
        fs::create_dir_all(self.resources())?;
        let report = match self.backend {
            Backend::Memory => self.in_process().await,
            _ => self.in_processes().await,
        };
        report?;
        check(&self.folder)
    }

    fn resources(&self) -> PathBuf {
        self.folder.join("resources")
    }

    fn history(&self, process: &str) -> PathBuf {
        self.folder.join(format!("{process}.jsonl"))
    }

    fn plan(&self, seed: u64, operations: u64) -> Plan {
        Plan {
            seed,
            actors: self.actors,
            operations,
            ids: self.ids,
            lease: self.backend.lease(),
            resources: self.resources(),
            cheat: self.cheat,
        }
    }

    async fn in_process(&self) -> anyhow::Result<()> {
        let locks = connect("memory:").await?;
        let recorder = Recorder::create(&self.history("worker-1"))?;
        let faults = Faults::new(self, None, &locks);
        let plan = self.plan(self.seed, self.operations);
        let work = async {
            worker::run(&locks, &plan, &recorder).await;
            faults.stop();
            Ok(())
        };
        future::try_join(work, faults.cause()).await?;
        self.audit(&locks).await
    }

    async fn in_processes(&self) -> anyhow::Result<()> {
        let store = self.store().await?;
        // Creates the schema, too.
        let locks = connect(&store.url).await?;
        let faults = Faults::new(self, Some(&store), &locks);
        let work = async {
            let workers = (1..=self.workers).map(|worker| self.worker(worker, &store.url, &faults.workers));
            future::try_join_all(workers).await?;
            faults.stop();
            Ok(())
        };
        future::try_join(work, faults.cause()).await?;
        self.audit(&locks).await
    }

    async fn store(&self) -> anyhow::Result<Store> {
        let Backend::Server(kind) = self.backend else {
            let url = format!("sqlite:{}", self.folder.join("locks.db").display());
            return Ok(Store { url, server: None });
        };
        let server = match kind {
            // It forgets no grant that it answered.
            servers::Kind::Redis => {
                let written = ["--appendonly", "yes", "--appendfsync", "always"];
                Server::start_with(kind, move |_| Ok(written.map(str::to_owned).to_vec())).await?
            }
            _ => Server::start(kind).await?,
        };
        let proxy = Proxy::start(server.address()).await?;
        let url = match kind {
            servers::Kind::DynamoDb => format!(
                "dynamodb://eu-central-1/chaos?access_key_id=test&secret_access_key=test&endpoint={}",
                server.url_through(proxy.address())
            ),
            _ => server.url_through(proxy.address()),
        };
        Ok(Store { url, server: Some((server, proxy)) })
    }

    /// Runs a worker until its operations are done; one that is killed is replaced.
    async fn worker(&self, number: u64, url: &str, workers: &Workers) -> anyhow::Result<()> {
        let mut left = self.operations / self.workers;
        for life in 1.. {
            let name = format!("worker-{number}-{life}");
            let history = self.history(&name);
            let plan = self.plan(self.seed.wrapping_mul(1_000).wrapping_add(number * 100 + life), left);
            let mut child = Command::new(&self.program)
                .arg("worker")
                .args(["--url", url])
                .args(["--seed", &plan.seed.to_string()])
                .args(["--actors", &plan.actors.to_string()])
                .args(["--operations", &plan.operations.to_string()])
                .args(["--ids", &plan.ids.to_string()])
                .args(["--lease", &humantime::format_duration(plan.lease).to_string()])
                .arg("--resources")
                .arg(&plan.resources)
                .arg("--history")
                .arg(&history)
                .args(plan.cheat.map(|cheat| format!("--cheat={cheat:?}")))
                .kill_on_drop(true)
                .spawn()
                .context("a worker is started")?;
            let pid = child.id().context("it was not waited for")?;
            workers.begun(&name, pid);
            let status = child.wait().await?;
            workers.ended(&name);
            if status.success() {
                return Ok(());
            }
            ensure!(status.code().is_none(), "{name} failed: {status}");
            // Killed: the rest is done by the next one. Nested operations count too, which only makes it shorter.
            let begun =
                fs::read_to_string(&history).unwrap_or_default().matches(r#""stage":"asked""#).count();
            left = left.saturating_sub(begun as u64).max(1);
        }
        unreachable!("the loop has no end")
    }

    /// Locks each id, as the last process of the run.
    async fn audit(&self, locks: &LockingService) -> anyhow::Result<()> {
        let recorder = Recorder::create(&self.history(AUDIT))?;
        let one = async |number: u64| {
            let claim = Claim { id: format!("id-{number:03}"), mode: Mode::Exclusive };
            let (op, id) = (recorder.next_op(), claim.id.clone());
            recorder.now(op, Stage::Asked { claims: vec![claim], nested: false });
            let wait = self.backend.lease() * 4 + Duration::from_secs(10);
            let ended = locks.wait(Wait::up_to(wait)).run_locked([id], async || {}).await;
            recorder.now(op, Stage::Ended { outcome: worker::outcome(ended) });
        };
        future::join_all((0..self.ids).map(one)).await;
        recorder.now(0, Stage::Finished);
        Ok(())
    }
}

/// Connects to a store.
///
/// # Errors
/// When that fails.
pub async fn connect(url: &str) -> anyhow::Result<LockingService> {
    let config = Config { url: Some(url.parse()?), namespace: Some("chaos".to_owned()), ..Config::default() };
    // Elsewhere the first to connect creates the schema.
    let locks = config.service().await?;
    if url.starts_with("dynamodb:") {
        LockDao::<String, Uuid>::migrate(locks.dao()).await?;
    }
    Ok(locks)
}

/// Checks the histories in a folder.
///
/// # Errors
/// When they cannot be read.
pub fn check(folder: &Path) -> anyhow::Result<Report> {
    let mut histories = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let name = path.file_stem().context("a file has a name")?.to_string_lossy().into_owned();
            histories.insert(name, history::read(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(check::check(&histories))
}

/// The processes that run.
#[derive(Default)]
struct Workers(Mutex<BTreeMap<String, u32>>);

impl Workers {
    fn begun(&self, name: &str, pid: u32) {
        self.all().insert(name.to_owned(), pid);
    }

    fn ended(&self, name: &str) {
        self.all().remove(name);
    }

    fn all(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose(&self, rng: &mut Rng) -> Option<String> {
        let all = self.all();
        rng.choice(all.keys()).cloned()
    }

    /// Signals a worker if it still runs: it is not waited for before it is taken out of the map.
    fn signal(&self, name: &str, signal: Signal) -> anyhow::Result<()> {
        if let Some(pid) = self.all().get(name) {
            kill(Pid::from_raw(i32::try_from(*pid)?), signal)?;
        }
        Ok(())
    }
}

/// Causes faults.
struct Faults<'a> {
    run: &'a Run,
    store: Option<&'a Store>,
    locks: &'a LockingService,
    workers: Workers,
    stopped: AtomicBool,
}

impl<'a> Faults<'a> {
    fn new(run: &'a Run, store: Option<&'a Store>, locks: &'a LockingService) -> Self {
        Faults { run, store, locks, workers: Workers::default(), stopped: AtomicBool::new(false) }
    }

    /// Ends [`cause`](Self::cause) after the fault that is in force.
    fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Causes one fault after the other, each of which it ends.
    async fn cause(&self) -> anyhow::Result<()> {
        let mut rng = Rng::with_seed(self.run.seed);
        let recorder = Recorder::create(&self.run.history("driver"))?;
        let kinds: Vec<_> =
            self.run.faults.iter().copied().filter(|kind| self.run.backend.can(*kind)).collect();
        while !self.stopped.load(Relaxed) {
            let Some(kind) = rng.choice(kinds.iter().copied()) else { return Ok(()) };
            sleep(self.run.every.mul_f64(rng.f64())).await;
            let begun = history::now();
            let worker = self.one(kind, &mut rng).await?;
            let millis = (history::now() - begun) / 1_000_000 + 1;
            recorder.at(begun, 0, Stage::Fault { kind: kind.to_string(), millis, worker });
        }
        Ok(())
    }

    /// Causes one fault and ends it; returns the worker that was disturbed, if it was only one.
    async fn one(&self, kind: Kind, rng: &mut Rng) -> anyhow::Result<Option<String>> {
        let lease = self.run.backend.lease();
        let short = Duration::from_millis(rng.u64(10..500));
        let long = lease.mul_f64(0.2 + rng.f64() * 2.0);
        let server = self.store.and_then(|store| store.server.as_ref());
        match (kind, server) {
            (Kind::Kill | Kind::Stop, _) => {
                let Some(name) = self.workers.choose(rng) else { return Ok(None) };
                if kind == Kind::Kill {
                    self.workers.signal(&name, Signal::SIGKILL)?;
                } else {
                    self.workers.signal(&name, Signal::SIGSTOP)?;
                    sleep(long).await;
                    self.workers.signal(&name, Signal::SIGCONT)?;
                }
                return Ok(Some(name));
            }
            // The store may be busy with the workers: a fault that could not be caused is one fewer.
            (Kind::Break, _) => drop(self.break_one(rng).await),
            (Kind::Freeze, _) => {
                let target = Target::Id(format!("id-{:03}", rng.u64(..self.run.ids)));
                let frozen = self.locks.admin().freeze(&target, true).await;
                sleep(short).await;
                if frozen.is_ok() {
                    while self.locks.admin().freeze(&target, false).await.is_err() {
                        sleep(short).await;
                    }
                }
            }
            (Kind::Pause, Some((server, _))) => {
                // The kernel cannot always freeze a container; then there is nothing to resume.
                if server.pause().await.is_ok() {
                    sleep(long).await;
                    server.resume().await?;
                }
            }
            (Kind::Restart, Some((server, proxy))) => {
                server.kill().await?;
                sleep(short).await;
                server.restart().await?;
                proxy.redirect(server.address());
            }
            (Kind::Silence, Some((_, proxy))) => proxy.silence(),
            (_, Some((_, proxy))) => {
                let line = match kind {
                    Kind::Cut => Line::Reset,
                    Kind::CutAfter => Line::CutAfter(rng.u64(1..20)),
                    Kind::Refuse => Line::Refuse,
                    Kind::LoseRequests => Line::DropRequests,
                    Kind::LoseReplies => Line::DropReplies,
                    _ => Line::Delay { requests: short / 4, replies: short / 4 },
                };
                proxy.set(line).await;
                sleep(if kind == Kind::Cut { Duration::from_millis(1) } else { long }).await;
                proxy.set(Line::Pass).await;
            }
            (_, None) => bail!("{kind} needs a server"),
        }
        Ok(None)
    }

    async fn break_one(&self, rng: &mut Rng) -> Result<(), LockError> {
        let admin = self.locks.admin();
        let target = Target::Id(format!("id-{:03}", rng.u64(..self.run.ids)));
        let seen = admin.inspect(&target).await?;
        if let Some(holder) = rng.choice(&seen.holders) {
            admin.break_lock(&target, holder.fence, BreakMode::AfterLease).await?;
        }
        Ok(())
    }
}
