//! What a store has to do, as plainly as it can be written: a list of locks and a list of waiters.
//!
//! Written from the contract alone, without the rules of `lockcore`, so that both can be wrong only by
//! agreeing on the same mistake. It knows no time: it is given what expires.

use std::collections::BTreeSet;

use lockcore::Mode;

/// A context, an id, an attempt: numbers that the history gives.
pub(crate) type Who = usize;
/// See [`Who`].
pub(crate) type Id = usize;
/// See [`Who`].
pub(crate) type Attempt = usize;

/// Tells the grants of an id apart; every later one has a higher number, as it has a higher fence.
pub(crate) type Serial = usize;

/// The store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    locks: Vec<Lock>,
    /// In order of arrival.
    waiters: Vec<Waiter>,
    frozen: BTreeSet<Id>,
    undone: BTreeSet<Attempt>,
    serials: Serial,
}

/// One lock that is held.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) id: Id,
    pub(crate) who: Who,
    pub(crate) mode: Mode,
    pub(crate) permits: Vec<u32>,
    pub(crate) serial: Serial,
    pub(crate) broken: bool,
    attempt: Attempt,
}

/// A request: a set of ids, each with a mode.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) who: Who,
    pub(crate) attempt: Attempt,
    pub(crate) claims: Vec<(Id, Mode)>,
    pub(crate) queue: bool,
    pub(crate) nested: bool,
}

#[derive(Clone, Debug)]
struct Waiter {
    request: Request,
}

/// How a request ends.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// In the order of the claims.
    Granted(Vec<Got>),
    Refused(Vec<InTheWay>),
    Queued(Vec<InTheWay>),
    Withdrawn,
}

/// What is held after a grant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Got {
    pub(crate) id: Id,
    pub(crate) mode: Mode,
    pub(crate) permits: Vec<u32>,
    pub(crate) serial: Serial,
    /// `None` where readers and slots share the id, and the contract does not say which are counted.
    pub(crate) in_use: Option<u32>,
}

/// Why an id cannot be had.
#[derive(Clone, Debug)]
pub(crate) struct InTheWay {
    pub(crate) id: Id,
    pub(crate) frozen: bool,
    /// The others who hold it, if they exclude the claim.
    pub(crate) holders: Vec<Who>,
    /// The earlier waiters whom the claim may not pass.
    pub(crate) waiters: Vec<Who>,
}

impl Model {
    /// A request arrives.
    pub(crate) fn acquire(&mut self, request: &Request) -> Outcome {
        if self.undone.contains(&request.attempt) {
            return Outcome::Withdrawn;
        }
        let position = self.position(request.attempt).unwrap_or(self.waiters.len());
        let obstacles = self.obstacles(request, position);
        if obstacles.is_empty() {
            self.waiters.retain(|waiter| waiter.request.attempt != request.attempt);
            return Outcome::Granted(self.grant(request));
        }
        if !request.queue || self.changes(request) {
            return Outcome::Refused(obstacles);
        }
        if position == self.waiters.len() {
            self.waiters.push(Waiter { request: request.clone() });
        }
        Outcome::Queued(obstacles)
    }

    /// Whether a request wants something that its context holds otherwise.
    pub(crate) fn changes(&self, request: &Request) -> bool {
        request
            .claims
            .iter()
            .any(|&(id, mode)| self.own(request.who, id).is_some_and(|own| !keeps(own.mode, mode)))
    }

    /// Frees what the context holds under exactly these serials; gives those that it does not.
    pub(crate) fn release(&mut self, who: Who, locks: &[(Id, Serial)]) -> Vec<(Id, Serial)> {
        let lost = self.lost(who, locks);
        self.locks.retain(|lock| lock.who != who || !locks.contains(&(lock.id, lock.serial)));
        lost
    }

