//! The driver: starts the store and the workers, causes faults until all operations are done, and has the checker look at
//! what was recorded.

use std::{
    convert::Infallible,
    fs,
    path::PathBuf,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use anyhow::ensure;
use futures_util::future;
use lockcore::{LockingService, Target};
use lockcore_torture::{
    audit::audit,
    crew::Crew,
    history::{self, Recorder},
    worker::{self, Cheat, Plan},
};
use tokio::{process::Command, time::sleep};

use crate::{
    backend::Backend,
    check::{AUDIT, Report},
    clock,
    disturb::Faults,
    faults::Kind,
    store::{Store, connect},
};

/// One callback in so many takes longer than others.
const PAUSED: u32 = 500;

/// A fault that does not end in so long is stuck, and so are workers that record nothing.
pub(crate) const STUCK: Duration = Duration::from_secs(200);

/// How long the store may fail after the last fault.
const PATIENCE: Duration = Duration::from_secs(120);

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
        Ok(history::check(&self.folder)?)
    }

    fn resources(&self) -> PathBuf {
        self.folder.join("resources")
    }

    /// The plan of a worker that does all operations.
    fn plan(&self) -> Plan {
        Plan {
            seed: self.seed,
            actors: self.actors,
            operations: self.operations,
            ids: self.ids,
            lease: self.backend.lease(),
            resources: self.resources(),
            dropped: self.dropped,
            paused: PAUSED,
            cheat: self.cheat,
        }
    }

    async fn in_process(&self) -> anyhow::Result<()> {
        let (locks, crew) = (connect("memory:").await?, Crew::new(&self.folder));
        let recorder = Recorder::create(&crew.history("worker-1"))?;
        let faults = Faults::new(self, None, &locks, &crew);
        let work = async {
            worker::run(&locks, &self.plan(), &recorder, &AtomicBool::new(false)).await;
            crew.end();
            Ok(())
        };
        future::try_join(work, faults.cause()).await?;
        self.audit(&locks, &crew).await
    }

    async fn in_processes(&self) -> anyhow::Result<()> {
        let store = Store::start(self).await?;
        // Creates the schema, too.
        let (locks, crew) = (connect(&store.url).await?, Crew::new(&self.folder));
        let faults = Faults::new(self, Some(&store), &locks, &crew);
        let plan = Plan { operations: self.operations / self.workers, ..self.plan() };
        let work = async {
            let workers = (1..=self.workers).map(async |number| {
                let url = store.url_of(number);
                clock::set(&self.clock(number), 0)?;
                crew.work(number, &plan, || self.worker(number, &url)).await
            });
            future::try_join_all(workers).await?;
            crew.end();
            Ok(())
        };
        tokio::select! {
            ended = future::try_join(work, faults.cause()) => drop(ended?),
            revived = faults.revive() => match revived? {},
            never = self.give_up(&crew) => match never {},
        }
        self.audit(&locks, &crew).await
    }

    /// Ends the crew when its workers are stuck.
    async fn give_up(&self, crew: &Crew) -> Infallible {
        let recorded = || {
            let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
            let workers = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(b"worker-"));
            workers.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum::<u64>()
        };
        let (mut last, mut since) = (recorded(), Instant::now());
        while since.elapsed() < STUCK {
            sleep(Duration::from_secs(1)).await;
            let now = recorded();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        eprintln!("the workers recorded nothing for {} s", STUCK.as_secs());
        crew.end();
        crew.give_up();
        future::pending().await
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

    /// Makes what starts a worker.
    fn worker(&self, number: u64, url: &str) -> Command {
        let clocks = self.possible_faults().contains(&Kind::StepClock);
        let mut command = Command::new(&self.program);
        command
            .envs(clocks.then(|| clock::environment(&self.clock(number))).into_iter().flatten())
            .args(["worker", "--url", url]);
        command
    }

    async fn audit(&self, locks: &LockingService, crew: &Crew) -> anyhow::Result<()> {
        // A request to freeze an id that was given up may have come after the one to thaw it.
        for number in 0..self.ids {
            let target = Target::Id(worker::id(number));
            if locks.admin().inspect(&target).await.is_ok_and(|seen| seen.frozen) {
                eprintln!("{target:?} is still frozen");
                let since = Instant::now();
                while let Err(error) = locks.admin().freeze(&target, false).await {
                    ensure!(since.elapsed() < PATIENCE, "{target:?} stays frozen: {error}");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        let recorder = Recorder::create(&crew.history(AUDIT))?;
        audit(locks, &self.plan(), &recorder, |what| eprintln!("{what}")).await;
        Ok(())
    }
}
