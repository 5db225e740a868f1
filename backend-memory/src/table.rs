//! The table: all that is held and waited for, behind one mutex.

use std::{collections::BTreeMap, hash::Hash, sync::Arc};

use hashbrown::{HashMap, hash_map};
use lockcore::{
    ContextId, Mode, Owner, Target,
    backend::{AcquireRequest, AttemptId, WakeSender},
    engine::{Queue, Turn},
    rules::InUse,
};

use crate::{
    clock::{Lease, StoreTime},
    history::History,
    tombstones::{Losses, Withdrawals},
};

type HashState = foldhash::fast::RandomState;

/// Everything that a DAO knows.
#[derive(Debug)]
pub(crate) struct Table<I, C> {
    /// The ids that are held, waited for or frozen.
    pub(crate) ids: HashMap<Target<I>, Id<C>, HashState>,
    /// The waiters, by ticket.
    pub(crate) places: BTreeMap<u64, Place<I, C>>,
    /// Their tickets.
    pub(crate) tickets: HashMap<(AttemptId, C), u64, HashState>,
    /// The ticket of the last place.
    pub(crate) last_ticket: u64,
    /// The highest fence of any id.
    pub(crate) high: u64,
    pub(crate) withdrawals: Withdrawals<C>,
    pub(crate) losses: Losses<I, C>,
    /// When the last sweep was.
    pub(crate) swept: Option<StoreTime>,
    pub(crate) history: Option<History<I, C>>,
}

/// One id.
#[derive(Debug)]
pub(crate) struct Id<C> {
    /// Boxed: the table of a single holder has room for more.
    pub(crate) holders: HashMap<C, Box<Holder<C>>, HashState>,
    pub(crate) in_use: InUse,
    /// No lease ends before this. It may be too early, never too late.
    pub(crate) first_end: StoreTime,
    pub(crate) frozen: bool,
    /// Boxed: few ids have one.
    pub(crate) waiting: Option<Box<Waiting>>,
}

/// The waiters for an id.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) queue: Queue,
    /// None of them wants a shorter lease. It may be too short, never too long.
    pub(crate) shortest_lease: Lease,
    /// None of them asks again later than this by itself. It may be too late, never too early.
    pub(crate) last_recheck: StoreTime,
}

/// One lock that is held.
#[derive(Debug)]
pub(crate) struct Holder<C> {
    pub(crate) context: C,
    /// The attempt that was granted it.
    pub(crate) attempt: AttemptId,
    pub(crate) mode: Mode,
    pub(crate) permits: Vec<u32>,
    pub(crate) fence: u64,
    pub(crate) owner: Owner,
    pub(crate) since: StoreTime,
    pub(crate) lease: Lease,
    pub(crate) ends: StoreTime,
    /// An administrator broke it.
    pub(crate) broken: bool,
    /// The lock of the context that this attempt changed.
    pub(crate) before: Option<Box<Holder<C>>>,
}

/// A waiter.
#[derive(Debug)]
pub(crate) struct Place<I, C> {
    pub(crate) request: Arc<AcquireRequest<I, C>>,
    pub(crate) since: StoreTime,
    /// `None` after it was notified to ask again.
    pub(crate) wake: Option<WakeSender>,
    /// When it asks again by itself.
    pub(crate) rechecks: StoreTime,
}

impl<I, C> Default for Table<I, C> {
    fn default() -> Self {
        Table {
            ids: HashMap::default(),
            places: BTreeMap::new(),
            tickets: HashMap::default(),
            last_ticket: 0,
            high: 0,
            withdrawals: Withdrawals::default(),
            losses: Losses::default(),
            swept: None,
            history: None,
        }
    }
}

impl<C> Default for Id<C> {
    fn default() -> Self {
        Id {
            holders: HashMap::default(),
            in_use: InUse::default(),
            first_end: StoreTime::NEVER,
            frozen: false,
            waiting: None,
        }
    }
}

impl<C: ContextId> Id<C> {
    pub(crate) fn is_unused(&self) -> bool {
        self.holders.is_empty() && !self.frozen && self.waiting.is_none()
    }

    /// Adds a holder, whose context has none.
    pub(crate) fn add(&mut self, holder: Box<Holder<C>>) {
        let (mode, ends) = (holder.mode, holder.ends);
        // First what may panic: the user's `Clone` and `Hash`.
        self.holders.insert(holder.context.clone(), holder);
        self.in_use = self.in_use.plus(mode);
        self.first_end = self.first_end.min(ends);
    }

