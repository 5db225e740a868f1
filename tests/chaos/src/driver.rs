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
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use fastrand::Rng;
use futures_util::future;
use lockcore::{BreakMode, LockDao, LockError, LockingService, Target, Uuid, Wait};
use lockcore_any::Config;
use lockcore_conformance::servers::{self, Cluster, Mode as Line, Proxy, Replicated, Server, Watched, Way};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{net::TcpStream, process::Command, time::sleep};

use crate::{
    check::{self, AUDIT, Report},
    clock,
    faults::Kind,
    history::{self, Claim, Mode, Outcome, Recorder, Stage},
    worker::{self, Cheat, Plan},
};

/// The namespace of all locks.
const NAMESPACE: &str = "chaos";

/// The size of a disk that is to be filled.
const DISK: u64 = 512 << 20;

/// How long a store may fail after the last fault.
const STORE_PATIENCE: Duration = Duration::from_secs(120);

/// More connections than any of the servers allows.
const MOST_CONNECTIONS: usize = 1100;

/// A backend to run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// In the driver's process; there are tasks instead of workers.
    Memory,
    /// A file.
    Sqlite,
    /// A server that the driver starts.
    Server(servers::Kind),
    /// A Postgres server with a synchronous replica.
    Replicated,
    /// A Redis master with a replica, and a sentinel.
    Sentinel,
    /// A Redis cluster of three nodes.
    Cluster,
    /// A bucket of an emulator of S3.
    Bucket,
}

impl FromStr for Backend {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        match name {
            "memory" => Ok(Backend::Memory),
            "sqlite" => Ok(Backend::Sqlite),
            "postgres-replica" => Ok(Backend::Replicated),
            "redis-sentinel" => Ok(Backend::Sentinel),
            "redis-cluster" => Ok(Backend::Cluster),
            "s3" => Ok(Backend::Bucket),
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
            Backend::Replicated => "postgres-replica",
            Backend::Sentinel => "redis-sentinel",
            Backend::Cluster => "redis-cluster",
            Backend::Bucket => "s3",
        })
    }
}

impl Backend {
    /// The lease of all locks: short, so that stopped processes outlast it.
    fn lease(self) -> Duration {
        match self {
            Backend::Server(servers::Kind::DynamoDb) => Duration::from_secs(5),
            Backend::Bucket => Duration::from_secs(10),
            _ => Duration::from_secs(1),
        }
    }

    /// Returns whether the store may forget or end grants by a fault, which the documentation says: then two may be inside at once
    /// until the former holder learns of it, but fences and guarded writes stay in order.
    fn may_lose_grants(self, fault: Kind) -> bool {
        fault == Kind::Forget || (fault == Kind::Failover && self == Backend::Sentinel)
    }

