//! Withdrawn attempts, and the reasons for lost locks, remembered for a while.

use std::{collections::VecDeque, time::Duration};

use hashbrown::HashSet;
use lockcore::{BreakRecord, ContextId, LossReason, Target, backend::AttemptId, protocol};

use crate::clock::{Lease, StoreTime};

/// The most withdrawn attempts of a generation, and for how long it lasts.
const GENERATION: usize = 1 << 14;
const GENERATION_LASTS: Duration = Duration::from_secs(30);

/// The most expired locks that are remembered.
const EXPIRED: usize = 8192;

/// The most breaks that are kept of all ids.
const BREAKS: usize = 1024;

/// The withdrawn attempts, whose requests are refused if they arrive late.
///
/// In one process a request is late only if it was created before the withdrawal and polled after it, so that a bounded number
/// suffices, for a shorter time than stores keep tombstones: two generations, of which the older is dropped when the younger
/// is full or has lasted for half a minute.
#[derive(Debug)]
pub(crate) struct Withdrawals<C> {
    young: HashSet<(AttemptId, C)>,
    old: HashSet<(AttemptId, C)>,
    next_generation: StoreTime,
}

impl<C> Default for Withdrawals<C> {
    fn default() -> Self {
        Withdrawals { young: HashSet::new(), old: HashSet::new(), next_generation: StoreTime::NEVER }
    }
}

impl<C: ContextId> Withdrawals<C> {
    pub(crate) fn add(&mut self, attempt: AttemptId, context: &C, now: StoreTime) {
        self.age(now);
        if self.young.is_empty() {
            self.next_generation = now.after(Lease::of(Some(GENERATION_LASTS)));
        }
        self.young.insert((attempt, context.clone()));
    }

    pub(crate) fn contains(&mut self, attempt: AttemptId, context: &C, now: StoreTime) -> bool {
        self.age(now);
        if self.young.is_empty() && self.old.is_empty() {
            return false;
        }
        let key = (attempt, context.clone());
        self.young.contains(&key) || self.old.contains(&key)
    }

    /// Drops the older generation if it is due.
    pub(crate) fn age(&mut self, now: StoreTime) {
        if self.young.len() >= GENERATION || now >= self.next_generation {
            self.old = std::mem::take(&mut self.young);
            // An old generation without a young one lasts as long.
            self.next_generation = match self.old.is_empty() {
                true => StoreTime::NEVER,
                false => now.after(Lease::of(Some(GENERATION_LASTS))),
            };
        }
    }
}

/// The reasons for lost locks that their holders may still name.
#[derive(Debug)]
pub(crate) struct Losses<I, C> {
    expired: VecDeque<(u64, Target<I>)>,
    breaks: VecDeque<(Target<I>, BreakRecord<C>)>,
}

impl<I, C> Default for Losses<I, C> {
    fn default() -> Self {
        Losses { expired: VecDeque::new(), breaks: VecDeque::new() }
    }
}

impl<I: PartialEq, C> Losses<I, C> {
    /// Records that a lock expired.
    pub(crate) fn add_expired(&mut self, target: Target<I>, fence: u64) {
        if self.expired.len() == EXPIRED {
            self.expired.pop_front();
        }
        self.expired.push_back((fence, target));
    }

    pub(crate) fn add_break(&mut self, target: Target<I>, record: BreakRecord<C>) {
        if self.breaks_of(&target).count() == protocol::BREAKS_KEPT {
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

    /// Returns why a lock is gone. One that ended in this step is the last in the list.
    pub(crate) fn reason(&self, target: &Target<I>, fence: u64) -> LossReason {
        if self.breaks_of(target).any(|record| record.fence == fence) {
            LossReason::Broken
        } else if self.expired.iter().rev().any(|(of, id)| *of == fence && id == target) {
            LossReason::Expired
        } else {
            LossReason::Vanished
        }
    }
}
