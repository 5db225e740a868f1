//! What a run does: all of it follows from the seed, and can be made smaller.

use std::{collections::BTreeSet, fmt, str::FromStr, time::Duration};

use anyhow::bail;
use fastrand::Rng;

use crate::faults::Kind;

/// A store and the processes that use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum World {
    /// Locks in the memory of one process.
    Memory,
    /// The cell engine in many processes, over a store with faults that replaces one cell at a time.
    Cell,
    /// The same, over one that replaces several, all or none.
    Cells,
    /// DynamoDB's DAO in many processes, over a table in a service with faults.
    Dynamo,
}

/// A promise that the store of a run breaks, though the engine relies on it: to see that the simulation finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// A write is done whatever the condition says.
    IgnoresConditions,
    /// A read may return what was there a second ago.
    StaleReads,
    /// A write that was answered may be undone later.
    ForgetsWrites,
    /// A write whose answer was lost is reported as certainly not done.
    DeniesDoubt,
    /// The time of the store is another one for each process, by up to a minute.
    WrongTime,
}

impl Broken {
    /// All of them.
    pub const ALL: [Broken; 5] = [
        Broken::IgnoresConditions,
        Broken::StaleReads,
        Broken::ForgetsWrites,
        Broken::DeniesDoubt,
        Broken::WrongTime,
    ];
}

/// What a run does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The store and its users.
    pub world: World,
    /// The seed of all choices.
    pub seed: u64,
    /// How many operations there are in all.
    pub operations: u64,
    /// How many processes.
    pub processes: u32,
    /// How many tasks each of them has.
    pub actors: u32,
    /// How many ids are locked.
    pub ids: u32,
    /// The lease.
    pub lease: Duration,
    /// The step of virtual time.
    pub tick: Duration,
    /// The shortest and the longest way of a request or an answer, in microseconds.
    pub way: (u64, u64),
    /// How often each process sweeps.
    pub sweep: Duration,
    /// The mean pause between two faults.
    pub every: Duration,
    /// The kinds of faults.
    pub kinds: BTreeSet<Kind>,
    /// The faults that are left out, by their number.
    pub skipped: BTreeSet<u64>,
    /// A promise that the store breaks.
    pub broken: Option<Broken>,
    /// Whether all writes to the store are written down.
    pub writes: bool,
}

impl Plan {
    /// Chooses a plan. Each seed leaves out some kinds of faults, so that one kind does not hide another.
    pub fn new(world: World, seed: u64) -> Plan {
        let mut rng = Rng::with_seed(seed);
        let share = rng.u32(20..=90);
        let usual = Kind::ALL.into_iter().filter(|kind| kind.is_usual(world));
        let kinds = usual.filter(|_| rng.u32(..100) < share).collect();
        let pick = |rng: &mut Rng, all: &[u32]| rng.choice(all.iter().copied()).unwrap_or(1);
        let ways = [(500, 4_000), (2_000, 20_000), (10_000, 60_000), (500, 100_000)];
        let way = rng.choice(ways).unwrap_or((500, 4_000));
        Plan {
            world,
            seed,
            operations: if world == World::Memory { 5_000 } else { 300 },
            processes: if world == World::Memory { 1 } else { pick(&mut rng, &[1, 2, 3, 3, 4, 6]) },
            actors: pick(&mut rng, if world == World::Memory { &[3, 8, 16, 32] } else { &[1, 2, 3, 6] }),
            ids: pick(&mut rng, &[2, 3, 5, 8, 16]),
            lease: Duration::from_secs(if world == World::Memory { 2 } else { 10 }),
            tick: Duration::from_millis(if world == World::Memory {
                20
            } else {
                (way.0 / 1_000).clamp(1, 5)
            }),
            way,
            sweep: Duration::from_secs(u64::from(pick(&mut rng, &[2, 10, 60, 300]))),
            every: Duration::from_millis(u64::from(pick(&mut rng, &[500, 2_000, 5_000, 20_000]))),
            kinds,
            skipped: BTreeSet::new(),
            broken: None,
            writes: false,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { world, seed, operations, processes, actors, ids, lease, kinds, .. } = self;
        write!(f, "{world} seed {seed}: {operations} operations, {processes} processes of {actors} tasks, ")?;
        write!(f, "{ids} ids, lease {lease:?}, faults")?;
        if kinds.is_empty() {
            write!(f, " none")?;
        }
        for (at, kind) in kinds.iter().enumerate() {
            write!(f, "{}{kind}", if at == 0 { " " } else { "," })?;
        }
        match self.broken {
            Some(broken) => write!(f, ", broken {broken}"),
            None => Ok(()),
        }
    }
}

/// The name of a variant, in lower case with hyphens.
pub(crate) fn hyphenated(f: &mut fmt::Formatter<'_>, variant: &dyn fmt::Debug) -> fmt::Result {
    for (at, letter) in format!("{variant:?}").chars().enumerate() {
        if letter.is_uppercase() && at > 0 {
            write!(f, "-")?;
        }
        write!(f, "{}", letter.to_ascii_lowercase())?;
    }
    Ok(())
}

/// The one of `all` that has this name.
pub(crate) fn named<T: fmt::Display>(all: impl IntoIterator<Item = T>, name: &str) -> anyhow::Result<T> {
    let mut names = Vec::new();
    for one in all {
        if one.to_string() == name {
            return Ok(one);
        }
        names.push(one.to_string());
    }
    bail!("there is no {name:?}; there are {}", names.join(", "))
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hyphenated(f, self)
    }
}

impl FromStr for World {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        named([World::Memory, World::Cell, World::Cells, World::Dynamo], name)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hyphenated(f, self)
    }
}

impl FromStr for Broken {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        named(Self::ALL, name)
    }
}
