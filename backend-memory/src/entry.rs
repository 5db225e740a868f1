//! The state of one id: its holders, its waiters, whether it is frozen.

use lockcore::{
    Conflict, ConflictReason, ContextId, Holder as HolderSeen, Ident, MAX_HOLDERS_LISTED, Mode,
    StoredContext, Target,
    rules::{self, Again},
};
use smallvec::SmallVec;

use crate::{
    clock::StoreTime,
    holders::{Holder, Holders},
    queue::Queue,
};

/// One id of a shard.
#[derive(Debug)]
pub(crate) struct Entry<I, C> {
    pub(crate) hash: u64,
    pub(crate) target: Target<I>,
    pub(crate) holders: Holders<C>,
    /// Boxed: few ids have one.
    pub(crate) extra: Option<Box<Extra<I, C>>>,
}

/// The queue and the freeze of an id.
#[derive(Debug)]
pub(crate) struct Extra<I, C> {
    pub(crate) queue: Queue<I, C>,
    pub(crate) frozen: bool,
}

/// The requester of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a, C> {
    pub(crate) context: &'a C,
    pub(crate) nested: bool,
    /// Its number in the queues, if it waits already.
    pub(crate) number: Option<u64>,
}

/// How a request relates to what its context holds of one id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stance {
    /// It holds nothing.
    New,
    /// It holds the id in this mode or a stronger one.
    Keep,
    /// It holds the id in another mode.
    Change,
    /// It holds a lock that an administrator broke, and which only expires.
    Broken,
}

/// What prevents granting one id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Obstacle {
    Frozen,
    Held,
    Queued,
}

impl<I: Ident, C: ContextId> Entry<I, C> {
    pub(crate) fn new(hash: u64, target: Target<I>) -> Self {
        Entry { hash, target, holders: Holders::None, extra: None }
    }

    /// Whether this is the entry of `target`.
    pub(crate) fn is(&self, hash: u64, target: &Target<I>) -> bool {
        self.hash == hash && self.target == *target
    }

    /// Whether the id has no state.
    pub(crate) fn is_unused(&self) -> bool {
        self.holders.is_empty()
            && self.extra.as_ref().is_none_or(|extra| extra.queue.is_empty() && !extra.frozen)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.frozen)
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| !extra.queue.is_empty())
    }

    pub(crate) fn queue(&self) -> Option<&Queue<I, C>> {
        self.extra.as_ref().map(|extra| &extra.queue)
    }

    pub(crate) fn queue_mut(&mut self) -> Option<&mut Queue<I, C>> {
        self.extra.as_mut().map(|extra| &mut extra.queue)
    }

    pub(crate) fn extra_or_new(&mut self) -> &mut Extra<I, C> {
        self.extra.get_or_insert_with(|| Box::new(Extra { queue: Queue::new(), frozen: false }))
    }

    pub(crate) fn stance(&self, wanted: Mode, context: &C) -> Stance {
        match self.holders.row(context) {
            None => Stance::New,
            Some(own) if own.broken => Stance::Broken,
            Some(own) => match rules::again(own.mode, wanted) {
                Again::Keep => Stance::Keep,
                Again::Change => Stance::Change,
            },
        }
    }

    /// Returns what prevents granting the id in this mode. Expired holders must be removed before.
    pub(crate) fn obstacle(&self, wanted: Mode, stance: Stance, asker: &Asker<'_, C>) -> Option<Obstacle> {
        match stance {
            Stance::Keep => return None,
            Stance::Broken => return Some(Obstacle::Held),
            Stance::New | Stance::Change => {}
        }
        if self.is_frozen() {
            return Some(Obstacle::Frozen);
        }
        if !self.holders.in_use_by_others(asker.context).fits(wanted) {
            return Some(Obstacle::Held);
        }
        // A context that holds the id, or other locks, obeys holders but no queue.
        let obeys_queue = stance == Stance::New && !asker.nested;
        if obeys_queue && self.queue().is_some_and(|queue| queue.is_behind(wanted, asker.number)) {
            return Some(Obstacle::Queued);
        }
        None
    }

    /// Describes the obstacle for the asker.
    pub(crate) fn conflict(
        &self,
        obstacle: Obstacle,
        wanted: Mode,
        asker: &Asker<'_, C>,
        now: StoreTime,
    ) -> Conflict<I, C> {
        let reason = match obstacle {
            Obstacle::Frozen => ConflictReason::Frozen,
            Obstacle::Held => self.held_by(asker, now),
            Obstacle::Queued => {
                let queue = self.queue().expect("the asker is behind a waiter in it");
                let head = queue.head().expect("the asker is behind a waiter in it");
                ConflictReason::QueuedBehind {
                    head: StoredContext::Known(head.waiter.request.context.clone()),
                    count: queue.before(wanted, asker.number),
                }
            }
        };
        Conflict { target: self.target.clone(), reason }
    }

    /// Returns the first time at which the lease of a holder, or of a waiter that is granted from now on, can end.
    pub(crate) fn first_expiry(&self, now: StoreTime) -> StoreTime {
        let of_waiters = self.queue().map_or(StoreTime::NEVER, |queue| now.after(queue.shortest_lease()));
        self.holders.earliest_expiry().min(of_waiters)
    }

    fn held_by(&self, asker: &Asker<'_, C>, now: StoreTime) -> ConflictReason<C> {
        let own = self.holders.row(asker.context);
        let own_is_in_the_way = own.is_some_and(|own| own.broken);
        let in_the_way = |row: &&Holder<C>| own_is_in_the_way || row.context != *asker.context;
        let mut rows: SmallVec<[&Holder<C>; MAX_HOLDERS_LISTED]>;
        if self.holders.earliest_expiry() == StoreTime::NEVER {
            // Without leases any holders are those whose lease ends last.
            rows = self.holders.iter().filter(in_the_way).take(MAX_HOLDERS_LISTED).collect();
        } else {
            rows = self.holders.iter().filter(in_the_way).collect();
            rows.sort_by_key(|row| std::cmp::Reverse(row.expires));
            rows.truncate(MAX_HOLDERS_LISTED);
        }
        let seen = |row: &Holder<C>| HolderSeen {
            context: StoredContext::Known(row.context.clone()),
            owner: row.owner.clone(),
            mode: row.mode,
            fence: row.fence,
            remaining: row.expires.remaining(now),
        };
        ConflictReason::Held {
            holders: rows.into_iter().map(seen).collect(),
            count: self.holders.len() - usize::from(own.is_some() && !own_is_in_the_way),
            in_use: self.holders.in_use().units(),
        }
    }
}