    /// Takes the holder of a context out.
    pub(crate) fn remove(&mut self, context: &C) -> Option<Box<Holder<C>>> {
        let holder = self.holders.remove(context)?;
        self.in_use = minus(self.in_use, holder.mode);
        shrink(&mut self.holders);
        if self.holders.is_empty() {
            self.first_end = StoreTime::NEVER;
        }
        Some(holder)
    }

    /// Takes out the holders whose lease is over, at most `most` of them.
    pub(crate) fn remove_ended(&mut self, now: StoreTime, most: usize) -> Vec<Box<Holder<C>>> {
        if self.first_end > now {
            return Vec::new();
        }
        let over = self.holders.values().filter(|holder| holder.ends <= now).take(most);
        let over: Vec<C> = over.map(|holder| holder.context.clone()).collect();
        let ended = over.iter().filter_map(|context| self.remove(context)).collect();
        let ends = self.holders.values().map(|holder| holder.ends);
        self.first_end = ends.min().unwrap_or(StoreTime::NEVER);
        ended
    }

    /// Has the lock of a context end at `ends`.
    pub(crate) fn set_end(&mut self, context: &C, lease: Lease, ends: StoreTime) {
        let is_alone = self.holders.len() == 1;
        let Some(holder) = self.holders.get_mut(context) else { return };
        (holder.lease, holder.ends) = (lease, ends);
        self.first_end = if is_alone { ends } else { self.first_end.min(ends) };
    }

    /// Returns when the first lease of a holder ends, or of a waiter that is granted it from now on.
    pub(crate) fn first_end(&self, now: StoreTime) -> StoreTime {
        let shortest = self.waiting.as_ref().map_or(Lease::FOREVER, |waiting| waiting.shortest_lease);
        self.first_end.min(now.after(shortest))
    }

    /// Adds a waiter.
    pub(crate) fn add_waiter(&mut self, turn: Turn, nested: bool, lease: Lease, rechecks: StoreTime) {
        let waiting = self.waiting.get_or_insert_with(|| {
            let (queue, shortest_lease) = (Queue::default(), Lease::FOREVER);
            Box::new(Waiting { queue, shortest_lease, last_recheck: rechecks })
        });
        waiting.queue.insert(turn, nested);
        waiting.shortest_lease = waiting.shortest_lease.min(lease);
        waiting.last_recheck = waiting.last_recheck.max(rechecks);
    }

    /// Removes a waiter.
    pub(crate) fn remove_waiter(&mut self, ticket: u64) {
        if let Some(waiting) = &mut self.waiting {
            waiting.queue.remove(ticket);
            if waiting.queue.is_empty() {
                self.waiting = None;
            }
        }
    }
}

impl<I: lockcore::Ident, C: ContextId> Table<I, C> {
    /// Returns what there is of an id, made if there is nothing.
    pub(crate) fn id_or_new(&mut self, id: &Target<I>) -> &mut Id<C> {
        if !self.ids.contains_key(id) {
            self.ids.insert(id.clone(), Id::default());
        }
        self.ids.get_mut(id).expect("it was inserted above if it was missing")
    }

    /// Returns the queue of an id that is waited for.
    pub(crate) fn queue(&self, id: &Target<I>) -> Option<&Queue> {
        self.ids.get(id)?.waiting.as_ref().map(|waiting| &waiting.queue)
    }

    /// Changes what there is of an id, and forgets the id if it is unused then.
    pub(crate) fn change<T>(&mut self, id: &Target<I>, change: impl FnOnce(&mut Id<C>) -> T) -> Option<T> {
        let hash_map::EntryRef::Occupied(mut entry) = self.ids.entry_ref(id) else { return None };
        let changed = change(entry.get_mut());
        if entry.get().is_unused() {
            entry.remove();
            shrink(&mut self.ids);
        }
        Some(changed)
    }
}

/// Gives back the memory of a burst: what looks at all of a map passes its free room, too.
pub(crate) fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V, HashState>) {
    const KEPT: usize = 1024;
    const SPARSE: usize = 4;
    if map.capacity() > KEPT.max(SPARSE * map.len()) {
        map.shrink_to(2 * map.len());
    }
}

/// Returns the use with one holder less.
pub(crate) fn minus(mut in_use: InUse, mode: Mode) -> InUse {
    match mode {
        Mode::Exclusive => in_use.exclusive -= 1,
        Mode::Shared => in_use.shared -= 1,
        Mode::Slots { permits, .. } => in_use.permits -= permits,
    }
    in_use
}
