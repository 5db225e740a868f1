//! Releasing and renewing a grant.

use lockcore::{ContextId, Grant, Ident, LossReason, LostLock, Released, Renewed, Target};

use crate::{
    MemoryLockDao, What,
    clock::{Lease, StoreTime},
    handoff::Step,
    holders::Holders,
    table::Table,
};

impl<I: Ident, C: ContextId> MemoryLockDao<I, C> {
    pub(crate) fn release_now(&self, grant: &Grant<I, C>) -> Released<I> {
        let (mut locked, mut spots) = match self.release_unshared(grant) {
            Ok(()) => return Released { lost: Vec::new(), failed: Vec::new() },
            Err(Some((spot, guard))) => self.tables.set_of_one(spot, guard),
            Err(None) => self.tables.lock_set(grant.locks.iter().map(|lock| &lock.target)),
        };
        let mut step = Step::new(&self.clock);
        let mut lost = Vec::new();
        for (spot, lock) in spots.iter_mut().zip(&grant.locks) {
            let (target, fence) = (&lock.target, lock.granted.fence);
            if let Some(slot) = spot.slot() {
                let table = locked.table(spot);
                let entry = table.entry(slot);
                if entry.extra.is_none() && entry.is_held_alone(&grant.context, fence, || step.now()) {
                    entry.holders = Holders::None;
                    table.remove(slot);
                    spot.set(None);
                    continue;
                }
            }
            // Locks without a lease are released without reading the clock.
            self.remove_expired(&mut locked, spot, target, &mut step);
            let entry = locked.entry(spot);
            let row = entry.filter(|e| e.holders.row(&grant.context).is_some_and(|row| row.fence == fence));
            match row {
                Some(entry) => {
                    entry.holders.drop_row(&grant.context);
                    step.freed(spot, entry);
                }
                None => lost.push(loss(locked.table(spot), target, fence)),
            }
            locked.tidy(spot);
        }
        self.record(
            What::Released,
            &grant.context,
            || step.now(),
            || {
                let held =
                    grant.locks.iter().filter(|lock| !lost.iter().any(|gone| gone.target == lock.target));
                held.map(|lock| (lock.target.clone(), Some(lock.granted.fence))).collect()
            },
        );
        self.finish(locked, step);
        Released { lost, failed: Vec::new() }
    }

    pub(crate) fn renew_now(&self, grant: &Grant<I, C>) -> Renewed<I> {
        self.renew_with(grant, Holders::extend)
    }

    pub(crate) fn shorten_now(&self, grant: &Grant<I, C>) -> Renewed<I> {
        self.renew_with(grant, Holders::set_end)
    }

    fn renew_with(
        &self,
        grant: &Grant<I, C>,
        renew: impl Fn(&mut Holders<C>, &C, Lease, StoreTime),
    ) -> Renewed<I> {
        let mut step = Step::new(&self.clock);
        let lease = Lease::of(grant.lease);
        let expires = step.now().after(lease);
        let (mut locked, mut spots) = self.tables.lock_set(grant.locks.iter().map(|lock| &lock.target));
        let mut lost = Vec::new();
        for (spot, lock) in spots.iter_mut().zip(&grant.locks) {
            let (target, fence) = (&lock.target, lock.granted.fence);
            self.remove_expired(&mut locked, spot, target, &mut step);
            let entry = locked.entry(spot);
            let row = entry.filter(|e| e.holders.row(&grant.context).is_some_and(|row| row.fence == fence));
            match row {
                Some(entry) if entry.holders.row(&grant.context).is_some_and(|row| row.broken) => {
                    lost.push(LostLock { target: target.clone(), fence, reason: LossReason::Broken });
                }
                Some(entry) => {
                    renew(&mut entry.holders, &grant.context, lease, expires);
                    step.note_expiry(entry, expires);
                }
                None => lost.push(loss(locked.table(spot), target, fence)),
            }
            locked.tidy(spot);
        }
        self.finish(locked, step);
        Renewed { lost }
    }
}

/// Explains why a lock is no longer held.
fn loss<I: Ident, C: ContextId>(table: &Table<I, C>, target: &Target<I>, fence: u64) -> LostLock<I> {
    let reason = if table.losses.breaks_of(target).any(|record| record.fence == fence) {
        LossReason::Broken
    } else if table.losses.is_expired(fence) {
        LossReason::Expired
    } else {
        LossReason::Vanished
    };
    LostLock { target: target.clone(), fence, reason }
}
