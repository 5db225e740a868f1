//! What is known of one id: who holds it, who waits for it, whether it is frozen.

use lockcore::{
    Conflict, ConflictReason, ContextId, Holder as HolderSeen, Ident, MAX_HOLDERS_LISTED, Mode,
    StoredContext, Target,
    rules::{self, Again},
};
use smallvec::SmallVec;

use crate::{
    clock::Moment,
    holders::{Holder, Holders},
    queue::Queue,
};

/// One id of a shard.
#[derive(Debug)]
pub(crate) struct Entry<I, C> {
    pub(crate) hash: u64,
    pub(crate) target: Target<I>,
    pub(crate) holders: Holders<C>,
    /// What few ids have.
    pub(crate) extra: Option<Box<Extra<I, C>>>,
}

/// What few ids have.
#[derive(Debug)]
pub(crate) struct Extra<I, C> {
    pub(crate) queue: Queue<I, C>,
    pub(crate) frozen: bool,
}

/// Who asks for a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a, C> {
    pub(crate) context: &'a C,
    pub(crate) nested: bool,
    /// Its number in the queues, if it waits already.
    pub(crate) number: Option<u64>,
}

/// How the asker stands to one id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It does not hold it.
    New,
    /// It holds it as strongly as it wants to.
    Keep,
    /// It holds it otherwise than it wants to.
    Change,
    /// It holds it, but an administrator broke that lock: it only runs out.
    Broken,
}

/// What keeps an asker from one id.
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

    /// Whether it is the id's.
    #[inline]
    pub(crate) fn is(&self, hash: u64, target: &Target<I>) -> bool {
        self.hash == hash && self.target == *target
    }

    /// Whether nothing is known of the id.
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        self.holders.is_empty()
            && self.extra.as_ref().is_none_or(|extra| extra.queue.is_empty() && !extra.frozen)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.frozen)
    }

    #[inline]
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

    #[inline]
    pub(crate) fn standing(&self, wanted: Mode, context: &C) -> Standing {
        match self.holders.row(context) {
            None => Standing::New,
            Some(own) if own.broken => Standing::Broken,
            Some(own) => match rules::again(own.mode, wanted) {
                Again::Keep => Standing::Keep,
                Again::Change => Standing::Change,
            },
        }
    }

    /// What keeps the asker from having the id in this mode. Expired holders must be gone.
    #[inline]
    pub(crate) fn obstacle(
        &self,
        wanted: Mode,
        standing: Standing,
        asker: &Asker<'_, C>,
    ) -> Option<Obstacle> {
        match standing {
            Standing::Keep => return None,
            Standing::Broken => return Some(Obstacle::Held),
            Standing::New | Standing::Change => {}
        }
        if self.is_frozen() {
            return Some(Obstacle::Frozen);
        }
        if !self.holders.in_use_by_others(asker.context).fits(wanted) {
            return Some(Obstacle::Held);
        }
        // Who holds the id, or other locks, obeys holders but no queue.
        let obeys_queue = standing == Standing::New && !asker.nested;
        if obeys_queue && self.queue().is_some_and(|queue| queue.is_behind(wanted, asker.number)) {
            return Some(Obstacle::Queued);
        }
        None
    }

    /// The obstacle as the asker is told of it.
    pub(crate) fn conflict(
        &self,
        obstacle: Obstacle,
        wanted: Mode,
        asker: &Asker<'_, C>,
        now: Moment,
    ) -> Conflict<I, C> {
        let reason = match obstacle {
            Obstacle::Frozen => ConflictReason::Frozen,
            Obstacle::Held => self.held_by(asker, now),
            Obstacle::Queued => {
                let queue = self.queue().expect("the asker is behind somebody in it");
                let head = queue.head().expect("the asker is behind somebody in it");
                ConflictReason::QueuedBehind {
                    head: StoredContext::Known(head.waiter.request.context.clone()),
                    count: queue.before(wanted, asker.number),
                }
            }
        };
        Conflict { target: self.target.clone(), reason }
    }

    /// The first moment at which the lease of a holder, or of a waiter that is granted from now on, can
    /// end.
    pub(crate) fn first_expiry(&self, now: Moment) -> Moment {
        let of_waiters = self.queue().map_or(Moment::NEVER, |queue| now.after(queue.shortest_lease()));
        self.holders.earliest_expiry().min(of_waiters)
    }

    fn held_by(&self, asker: &Asker<'_, C>, now: Moment) -> ConflictReason<C> {
        let own = self.holders.row(asker.context);
        let own_is_in_the_way = own.is_some_and(|own| own.broken);
        let in_the_way = |row: &&Holder<C>| own_is_in_the_way || row.context != *asker.context;
        let mut rows: SmallVec<[&Holder<C>; MAX_HOLDERS_LISTED]>;
        if self.holders.earliest_expiry() == Moment::NEVER {
            // Where no lease is in play any holders are those whose lease ends last.
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
