//! Hands freed ids over to the next waiters, under the locks of the step that freed them. Where that needs more locks, no later
//! request can pass in between.

use std::{sync::Arc, time::Duration};

use lockcore::{
    ContextId, Granted, Ident, Mode, Target,
    backend::{List, Offer, Wake, WakeSender},
    protocol::{HEARTBEAT_LASTS, OFFER},
};
use smallvec::SmallVec;

use crate::{
    MemoryLockDao, What,
    clock::{Clock, Lease, StoreTime},
    entry::{Asker, Entry},
    queue::{Place, Waiter, Walk},
    spot::{Spot, Spots},
    table::Locked,
};

/// For how long a grant counts whose waiter is not listening: as long as a dead waiter may delay those behind it. The waiter
/// confirms it by repeating its request or by renewing.
const UNCONFIRMED: Duration = OFFER.saturating_add(HEARTBEAT_LASTS);

/// One step of the backend: its time, and what is left to do before it ends.
pub(crate) struct Step<'c, I, C> {
    clock: &'c Clock,
    now: Option<StoreTime>,
    /// Ids with waiters on which there is more room than before (invariant 4).
    freed: SmallVec<[Freed<I, C>; 1]>,
    /// Offers to send, and senders to drop, once no shard is locked (invariant 5).
    offers: SmallVec<[HandedOver; 1]>,
    dropped: Vec<WakeSender>,
}

/// An id with waiters. It is named by a claim of one of them, which saves a copy.
struct Freed<I, C> {
    spot: Spot,
    named_by: (Arc<Waiter<I, C>>, usize),
    /// Waiters with a lower number cannot be served by this.
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

/// A set that was granted to a waiter, which has to be notified.
struct HandedOver {
    sender: WakeSender,
    granted: List<Granted>,
    expires: StoreTime,
}

impl<'c, I: Ident, C: ContextId> Step<'c, I, C> {
    pub(crate) fn new(clock: &'c Clock) -> Self {
        Step { clock, now: None, freed: SmallVec::new(), offers: SmallVec::new(), dropped: Vec::new() }
    }

    pub(crate) fn at(now: StoreTime, clock: &'c Clock) -> Self {
        Step { now: Some(now), ..Step::new(clock) }
    }

    /// Returns the step's time: when it was first asked for. A step that never asks reads no clock.
    pub(crate) fn now(&mut self) -> StoreTime {
        *self.now.get_or_insert_with(|| self.clock.now())
    }

    /// Notes that there is more room on an id than before, if it has waiters.
    pub(crate) fn freed(&mut self, spot: &Spot, entry: &Entry<I, C>) {
        self.freed_behind(0, spot, entry);
    }

    /// The same for the waiters behind the one with this number, which was in their way.
    pub(crate) fn freed_behind(&mut self, from: u64, spot: &Spot, entry: &Entry<I, C>) {
        if let Some(head) = entry.queue().and_then(|queue| queue.head()) {
            let named_by = (Arc::clone(&head.waiter), head.claim);
            self.freed.push(Freed { spot: *spot, named_by, from });
        }
    }

    /// Begins to walk the queues of ids that were freed since; returns whether there are new ones. A walk that has passed waiters
    /// that can be served now starts again.
    fn join_fronts(&mut self, fronts: &mut SmallVec<[Front<I, C>; 1]>) -> bool {
        let before = fronts.len();
        for Freed { spot, named_by, from } in self.freed.drain(..) {
            let target = &named_by.0.request.claims[named_by.1].target;
            let same = |front: &&mut Front<I, C>| {
                front.spot.hash == spot.hash
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
    pub(crate) fn note_expiry(&mut self, entry: &mut Entry<I, C>, expires: StoreTime) {
        if let Some(queue) = entry.queue_mut() {
            self.dropped.extend(queue.late_rechecks(expires));
        }
    }
}

impl<I: Ident, C: ContextId> MemoryLockDao<I, C> {
    /// Ends a step: serves the waiters of freed ids, unlocks, notifies.
    pub(crate) fn finish(&self, mut locked: Locked<'_, I, C>, mut step: Step<'_, I, C>) {
        if !step.freed.is_empty() {
            self.serve(&mut locked, &mut step);
        }
        drop(locked);
        for HandedOver { sender, granted, expires } in step.offers {
            // A waiter that vanishes in this moment withdraws, which passes the locks on.
            let _ = match expires {
                StoreTime::NEVER => sender.send(Wake::Offer(Offer { granted, remaining: None })),
                _ => {
                    // Read first, so that a pause after it makes the offer seem shorter and not longer.
                    let as_of = lockcore::backend::Moment::now();
                    let remaining = expires.remaining(self.clock.now());
                    sender.send_as_of(Wake::Offer(Offer { granted, remaining }), as_of)
                }
            };
        }
    }

    /// Removes the holders whose lease has ended.
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
        if ends == StoreTime::NEVER || ends > step.now() {
            return 0;
        }
        let now = step.now();
        let rows = entry.holders.expired(now, max);
        if !rows.is_empty() {
            step.freed(spot, entry);
        }
        for row in &rows {
            locked.table(spot).losses.add_expired(row.fence);
            self.record(What::Expired, &row.context, || now, || vec![(target.clone(), Some(row.fence))]);
        }
        rows.len()
    }

    /// Grants what can be granted of the freed ids, in the order of arrival of all their waiters, whatever the order of the ids.
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

    /// Returns the first of all waiters that could be served as far as the freed ids are concerned, with its whole set locked. After
    /// locks were given up the choice is made again, as waiters may have come, gone, or been served in between; but no later
    /// request can have passed them (invariant 3).
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
            // The set only grows, so that this ends although the choice may change.
            shards |= waiter.shards;
        }
    }

    /// Grants the waiter its set, which is locked, if there is no conflict; returns whether.
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
            expires = expires.min(now.after(Lease::of(Some(UNCONFIRMED))));
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
        ClaimSet, FreshContext, Grant, LockDao, Mode, Owner,
        backend::{AcquireRequest, Acquired, AttemptId, Wake},
    };
    use uuid::Uuid;

    use crate::{MemoryLockDao, clock::stops};

    const LEASE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_pause_while_a_waiter_is_notified_makes_its_offer_no_longer() {
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
