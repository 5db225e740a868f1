//! One step: the table under its mutex as the engine sees it, and what is left to do when that is unlocked.

use std::{convert::Infallible, sync::Arc, time::Duration};

use lockcore::{
    ContextId, Granted, Ident, LossReason, Mode, Target,
    backend::{AcquireRequest, Moment, Offer, Wake, WakeSender, Wakeup},
    engine::{self, Back, Held, Look, New, Own, Terms, Turn},
    protocol::{HEARTBEAT_LASTS, OFFER},
    rules::{self, Admission, InUse},
};

use crate::{
    clock::{Clock, Lease, StoreTime},
    history::What,
    table::{Holder, Place, Table, minus, shrink},
};

/// The time that a grant counts whose waiter is not listening: as long as a dead waiter may delay those behind it. The waiter
/// confirms it by repeating its request or by renewing.
const UNCONFIRMED: Duration = OFFER.saturating_add(HEARTBEAT_LASTS);

/// A step of the backend.
pub(crate) struct Step<'t, I, C> {
    pub(crate) table: &'t mut Table<I, C>,
    pub(crate) clock: &'t Clock,
    pub(crate) now: StoreTime,
    /// The ids with room for those who wait.
    rooms: Vec<(Target<I>, u64)>,
    /// The wake-up of the place that was taken, and when its waiter is to ask again.
    pub(crate) wakeup: Option<(Wakeup, StoreTime)>,
    /// The locks that were taken back from a withdrawn attempt.
    pub(crate) undone: Vec<(Target<I>, Option<u64>)>,
    pub(crate) after: After,
}

/// The work left for when the table is unlocked: waking runs foreign code.
#[derive(Default)]
pub(crate) struct After {
    offers: Vec<HandedOver>,
    /// To be dropped, which has their waiters ask again.
    dropped: Vec<WakeSender>,
}

/// A set that was granted to a waiter, which has to be notified.
struct HandedOver {
    sender: WakeSender,
    granted: Vec<Granted>,
    ends: StoreTime,
}

impl After {
    pub(crate) fn notify(self, clock: &Clock) {
        for HandedOver { sender, granted, ends } in self.offers {
            // A waiter that vanishes in this moment withdraws, which passes the locks on.
            let _ = match ends {
                StoreTime::NEVER => sender.send(Wake::Offer(Offer { granted, remaining: None })),
                _ => {
                    // Read first, so that a pause after it makes the offer seem shorter and not longer.
                    let as_of = Moment::now();
                    let remaining = ends.remaining(clock.now());
                    sender.send_as_of(Wake::Offer(Offer { granted, remaining }), as_of)
                }
            };
        }
    }
}

impl<'t, I: Ident, C: ContextId> Step<'t, I, C> {
    pub(crate) fn new(table: &'t mut Table<I, C>, clock: &'t Clock) -> Self {
        let now = clock.now();
        Step {
            table,
            clock,
            now,
            rooms: Vec::new(),
            wakeup: None,
            undone: Vec::new(),
            after: After::default(),
        }
    }

    /// Records an event, if there is a history.
    pub(crate) fn record(
        &mut self,
        what: What,
        context: &C,
        ids: impl FnOnce() -> Vec<(Target<I>, Option<u64>)>,
    ) {
        if let Some(history) = &mut self.table.history {
            history.add(what, context, ids(), self.clock.calendar(self.now));
        }
    }

    /// Removes the holders of an id whose lease is over, at most `most` of them; returns how many there were.
    pub(crate) fn remove_ended_of(&mut self, id: &Target<I>, most: usize) -> usize {
        let now = self.now;
        if self.table.ids.get(id).is_none_or(|state| state.first_end > now) {
            return 0;
        }
        engine::Table::room(self, id, 0);
        let ended = self.table.change(id, |state| state.remove_ended(now, most)).unwrap_or_default();
        for holder in &ended {
            self.table.losses.add_expired(id.clone(), holder.fence);
            self.record(What::Expired, &holder.context, || vec![(id.clone(), Some(holder.fence))]);
        }
        ended.len()
    }

    /// Removes what a context holds of an id, and notes the room.
    pub(crate) fn remove(&mut self, id: &Target<I>, context: &C) -> Option<Box<Holder<C>>> {
        engine::Table::room(self, id, 0);
        self.table.change(id, |state| state.remove(context)).flatten()
    }

    /// Grants what has room to those who wait for it.
    pub(crate) fn serve(&mut self) {
        let Ok(()) = engine::serve(self);
    }

