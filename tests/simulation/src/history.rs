//! What is recorded in a run, and what all of its actors share.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fastrand::Rng;
use lockcore::{ExclusiveFence, FenceGuard};
use lockcore_judge::history::{Line, Stage};

use crate::{plan::Plan, reached::Reached};

/// The process that faults are recorded for.
pub(crate) const WORLD: &str = "world";

/// What all actors of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    /// The operations that are left.
    left: AtomicU64,
    contexts: AtomicU64,
    /// A process is being dropped.
    dying: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The begin of this step of time, in nanoseconds.
    now: u64,
    /// The last moment that was given out.
    last: u64,
    next_op: u64,
    lines: Vec<(Arc<str>, Line)>,
    resources: BTreeMap<String, FenceGuard>,
    /// The ids that may be frozen.
    frozen: BTreeSet<String>,
    /// The writes on their way to the resources.
    writes: BTreeMap<(u64, u64), Write>,
    rng: Rng,
    reached: Reached,
}

#[derive(Debug)]
struct Write {
    process: Arc<str>,
    op: u64,
    id: String,
    fence: ExclusiveFence,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

impl Shared {
    pub(crate) fn new(plan: &Plan) -> Self {
        Shared {
            plan: plan.clone(),
            left: AtomicU64::new(plan.operations),
            contexts: AtomicU64::new(1),
            dying: AtomicBool::new(false),
            state: Mutex::new(State {
                now: 0,
                last: 0,
                next_op: 1,
                lines: Vec::new(),
                resources: BTreeMap::new(),
                frozen: BTreeSet::new(),
                writes: BTreeMap::new(),
                rng: Rng::with_seed(plan.seed ^ 0x5eed),
                reached: Reached::new(plan.world),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Sets the time, and lets the writes arrive that are due.
    pub(crate) fn set_now(&self, now: Duration) {
        let mut state = self.state();
        state.now = nanos(now);
        while let Some(entry) = state.writes.first_entry()
            && entry.key().0 <= nanos(now)
        {
            let Write { process, op, id, fence } = entry.remove();
            let admitted = state.resources.entry(id.clone()).or_default().admit_exclusive(fence).is_ok();
            if !admitted {
                state.reached.count("guarded write refused");
            }
            let (at, fence) = (state.moment(), fence.number());
            state.lines.push((process, Line { at, op, stage: Stage::Wrote { id, fence, admitted } }));
        }
    }

    /// Whether there is one more operation to do.
    pub(crate) fn takes_one(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Leaves no operation to do.
    pub(crate) fn take_all(&self) {
        self.left.store(0, Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left.load(Relaxed) == 0
    }

    pub(crate) fn is_dying(&self) -> bool {
        self.dying.load(Relaxed)
    }

    /// Drops a process, which records nothing more.
    pub(crate) fn dying(&self, drop: impl FnOnce()) {
        self.dying.store(true, Relaxed);
        drop();
        self.dying.store(false, Relaxed);
    }

    pub(crate) fn context(&self) -> u64 {
        self.contexts.fetch_add(1, Relaxed)
    }

    pub(crate) fn op(&self) -> u64 {
        let mut state = self.state();
        state.next_op += 1;
        state.next_op - 1
    }

    /// Returns a moment that is later than all before, in nanoseconds of the run.
    pub(crate) fn now(&self) -> u64 {
        self.state().moment()
    }

    pub(crate) fn record(&self, process: &Arc<str>, op: u64, stage: Stage) {
        let at = self.now();
        self.record_at(at, process, op, stage);
    }

    pub(crate) fn record_at(&self, at: u64, process: &Arc<str>, op: u64, stage: Stage) {
        self.state().lines.push((process.clone(), Line { at, op, stage }));
    }

    pub(crate) fn fault(&self, kind: &str, lasts: Duration, process: Option<&str>, loses_grants: bool) {
        let worker = process.map(str::to_owned);
        let millis = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        self.record(&WORLD.into(), 0, Stage::Fault { kind: kind.to_owned(), millis, worker, loses_grants });
    }

    pub(crate) fn reach(&self, what: &'static str) {
        self.state().reached.count(what);
    }

    /// Sends a write to a resource: it arrives at once, or some time later, whatever became of its sender.
    pub(crate) fn write(&self, process: &Arc<str>, op: u64, id: &str, fence: ExclusiveFence) {
        let mut state = self.state();
        let delay = match state.rng.u32(..4) {
            0 => nanos(self.plan.lease.mul_f64(state.rng.f64() * 3.0)),
            _ => 0,
        };
        let (due, seq) = (state.now + delay, state.moment());
        state.writes.insert((due, seq), Write { process: process.clone(), op, id: id.to_owned(), fence });
    }

    /// Notes whether an id may be frozen.
    pub(crate) fn set_frozen(&self, id: &str, frozen: bool) {
        let ids = &mut self.state().frozen;
        if frozen {
            ids.insert(id.to_owned());
        } else {
            ids.remove(id);
        }
    }

    pub(crate) fn frozen(&self) -> BTreeSet<String> {
        self.state().frozen.clone()
    }

    /// All lines, and what was reached.
    pub(crate) fn take(&self) -> (Vec<(Arc<str>, Line)>, Reached) {
        let mut state = self.state();
        (std::mem::take(&mut state.lines), state.reached.clone())
    }
}

impl State {
    fn moment(&mut self) -> u64 {
        self.last = self.now.max(self.last + 1);
        self.last
    }
}
