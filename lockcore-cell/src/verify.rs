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
    step::micros,
    store::Store,
};

/// The cell that all replace. It is collected as those of probes are.
const NAME: &str = "probe/00000000000000000000000000000000";

/// What is written begins again after it was left alone for this time: longer than a request is tried.
const LEFT: Duration = Duration::from_secs(600);

/// The longest pause between two rounds: others get their turn, wherever they are.
const PAUSE: Duration = Duration::from_millis(20);

/// The content of the cell.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Content {
    /// How many writes of each process there were.
    writes: BTreeMap<String, u64>,
    /// The time before the last write, by the process that made it.
    lo: u64,
    hi: u64,
}

/// The observations of a process.
#[derive(Default)]
struct Seen {
    name: String,
    /// Its writes that are certainly done, and those that may be.
    done: u64,
    in_doubt: u64,
    /// The most writes of each process so far.
    writes: BTreeMap<String, u64>,
    /// The writes of others when it began.
    before: BTreeMap<String, u64>,
    /// What is wrong, the first of each kind.
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
    let (begun, mut seen) = (Moment::now(), Seen { name: unique_name(), ..Seen::default() });
    let mut known: Option<(C::Version, Content)> = None;
    while begun.elapsed() < time {
        match round(&store.cell, &mut seen, known.take()).await {
            Ok(newest) => known = newest,
            Err(error) if error.is_retryable() => {
                seen.failed += 1;
                seen.last = Some(error);
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(PAUSE.mul_f64(fastrand::f64())).await;
    }
    Ok(seen.findings())
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
        // What cannot be read has no write of anyone, which is told below.
        (Found::Changed(version, content), _) => {
            (Some(version), serde_json::from_slice(&content).unwrap_or_default())
        }
        (Found::Absent | Found::Unchanged, _) => (None, Content::default()),
    };
    if next.hi.saturating_add(micros(LEFT)) < now.lo {
        next = Content::default();
    }
    seen.look(&next, now);
    *next.writes.entry(seen.name.clone()).or_default() += 1;
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
    /// Compares what was read with all that was seen before.
    fn look(&mut self, content: &Content, now: ServiceTime) {
        let own = content.writes.get(&self.name).copied().unwrap_or(0);
        if own < self.done || own > self.done + self.in_doubt {
            let what = format!("{own} of at least {} writes of this process are there", self.done);
            self.lost.get_or_insert(what);
        }
        for (name, count) in &self.writes {
            let left = content.writes.get(name).copied().unwrap_or(0);
            if left < *count {
                self.lost
                    .get_or_insert(format!("{left} of at least {count} writes of another process are there"));
            }
        }
        if self.done == 0 && self.in_doubt == 0 {
            self.before = content.writes.clone();
        }
        self.writes.clone_from(&content.writes);
        if now.hi < content.lo {
            let ahead = (content.lo - now.hi) / 1000;
            self.early.get_or_insert(format!(
                "another process knew a time that is {ahead} ms later than it can be"
            ));
        }
    }

    fn findings(self) -> Vec<Finding> {
        let found = |severity, check, detail| Finding { severity, check, detail };
        let others = self.writes.iter().filter(|(name, _)| **name != self.name);
        let counts =
            others.map(|(name, count)| count - self.before.get(name).copied().unwrap_or(0).min(*count));
        let (others, theirs) =
            counts.filter(|count| *count > 0).fold((0, 0), |(n, sum), count| (n + 1, sum + count));
        let mut all = vec![match self.lost {
            Some(lost) => {
                found(Severity::Error, "conditional writes", format!("{lost}: two processes may hold a lock"))
            }
            None => {
                let done =
                    format!("{} of this process and {theirs} of {others} others: all are there", self.done);
                found(Severity::Ok, "conditional writes", done)
            }
        }];
        if let Some(early) = self.early {
            all.push(found(Severity::Error, "time", format!("{early}: two processes may hold a lock")));
        }
        if others == 0 {
            let what = "no other process took part: run it on two hosts at the same time";
            all.push(found(Severity::Warning, "other processes", what.to_owned()));
        }
        if let Some(last) = self.last {
            all.push(found(
                Severity::Warning,
                "requests",
                format!("{} failed, the last by: {last}", self.failed),
            ));
        }
        all
    }
}
