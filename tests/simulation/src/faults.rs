//! The faults of a run: what happens when, and to which process. All of it follows from the seed and the number of the fault, so
//! that one can be left out without another one changing.

use std::{fmt, str::FromStr, time::Duration};

use fastrand::Rng;

use crate::plan::{Plan, World, hyphenated, named};

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// A process dies, and another one takes its place.
    Kill,
    /// A process stands still, often past its lease; its clock goes on.
    Stop,
    /// The machine of a process is suspended: only one of its clocks goes on.
    Suspend,
    /// What a process sends and what is sent to it does not arrive.
    Cut,
    /// All that a process sends is refused at once.
    Refuse,
    /// What any process sends does not arrive.
    Outage,
    /// Some requests are lost, some answers, some writes are done late or twice, and some requests are refused.
    Noise,
    /// All ways take ten times as long.
    Slow,
    /// The clocks of the processes run at other rates than the store's, by up to 2 %.
    Drift,
    /// The clock of the store steps forward, by up to two leases.
    StepForward,
    /// The clock of the store steps back, by up to two hours.
    StepBack,
    /// A cell in which a process renews is removed.
    Forget,
    /// A cell in which a process renews gets a content that is none of ours.
    Garble,
    /// Cells that are not ours lie beside ours.
    Foreign,
    /// A lock is broken by administration.
    Break,
    /// An id is frozen for a while.
    Freeze,
    /// Lists are late, by up to ten seconds.
    LateList,
    /// Items whose time to live is over are collected.
    Collect,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 18] = [
        Kind::Kill,
        Kind::Stop,
        Kind::Suspend,
        Kind::Cut,
        Kind::Refuse,
        Kind::Outage,
        Kind::Noise,
        Kind::Slow,
        Kind::Drift,
        Kind::StepForward,
        Kind::StepBack,
        Kind::Forget,
        Kind::Garble,
        Kind::Foreign,
        Kind::Break,
        Kind::Freeze,
        Kind::LateList,
        Kind::Collect,
    ];

    /// Returns whether it can happen in a world.
    pub fn is_of(self, world: World) -> bool {
        match world {
            World::Memory => matches!(self, Kind::Stop | Kind::Suspend | Kind::Break | Kind::Freeze),
            World::Cell | World::Cells => self != Kind::Collect,
            World::Dynamo => !matches!(self, Kind::Forget | Kind::Garble | Kind::Foreign | Kind::LateList),
        }
    }

    /// Returns whether it happens unless other kinds are asked for by name.
    pub fn is_usual(self, world: World) -> bool {
        self.is_of(world) && !matches!(self, Kind::Forget | Kind::Garble | Kind::StepBack)
    }

    /// Returns whether it holds for the whole of a run.
    pub(crate) fn is_steady(self) -> bool {
        matches!(self, Kind::Drift | Kind::Foreign | Kind::LateList | Kind::Collect)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hyphenated(f, self)
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        named(Self::ALL, name)
    }
}

/// A fault that happens at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// Its number in the run.
    pub(crate) number: u64,
    pub(crate) at: Duration,
    pub(crate) kind: Kind,
    /// The process by its place.
    pub(crate) process: u32,
    pub(crate) lasts: Duration,
    /// For what else is left to chance.
    pub(crate) chance: u64,
}

/// The faults of a run, one after the other.
pub(crate) struct Faults {
    plan: Plan,
    kinds: Vec<Kind>,
    next: u64,
    at: Duration,
}

impl Faults {
    pub(crate) fn new(plan: &Plan) -> Self {
        // Of all kinds, so that a kind that is left out does not change the others.
        let kinds =
            Kind::ALL.into_iter().filter(|kind| kind.is_of(plan.world) && !kind.is_steady()).collect();
        Faults { plan: plan.clone(), kinds, next: 0, at: Duration::from_secs(1) }
    }
}

impl Iterator for Faults {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        if self.plan.kinds.iter().all(|kind| kind.is_steady()) {
            return None;
        }
        loop {
            let number = self.next;
            self.next += 1;
            let mut rng = Rng::with_seed(self.plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
            self.at += self.plan.every.mul_f64(0.1 + rng.f64() * 2.0);
            let kind = rng.choice(self.kinds.iter().copied())?;
            let lasts = match kind {
                Kind::Freeze | Kind::Slow => Duration::from_millis(rng.u64(50..5_000)),
                Kind::Noise => Duration::from_millis(rng.u64(500..20_000)),
                // Around a lease, as often shorter as longer.
                _ => self.plan.lease.mul_f64(rng.f64() * rng.f64() * 3.0),
            };
            let fault = Fault {
                number,
                at: self.at,
                kind,
                process: rng.u32(..) % self.plan.processes,
                lasts,
                chance: rng.u64(..),
            };
            if self.plan.kinds.contains(&kind) && !self.plan.skipped.contains(&number) {
                return Some(fault);
            }
        }
    }
}

/// The numbers of the faults of a run that took so long.
pub(crate) fn numbers(plan: &Plan, took: Duration) -> Vec<u64> {
    Faults::new(plan).take_while(|fault| fault.at <= took).map(|fault| fault.number).collect()
}