    /// Those of these locks that the context does not hold.
    pub(crate) fn lost(&self, who: Who, locks: &[(Id, Serial)]) -> Vec<(Id, Serial)> {
        let held = |&(id, serial): &(Id, Serial)| self.own(who, id).is_some_and(|own| own.serial == serial);
        locks.iter().copied().filter(|lock| !held(lock)).collect()
    }

    /// An attempt is undone: it holds nothing, has no place, and comes too late from now on.
    pub(crate) fn undo(&mut self, attempt: Attempt) {
        self.undone.insert(attempt);
        self.leave(attempt);
        self.locks.retain(|lock| lock.attempt != attempt);
    }

    /// An attempt gives up its place, if it has one.
    pub(crate) fn leave(&mut self, attempt: Attempt) {
        self.waiters.retain(|waiter| waiter.request.attempt != attempt);
    }

    /// Whether the attempt has a place in the queue.
    pub(crate) fn waits(&self, attempt: Attempt) -> bool {
        self.position(attempt).is_some()
    }

    /// An administrator breaks a lock; `false` if that one is not held.
    pub(crate) fn break_lock(&mut self, id: Id, serial: Serial, now: bool) -> bool {
        let Some(lock) = self.locks.iter_mut().find(|lock| lock.id == id && lock.serial == serial) else {
            return false;
        };
        lock.broken = true;
        if now {
            self.locks.retain(|lock| lock.id != id || lock.serial != serial);
        }
        true
    }

    /// An administrator freezes or thaws an id.
    pub(crate) fn freeze(&mut self, id: Id, frozen: bool) {
        if frozen {
            self.frozen.insert(id)
        } else {
            self.frozen.remove(&id)
        };
    }

    /// Everything of a context is freed, and it leaves every queue.
    pub(crate) fn release_context(&mut self, who: Who) -> Vec<Id> {
        let freed = self.locks.iter().filter(|lock| lock.who == who).map(|lock| lock.id).collect();
        self.locks.retain(|lock| lock.who != who);
        self.waiters.retain(|waiter| waiter.request.who != who);
        freed
    }

    /// Grants to all waiters that can be granted by now, in the order of the queue.
    pub(crate) fn serve(&mut self) -> Vec<(Attempt, Vec<Got>)> {
        let mut served = Vec::new();
        let mut position = 0;
        while position < self.waiters.len() {
            let request = self.waiters[position].request.clone();
            if self.obstacles(&request, position).is_empty() {
                self.waiters.remove(position);
                served.push((request.attempt, self.grant(&request)));
            } else {
                position += 1;
            }
        }
        served
    }

    /// Who holds the id, in the order in which they got it.
    pub(crate) fn holders(&self, id: Id) -> Vec<&Lock> {
        let mut holders: Vec<_> = self.locks.iter().filter(|lock| lock.id == id).collect();
        holders.sort_by_key(|lock| lock.serial);
        holders
    }

    /// Who waits for the id, in order.
    pub(crate) fn waiters(&self, id: Id) -> Vec<(Who, Mode)> {
        let wants = |waiter: &Waiter| {
            let claim = waiter.request.claims.iter().find(|claim| claim.0 == id)?;
            Some((waiter.request.who, claim.1))
        };
        self.waiters.iter().filter_map(wants).collect()
    }

    /// Whether the id is frozen.
    pub(crate) fn is_frozen(&self, id: Id) -> bool {
        self.frozen.contains(&id)
    }

    /// The context's lock of the id.
    pub(crate) fn own(&self, who: Who, id: Id) -> Option<&Lock> {
        self.locks.iter().find(|lock| lock.id == id && lock.who == who)
    }

