//! The waiters of one id in order, and which of them may be served next.

use std::{collections::BTreeMap, sync::Arc};

use hashbrown::HashMap;
use lockcore::{
    ContextId, Mode,
    backend::{AcquireRequest, AttemptId, WakeSender},
    rules,
    rules::Admission,
};
use smallvec::SmallVec;

use crate::{
    clock::{Lease, StoreTime},
    fifo::Fifo,
    holders::Holders,
    spot::Spot,
    sync::Mutex,
};

/// A request in the queues of all its ids.
#[derive(Debug)]
pub(crate) struct Waiter<I, C> {
    /// Its place in every queue; lower is earlier.
    pub(crate) number: u64,
    pub(crate) request: AcquireRequest<I, C>,
    /// The shards of its ids, in the order of the claims; slots and guards are not set.
    pub(crate) spots: SmallVec<[Spot; 1]>,
    /// The shards of all its ids.
    pub(crate) shards: u64,
    pub(crate) since: StoreTime,
    /// Its sender; `None` after it was notified to ask again. A leaf among the mutexes.
    pub(crate) wake: Mutex<Option<WakeSender>>,
}

/// A waiter in the queue of one id.
#[derive(Debug)]
pub(crate) struct Place<I, C> {
    pub(crate) waiter: Arc<Waiter<I, C>>,
    /// The position of its claim of this id.
    pub(crate) claim: usize,
    /// The mode of that claim.
    pub(crate) mode: Mode,
    /// When it will ask again without a notification.
    pub(crate) rechecks: StoreTime,
}

/// The waiters for one id.
#[derive(Debug)]
pub(crate) struct Queue<I, C> {
    places: Fifo<Place<I, C>>,
    /// The numbers of those whose first claim is this id, by who they are.
    by_attempt: HashMap<(AttemptId, C), u64>,
    tally: Tally,
    /// No waiter asks for a shorter lease. May be too short, never too long.
    shortest_lease: Lease,
    /// No waiter rechecks later than this. May be too late, never too early.
    latest_recheck: StoreTime,
}

/// The number of waiters by mode.
#[derive(Debug, Default)]
struct Tally {
    exclusive: usize,
    shared: usize,
    /// By limit.
    slots: BTreeMap<u32, usize>,
    nested: usize,
}

impl<I, C: ContextId> Queue<I, C> {
    pub(crate) fn new() -> Self {
        Queue {
            places: Fifo::new(),
            by_attempt: HashMap::new(),
            tally: Tally::default(),
            shortest_lease: Lease::FOREVER,
            latest_recheck: StoreTime::NEVER,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Place<I, C>> {
        self.places.iter()
    }

    pub(crate) fn head(&self) -> Option<&Place<I, C>> {
        self.places.first()
    }

    /// The waiter of this attempt, if this id is its first.
    pub(crate) fn find(&self, attempt: AttemptId, context: &C) -> Option<&Arc<Waiter<I, C>>> {
        if self.by_attempt.is_empty() {
            return None;
        }
        let number = self.by_attempt.get(&(attempt, context.clone()))?;
        self.places.get(*number).map(|place| &place.waiter)
    }

    /// Inserts the waiter by its number.
    pub(crate) fn insert(&mut self, place: Place<I, C>) {
        let request = &place.waiter.request;
        if place.claim == 0 {
            self.by_attempt.insert((request.attempt, request.context.clone()), place.waiter.number);
        }
        if self.places.is_empty() {
            self.shortest_lease = Lease::FOREVER;
            self.latest_recheck = place.rechecks;
        }
        self.shortest_lease = self.shortest_lease.min(Lease::of(request.lease));
        self.latest_recheck = self.latest_recheck.max(place.rechecks);
        self.tally.add(place.mode, request.nested);
        self.places.push(place.waiter.number, place);
    }

    /// Removes the waiter with this number.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Place<I, C>> {
        let place = self.places.remove(number)?;
        let request = &place.waiter.request;
        if place.claim == 0 {
            self.by_attempt.remove(&(request.attempt, request.context.clone()));
        }
        self.tally.remove(place.mode, request.nested);
        Some(place)
    }

    /// Notes when the waiter will ask again.
    pub(crate) fn set_recheck(&mut self, number: u64, rechecks: StoreTime) {
        if let Some(place) = self.places.get_mut(number) {
            place.rechecks = rechecks;
            self.latest_recheck = self.latest_recheck.max(rechecks);
        }
    }

    /// Counts the waiters that a claim in this mode does not pass. `number` is its own place if it has one, else it would come
    /// last.
    pub(crate) fn before(&self, mode: Mode, number: Option<u64>) -> usize {
        match number {
            None => self.tally.not_passed(mode),
            Some(number) => {
                self.places.before(number).filter(|place| !rules::passes(mode, place.mode)).count()
            }
        }
    }

    /// Whether a claim in this mode has to wait for earlier waiters.
    pub(crate) fn is_behind(&self, mode: Mode, number: Option<u64>) -> bool {
        match number {
            None => self.tally.not_passed(mode) > 0,
            Some(number) => self.places.before(number).any(|place| !rules::passes(mode, place.mode)),
        }
    }

    pub(crate) fn shortest_lease(&self) -> Lease {
        match self.places.is_empty() {
            true => Lease::FOREVER,
            false => self.shortest_lease,
        }
    }

    /// Notes that a lock on the id ends at `expires`: returns the senders of the waiters that would ask again only later, as
    /// dropping one notifies its waiter to ask now.
    ///
    /// So no waiter sleeps past the end of a lease that began after it fell asleep. Waiters of one service mostly have the same
    /// lease and recheck in time anyway, and then this is one comparison.
    pub(crate) fn late_rechecks(&mut self, expires: StoreTime) -> Vec<WakeSender> {
        if expires >= self.latest_recheck || self.places.is_empty() {
            return Vec::new();
        }
        self.latest_recheck = expires;
        let late = self.places.iter_mut().filter(|place| place.rechecks > expires);
        late.filter_map(|place| {
            place.rechecks = expires;
            place.waiter.wake.lock().take()
        })
        .collect()
    }
}

impl Tally {
    fn add(&mut self, mode: Mode, nested: bool) {
        self.nested += usize::from(nested);
        match mode {
            Mode::Exclusive => self.exclusive += 1,
            Mode::Shared => self.shared += 1,
            Mode::Slots { limit, .. } => *self.slots.entry(limit).or_default() += 1,
        }
    }

