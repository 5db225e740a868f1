//! The driver: starts the store and the workers, causes faults until all operations are done, and has the checker look at
//! what was recorded.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use futures_util::{StreamExt, future, stream};
use lockcore::{LockingService, Target, Wait};
use tokio::{process::Command, time::sleep};

use crate::{
    backend::Backend,
    check::{self, AUDIT, Report},
    clock,
    disturb::{Faults, Workers},
    faults::Kind,
    history::{self, Claim, Mode, Outcome, Recorder, Stage},
    store::{Store, connect},
    worker::{self, Cheat, Plan},
};

/// How long a store may fail after the last fault.
const STORE_PATIENCE: Duration = Duration::from_secs(120);

/// How many ids are locked at once after the run: each may need a connection.
const AT_ONCE: usize = 200;

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
    /// One call in so many, at least 1, is dropped before it ends.
    pub dropped: u32,
    /// A way for the workers to cheat.
    pub cheat: Option<Cheat>,
    /// This program, to be started again as a worker.
    pub program: PathBuf,
    /// Where the histories go.
    pub folder: PathBuf,
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

    pub(crate) fn history(&self, process: &str) -> PathBuf {
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
            dropped: self.dropped,
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
        let store = Store::start(self).await?;
        // Creates the schema, too.
        let locks = connect(&store.url).await?;
        let faults = Faults::new(self, Some(&store), &locks);
        let work = async {
            let workers =
                (1..=self.workers).map(|worker| self.worker(worker, store.url_of(worker), &faults.workers));
            future::try_join_all(workers).await?;
            faults.stop();
            Ok(())
        };
        future::try_join(work, faults.cause()).await?;
        self.audit(&locks).await
    }

    /// The faults to choose from.
    pub(crate) fn possible_faults(&self) -> Vec<Kind> {
        let fills = self.faults.contains(&Kind::FillDisk);
        // A small disk is in memory, and goes with the server.
        let fits = |kind: Kind| self.backend.can(kind) && !(fills && kind == Kind::Restart);
        self.faults.iter().copied().filter(|kind| fits(*kind)).collect()
    }

    /// What the wall clock of a worker is set by.
    pub(crate) fn clock(&self, worker: u64) -> PathBuf {
        self.folder.join(format!("clock-{worker}"))
    }

    /// Runs a worker until its operations are done; one that is killed is replaced.
    async fn worker(&self, number: u64, url: String, workers: &Workers) -> anyhow::Result<()> {
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
                .args(["--url", &url])
                .args(["--seed", &plan.seed.to_string()])
                .args(["--actors", &plan.actors.to_string()])
                .args(["--operations", &plan.operations.to_string()])
                .args(["--ids", &plan.ids.to_string()])
                .args(["--lease", &humantime::format_duration(plan.lease).to_string()])
                .arg("--resources")
                .arg(&plan.resources)
                .arg("--history")
                .arg(&history)
                .args(["--dropped", &plan.dropped.to_string()])
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
        stream::iter(0..self.ids).for_each_concurrent(AT_ONCE, one).await;
        recorder.now(0, Stage::Finished);
        Ok(())
    }
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
