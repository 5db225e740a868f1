//! The session of this process: its name, what its heartbeat renews, and when it was written last.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::backend::{Moment, unique_name};

use crate::{progress::Shared, session::KEPT};

/// A session that was written before this, and has nothing in the table, goes on under another name: the cell of the old one may be
/// collected.
const RETIRED_AFTER: Duration = Duration::from_micros(KEPT / 4);

/// The bytes of a renewal in the cell of a session, and as many again for what was closed.
const RENEWAL: usize = 200;

/// The session of this process.
#[derive(Debug)]
pub(crate) struct OwnSession {
    state: Mutex<State>,
    /// The heartbeat that is under way.
    pub(crate) beating: Shared,
}

#[derive(Debug)]
struct State {
    name: String,
    /// The last heartbeat; `None`: there is no cell yet.
    last: Option<Moment>,
    /// The grants that the service renews, by fence. It asks each third of a lease: one that it has not asked for
    /// within half a lease is to end.
    renewed: BTreeMap<u64, Renewed>,
}

#[derive(Clone, Copy, Debug)]
struct Renewed {
    lease: u64,
    asked: Moment,
    /// The last heartbeat that extended it by that lease.
    sent: Option<Moment>,
}

impl OwnSession {
    pub(crate) fn new() -> Self {
        OwnSession { state: Mutex::new(State::new()), beating: Shared::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name, and whether its cell is there.
    pub(crate) fn name(&self) -> (String, bool) {
        let state = self.state();
        (state.name.clone(), state.last.is_some())
    }

    /// Goes on under another name, if the cell is old and nothing of this one `is_used`, as far as is known: what it holds elsewhere is
    /// renewed there. Returns whether it does.
    pub(crate) fn retire(&self, is_used: impl FnOnce(&str) -> bool) -> bool {
        let mut state = self.state();
        let is_old = state.last.as_ref().is_some_and(|last| last.elapsed() >= RETIRED_AFTER);
        let retires = is_old && !is_used(&state.name);
        if retires {
            *state = State::new();
        }
        retires
    }

    /// Has the heartbeat of the session with this name renew grants, for now; for the longest lease of those that have this fence, if
    /// there may be `several`.
    pub(crate) fn renews(&self, name: &str, fences: &[u64], lease: u64, several: bool) {
        let (asked, mut state) = (Moment::now(), self.state());
        if state.name != name {
            return;
        }
        for fence in fences {
            let renewed = state.renewed.entry(*fence).or_insert(Renewed { lease, asked, sent: None });
            let lease = if several { lease.max(renewed.lease) } else { lease };
            let sent = renewed.sent.filter(|_| renewed.lease == lease);
            *renewed = Renewed { lease, asked, sent };
        }
    }

    /// Returns the moment of the oldest heartbeat that has extended one of these grants last; `None` if one has none.
    pub(crate) fn extended(&self, fences: &[u64]) -> Option<Moment> {
        let state = self.state();
        let sent = fences.iter().map(|fence| state.renewed.get(fence)?.sent).collect::<Option<Vec<_>>>();
        sent?.into_iter().max_by_key(Moment::elapsed)
    }

    /// Has it no longer renew a grant.
    pub(crate) fn renews_no_more(&self, fences: impl Iterator<Item = u64>) {
        let mut state = self.state();
        for fence in fences {
            state.renewed.remove(&fence);
        }
    }

    /// Returns whether it renews as many grants as have room in its cell, and not all of these.
    pub(crate) fn is_full_for(&self, fences: &[u64], most_bytes: usize) -> bool {
        let renewed = &self.state().renewed;
        let is_full = (renewed.len() + fences.len()).saturating_mul(RENEWAL) > most_bytes;
        is_full && !fences.iter().all(|fence| renewed.contains_key(fence))
    }

    /// Returns what a heartbeat extends: what was asked for within half a lease, and what is `wanted` and was asked for within one.
    pub(crate) fn due(&self, wanted: &[u64]) -> BTreeMap<u64, u64> {
        let mut state = self.state();
        state.renewed.retain(|_, renewed| renewed.asked.elapsed() < Duration::from_micros(renewed.lease));
        let is_due = |(fence, renewed): &(&u64, &Renewed)| {
            wanted.contains(fence) || renewed.asked.elapsed() < Duration::from_micros(renewed.lease / 2)
        };
        state.renewed.iter().filter(is_due).map(|(fence, renewed)| (*fence, renewed.lease)).collect()
    }

    /// Returns the moment of the last heartbeat.
    pub(crate) fn last(&self) -> Option<Moment> {
        self.state().last
    }

    /// Notes a heartbeat of the session with this name, which has extended these leases.
    pub(crate) fn beaten(&self, name: &str, sent: Moment, leases: &BTreeMap<u64, u64>) {
        let mut state = self.state();
        if state.name != name {
            return;
        }
        state.last = Some(sent);
        for (fence, renewed) in &mut state.renewed {
            if leases.get(fence) == Some(&renewed.lease) {
                renewed.sent = Some(sent);
            }
        }
    }

    /// The cell of the session with this name was removed: what it held is lost, and the next grant is another session's.
    pub(crate) fn lost(&self, name: &str) {
        let mut state = self.state();
        if state.name == name {
            *state = State::new();
        }
    }
}

impl State {
    fn new() -> Self {
        State { name: unique_name(), last: None, renewed: BTreeMap::new() }
    }
}