    fn position(&self, attempt: Attempt) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.request.attempt == attempt)
    }

    /// What is in the way of a request whose place is `position`.
    fn obstacles(&self, request: &Request, position: usize) -> Vec<InTheWay> {
        let mut obstacles = Vec::new();
        for &(id, mode) in &request.claims {
            let own = self.own(request.who, id);
            if own.is_some_and(|own| keeps(own.mode, mode)) {
                continue;
            }
            let others: Vec<_> =
                self.locks.iter().filter(|lock| lock.id == id && lock.who != request.who).collect();
            let blocked = !fits(mode, &others);
            let obeys_queue = own.is_none() && !request.nested;
            let mut waiters = Vec::new();
            for earlier in self.waiters[..position].iter().filter(|_| obeys_queue) {
                for &(wanted, as_what) in &earlier.request.claims {
                    if wanted == id && !passes(mode, as_what) {
                        waiters.push(earlier.request.who);
                    }
                }
            }
            let frozen = self.frozen.contains(&id);
            if frozen || blocked || !waiters.is_empty() {
                let holders = if blocked { others.iter().map(|lock| lock.who).collect() } else { Vec::new() };
                obstacles.push(InTheWay { id, frozen, holders, waiters });
            }
        }
        obstacles
    }

    fn grant(&mut self, request: &Request) -> Vec<Got> {
        let mut got = Vec::new();
        for &(id, mode) in &request.claims {
            if !self.own(request.who, id).is_some_and(|own| keeps(own.mode, mode)) {
                self.locks.retain(|lock| lock.id != id || lock.who != request.who);
                self.serials += 1;
                let permits = self.free_permits(id, mode);
                let (who, attempt, serial) = (request.who, request.attempt, self.serials);
                self.locks.push(Lock { id, who, mode, permits, serial, broken: false, attempt });
            }
            let own = self.own(request.who, id).expect("granted above");
            let (mode, permits, serial) = (own.mode, own.permits.clone(), own.serial);
            got.push(Got { id, mode, permits, serial, in_use: self.in_use(id) });
        }
        got
    }

    fn free_permits(&self, id: Id, mode: Mode) -> Vec<u32> {
        let taken: Vec<u32> =
            self.locks.iter().filter(|lock| lock.id == id).flat_map(|lock| lock.permits.clone()).collect();
        let wanted = match mode {
            Mode::Slots { permits, .. } => permits as usize,
            _ => 0,
        };
        (0..).filter(|index| !taken.contains(index)).take(wanted).collect()
    }

    fn in_use(&self, id: Id) -> Option<u32> {
        let locks: Vec<_> = self.locks.iter().filter(|lock| lock.id == id).collect();
        let permits: usize = locks.iter().map(|lock| lock.permits.len()).sum();
        let readers = locks.iter().filter(|lock| lock.permits.is_empty()).count();
        match (permits, readers) {
            (permits, 0) => Some(permits as u32),
            (0, readers) => Some(readers as u32),
            _ => None,
        }
    }
}

/// 2.3: whether asking for `wanted` leaves a lock in the mode `held` as it is.
fn keeps(held: Mode, wanted: Mode) -> bool {
    match (held, wanted) {
        (Mode::Exclusive, _) => true,
        (Mode::Slots { permits: held, .. }, Mode::Slots { permits: wanted, .. }) => held == wanted,
        (Mode::Slots { .. }, Mode::Shared) => true,
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots { .. } | Mode::Shared, _) => false,
    }
}

/// 2.8: whether a claim fits beside what others hold.
fn fits(mode: Mode, others: &[&Lock]) -> bool {
    match mode {
        Mode::Exclusive => others.is_empty(),
        Mode::Shared => others.iter().all(|lock| lock.mode != Mode::Exclusive),
        Mode::Slots { permits, limit } => {
            let held: usize = others.iter().map(|lock| lock.permits.len()).sum();
            others.iter().all(|lock| lock.mode != Mode::Exclusive)
                && held + permits as usize <= limit as usize
        }
    }
}

/// 3.7: whether a later claim may pass an earlier waiter.
fn passes(later: Mode, earlier: Mode) -> bool {
    match (later, earlier) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots { limit: later, .. }, Mode::Slots { limit: earlier, .. }) => later > earlier,
        _ => false,
    }
}