    /// Returns whether a kind of fault can be caused.
    pub fn can(self, fault: Kind) -> bool {
        use servers::Kind::{DynamoDb, MariaDb, MySql, Postgres, Redis};
        match fault {
            Kind::Break | Kind::Freeze => true,
            Kind::Kill | Kind::Stop => self != Backend::Memory,
            Kind::StepClock => self != Backend::Memory && clock::library().is_some(),
            Kind::Failover => matches!(self, Backend::Replicated | Backend::Sentinel),
            Kind::Reshard => self == Backend::Cluster,
            Kind::Forget => self == Backend::Server(Redis),
            Kind::FillDisk => matches!(self, Backend::Server(MariaDb | MySql)),
            // A server of Postgres starts a process for each connection: too many for a small machine.
            Kind::Exhaust => matches!(self, Backend::Server(kind) if kind != DynamoDb && kind != Postgres),
            // The engine keeps its data in memory.
            Kind::Restart => matches!(self, Backend::Server(kind) if kind != DynamoDb),
            Kind::Cut
            | Kind::CutAfter
            | Kind::Refuse
            | Kind::LoseRequests
            | Kind::LoseReplies
            | Kind::Delay
            | Kind::Silence
            | Kind::Pause => matches!(self, Backend::Server(_) | Backend::Bucket),
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
    home: Home,
}

/// What runs the store.
enum Home {
    File,
    Server(Box<Server>, Proxy),
    Replicated(Box<Replicated>, Proxy),
    Watched(Box<Watched>),
    Cluster(Cluster),
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
        let kind = match self.backend {
            Backend::Server(kind) => kind,
            Backend::Replicated => {
                let replicated = Replicated::start().await?;
                let proxy = Proxy::start(replicated.address().await).await?;
                let url = replicated.url_through(proxy.address()).await;
                return Ok(Store { url, home: Home::Replicated(Box::new(replicated), proxy) });
            }
            Backend::Sentinel => {
                let watched = Watched::start().await?;
                return Ok(Store { url: watched.url(), home: Home::Watched(Box::new(watched)) });
            }
            Backend::Cluster => {
                let cluster = Cluster::start().await?;
                let url = format!("redis+cluster://{}", cluster.addresses());
                return Ok(Store { url, home: Home::Cluster(cluster) });
            }
            Backend::Bucket => {
                let server = Server::start_by(servers::Kind::DynamoDb, Way::Process).await?;
                servers::Bucket::make(&server, NAMESPACE).await?;
                let proxy = Proxy::start(server.address()).await?;
                let url = format!(
                    "s3://{NAMESPACE}/locks?region=us-east-1&access_key_id=test&secret_access_key=test&endpoint={}",
                    server.url_through(proxy.address()).trim_end_matches('/')
                );
                return Ok(Store { url, home: Home::Server(Box::new(server), proxy) });
            }
            Backend::Memory | Backend::Sqlite => {
                let url = format!("sqlite:{}", self.folder.join("locks.db").display());
                return Ok(Store { url, home: Home::File });
            }
        };
        let server = match kind {
            // It forgets no grant that it answered.
            servers::Kind::Redis => {
                let written = ["--appendonly", "yes", "--appendfsync", "always", "--maxclients", "100"];
                Server::start_with(kind, move |_| Ok(written.map(str::to_owned).to_vec())).await?
            }
            _ if self.faults.contains(&Kind::FillDisk) => Server::start_small(kind, DISK).await?,
            // Files in memory do not outlive the server.
            _ if !self.faults.contains(&Kind::Restart) => Server::start_for_many(kind).await?,
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
        Ok(Store { url, home: Home::Server(Box::new(server), proxy) })
    }

    /// The faults to choose from.
    fn possible_faults(&self) -> Vec<Kind> {
        let fills = self.faults.contains(&Kind::FillDisk);
        // A small disk is in memory, and goes with the server.
        let fits = |kind: Kind| self.backend.can(kind) && !(fills && kind == Kind::Restart);
        self.faults.iter().copied().filter(|kind| fits(*kind)).collect()
    }

    /// What the wall clock of a worker is set by.
    fn clock(&self, worker: u64) -> PathBuf {
        self.folder.join(format!("clock-{worker}"))
    }

    /// Runs a worker until its operations are done; one that is killed is replaced.
    async fn worker(&self, number: u64, url: &str, workers: &Workers) -> anyhow::Result<()> {
        let mut left = self.operations / self.workers;
        let clocks = self.possible_faults().contains(&Kind::StepClock);
        clock::set(&self.clock(number), 0)?;
        for life in 1.. {
            let name = format!("worker-{number}-{life}");
            let history = self.history(&name);
            let plan = self.plan(self.seed.wrapping_mul(1_000).wrapping_add(number * 100 + life), left);
            let mut child = Command::new(&self.program)
                .envs(clocks.then(|| clock::environment(&self.clock(number))).into_iter().flatten())
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
            let begun = Instant::now();
            // A request to freeze it that was given up may have come after the one to thaw it.
            let target = Target::Id(id.clone());
            if locks.admin().inspect(&target).await.is_ok_and(|seen| seen.frozen) {
                eprintln!("{id} is still frozen");
                while locks.admin().freeze(&target, false).await.is_err() {
                    sleep(Duration::from_millis(100)).await;
                }
            }
            // A machine that is busy with other stores may not answer in time; only a lock that is in the way is a violation.
            let outcome = loop {
                let ended = locks.wait(Wait::up_to(wait)).run_locked([id.clone()], async || {}).await;
                if let Err(error) = &ended {
                    eprintln!("{id} is not locked {:?} after the run: {error:?}", begun.elapsed());
                }
                let outcome = worker::outcome(ended);
                if outcome != Outcome::Failed || begun.elapsed() > STORE_PATIENCE {
                    break outcome;
                }
            };
            recorder.now(op, Stage::Ended { outcome });
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
    let config =
        Config { url: Some(url.parse()?), namespace: Some(NAMESPACE.to_owned()), ..Config::default() };
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
        let kinds = self.run.possible_faults();
        while !self.stopped.load(Relaxed) {
            let Some(kind) = rng.choice(kinds.iter().copied()) else { return Ok(()) };
            sleep(self.run.every.mul_f64(rng.f64())).await;
            let begun = history::now();
            let worker = self.one(kind, &mut rng).await?;
            let millis = (history::now() - begun) / 1_000_000 + 1;
            let (kind, loses_grants) = (kind.to_string(), self.run.backend.may_lose_grants(kind));
            recorder.at(begun, 0, Stage::Fault { kind, millis, worker, loses_grants });
        }
        Ok(())
    }

    /// Causes one fault and ends it; returns the worker that was disturbed, if it was only one.
    async fn one(&self, kind: Kind, rng: &mut Rng) -> anyhow::Result<Option<String>> {
        let lease = self.run.backend.lease();
        let short = Duration::from_millis(rng.u64(10..500));
        let long = lease.mul_f64(0.2 + rng.f64() * 2.0);
        match (kind, self.store.map(|store| &store.home)) {
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
                // An answer that did not come in time says nothing: it may be frozen all the same.
                if let Err(error) = self.locks.admin().freeze(&target, true).await {
                    eprintln!("{target:?} is perhaps frozen: {error}");
                }
                sleep(short).await;
                while self.locks.admin().freeze(&target, false).await.is_err() {
                    sleep(short).await;
                }
            }
            (Kind::StepClock, _) => {
                let worker = rng.u64(1..=self.run.workers);
                clock::set(&self.run.clock(worker), rng.i64(-clock::FURTHEST..=clock::FURTHEST))?;
            }
            (Kind::Pause, Some(Home::Server(server, _))) => {
                // The kernel cannot always freeze a container; then there is nothing to resume.
                if server.pause().await.is_ok() {
                    sleep(long).await;
                    server.resume().await?;
                }
            }
            (Kind::Restart | Kind::Forget, Some(Home::Server(server, proxy))) => {
                if kind == Kind::Forget {
                    servers::wire::redis_command(&server.address(), "FLUSHALL").await?;
                }
                server.kill().await?;
                sleep(short).await;
                server.restart().await?;
                proxy.redirect(server.address());
            }
            (Kind::Exhaust, Some(Home::Server(server, proxy))) => {
                proxy.set(Line::Reset).await;
                let mut taken = Vec::new();
                // Each is accepted by the kernel, also those that the server then refuses.
                for _ in 0..MOST_CONNECTIONS {
                    taken.extend(TcpStream::connect(server.address()).await.ok());
                }
                proxy.set(Line::Pass).await;
                sleep(long).await;
            }
            (Kind::FillDisk, Some(Home::Server(server, _))) => {
                server.fill_disk().await?;
                sleep(long).await;
                server.free_disk().await?;
            }
            (Kind::Failover, Some(Home::Replicated(replicated, proxy))) => {
                proxy.redirect(replicated.fail_over().await?);
                proxy.set(Line::Reset).await;
                proxy.set(Line::Pass).await;
                sleep(short).await;
                replicated.replace().await?;
            }
            (Kind::Failover, Some(Home::Watched(watched))) => {
                let old = watched.current().await?;
                let mut both = [&watched.master, &watched.replica].into_iter();
                let new = both.find(|server| server.address() != old.address());
                let new = new.context("there are two")?;
                old.pause().await?;
                watched.promoted(new).await?;
                sleep(short).await;
                // Until the sentinel corrects it, it believes that it is the master.
                old.resume().await?;
                watched.in_step(old).await?;
            }
            (Kind::Reshard, Some(Home::Cluster(cluster))) => reshard(cluster, rng).await?,
            (Kind::Silence, Some(Home::Server(_, proxy))) => proxy.silence(),
            (_, Some(Home::Server(_, proxy))) => {
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
            (_, _) => bail!("{kind} is not for this backend"),
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

/// Moves the slot of the namespace from the node that has it to another, key by key.
async fn reshard(cluster: &Cluster, rng: &mut Rng) -> anyhow::Result<()> {
    let ask =
        async |node: &Server, command: &str| servers::wire::redis_command(&node.address(), command).await;
    let mut others: Vec<&Server> = cluster.nodes().iter().collect();
    let mut source = None;
    for (at, node) in others.iter().enumerate() {
        // The others name the node that has it.
        if ask(node, &format!("EXISTS {}", key("/f"))).await.is_ok() {
            source = Some(at);
        }
    }
    let source = others.swap_remove(source.context("a node has the slot")?);
    let target = rng.choice(others).context("there are other nodes")?;
    let slot = ask(source, &format!("CLUSTER KEYSLOT {}", key("/f"))).await?;
    let (from, to) = (ask(source, "CLUSTER MYID").await?, ask(target, "CLUSTER MYID").await?);
    ask(target, &format!("CLUSTER SETSLOT {slot} IMPORTING {from}")).await?;
    ask(source, &format!("CLUSTER SETSLOT {slot} MIGRATING {to}")).await?;
    let address = target.address().replace(':', " ");
    loop {
        let keys = ask(source, &format!("CLUSTER GETKEYSINSLOT {slot} 100")).await?;
        if keys.is_empty() {
            break;
        }
        for key in keys.lines() {
            ask(source, &format!("MIGRATE {address} {key} 0 5000")).await?;
        }
    }
    for node in [target, source] {
        ask(node, &format!("CLUSTER SETSLOT {slot} NODE {to}")).await?;
    }
    Ok(())
}

/// A key of the namespace on Redis.
fn key(name: &str) -> String {
    format!("{{{NAMESPACE}}}{name}")
}
