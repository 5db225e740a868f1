//! The commonest case in as little time as possible: one id that nobody else uses.
//!
//! Both shortcuts decide under the lock of the one shard (invariant 2), and only where nobody can be
//! waiting, so that there is nothing to hand over (invariant 4). Whatever they do not recognise is left to
//! the general way, with the shard still locked.

use lockcore::{AcquireRequest, ContextId, Grant, Granted, Ident, rules};
use smallvec::SmallVec;

use crate::{
    MemoryLockDao, What,
    clock::{Lease, Moment},
    holders::{Holder, Holders},
    table::{Guard, Spot},
};

/// The one id of a set, located, and its shard.
type LockedOne<'t, I, C> = (Spot, Guard<'t, I, C>);

impl<I: Ident, C: ContextId> MemoryLockDao<I, C> {
    /// Grants an id of which nothing is known; else the locked shard and where the id is, or nothing for a
    /// set of several.
    #[inline]
    pub(crate) fn acquire_unused(
        &self,
        request: &AcquireRequest<I, C>,
    ) -> Result<SmallVec<[Granted; 1]>, Option<LockedOne<'_, I, C>>> {
        let [claim] = &*request.claims else { return Err(None) };
        let spot = self.tables.spot(&claim.target);
        let mut table = self.tables.lock_one(&spot);
        let known = table.find(spot.hash(), &claim.target);
        if known.is_some() || !table.withdrawals.is_empty() {
            return Err(Some((spot.at(known), table)));
        }
        let lease = Lease::of(request.lease);
        let now = if lease == Lease::FOREVER { self.clock.about_now() } else { self.clock.now() };
        // Invariant 7.
        let fence = rules::next_fence(table.high_water, self.clock.micros(now));
        table.high_water = fence;
        let slot = table.insert(spot.hash(), &claim.target);
        let wanted = claim.mode.permits();
        let permits: SmallVec<[u32; 2]> = if wanted == 0 { SmallVec::new() } else { (0..wanted).collect() };
        table.entry(slot).holders = Holders::One(Holder {
            context: request.context.clone(),
            attempt: request.attempt,
            mode: claim.mode,
            broken: false,
            permits: permits.clone(),
            fence,
            since: now,
            lease,
            expires: now.after(lease),
            owner: request.owner.clone(),
            before: None,
        });
        self.record(What::Granted, &request.context, || now, || vec![(claim.target.clone(), Some(fence))]);
        drop(table);
        let in_use = wanted.max(1);
        let mut granted = SmallVec::new();
        granted.push(Granted { mode: claim.mode, fence, permits, in_use });
        Ok(granted)
    }

    /// Releases an id that nobody else uses; else as above.
    #[inline]
    pub(crate) fn release_unshared(&self, grant: &Grant<I, C>) -> Result<(), Option<LockedOne<'_, I, C>>> {
        let [lock] = &*grant.locks else { return Err(None) };
        let spot = self.tables.spot(&lock.target);
        let mut table = self.tables.lock_one(&spot);
        let Some(slot) = table.find(spot.hash(), &lock.target) else {
            return Err(Some((spot, table)));
        };
        let entry = table.entry(slot);
        let fence = lock.granted.fence;
        let own = |holder: &Holder<C>| holder.fence == fence && holder.context == grant.context;
        let alone = match &entry.holders {
            Holders::One(holder) => {
                own(holder) && (holder.expires == Moment::NEVER || holder.expires > self.clock.now())
            }
            _ => false,
        };
        if !alone || entry.extra.is_some() {
            return Err(Some((spot.at(Some(slot)), table)));
        }
        entry.holders = Holders::None;
        table.remove(slot);
        self.record(
            What::Released,
            &grant.context,
            || self.clock.now(),
            || vec![(lock.target.clone(), Some(fence))],
        );
        Ok(())
    }
}
