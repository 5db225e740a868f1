//! Trying a store from several hosts at once: each replaces one cell again and again, and looks whether its own writes, and those of
//! the others, stay.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lockcore::{
    BackendError, Finding, Severity,
    backend::{Moment, ServiceTime, unique_name},
};
use serde::{Deserialize, Serialize};

use crate::{
    cell::{Cell, Found, Written},
    error::StoreError,
    store::Store,
    table::micros,
};

/// The cell that all replace. It is collected as those of probes are.
const NAME: &str = "probe/00000000000000000000000000000000";

/// A process that has written nothing for this time is forgotten: for longer than a request is tried. One that was away for half of it
/// begins again.
const LEFT: Duration = Duration::from_secs(600);

/// The longest pause between two rounds: others get their turn, wherever they are.
const PAUSE: Duration = Duration::from_millis(20);

/// The content of the cell.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Content {
    writes: BTreeMap<String, Writes>,
    /// The time before the last write, by the process that made it.
    lo: u64,
    hi: u64,
}

/// The writes of a process: how many there were, and the time before the last.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Writes {
    count: u64,
    at: u64,
}

/// The observations of a process.
#[derive(Default)]
struct Seen {
    name: String,
    /// Its writes that are certainly done, and those that may be.
    done: u64,
    in_doubt: u64,
    /// The writes of each process as they were read last, and first.
    writes: BTreeMap<String, Writes>,
    first: BTreeMap<String, Writes>,
    /// The faults that were found, the first of each kind.
    lost: Option<String>,
    early: Option<String>,
    /// The requests that failed, and how the last did.
    failed: u64,
    last: Option<BackendError>,
}

/// Replaces the cell for a time; returns what that shows.
pub(crate) async fn verify<C: Cell>(
    store: &Arc<Store<C>>,
    time: Duration,
) -> Result<Vec<Finding>, StoreError> {
    let (begun, mut seen, mut answered) = (Moment::now(), Seen::begin(Seen::default()), Moment::now());
    let mut known: Option<(C::Version, Content)> = None;
    while begun.elapsed() < time {
        if answered.elapsed() > LEFT / 2 {
            seen = Seen::begin(seen);
        }
        match round(&store.cell, &mut seen, known.take()).await {
            Ok(newest) => (known, answered) = (newest, Moment::now()),
            Err(error) if error.is_retryable() => {
                seen.failed += 1;
                seen.last = Some(error);
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(PAUSE.mul_f64(fastrand::f64())).await;
    }
    if let (Ok(Found::Changed(_, content)), Ok(now)) =
        (store.cell.read(NAME, None).await, store.cell.now().await)
    {
        // The last write, too, has to be there.
        seen.look(&read(&content), now);
    }
    Ok(seen.findings())
}

/// Reads the content. What cannot be read has no write of anyone, which is told.
fn read(content: &[u8]) -> Content {
    serde_json::from_slice(content).unwrap_or_default()
}

/// Reads the cell, and replaces it; returns what it is then, if that is known.
async fn round<C: Cell>(
    cell: &C,
    seen: &mut Seen,
    known: Option<(C::Version, Content)>,
) -> Result<Option<(C::Version, Content)>, BackendError> {
    let found = cell.read(NAME, known.as_ref().map(|(version, _)| version)).await?;
    let now = cell.now().await?;
    let (version, mut next) = match (found, known) {
        (Found::Unchanged, Some((version, content))) => (Some(version), content),
        (Found::Changed(version, content), _) => (Some(version), read(&content)),
        (Found::Absent | Found::Unchanged, _) => (None, Content::default()),
    };
    seen.look(&next, now);
    next.writes.retain(|_, writes| writes.at.saturating_add(micros(LEFT)) >= now.lo);
    let own = next.writes.entry(seen.name.clone()).or_default();
    *own = Writes { count: own.count + 1, at: now.lo };
    (next.lo, next.hi) = (now.lo, now.hi);
    let bytes = serde_json::to_vec(&next).expect("plain data has a form in JSON");
    match cell.replace(NAME, version.as_ref(), bytes.into()).await {
        Ok(Written::Done(version)) => {
            seen.done += 1;
            Ok(Some((version, next)))
        }
        // The answer to the second of two that were sent, if the first was done.
        Ok(Written::Refused) => {
            seen.in_doubt += 1;
            Ok(None)
        }
        Err(error) => {
            seen.in_doubt += u64::from(error.in_doubt());
            Err(error)
        }
    }
}

impl Seen {
    /// Begins, or begins again under another name with what was found so far.
    fn begin(so_far: Seen) -> Self {
        let Seen { lost, early, failed, last, .. } = so_far;
        Seen { name: unique_name(), lost, early, failed, last, ..Seen::default() }
    }

    /// Compares what was read with all that was seen before.
    fn look(&mut self, content: &Content, now: ServiceTime) {
        let count = |name: &String| content.writes.get(name).map_or(0, |writes| writes.count);
        let own = count(&self.name);
        if own < self.done || own > self.done + self.in_doubt {
            let what = format!("{own} of at least {} writes of this process are there", self.done);
            self.lost.get_or_insert(what);
        }
        for (name, before) in self.writes.iter().filter(|(name, _)| **name != self.name) {
            let is_forgotten = before.at.saturating_add(micros(LEFT)) < now.hi;
            if count(name) < before.count && !is_forgotten {
                let what = format!(
                    "{} of at least {} writes of another process are there",
                    count(name),
                    before.count
                );
                self.lost.get_or_insert(what);
            }
        }
        if self.done == 0 && self.in_doubt == 0 {
            self.first = content.writes.clone();
        }
        self.writes.clone_from(&content.writes);
        if now.hi < content.lo {
            let ahead = (content.lo - now.hi) / 1000;
            let what = format!(
                "another process knew one that is {ahead} ms later: do the clocks differ, or was the store's set back?"
            );
            self.early.get_or_insert(what);
        }
    }

    fn findings(self) -> Vec<Finding> {
        let others = self.writes.iter().filter(|(name, _)| **name != self.name);
        let count = |(name, writes): (&String, &Writes)| {
            writes.count.saturating_sub(self.first.get(name).map_or(0, |first| first.count))
        };
        let counts: Vec<u64> = others.map(count).filter(|count| *count > 0).collect();
        let (others, theirs) = (counts.len(), counts.iter().sum::<u64>());
        let conditional = match (self.lost, self.done) {
            (Some(lost), _) => (Severity::Error, format!("{lost}: two processes may hold a lock")),
            (None, 0) => {
                (Severity::Warning, "no write of this process was done: nothing is known".to_owned())
            }
            (None, done) => (
                Severity::Ok,
                format!("{done} of this process and {theirs} of {others} others: all are there"),
            ),
        };
        let mut all = vec![Finding::new(conditional.0, "conditional writes", conditional.1)];
        if let Some(early) = self.early {
            all.push(Finding::new(Severity::Error, "time", format!("{early} Two processes may hold a lock")));
        }
        if others == 0 {
            let what = "no other process took part: run it on two hosts at the same time";
            all.push(Finding::new(Severity::Warning, "other processes", what.to_owned()));
        }
        if let Some(last) = self.last {
            all.push(Finding::new(
                Severity::Warning,
                "requests",
                format!("{} failed, the last by: {last}", self.failed),
            ));
        }
        all
    }
}
