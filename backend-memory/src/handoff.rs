//! Handing over what became free: to the next in the queue, under the locks that freed it where they
//! suffice, and without anybody being able to come in between where they do not.

use std::sync::Arc;

use lockcore::{ContextId, Granted, Ident, Offer, Target, Wake, WakeSender};
use smallvec::SmallVec;

use crate::{
    MemoryLockDao, What,
    acquire::UNCLAIMED,
    clock::{Clock, Lease, Moment},
    entry::{Asker, Entry},
    queue::{Waiter, Walk},
    table::{Locked, Spot, Spots},
};

/// One step of the backend: when it takes place, and what is left to do before it ends.
pub(crate) struct Step<'c, I, C> {
    clock: &'c Clock,
    now: Option<Moment>,
    /// Ids with waiters on which there is more room than before (invariant 4).
    freed: SmallVec<[Freed<I, C>; 1]>,
    /// What to tell, and senders to drop, once no shard is locked (invariant 5).
    offers: SmallVec<[HandedOver; 1]>,
    dropped: Vec<WakeSender>,
}

/// An id with waiters. It is named by a claim of one of them, so that no copy of it is made.
struct Freed<I, C> {
    spot: Spot,
    named_by: (Arc<Waiter<I, C>>, usize),
}

/// A set that was granted to a waiter who has to be told.
struct HandedOver {
    sender: WakeSender,
    granted: SmallVec<[Granted; 1]>,
    expires: Moment,
}

impl<'c, I: Ident, C: ContextId> Step<'c, I, C> {
    #[inline]
    pub(crate) fn new(clock: &'c Clock) -> Self {
        Step { clock, now: None, freed: SmallVec::new(), offers: SmallVec::new(), dropped: Vec::new() }
    }

    #[inline]
    pub(crate) fn at(now: Moment, clock: &'c Clock) -> Self {
        Step { now: Some(now), ..Step::new(clock) }
    }

    /// When the step takes place: the time at which it first asked. One that never asks reads no clock.
    #[inline]
    pub(crate) fn now(&mut self) -> Moment {
        *self.now.get_or_insert_with(|| self.clock.now())
    }

    /// Notes that there is more room on an id than before, if it has waiters.
    #[inline]
    pub(crate) fn freed(&mut self, spot: &Spot, entry: &Entry<I, C>) {
        if let Some(head) = entry.queue().and_then(|queue| queue.head()) {
            let named_by = (Arc::clone(&head.waiter), head.claim);
            self.freed.push(Freed { spot: *spot, named_by });
        }
    }

    /// Keeps a sender until no shard is locked.
    pub(crate) fn drop_later(&mut self, sender: Option<WakeSender>) {
        self.dropped.extend(sender);
    }

    /// Notes that a lock on the id was given until `expires` (invariant 6).
    #[inline]
    pub(crate) fn note_expiry(&mut self, entry: &mut Entry<I, C>, expires: Moment) {
        if let Some(queue) = entry.queue_mut() {
            self.dropped.extend(queue.tell_of_expiry(expires));
        }
    }
}

impl<I: Ident, C: ContextId> MemoryLockDao<I, C> {
    /// Ends a step: serves the waiters for what was freed, unlocks, tells.
    #[inline]
    pub(crate) fn finish(&self, mut locked: Locked<'_, I, C>, mut step: Step<'_, I, C>) {
        if !step.freed.is_empty() {
            self.serve(&mut locked, &mut step);
        }
        drop(locked);
        for HandedOver { sender, granted, expires } in step.offers {
            let leased = (expires != Moment::NEVER).then(|| self.clock.now());
            let remaining = leased.and_then(|now| expires.remaining(now));
            // A waiter that vanishes in this moment withdraws, which passes the locks on.
            let _ = sender.send(Wake::Offer(Offer { granted, remaining }));
        }
    }

    /// Takes out the holders whose lease has ended.
    #[inline]
    pub(crate) fn remove_expired(
        &self,
        locked: &mut Locked<'_, I, C>,
        spot: &Spot,
        target: &Target<I>,
        step: &mut Step<'_, I, C>,
    ) -> usize {
        let Some(entry) = locked.entry(spot) else { return 0 };
        let ends = entry.holders.earliest_expiry();
        if ends == Moment::NEVER || ends > step.now() {
            return 0;
        }
        let now = step.now();
        let rows = entry.holders.expired(now);
        if !rows.is_empty() {
            step.freed(spot, entry);
        }
        for row in &rows {
            locked.table(spot).obituaries.add_expired(row.fence);
            self.record(What::Expired, &row.context, || now, || vec![(target.clone(), Some(row.fence))]);
        }
        rows.len()
    }

    /// Walks the queues of what was freed and grants whatever can be granted, in order.
    #[cold]
    fn serve(&self, locked: &mut Locked<'_, I, C>, step: &mut Step<'_, I, C>) {
        while let Some(Freed { mut spot, named_by: (waiter, claim) }) = step.freed.pop() {
            let target = &waiter.request.claims[claim].target;
            let shard = Spot::shards(&[spot]);
            let mut walk = Walk::new();
            locked.cover(shard);
            locked.locate(&mut spot, target);
            loop {
                self.remove_expired(locked, &spot, target, step);
                let Some((waiter, mode)) = next_waiter(locked, &spot, &mut walk) else {
                    locked.tidy(&mut spot);
                    break;
                };
                // Invariant 3: nobody barges in, for the waiter is still in all its queues.
                let gave_up = locked.cover(waiter.shards);
                if !self.offer(locked, &waiter, step) {
                    walk.leave_behind(mode);
                }
                if gave_up {
                    locked.cover(shard);
                    locked.locate(&mut spot, target);
                }
            }
        }
    }

    /// Grants the waiter its set if nothing is in the way. Says whether it is out of the queues.
    fn offer(&self, locked: &mut Locked<'_, I, C>, waiter: &Waiter<I, C>, step: &mut Step<'_, I, C>) -> bool {
        let request = &waiter.request;
        let mut spots: Spots = waiter.spots.iter().copied().collect();
        locked.locate_all(&mut spots, request.claims.iter().map(|claim| &claim.target));
        let first_queue = locked.entry(&spots[0]).and_then(|entry| entry.queue());
        if !first_queue.is_some_and(|queue| queue.contains(waiter.number)) {
            // Granted or withdrawn while the locks were given up.
            return true;
        }
        let asker = Asker { context: &request.context, nested: request.nested, number: Some(waiter.number) };
        if self.examine(locked, &spots, &request.claims, &asker, step).blocked {
            return false;
        }
        let sender = waiter.wake.lock().take();
        self.leave(locked, &spots, waiter, true, step);
        let now = step.now();
        let mut expires = now.after(Lease::of(request.lease));
        if sender.as_ref().is_none_or(WakeSender::is_closed) {
            expires = expires.min(now.after(Lease::of(Some(UNCLAIMED))));
        }
        let granted = self.grant(locked, &mut spots, request, expires, step);
        if let Some(sender) = sender {
            step.offers.push(HandedOver { sender, granted, expires });
        }
        true
    }
}

fn next_waiter<I: Ident, C: ContextId>(
    locked: &mut Locked<'_, I, C>,
    spot: &Spot,
    walk: &mut Walk,
) -> Option<(Arc<Waiter<I, C>>, lockcore::Mode)> {
    let entry = locked.entry(spot)?;
    if entry.is_frozen() {
        return None;
    }
    let place = walk.next(entry.queue()?, &entry.holders)?;
    Some((Arc::clone(&place.waiter), place.mode))
}
