//! Acquiring a set, or queueing for it.

use std::sync::Arc;

use lockcore::{
    BackendError, BackendErrorKind, Claim, Conflict, ContextId, Granted, Ident, Mode, Target,
    backend::{AcquireRequest, Acquired, List, Wakeup},
    rules,
};

use crate::{
    MemoryLockDao, What,
    clock::{Lease, StoreTime},
    entry::{Asker, Stance},
    handoff::Step,
    holders::Holder,
    queue::{Place, Waiter},
    shortcuts::{first_permits, in_use_alone},
    spot::{Spot, Spots},
    sync::{Mutex, Ordering},
    table::Locked,
};

/// The result of examining all ids of a set.
#[derive(Clone, Copy, Default)]
pub(crate) struct Examined {
    /// At least one id cannot be granted.
    pub(crate) blocked: bool,
    /// The asker holds an id in another mode, which is never queued for.
    pub(crate) changes: bool,
}

impl<I: Ident, C: ContextId> MemoryLockDao<I, C> {
    pub(crate) fn acquire_now(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        if request.claims.is_empty() {
            return Ok(Acquired::Granted(List::new()));
        }
        let (mut locked, mut spots) = match self.acquire_unused(request) {
            Ok(granted) => return Ok(Acquired::Granted(granted)),
            Err(Some((spot, guard))) => self.tables.set_of_one(spot, guard),
            Err(None) => self.tables.lock_set(request.claims.iter().map(|claim| &claim.target)),
        };
        let now = self.clock.now();
        let mut step = Step::at(now, &self.clock);
        let withdrawals = &mut locked.table(&spots[0]).withdrawals;
        if !withdrawals.is_empty() && withdrawals.contains(request.attempt, &request.context, now) {
            return Err(BackendError::new(BackendErrorKind::Withdrawn, "the attempt was withdrawn before"));
        }
        let waiter = waiting(&mut locked, &spots, request);
        let asker = Asker {
            context: &request.context,
            nested: request.nested,
            number: waiter.as_ref().map(|waiter| waiter.number),
        };
        let examined = self.examine(&mut locked, &spots, &request.claims, &asker, &mut step);
        let acquired = if !examined.blocked {
            if let Some(waiter) = waiter {
                self.leave(&mut locked, &spots, &waiter, true, &mut step);
            }
            let expires = now.after(Lease::of(request.lease));
            Acquired::Granted(self.grant(&mut locked, &mut spots, request, expires, &mut step))
        } else {
            let (conflicts, rechecks) = conflicts(&mut locked, &spots, &request.claims, &asker, now);
            if waiter.is_some() || (request.queue && !examined.changes) {
                let wakeup = self.wait(&mut locked, &mut spots, request, waiter, rechecks, &mut step);
                Acquired::Queued { conflicts, wakeup, recheck: rechecks.remaining(now) }
            } else {
                spots.iter_mut().for_each(|spot| locked.tidy(spot));
                self.record(What::Refused, &request.context, || now, || ids(&request.claims));
                Acquired::Refused(conflicts)
            }
        };
        self.finish(locked, step);
        Ok(acquired)
    }

    /// Examines whether the set can be granted, after removing holders whose lease has ended.
    pub(crate) fn examine(
        &self,
        locked: &mut Locked<'_, I, C>,
        spots: &[Spot],
        claims: &[Claim<I>],
        asker: &Asker<'_, C>,
        step: &mut Step<'_, I, C>,
    ) -> Examined {
        let mut examined = Examined::default();
        for (spot, claim) in spots.iter().zip(claims) {
            if spot.slot().is_none() {
                continue;
            }
            self.remove_expired(locked, spot, &claim.target, step);
            if let Some(entry) = locked.entry(spot) {
                let stance = entry.stance(claim.mode, asker.context);
                examined.changes |= matches!(stance, Stance::Change | Stance::Broken);
                examined.blocked |= entry.obstacle(claim.mode, stance, asker).is_some();
            }
        }
        examined
    }

    /// Grants a set that was examined and found free, under the same locks (invariant 2).
    pub(crate) fn grant(
        &self,
        locked: &mut Locked<'_, I, C>,
        spots: &mut Spots,
        request: &AcquireRequest<I, C>,
        expires: StoreTime,
        step: &mut Step<'_, I, C>,
    ) -> List<Granted> {
        let now = step.now();
        let lease = Lease::of(request.lease);
        let micros = self.clock.micros(now);
        let mut granted: List<Granted> = List::with_capacity(spots.len());
        for (spot, claim) in spots.iter_mut().zip(request.claims.iter()) {
            let table = locked.table(spot);
            if spot.slot().is_none() {
                let (mode, permits) = (claim.mode, first_permits(claim.mode));
                let (slot, fence) = table.grant_unused(spot.hash, claim, request, &permits, micros, now);
                spot.set(Some(slot));
                granted.push(Granted { mode, fence, permits, in_use: in_use_alone(mode) });
                continue;
            }
            // Invariant 7. A number that remains unused does no harm.
            let fence = rules::next_fence(table.high_water, micros);
            table.high_water = fence;
            let entry = locked.entry_or_new(spot, &claim.target);
            let (before, may_free) = match entry.stance(claim.mode, &request.context) {
                Stance::Keep => {
                    let own = entry.holders.row(&request.context).expect("its stance is that it holds");
                    granted.push(as_granted(own, entry.holders.in_use().units()));
                    entry.holders.extend(&request.context, lease, expires);
                    step.note_expiry(entry, expires);
                    continue;
                }
                Stance::New => (None, false),
                Stance::Change | Stance::Broken => {
                    (entry.holders.remove(&request.context).map(Box::new), true)
                }
            };
            let holder = Holder::new(request, claim.mode, List::new(), fence, now, expires);
            let own = entry.holders.insert(Holder { before, ..holder });
            let mut grant = as_granted(own, 0);
            grant.in_use = entry.holders.in_use().units();
            granted.push(grant);
            step.note_expiry(entry, expires);
            if may_free {
                // A change may be to fewer permits.
                step.freed(spot, entry);
            }
        }
        self.record(
            What::Granted,
            &request.context,
            || now,
            || {
                let targets = request.claims.iter().map(|claim| claim.target.clone());
                targets.zip(granted.iter().map(|granted| Some(granted.fence))).collect()
            },
        );
        granted
    }

