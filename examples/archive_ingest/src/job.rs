//! The workers of one process: each visits every object, in an order of its own, and all race for each.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::Context;
use lockcore::{LockingError, LockingService, Wait};
use tokio::task::JoinSet;

use crate::{
    plan::Plan,
    progress::Progress,
    report::describe,
    source::{File, Files},
    store::{Archive, Stored},
    tally::Tally,
};

/// Workers go through the list together, each in an order of its own within so many objects: then they meet at every
/// object, also of a large tree, and seldom all at the same.
const STRETCH: usize = 16;

/// How long to wait at the end for releases that the store has not answered.
const GRACE: Duration = Duration::from_secs(10);

/// The work of one process.
#[derive(Clone)]
pub(crate) struct Job {
    plan: Arc<Plan>,
    files: Arc<Files>,
    archive: Arc<Archive>,
    progress: Arc<Progress>,
    /// `None` for a run without.
    locks: Option<LockingService>,
}

/// One visit to an object: what became of it, and how long it was waited for if it was found locked.
type Visit = (anyhow::Result<Stored>, Option<Duration>);

impl Job {
    /// Connects to the locks. Nothing runs yet.
    pub(crate) async fn new(
        plan: &Arc<Plan>,
        files: &Arc<Files>,
        archive: &Arc<Archive>,
        progress: &Arc<Progress>,
    ) -> anyhow::Result<Self> {
        let locks = match &plan.locks {
            None => None,
            Some(url) => Some(LockingService::new(lockcore_any::connect(url).await.context("the locks")?)),
        };
        let (plan, files, archive, progress) =
            (plan.clone(), files.clone(), archive.clone(), progress.clone());
        Ok(Job { plan, files, archive, progress, locks })
    }

    /// Runs all workers to their ends.
    pub(crate) async fn run(self) -> Tally {
        let started = Instant::now();
        let mut workers: JoinSet<Tally> =
            (0..self.plan.workers).map(|number| self.clone().work(number)).collect();
        let mut tally = Tally::default();
        while let Some(ended) = workers.join_next().await {
            match ended {
                Ok(counted) => tally.merge(counted),
                Err(died) => tally.fail(format!("a worker died: {died}")),
            }
        }
        tally.elapsed = started.elapsed();
        if let Some(locks) = self.locks {
            match locks.shutdown(GRACE).await {
                0 => {}
                open => tally.fail(format!("{open} locks could not be released, they end with their leases")),
            }
        }
        tally
    }

    async fn work(self, number: u16) -> Tally {
        let writer = format!("process {} worker {number}", std::process::id());
        let mut tally = Tally::default();
        for file in shuffled(&self.files.list) {
            let (stored, waited) = match &self.locks {
                Some(locks) => self.visit(locks, file, &writer).await,
                None => (self.archive.store_once(file, &writer).await, None),
            };
            if let Some(waited) = waited {
                tally.contended += 1;
                tally.waited += waited;
            }
            match stored {
                Ok(stored) => {
                    let news = matches!(stored, Stored::Written { .. }) as u64;
                    self.progress.written.fetch_add(news, Relaxed);
                    tally.count(file.key.as_ref(), stored);
                }
                Err(error) => tally.fail(format!("{}: {}", file.key, describe(&error))),
            }
            self.progress.visits.fetch_add(1, Relaxed);
        }
        tally
    }

    /// Tries the object's lock, and waits for it if another worker has it: in two steps only to count that.
    async fn visit(&self, locks: &LockingService, file: &File, writer: &str) -> Visit {
        let id = self.archive.id(file);
        let tried =
            locks.call().owner(writer).with_locks([&id], || self.archive.store_once(file, writer)).await;
        match tried {
            Err(refused) if refused.is_contention() => {}
            ended => return (flat(ended), None),
        }
        if let Err(error) = self.archive.met(file, writer).await {
            return (Err(error.into()), None);
        }
        let started = Instant::now();
        let mut waited = None;
        let ended = locks
            .call()
            .owner(writer)
            .wait(Wait::up_to(self.plan.wait))
            .with_locks([&id], || {
                waited = Some(started.elapsed());
                self.archive.store_once(file, writer)
            })
            .await;
        (flat(ended), waited.or_else(|| Some(started.elapsed())))
    }
}

/// The callback's own error as it is, and every other outcome as one.
fn flat<I, C, T>(ended: Result<T, LockingError<I, C, anyhow::Error>>) -> anyhow::Result<T>
where
    I: lockcore::Ident,
    C: lockcore::ContextId,
{
    ended.map_err(|error| match error {
        LockingError::Callback { error } => error,
        other => anyhow::anyhow!("{other}"),
    })
}

fn shuffled(files: &[File]) -> Vec<&File> {
    let mut order: Vec<&File> = files.iter().collect();
    for stretch in order.chunks_mut(STRETCH) {
        fastrand::shuffle(stretch);
    }
    order
}