    /// Has what a context holds of an id last for a lease, which ends at a time; for the waiter `but` if it is to be notified.
    pub(crate) fn set_end(
        &mut self,
        id: &Target<I>,
        context: &C,
        (lease, ends): (Lease, StoreTime),
        but: Option<u64>,
    ) {
        self.table.change(id, |state| state.set_end(context, lease, ends));
        self.note_end(id, ends, but);
    }

    /// Does as [`set_end`](Self::set_end), unless the lock ends later.
    pub(crate) fn extend(
        &mut self,
        id: &Target<I>,
        context: &C,
        (lease, ends): (Lease, StoreTime),
        but: Option<u64>,
    ) {
        if self.holder(id, context).is_some_and(|own| own.ends <= ends) {
            self.set_end(id, context, (lease, ends), but);
        }
    }

    /// Returns when a grant ends.
    fn ends(&self, terms: &Terms<'_, AcquireRequest<I, C>>) -> StoreTime {
        let ends = self.now.after(Lease::of(terms.request.lease));
        let Some(ticket) = terms.offer else { return ends };
        let sender = self.table.places.get(&ticket).and_then(|place| place.wake.as_ref());
        match sender.is_none_or(WakeSender::is_closed) {
            true => ends.min(self.now.after(Lease::of(Some(UNCONFIRMED)))),
            false => ends,
        }
    }

    /// Has the waiters for an id ask again that would do so only after a lease on it ends. So no waiter sleeps past the end of a
    /// lease that began after it fell asleep; `but` is served itself.
    ///
    /// Waiters of one service mostly have the same lease and ask again in time anyway, and then this is one comparison.
    fn note_end(&mut self, id: &Target<I>, ends: StoreTime, but: Option<u64>) {
        let waiting = self.table.ids.get_mut(id).and_then(|state| state.waiting.as_mut());
        let Some(waiting) = waiting.filter(|waiting| ends < waiting.last_recheck) else { return };
        for Turn { ticket, .. } in waiting.queue.turns() {
            let Some(place) = self.table.places.get_mut(&ticket) else { continue };
            if place.rechecks > ends && but != Some(ticket) {
                place.rechecks = ends;
                self.after.dropped.extend(place.wake.take());
            }
        }
        waiting.last_recheck = ends;
    }

    fn holder(&self, id: &Target<I>, context: &C) -> Option<&Holder<C>> {
        self.table.ids.get(id)?.holders.get(context).map(|holder| &**holder)
    }

    fn take_place(&mut self, ticket: u64) -> Option<Place<I, C>> {
        let request = Arc::clone(&self.table.places.get(&ticket)?.request);
        // The place goes last: a panic of the user's `Hash` before that leaves no ticket without one in a queue.
        for claim in request.claims.iter() {
            self.table.change(&claim.target, |state| state.remove_waiter(ticket));
        }
        self.table.tickets.remove(&(request.attempt, request.context.clone()));
        let place = self.table.places.remove(&ticket);
        shrink(&mut self.table.tickets);
        place
    }
}

fn seen<C>(holder: &Holder<C>) -> Own {
    Own {
        attempt: holder.attempt,
        mode: holder.mode,
        permits: holder.permits.clone(),
        fence: holder.fence,
        lasts: true,
        broken: holder.broken,
    }
}

