//! Handing over what became free: to the next in the queue, under the locks that freed it where they
//! suffice, and without anybody being able to come in between where they do not.

use std::sync::Arc;

use lockcore::{ContextId, Granted, Ident, Mode, Offer, Target, Wake, WakeSender};
use smallvec::SmallVec;

use crate::{
    MemoryLockDao, What,
    acquire::UNCLAIMED,
    clock::{Clock, Lease, Moment},
    entry::{Asker, Entry},
    queue::{Place, Waiter, Walk},
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
    /// Waiters with a lower number do not profit.
    from: u64,
}

/// An id that was freed, and how far its queue was walked.
struct Front<I, C> {
    spot: Spot,
    named_by: (Arc<Waiter<I, C>>, usize),
    walk: Walk,
    /// The waiter at which the walk stands, and how it wants the id.
    next: u64,
    mode: Mode,
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
        self.freed_behind(0, spot, entry);
    }

    /// The same for those who came after the waiter with this number, for it was in their way.
    #[inline]
    pub(crate) fn freed_behind(&mut self, from: u64, spot: &Spot, entry: &Entry<I, C>) {
        if let Some(head) = entry.queue().and_then(|queue| queue.head()) {
            let named_by = (Arc::clone(&head.waiter), head.claim);
            self.freed.push(Freed { spot: *spot, named_by, from });
        }
    }

    /// Begins to walk the queues of what was freed since; says whether there are any new ones. A walk that has
    /// gone past those who profit begins anew.
    fn join_fronts(&mut self, fronts: &mut SmallVec<[Front<I, C>; 1]>) -> bool {
        let before = fronts.len();
        for Freed { spot, named_by, from } in self.freed.drain(..) {
            let target = &named_by.0.request.claims[named_by.1].target;
            let same = |front: &&mut Front<I, C>| {
                front.spot.hash() == spot.hash()
                    && front.named_by.0.request.claims[front.named_by.1].target == *target
            };
            match fronts.iter_mut().find(same) {
                Some(front) if front.walk.is_past(from) => front.walk = Walk::new(),
                Some(_) => {}
                None => fronts.push(Front { spot, named_by, walk: Walk::new(), next: 0, mode: Mode::Shared }),
            }
        }
        fronts.len() > before
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
            // A waiter that vanishes in this moment withdraws, which passes the locks on.
            let _ = match expires {
                Moment::NEVER => sender.send(Wake::Offer(Offer { granted, remaining: None })),
                _ => {
                    // First of all, so that a stop after it makes the offer seem shorter and not longer.
                    let as_of = lockcore::Moment::now();
                    let remaining = expires.remaining(self.clock.now());
                    sender.send_as_of(Wake::Offer(Offer { granted, remaining }), as_of)
                }
            };
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
        self.remove_expired_up_to(usize::MAX, locked, spot, target, step)
    }

    /// The same for at most `max` of them.
    #[inline]
    pub(crate) fn remove_expired_up_to(
        &self,
        max: usize,
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
        let rows = entry.holders.expired(now, max);
        if !rows.is_empty() {
            step.freed(spot, entry);
        }
        for row in &rows {
            locked.table(spot).obituaries.add_expired(row.fence);
            self.record(What::Expired, &row.context, || now, || vec![(target.clone(), Some(row.fence))]);
        }
        rows.len()
    }

    /// Grants whatever can be granted of what was freed: of all its waiters those first who came first, whatever
    /// the order of the ids.
    #[cold]
    fn serve(&self, locked: &mut Locked<'_, I, C>, step: &mut Step<'_, I, C>) {
        let mut fronts = SmallVec::new();
        loop {
            let added = step.join_fronts(&mut fronts);
            let Some(waiter) = self.next_in_turn(locked, &mut fronts, added, step) else { break };
            if !self.offer(locked, &waiter, step) {
                let stays = fronts.iter_mut().filter(|front| front.next == waiter.number);
                stays.for_each(|front| {
                    front.walk.leave_behind(waiter.number, front.mode, waiter.request.nested)
                });
            }
        }
    }

    /// The first of all waiters who could be served as far as the freed ids are concerned, with its whole set
    /// locked. Whoever is chosen after locks were given up is chosen anew, for others may have come, gone, or
    /// been served in between; but nobody can have barged in (invariant 3).
    fn next_in_turn(
        &self,
        locked: &mut Locked<'_, I, C>,
        fronts: &mut SmallVec<[Front<I, C>; 1]>,
        mut unlocated: bool,
        step: &mut Step<'_, I, C>,
    ) -> Option<Arc<Waiter<I, C>>> {
        let mut shards = fronts.iter().fold(0, |shards, front| shards | Spot::shards(&[front.spot]));
        loop {
            unlocated |= locked.cover(shards);
            let mut first: Option<Arc<Waiter<I, C>>> = None;
            fronts.retain(|front| {
                let target = &front.named_by.0.request.claims[front.named_by.1].target;
                if unlocated {
                    locked.locate(&mut front.spot, target);
                }
                self.remove_expired(locked, &front.spot, target, step);
                let Some(place) = next_place(locked, &front.spot, &mut front.walk) else {
                    locked.tidy(&mut front.spot);
                    return false;
                };
                (front.next, front.mode) = (place.waiter.number, place.mode);
                if first.as_ref().is_none_or(|first| front.next < first.number) {
                    first = Some(Arc::clone(&place.waiter));
                }
                true
            });
            unlocated = false;
            let waiter = first?;
            if locked.covers(waiter.shards) {
                return Some(waiter);
            }
            // Only ever more, so that this ends though the choice may change.
            shards |= waiter.shards;
        }
    }

    /// Grants the waiter its set, all of which is locked, if nothing is in the way, and says whether.
    fn offer(&self, locked: &mut Locked<'_, I, C>, waiter: &Waiter<I, C>, step: &mut Step<'_, I, C>) -> bool {
        let request = &waiter.request;
        let mut spots: Spots = waiter.spots.iter().copied().collect();
        locked.locate_all(&mut spots, request.claims.iter().map(|claim| &claim.target));
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

fn next_place<'l, I: Ident, C: ContextId>(
    locked: &'l mut Locked<'_, I, C>,
    spot: &Spot,
    walk: &mut Walk,
) -> Option<&'l Place<I, C>> {
    let entry = locked.entry(spot)?;
    if entry.is_frozen() {
        return None;
    }
    walk.next(entry.queue()?, &entry.holders)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use lockcore::{
        AcquireRequest, Acquired, AttemptId, ClaimSet, FreshContext, Grant, LockDao, Mode, Owner, Wake,
    };
    use uuid::Uuid;

    use crate::{MemoryLockDao, clock::stops};

    const LEASE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_stop_while_a_waiter_is_told_makes_its_offer_no_longer() {
        const STOP: Duration = Duration::from_millis(300);
        let dao = MemoryLockDao::<String>::new();
        let request = || AcquireRequest {
            context: Uuid::fresh(),
            attempt: AttemptId::fresh(),
            claims: ClaimSet::new(["a"], Mode::Exclusive).expect("a valid id"),
            lease: Some(LEASE),
            owner: Owner::default(),
            queue: true,
            nested: false,
            detached: false,
        };
        let held = request();
        let Ok(Acquired::Granted(granted)) = dao.acquire(&held).await else { panic!("it is free") };
        let grant = Grant::new(held.context, held.claims, granted, held.lease);
        let waits = request();
        let Ok(Acquired::Queued { mut wakeup, .. }) = dao.acquire(&waits).await else { panic!("it is held") };

        stops::after_each_look(STOP);
        let released = dao.release(&grant).await;
        stops::after_each_look(Duration::ZERO);
        assert!(released.is_ok_and(|released| released.lost.is_empty()));
        // There were two looks at least: for the hand-over, and for what is left of it.
        let handed_over_before = Instant::now() - 2 * STOP;

        let received = Instant::now();
        let Wake::Offer(offer) = wakeup.recv().await else { panic!("its turn has come") };
        let left = offer.remaining.expect("it has a lease");
        assert!(received + left <= handed_over_before + LEASE, "{left:?} of {LEASE:?}");
    }
}
