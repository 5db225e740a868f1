//! Counters at rare branches: what a run has shown, and what it has not.

use std::{collections::BTreeMap, fmt};

use crate::plan::World;

/// What happens to the callers, in each world.
const ALL: &[&str] = &[
    "admin: broke a lock at once",
    "admin: froze an id",
    "admin: stopped the renewal of a lock",
    "callback stopped, its locks were lost",
    "dropped in the queue or before",
    "dropped while it held",
    "elected",
    "ended as failed",
    "ended as lost",
    "given up at a poll",
    "granted after a wait",
    "guarded write refused",
    "held past a lease",
    "kept for a time",
    "nested call granted",
    "nested call refused",
    "process stood still past its lease",
    "process suspended past its lease",
    "refused at once",
    "refused after a wait",
    "released in part",
    "stalled past its lease",
];

/// What happens where the backend sweeps.
const SWEEPING: &[&str] = &["swept by hand", "swept something"];

/// What happens where the backend has a queue.
const QUEUE: &[&str] = &["seen in the queue"];

/// What happens on the way to a store.
const NET: &[&str] = &[
    "answer lost of a read",
    "answer lost of a write that was done",
    "clock stepped back",
    "clock stepped forward",
    "late write done after its sender died",
    "late write done after its sender gave up",
    "late write refused",
    "process cut off",
    "process died",
    "process died while it held",
    "process died while it waited",
    "refused as busy",
    "refused as denied",
    "refused as unavailable",
    "request lost",
    "store could not be opened at first",
    "take-over after a death",
    "write doubled, the second answered",
];

/// What happens in the store of cells.
const CELL: &[&str] = &[
    "create refused, the cell exists",
    "list hides a new cell",
    "list shows a removed cell",
    "lost answer, then overwritten before it was read",
    "lost answer, then read as done",
    "read of a garbled cell",
    "read of a removed cell",
    "read unchanged",
    "session cell collected",
    "session cell forgotten",
    "session cell garbled",
    "session of another closed",
    "table: a broken lock is held",
    "table: a change that may be taken back",
    "table: a grant goes to another session",
    "table: a place is removed by another process",
    "table: a renewal of the future is ignored",
    "table: a session is missed",
    "table: an attempt is withdrawn",
    "table: an id is frozen",
    "table: an offer",
    "table: several hold an id",
    "table: ten wait",
    "table: tombstones end",
    "write lost a race",
];

/// What happens where several cells are replaced at once.
const SEVERAL: &[&str] = &["a cell removed with its version", "several replaced", "several refused"];

/// What happens in DynamoDB's table.
const DYNAMO: &[&str] = &[
    "conflict with a transaction",
    "expired item collected",
    "failed after it was done",
    "failed before it was done",
    "key of a batch left unprocessed",
    "listed",
    "scan in several pages",
    "transaction cancelled",
    "transaction done",
    "transaction repeated by its token",
    "transaction still in progress",
    "update refused",
];

/// How often each branch was reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    pub(crate) fn new(world: World) -> Self {
        let of_world: &[&[_]] = match world {
            World::Memory => &[ALL, SWEEPING, QUEUE],
            World::Cell => &[ALL, SWEEPING, QUEUE, NET, CELL],
            World::Cells => &[ALL, SWEEPING, QUEUE, NET, CELL, SEVERAL],
            World::Dynamo => &[ALL, NET, DYNAMO],
        };
        Reached(of_world.iter().copied().flatten().map(|name| (*name, 0)).collect())
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        let count = self.0.get_mut(what);
        *count.unwrap_or_else(|| panic!("{what:?} is in no list of branches")) += 1;
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Reached) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// Returns those that were never reached.
    pub fn missing(&self) -> Vec<&'static str> {
        self.0.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect()
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.0 {
            writeln!(f, "{count:>10}  {name}")?;
        }
        Ok(())
    }
}