impl<I: Ident, C: ContextId> engine::Table for Step<'_, I, C> {
    type Error = Infallible;
    type Id = Target<I>;
    type Context = C;
    type Request = AcquireRequest<I, C>;
    type Waiter = Arc<AcquireRequest<I, C>>;

    fn look(&mut self, id: &Target<I>) -> Result<Look, Infallible> {
        self.remove_ended_of(id, usize::MAX);
        let look = self.table.ids.get(id).map(|state| Look {
            held: !state.holders.is_empty(),
            waited_for: state.waiting.is_some(),
            frozen: state.frozen,
        });
        Ok(look.unwrap_or_default())
    }

    fn holders(&mut self, id: &Target<I>) -> Result<impl Iterator<Item = Held<'_, C>>, Infallible> {
        let now = self.now;
        let all = self.table.ids.get(id).into_iter().flat_map(|state| state.holders.values());
        Ok(all.map(move |holder| Held {
            context: &holder.context,
            owner: &holder.owner,
            mode: holder.mode,
            permits: &holder.permits,
            fence: holder.fence,
            remaining: holder.ends.remaining(now),
        }))
    }

    fn in_use(&mut self, id: &Target<I>, but: Option<&C>) -> Result<InUse, Infallible> {
        let Some(state) = self.table.ids.get(id) else { return Ok(InUse::default()) };
        let own = but.and_then(|context| state.holders.get(context));
        Ok(own.map_or(state.in_use, |own| minus(state.in_use, own.mode)))
    }

    fn own(&mut self, id: &Target<I>, context: &C) -> Result<Option<Own>, Infallible> {
        Ok(self.holder(id, context).map(seen))
    }

    fn replaced(&mut self, id: &Target<I>, context: &C) -> Result<Option<Own>, Infallible> {
        let before = self.holder(id, context).and_then(|holder| holder.before.as_deref());
        Ok(before.filter(|before| before.ends > self.now).map(seen))
    }

    fn ticket(&mut self, request: &AcquireRequest<I, C>) -> Result<Option<u64>, Infallible> {
        if self.table.tickets.is_empty() {
            return Ok(None);
        }
        Ok(self.table.tickets.get(&(request.attempt, request.context.clone())).copied())
    }

    fn next(
        &mut self,
        id: &Target<I>,
        nested: bool,
        admission: Admission,
        behind: u64,
    ) -> Result<Option<Turn>, Infallible> {
        Ok(self.table.queue(id).and_then(|queue| queue.next(nested, admission, behind)))
    }

    fn blocker(&mut self, id: &Target<I>, mode: Mode, before: u64) -> Result<Option<Turn>, Infallible> {
        Ok(self.table.queue(id).and_then(|queue| queue.blocker(mode, before)))
    }

    fn count_blockers(&mut self, id: &Target<I>, mode: Mode, before: u64) -> Result<usize, Infallible> {
        Ok(self.table.queue(id).map_or(0, |queue| queue.count_blockers(mode, before)))
    }

    fn waiter(&mut self, ticket: u64) -> Result<Arc<AcquireRequest<I, C>>, Infallible> {
        Ok(Arc::clone(&self.table.places[&ticket].request))
    }

    fn is_withdrawn(&mut self, request: &AcquireRequest<I, C>) -> Result<bool, Infallible> {
        Ok(self.table.withdrawals.contains(request.attempt, &request.context, self.now))
    }

    fn why_missing(&mut self, id: &Target<I>, fence: u64) -> Result<LossReason, Infallible> {
        Ok(self.table.losses.reason(id, fence))
    }

    fn new_fence(&mut self, _terms: &Terms<'_, AcquireRequest<I, C>>) -> Result<u64, Infallible> {
        self.table.high = rules::next_fence(self.table.high, self.clock.micros(self.now));
        Ok(self.table.high)
    }

    fn hold(
        &mut self,
        id: &Target<I>,
        New { fence, mode, permits, .. }: New,
        back: Back,
        terms: &Terms<'_, AcquireRequest<I, C>>,
    ) -> Result<(), Infallible> {
        let (request, ends) = (terms.request, self.ends(terms));
        let state = self.table.id_or_new(id);
        let own = state.remove(&request.context);
        let before = own.and_then(|own| match back {
            Back::ToNothing => None,
            Back::ToOwn => Some(own),
            Back::ToBeforeOwn => own.before,
        });
        state.add(Box::new(Holder {
            context: request.context.clone(),
            attempt: request.attempt,
            mode,
            permits,
            fence,
            owner: request.owner.clone(),
            since: self.now,
            lease: Lease::of(request.lease),
            ends,
            broken: false,
            before: before.map(|own| Box::new(Holder { before: None, ..*own })),
        }));
        self.note_end(id, ends, terms.offer);
        Ok(())
    }

    fn keep(&mut self, id: &Target<I>, terms: &Terms<'_, AcquireRequest<I, C>>) -> Result<(), Infallible> {
        let (request, ends) = (terms.request, self.ends(terms));
        self.extend(id, &request.context, (Lease::of(request.lease), ends), terms.offer);
        Ok(())
    }

    fn free(&mut self, id: &Target<I>, context: &C, fence: u64) -> Result<Option<LossReason>, Infallible> {
        self.remove_ended_of(id, usize::MAX);
        if self.holder(id, context).is_none_or(|own| own.fence != fence) {
            return self.why_missing(id, fence).map(Some);
        }
        self.table.change(id, |state| state.remove(context));
        Ok(None)
    }

    fn undo(&mut self, id: &Target<I>, context: &C, restores: bool) -> Result<(), Infallible> {
        let undone = self.table.change(id, |state| {
            let own = state.remove(context)?;
            let before = own.before.filter(|_| restores);
            let ends = before.as_ref().map(|before| before.ends);
            before.into_iter().for_each(|before| state.add(before));
            Some((own.fence, ends))
        });
        let undone = undone.flatten();
        if let Some(ends) = undone.and_then(|(_, ends)| ends) {
            self.note_end(id, ends, None);
        }
        self.undone.push((id.clone(), undone.map(|(fence, _)| fence)));
        Ok(())
    }

    fn queue(&mut self, request: &AcquireRequest<I, C>, ticket: Option<u64>) -> Result<(), Infallible> {
        let states = request.claims.iter().filter_map(|claim| self.table.ids.get(&claim.target));
        let rechecks = states.map(|state| state.first_end(self.now)).min().unwrap_or(StoreTime::NEVER);
        let (sender, wakeup) = Wakeup::channel();
        self.wakeup = Some((wakeup, rechecks));
        let ticket = match ticket.and_then(|ticket| self.table.places.get_mut(&ticket)) {
            Some(place) => {
                self.after.dropped.extend(place.wake.replace(sender));
                place.rechecks = rechecks;
                ticket
            }
            None => {
                self.table.last_ticket += 1;
                let (request, since) = (Arc::new(request.clone()), self.now);
                let place = Place { request: Arc::clone(&request), since, wake: Some(sender), rechecks };
                self.table.places.insert(self.table.last_ticket, place);
                self.table.tickets.insert((request.attempt, request.context.clone()), self.table.last_ticket);
                self.record(What::Queued, &request.context, || without_fences(&request));
                Some(self.table.last_ticket)
            }
        };
        for claim in request.claims.iter() {
            let turn = Turn { ticket: ticket.unwrap_or_default(), mode: claim.mode };
            let lease = Lease::of(request.lease);
            self.table.id_or_new(&claim.target).add_waiter(turn, request.nested, lease, rechecks);
        }
        Ok(())
    }

    fn leave(&mut self, ticket: u64) -> Result<(), Infallible> {
        let place = self.take_place(ticket);
        self.after.dropped.extend(place.and_then(|place| place.wake));
        Ok(())
    }

    fn hand_over(&mut self, ticket: u64, granted: Vec<Granted>) -> Result<(), Infallible> {
        let Some(place) = self.table.places.get(&ticket) else { return Ok(()) };
        let request = Arc::clone(&place.request);
        let ends = self.ends(&Terms { request: &*request, offer: Some(ticket) });
        self.record(What::Granted, &request.context, || with_fences(&request, &granted));
        if let Some(sender) = self.take_place(ticket).and_then(|place| place.wake) {
            self.after.offers.push(HandedOver { sender, granted, ends });
        }
        Ok(())
    }

    fn withdraw(&mut self, request: &AcquireRequest<I, C>) -> Result<(), Infallible> {
        self.table.withdrawals.add(request.attempt, &request.context, self.now);
        Ok(())
    }

    fn rooms(&mut self) -> &mut Vec<(Target<I>, u64)> {
        &mut self.rooms
    }

    fn room(&mut self, id: &Target<I>, behind: u64) {
        if self.table.queue(id).is_some() {
            self.rooms.push((id.clone(), behind));
        }
    }
}

