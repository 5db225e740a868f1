//! What the store and the model answered, compared.

use std::collections::{BTreeMap, BTreeSet};

use lockcore::{Conflict, ConflictReason, Granted, LockDao, LossReason, LostLock, Mode, StoredContext};
use uuid::Uuid;

use super::{Kept, Player, State};
use crate::{
    Backend,
    model::{Got, Id, InTheWay, Request, Serial, Who},
    store,
};

impl<B: Backend> Player<'_, B> {
    /// Compares a grant, and keeps it.
    pub(super) fn granted(
        &mut self,
        number: usize,
        expected: &[Got],
        granted: &[Granted],
        plain: bool,
        counted: bool,
    ) {
        assert_eq!(granted.len(), expected.len());
        for (got, granted) in expected.iter().zip(granted) {
            let what = format!("{:?}: {got:?}, {granted:?}", self.attempts[number].model);
            assert_eq!(Shown::of(granted.mode), Shown::of(got.mode), "mode of {what}");
            assert_eq!(granted.permits.to_vec(), got.permits, "permits of {what}");
            if let Some(in_use) = got.in_use.filter(|_| counted) {
                assert_eq!(granted.in_use, in_use, "units in use of {what}");
            }
            let key = (got.id, got.serial);
            match self.fences.get(&key) {
                Some(&fence) => {
                    assert_eq!(granted.fence, fence, "the same lock: {what}");
                    if !self.locks_of(number).contains(&key) {
                        self.shared_by_attempts.insert(key);
                    }
                }
                None => {
                    assert!(granted.fence > self.highest[got.id], "the fence goes back: {what}");
                    self.highest[got.id] = granted.fence;
                    self.fences.insert(key, granted.fence);
                }
            }
        }
        let real = store::grant(&self.attempts[number].real, granted.iter().cloned());
        let locks = expected.iter().map(|got| (got.id, got.serial)).collect();
        self.grants.push(Kept { attempt: number, locks, real });
        self.attempts[number].state = State::Granted { plain };
    }

    /// Compares a refusal: every id that is in the way, and why.
    pub(super) fn conflicts(
        &self,
        request: &Request,
        expected: &[InTheWay],
        told: &[Conflict<String, Uuid>],
    ) {
        let told: BTreeMap<Id, _> = told.iter().map(|told| (self.id(&told.target), &told.reason)).collect();
        let ids: Vec<_> = expected.iter().map(|in_the_way| in_the_way.id).collect();
        assert_eq!(
            told.keys().copied().collect::<Vec<_>>(),
            ids,
            "what is in the way of {request:?}: {told:?}"
        );
        for in_the_way in expected {
            let id = in_the_way.id;
            let right = match told[&id] {
                ConflictReason::Frozen => in_the_way.frozen,
                ConflictReason::Held { holders, count, .. } => {
                    let others: BTreeSet<_> =
                        in_the_way.holders.iter().map(|&who| self.callers[who].context).collect();
                    let listed = holders.iter().filter_map(|holder| match holder.context {
                        StoredContext::Known(context) => Some(context),
                        StoredContext::Foreign(_) => None,
                    });
                    *count > 0 && *count == others.len() && listed.collect::<BTreeSet<_>>() == others
                }
                // A holder comes first: that it is queued for as well is not reported.
                ConflictReason::QueuedBehind { count, .. } => {
                    in_the_way.holders.is_empty() && *count == in_the_way.waiters.len() && *count > 0
                }
                _ => false,
            };
            assert!(right, "{request:?}: expected {in_the_way:?}, told {:?}", told[&id]);
        }
    }

    /// Compares what was lost, and why.
    pub(super) fn losses(&self, expected: &[(Id, Serial)], told: &[LostLock<String>]) {
        let keys: BTreeSet<_> = told.iter().map(|lost| self.key(lost)).collect();
        assert_eq!(keys, expected.iter().copied().collect(), "what was lost");
        assert_eq!(told.len(), expected.len(), "each once: {told:?}");
        for lost in told {
            let key = self.key(lost);
            let broken = lost.reason == LossReason::Broken;
            // Sixteen breaks are remembered for each id.
            let remembered = self.broken_now.range((key.0, 0)..(key.0 + 1, 0)).count() <= 16;
            if self.broken_now.contains(&key) && remembered {
                assert!(broken, "{lost:?}");
            } else if !self.broken_now.contains(&key) && !self.broken_later.contains(&key) {
                assert!(!broken, "{lost:?}");
            }
        }
    }

    pub(super) async fn inspect(&mut self, id: Id) {
        if !self.store.capabilities().listing {
            return;
        }
        let found = self.store.dao().inspect(&self.target(id)).await.expect("the store answers");
        let contexts = |who: Who| StoredContext::Known(self.callers[who].context);
        let expected: Vec<_> = self
            .model
            .holders(id)
            .into_iter()
            .map(|lock| {
                let fence = self.fences[&(id, lock.serial)];
                (contexts(lock.who), Shown::of(lock.mode), lock.permits.clone(), fence, lock.broken)
            })
            .collect();
        let holders = found.holders.into_iter();
        let shown: Vec<_> = holders
            .map(|held| (held.context, Shown::of(held.mode), held.permits.to_vec(), held.fence, held.broken))
            .collect();
        assert_eq!(shown, expected, "the holders of {id}");
        let expected: Vec<_> =
            self.model.waiters(id).into_iter().map(|(who, mode)| (contexts(who), mode)).collect();
        let shown: Vec<_> =
            found.waiters.into_iter().map(|waiting| (waiting.context, waiting.mode)).collect();
        assert_eq!(shown, expected, "the waiters for {id}");
        assert_eq!(found.frozen, self.model.is_frozen(id));
    }

    pub(super) fn key(&self, lost: &LostLock<String>) -> (Id, Serial) {
        let id = self.id(&lost.target);
        let mut of_the_id = self.fences.range((id, 0)..(id + 1, 0));
        *of_the_id.find(|(_, fence)| **fence == lost.fence).expect("a lock that was granted").0
    }
}

/// How a lock is held, without the limit, of which a holder may see an older one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    Exclusive,
    Shared,
    Slots(u32),
}

impl Shown {
    fn of(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Shown::Exclusive,
            Mode::Shared => Shown::Shared,
            Mode::Slots { permits, .. } => Shown::Slots(permits),
        }
    }
}