    fn remove(&mut self, mode: Mode, nested: bool) {
        self.nested -= usize::from(nested);
        match mode {
            Mode::Exclusive => self.exclusive -= 1,
            Mode::Shared => self.shared -= 1,
            Mode::Slots { limit, .. } => {
                if let Some(count) = self.slots.get_mut(&limit) {
                    *count -= 1;
                    if *count == 0 {
                        self.slots.remove(&limit);
                    }
                }
            }
        }
    }

    /// `rules::passes` summed up: how many of the waiters a later claim in this mode does not pass.
    fn not_passed(&self, mode: Mode) -> usize {
        let slots = || self.slots.values().sum::<usize>();
        match mode {
            Mode::Exclusive => self.exclusive + self.shared + slots(),
            Mode::Shared => self.exclusive + slots(),
            Mode::Slots { limit, .. } => {
                self.exclusive
                    + self.shared
                    + self.slots.range(limit..).map(|(_, count)| count).sum::<usize>()
            }
        }
    }
}

/// A walk through a queue from its head, looking for waiters that can be served.
///
/// It ends at the first waiter behind which no other can pass, so that a release costs the same however
/// long the queue is.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The lowest number that was not looked at yet.
    at: u64,
    admission: Admission,
    /// How many of the nested waiters were left behind.
    nested_seen: usize,
}

impl Walk {
    pub(crate) fn new() -> Self {
        Walk { at: 0, admission: Admission::Open, nested_seen: 0 }
    }

    /// The next waiter that could be served as far as this id is concerned. The walk stands at it until it has
    /// left the queue or is [left behind](Self::leave_behind).
    pub(crate) fn next<'q, I, C: ContextId>(
        &mut self,
        queue: &'q Queue<I, C>,
        holders: &Holders<C>,
    ) -> Option<&'q Place<I, C>> {
        if holders.in_use().exclusive > 0 {
            return None;
        }
        for (number, place) in queue.places.from(self.at) {
            if self.is_over(&queue.tally) {
                return None;
            }
            let request = &place.waiter.request;
            let in_turn = request.nested || self.admission.admits(place.mode);
            if in_turn && holders.in_use_by_others(&request.context).fits(place.mode) {
                self.at = number;
                return Some(place);
            }
            self.leave_behind(number, place.mode, request.nested);
        }
        None
    }

    /// Goes on behind a waiter that stays in the queue.
    pub(crate) fn leave_behind(&mut self, number: u64, mode: Mode, nested: bool) {
        self.at = number + 1;
        self.admission = self.admission.behind(mode);
        self.nested_seen += usize::from(nested);
    }

    /// Whether waiters behind the one with this number were left behind already.
    pub(crate) fn is_past(&self, number: u64) -> bool {
        self.at > number + 1
    }

    /// Returns whether no waiter further back can pass those left behind.
    fn is_over(&self, tally: &Tally) -> bool {
        if tally.nested > self.nested_seen {
            return false;
        }
        match self.admission {
            Admission::Open => false,
            Admission::Shared => tally.shared == 0,
            Admission::SlotsAbove(highest) => {
                tally.slots.last_key_value().is_none_or(|(&max, _)| max <= highest)
            }
            Admission::Closed => true,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const MODES: [Mode; 6] = [
        Mode::Exclusive,
        Mode::Shared,
        Mode::Slots { permits: 1, limit: 1 },
        Mode::Slots { permits: 1, limit: 2 },
        Mode::Slots { permits: 2, limit: 2 },
        Mode::Slots { permits: 1, limit: 3 },
    ];

    #[test]
    fn the_tally_counts_as_the_rule_says() {
        for later in MODES {
            let mut tally = Tally::default();
            MODES.iter().for_each(|&earlier| tally.add(earlier, false));
            let expected = MODES.iter().filter(|earlier| !rules::passes(later, **earlier)).count();
            assert_eq!(tally.not_passed(later), expected, "{later:?}");
            MODES.iter().for_each(|&earlier| tally.remove(earlier, false));
            assert_eq!(tally.not_passed(later), 0);
        }
    }
}