/// The ids of a request.
pub(crate) fn without_fences<I: Ident, C>(request: &AcquireRequest<I, C>) -> Vec<(Target<I>, Option<u64>)> {
    request.claims.iter().map(|claim| (claim.target.clone(), None)).collect()
}

/// The ids of a request, with the fences of its grant.
pub(crate) fn with_fences<I: Ident, C>(
    request: &AcquireRequest<I, C>,
    granted: &[Granted],
) -> Vec<(Target<I>, Option<u64>)> {
    let targets = request.claims.iter().map(|claim| claim.target.clone());
    targets.zip(granted.iter().map(|granted| Some(granted.fence))).collect()
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

    fn request() -> AcquireRequest<String, Uuid> {
        AcquireRequest {
            context: Uuid::fresh(),
            attempt: AttemptId::fresh(),
            claims: ClaimSet::new(["a"], Mode::Exclusive).expect("a valid id"),
            lease: Some(LEASE),
            owner: Owner::default(),
            queue: true,
            nested: false,
            detached: false,
        }
    }

    #[tokio::test]
    async fn the_memory_of_a_burst_is_given_back() {
        let dao = MemoryLockDao::<String>::new();
        let ids = (0..20_000).map(|id| id.to_string());
        let burst =
            AcquireRequest { claims: ClaimSet::new(ids, Mode::Exclusive).expect("valid ids"), ..request() };
        let Ok(Acquired::Granted(granted)) = dao.acquire(&burst).await else { panic!("all are free") };
        assert!(dao.capacity() >= 20_000);
        let grant = Grant::new(burst.context, burst.claims, granted, burst.lease);
        assert!(dao.release(&grant).await.is_ok_and(|released| released.lost.is_empty()));
        assert!(dao.capacity() < 2000, "{}", dao.capacity());
    }

    #[tokio::test]
    async fn a_pause_while_a_waiter_is_notified_makes_its_offer_no_longer() {
        const STOP: Duration = Duration::from_millis(300);
        let dao = MemoryLockDao::<String>::new();
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
