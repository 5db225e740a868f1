//! Changes of an id, by comparing what an administrator sees of it.

use std::time::Duration;

use tokio::time::Instant;

use crate::{HeldBy, Inspection, StoredContext, Uuid};

/// A change of a watched id; see [`Admin::watch`](crate::Admin::watch).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Change<C = Uuid> {
    /// It is held, or by one more holder.
    Acquired(HeldBy<C>),
    /// A holder has stopped to hold it.
    Ended {
        /// The context of the holder.
        context: StoredContext<C>,
        /// The fence under which it was held.
        fence: u64,
        /// By what it ended.
        by: EndedBy,
    },
    /// An administrator broke it: it is not renewed any more, and ends when its holder stops or its lease ends.
    Broken {
        /// The context of the holder.
        context: StoredContext<C>,
        /// The fence under which it is held.
        fence: u64,
    },
    /// It is frozen: it is not granted to any more contexts.
    Frozen,
    /// It is not frozen any more.
    Thawed,
}

/// By what a lock ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum EndedBy {
    /// Its holder released it.
    Release,
    /// Its lease had ended, as far as it was seen renewed.
    Lease,
    /// An administrator broke it.
    Break,
}

/// The most by which a store may round what is left of a lease.
const APART: Duration = Duration::from_millis(50);

/// The answer to one look.
#[derive(Clone)]
pub(crate) struct Look<I, C> {
    pub(crate) seen: Inspection<I, C>,
    /// When it was asked for, and when it was answered: the store looked at some time in between.
    asked: Instant,
    answered: Instant,
}

impl<I, C: Clone + Eq> Look<I, C> {
    pub(crate) fn new(seen: Inspection<I, C>, asked: Instant) -> Self {
        Look { seen, asked, answered: Instant::now() }
    }

    /// Returns what happened between an earlier look, if there was one, and this.
    pub(crate) fn changes_since(&self, earlier: Option<&Self>) -> Vec<Change<C>> {
        let before = earlier.map(|look| &look.seen);
        let held_before = before.map(|seen| &seen.holders[..]).unwrap_or_default();
        let was_frozen = before.is_some_and(|seen| seen.frozen);
        let mut changes = Vec::new();
        for former in held_before {
            let (context, fence) = (former.context.clone(), former.fence);
            if find(&self.seen.holders, former).is_none() {
                let passed = earlier.map_or(Duration::ZERO, |look| self.answered - look.asked);
                changes.push(Change::Ended { context, fence, by: self.ended_by(former, passed) });
            }
        }
        for holder in &self.seen.holders {
            let known = find(held_before, holder);
            if known.is_none() {
                changes.push(Change::Acquired(holder.clone()));
            }
            if holder.broken && known.is_none_or(|known| !known.broken) {
                changes.push(Change::Broken { context: holder.context.clone(), fence: holder.fence });
            }
        }
        match (was_frozen, self.seen.frozen) {
            (false, true) => changes.push(Change::Frozen),
            (true, false) => changes.push(Change::Thawed),
            _ => {}
        }
        changes
    }

    fn ended_by(&self, former: &HeldBy<C>, passed: Duration) -> EndedBy {
        if former.broken || self.seen.breaks.iter().any(|broken| broken.fence == former.fence) {
            return EndedBy::Break;
        }
        match former.remaining {
            Some(remaining) if remaining <= passed + APART => EndedBy::Lease,
            _ => EndedBy::Release,
        }
    }
}

/// Finds the same grant.
fn find<'h, C: Eq>(holders: &'h [HeldBy<C>], other: &HeldBy<C>) -> Option<&'h HeldBy<C>> {
    holders.iter().find(|holder| holder.fence == other.fence && holder.context == other.context)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{BreakRecord, Mode, Owner, Target};

    fn holder(fence: u64, remaining: u64, broken: bool) -> HeldBy<Uuid> {
        HeldBy {
            context: StoredContext::Known(Uuid::from_u128(fence.into())),
            owner: Owner::default(),
            mode: Mode::Shared,
            permits: Vec::new(),
            fence,
            since: SystemTime::UNIX_EPOCH,
            lease: Some(Duration::from_secs(30)),
            remaining: Some(Duration::from_secs(remaining)),
            broken,
        }
    }

    fn look(holders: Vec<HeldBy<Uuid>>, frozen: bool) -> Look<String, Uuid> {
        let target = Ok(Target::Id("a".to_owned()));
        let (waiters, breaks) = (Vec::new(), Vec::new());
        Look::new(Inspection { target, holders, waiters, frozen, breaks, unreadable: None }, Instant::now())
    }

    #[test]
    fn each_change_is_named() {
        let first = look(vec![holder(1, 20, false), holder(2, 0, false), holder(3, 20, false)], true);
        let all = first.changes_since(None);
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(matches!(all[0], Change::Acquired(HeldBy { fence: 1, .. })) && all[3] == Change::Frozen);

        let mut second = look(vec![holder(3, 20, true), holder(4, 20, false)], false);
        let changes = second.changes_since(Some(&first));
        let ended = |fence, by| {
            let context = StoredContext::Known(Uuid::from_u128(u128::from(fence)));
            Change::Ended { context, fence, by }
        };
        assert_eq!(changes[..2], [ended(1_u64, EndedBy::Release), ended(2, EndedBy::Lease)]);
        assert!(matches!(changes[2], Change::Broken { fence: 3, .. }));
        assert!(matches!(changes[3], Change::Acquired(HeldBy { fence: 4, .. })));
        assert_eq!(changes[4..], [Change::Thawed]);
        assert!(second.changes_since(Some(&look(second.seen.holders.clone(), false))).is_empty());

        second.seen.holders.truncate(1);
        let record = BreakRecord {
            context: StoredContext::Known(Uuid::nil()),
            fence: 4,
            by: Owner::default(),
            at: SystemTime::UNIX_EPOCH,
            now: true,
        };
        let mut third = look(Vec::new(), false);
        third.seen.breaks.push(record);
        let changes =
            third.changes_since(Some(&look(vec![holder(3, 20, true), holder(4, 20, false)], false)));
        assert_eq!(changes, [ended(3, EndedBy::Break), ended(4, EndedBy::Break)]);
    }

    /// The answer to the first look may come late: the store may have looked as early as it was asked.
    #[test]
    fn the_time_between_two_looks_counts_from_the_first_question() {
        let lasts = Duration::from_secs(5);
        let mut first = look(vec![HeldBy { remaining: Some(lasts), ..holder(1, 0, false) }], false);
        first.asked = first.answered.checked_sub(lasts).expect("the machine runs for longer");
        let changes = look(Vec::new(), false).changes_since(Some(&first));
        assert!(matches!(changes[..], [Change::Ended { by: EndedBy::Lease, .. }]), "{changes:?}");
    }

    /// A store rounds, so that a lease seems to have a moment left.
    #[test]
    fn a_lease_that_ended_between_two_looks_is_no_release() {
        let holder = HeldBy { remaining: Some(Duration::from_millis(20)), ..holder(1, 0, false) };
        let changes = look(Vec::new(), false).changes_since(Some(&look(vec![holder], false)));
        assert!(matches!(changes[..], [Change::Ended { by: EndedBy::Lease, .. }]), "{changes:?}");
    }
}
