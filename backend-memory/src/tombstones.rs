//! What a shard remembers for a while of locks and tries that are gone.

use std::collections::VecDeque;

use hashbrown::HashSet;
use lockcore::{AttemptId, BreakRecord, ContextId, Target};

use crate::clock::{Lease, Moment};

/// How many withdrawn tries a generation holds at most.
const GENERATION: usize = 512;

/// How many expired fences are remembered.
const EXPIRED: usize = 128;

/// How many breaks are remembered of a shard, and of one id.
const BREAKS: usize = 256;
const BREAKS_OF_ONE_ID: usize = 16;

/// The tries that were withdrawn, so that their requests are refused should they arrive only now.
///
/// In one process a request is late only between being made and being polled first, so that a bounded
/// memory does: two generations, of which the older is forgotten when the younger is full or has lasted
/// for half a minute.
#[derive(Debug)]
pub(crate) struct Withdrawals<C> {
    young: HashSet<(AttemptId, C)>,
    old: HashSet<(AttemptId, C)>,
    next_generation: Moment,
}

impl<C: ContextId> Withdrawals<C> {
    pub(crate) fn new() -> Self {
        Withdrawals { young: HashSet::new(), old: HashSet::new(), next_generation: Moment::NEVER }
    }

    pub(crate) fn add(&mut self, attempt: AttemptId, context: &C, now: Moment) {
        self.age(now);
        if self.young.is_empty() {
            self.next_generation = now.after(Lease::of(Some(std::time::Duration::from_secs(30))));
        }
        self.young.insert((attempt, context.clone()));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    pub(crate) fn contains(&mut self, attempt: AttemptId, context: &C, now: Moment) -> bool {
        self.age(now);
        let key = (attempt, context.clone());
        self.young.contains(&key) || self.old.contains(&key)
    }

    /// Forgets what is old enough.
    pub(crate) fn age(&mut self, now: Moment) {
        if self.young.len() >= GENERATION || now >= self.next_generation {
            self.old = std::mem::take(&mut self.young);
            // An old generation without a young one lasts as long again.
            self.next_generation = match self.old.is_empty() {
                true => Moment::NEVER,
                false => now.after(Lease::of(Some(std::time::Duration::from_secs(30)))),
            };
        }
    }
}

/// Why locks are gone that their holders may still ask for.
#[derive(Debug)]
pub(crate) struct Obituaries<I, C> {
    expired: VecDeque<u64>,
    breaks: VecDeque<(Target<I>, BreakRecord<C>)>,
}

impl<I: PartialEq, C> Obituaries<I, C> {
    pub(crate) fn new() -> Self {
        Obituaries { expired: VecDeque::new(), breaks: VecDeque::new() }
    }

    /// Remembers that the lock with this fence expired; fences are unique within a shard.
    pub(crate) fn add_expired(&mut self, fence: u64) {
        if self.expired.len() == EXPIRED {
            self.expired.pop_front();
        }
        self.expired.push_back(fence);
    }

    pub(crate) fn is_expired(&self, fence: u64) -> bool {
        self.expired.contains(&fence)
    }

    pub(crate) fn add_break(&mut self, target: Target<I>, record: BreakRecord<C>) {
        if self.breaks_of(&target).count() == BREAKS_OF_ONE_ID {
            let oldest = self.breaks.iter().position(|(of, _)| *of == target);
            self.breaks.remove(oldest.expect("the id has a full number of breaks"));
        } else if self.breaks.len() == BREAKS {
            self.breaks.pop_front();
        }
        self.breaks.push_back((target, record));
    }

    pub(crate) fn breaks_of(&self, target: &Target<I>) -> impl Iterator<Item = &BreakRecord<C>> {
        self.breaks.iter().filter(move |(of, _)| of == target).map(|(_, record)| record)
    }
}