    /// Removes a waiter from the queues of all its ids (invariant 3), because it is `granted` its set in the same step or has
    /// given up, and notes that other waiters may be served now (invariant 4).
    pub(crate) fn leave(
        &self,
        locked: &mut Locked<'_, I, C>,
        spots: &[Spot],
        waiter: &Waiter<I, C>,
        granted: bool,
        step: &mut Step<'_, I, C>,
    ) {
        step.drop_later(waiter.wake.lock().take());
        for (spot, claim) in spots.iter().zip(waiter.request.claims.iter()) {
            let entry = locked.entry(spot).expect("an id with a waiter has an entry");
            entry.queue_mut().expect("an id with a waiter has a queue").remove(waiter.number);
            if !(granted && claim.mode == Mode::Exclusive) {
                step.freed_behind(waiter.number, spot, entry);
            }
        }
    }

    /// Adds the request to the queues of all its ids (invariant 3), or replaces the wake-up of its waiter.
    fn wait(
        &self,
        locked: &mut Locked<'_, I, C>,
        spots: &mut Spots,
        request: &AcquireRequest<I, C>,
        waiter: Option<Arc<Waiter<I, C>>>,
        rechecks: StoreTime,
        step: &mut Step<'_, I, C>,
    ) -> Wakeup {
        let (sender, wakeup) = Wakeup::channel();
        match waiter {
            Some(waiter) => {
                step.drop_later(waiter.wake.lock().replace(sender));
                for spot in spots.iter() {
                    let queue = locked.entry(spot).and_then(|entry| entry.queue_mut());
                    queue.expect("an id with a waiter has a queue").set_recheck(waiter.number, rechecks);
                }
            }
            None => {
                let waiter = Arc::new(Waiter {
                    // Under the locks of the whole set: see the field.
                    number: self.arrivals.fetch_add(1, Ordering::Relaxed),
                    request: request.clone(),
                    spots: spots.iter().copied().collect(),
                    shards: Spot::shards(spots),
                    since: step.now(),
                    wake: Mutex::new(Some(sender)),
                });
                for (position, (spot, claim)) in spots.iter_mut().zip(request.claims.iter()).enumerate() {
                    let queue = &mut locked.entry_or_new(spot, &claim.target).extra_or_new().queue;
                    queue.insert(Place {
                        waiter: Arc::clone(&waiter),
                        claim: position,
                        mode: claim.mode,
                        rechecks,
                    });
                }
                self.record(What::Queued, &request.context, || step.now(), || ids(&request.claims));
            }
        }
        wakeup
    }
}

/// Lists the conflicts, and when the asker should ask again although nothing woke it.
fn conflicts<I: Ident, C: ContextId>(
    locked: &mut Locked<'_, I, C>,
    spots: &[Spot],
    claims: &[Claim<I>],
    asker: &Asker<'_, C>,
    now: StoreTime,
) -> (Vec<Conflict<I, C>>, StoreTime) {
    let mut conflicts = Vec::new();
    let mut rechecks = StoreTime::NEVER;
    for (spot, claim) in spots.iter().zip(claims) {
        let Some(entry) = locked.entry(spot) else { continue };
        rechecks = rechecks.min(entry.first_expiry(now));
        let stance = entry.stance(claim.mode, asker.context);
        if let Some(obstacle) = entry.obstacle(claim.mode, stance, asker) {
            conflicts.push(entry.conflict(obstacle, claim.mode, asker, now));
        }
    }
    (conflicts, rechecks)
}

/// Returns the waiter of the request's attempt, if it is queued.
pub(crate) fn waiting<I: Ident, C: ContextId>(
    locked: &mut Locked<'_, I, C>,
    spots: &[Spot],
    request: &AcquireRequest<I, C>,
) -> Option<Arc<Waiter<I, C>>> {
    let queue = locked.entry(&spots[0])?.queue()?;
    queue.find(request.attempt, &request.context).cloned()
}

pub(crate) fn as_granted<C>(own: &Holder<C>, in_use: u32) -> Granted {
    Granted { mode: own.mode, fence: own.fence, permits: own.permits.clone(), in_use }
}

pub(crate) fn ids<I: Ident>(claims: &[Claim<I>]) -> Vec<(Target<I>, Option<u64>)> {
    claims.iter().map(|claim| (claim.target.clone(), None)).collect()
}
