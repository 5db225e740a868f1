//! The table as the engine sees it.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use lockcore::{
    Granted, LossReason, Mode,
    backend::AttemptId,
    engine::{self, Back, Look, New, Own, Queue, Terms, Turn},
    protocol,
    rules::{self, Admission},
};

use serde_json::Map;

use crate::{
    request::Request,
    step::Step,
    table::{Grant, Held, Place, micros},
};

/// The time that an offer lasts at most, in microseconds: longer than elsewhere, as the waiter has to look, and to write its session.
/// That its process is dead shows by its heartbeat.
pub(crate) const OFFER: u64 = micros(protocol::OFFER) / 2 * 3;

/// The range of what is added to a ticket where each id has a cell of its own.
const SPREAD: u64 = 1024;

/// The time that the tombstone of a withdrawn attempt is kept at least, in microseconds.
const TOMBSTONE: u64 = micros(protocol::TOMBSTONE);

impl Step<'_> {
    fn held(&self, id: &str) -> &[Held] {
        self.table.ids.get(id).map(|state| &state.held[..]).unwrap_or_default()
    }

    pub(crate) fn held_by(&self, id: &str, context: &str) -> Option<&Held> {
        self.held(id).iter().find(|held| held.grant.context == context)
    }

    pub(crate) fn seen(&self, id: &str, held: &Held) -> Own {
        Own {
            attempt: AttemptId(held.grant.attempt),
            mode: held.mode,
            permits: held.permits.clone(),
            fence: held.fence,
            lasts: self.table.until(id, held, self.sessions, self.now) >= self.now.hi,
            broken: held.broken,
        }
    }

    fn place(&self, terms: &Terms<'_, Request>) -> Option<&Place> {
        self.table.places.get(&terms.offer?)
    }

    fn waiting(&mut self, id: &str) -> Option<&Queue> {
        self.queues().get(id)
    }
}

impl engine::Table for Step<'_> {
    type Error = Infallible;
    type Id = String;
    type Context = String;
    type Request = Request;
    type Waiter = Request;

    fn look(&mut self, id: &String) -> Result<Look, Infallible> {
        if !self.table.has(id) {
            // The id may have more in another part: nothing shows that it is free.
            self.missing.insert(id.clone());
            return Ok(Look { held: true, waited_for: true, frozen: true });
        }
        let waited_for = self.waiting(id).is_some();
        let frozen = self.table.ids.get(id).is_some_and(|state| state.frozen);
        Ok(Look { held: !self.held(id).is_empty(), waited_for, frozen })
    }

    fn holders(&mut self, id: &String) -> Result<impl Iterator<Item = engine::Held<'_, String>>, Infallible> {
        let (step, id) = (&*self, id.clone());
        Ok(step.held(&id).iter().map(move |held| {
            let grant = &held.grant;
            engine::Held {
                context: &grant.context,
                owner: &grant.owner,
                mode: held.mode,
                permits: &held.permits,
                fence: held.fence,
                remaining: Some(step.left(&id, held)),
            }
        }))
    }

    fn own(&mut self, id: &String, context: &String) -> Result<Option<Own>, Infallible> {
        Ok(self.held_by(id, context).map(|held| self.seen(id, held)))
    }

    fn replaced(&mut self, id: &String, context: &String) -> Result<Option<Own>, Infallible> {
        let prior = self.held_by(id, context).and_then(|held| held.prior.as_deref());
        let lasts = |prior: &&Held| self.table.until(id, prior, self.sessions, self.now) >= self.now.lo;
        Ok(prior.filter(lasts).map(|prior| self.seen(id, prior)))
    }

    fn ticket(&mut self, request: &Request) -> Result<Option<u64>, Infallible> {
        Ok(self.table.ticket_of(&request.context, request.attempt))
    }

    fn next(
        &mut self,
        id: &String,
        nested: bool,
        admission: Admission,
        behind: u64,
    ) -> Result<Option<Turn>, Infallible> {
        Ok(self.waiting(id).and_then(|queue| queue.next(nested, admission, behind)))
    }

    fn blocker(&mut self, id: &String, mode: Mode, before: u64) -> Result<Option<Turn>, Infallible> {
        Ok(self.waiting(id).and_then(|queue| queue.blocker(mode, before)))
    }

    fn count_blockers(&mut self, id: &String, mode: Mode, before: u64) -> Result<usize, Infallible> {
        Ok(self.waiting(id).map_or(0, |queue| queue.count_blockers(mode, before)))
    }

    fn waiter(&mut self, ticket: u64) -> Result<Request, Infallible> {
        let Place { context, attempt, owner, lease, nested, claims, .. } = self.table.places[&ticket].clone();
        Ok(Request { context, attempt, claims, lease, owner, queue: true, nested })
    }

    fn is_withdrawn(&mut self, request: &Request) -> Result<bool, Infallible> {
        let of_ids = request.claims.iter().filter_map(|claim| self.table.ids.get(&claim.id));
        let all = of_ids.map(|id| &id.tombstones).chain([&self.table.tombstones]);
        Ok(all.filter_map(|all| all.get(&request.attempt)).any(|until| *until >= self.now.lo))
    }

    fn why_missing(&mut self, id: &String, fence: u64) -> Result<LossReason, Infallible> {
        Ok(match self.table.ids.get(id).is_some_and(|state| state.was_broken(fence)) {
            true => LossReason::Broken,
            false => LossReason::Vanished,
        })
    }

    fn remove_ended(&mut self) -> Result<(), Infallible> {
        self.remove_ended_up_to(usize::MAX);
        Ok(())
    }

    fn new_fence(&mut self, terms: &Terms<'_, Request>) -> Result<u64, Infallible> {
        let mut fence = rules::next_fence(self.table.high, self.least_fence);
        if let Some(last) = self.fences {
            let next = |last: u64| Some(fence.max(last + 1));
            fence = fence.max(last.fetch_update(Relaxed, Relaxed, next).unwrap_or(0) + 1);
        }
        self.table.high = fence;
        let Request { context, attempt, owner, .. } = terms.request;
        let grant = Grant {
            context: context.clone(),
            attempt: *attempt,
            owner: owner.clone(),
            session: self.place(terms).map_or(self.session, |place| &place.session).to_owned(),
            since: self.now.lo,
            ids: self
                .table
                .of
                .as_ref()
                .map_or(0, |_| u32::try_from(terms.request.claims.len()).unwrap_or(u32::MAX)),
            rest: Map::new(),
        };
        self.granted = Arc::new(grant);
        Ok(fence)
    }

    fn hold(
        &mut self,
        id: &String,
        new: New,
        back: Back,
        terms: &Terms<'_, Request>,
    ) -> Result<(), Infallible> {
        let Request { context, lease, .. } = terms.request;
        let own = self.remove(id, |held| held.grant.context == *context);
        let prior = own.and_then(|own| match back {
            Back::ToNothing => None,
            Back::ToOwn => Some(Box::new(Held { prior: None, ..own })),
            Back::ToBeforeOwn => own.prior,
        });
        let lasts = if terms.offer.is_some() { OFFER.min(*lease) } else { *lease };
        let New { fence, mode, permits, in_use } = new;
        self.table.ids.entry(id.clone()).or_default().held.push(Held {
            fence,
            grant: self.granted.clone(),
            mode,
            permits: permits.to_vec(),
            in_use,
            lease: *lease,
            until: self.now.hi.saturating_add(lasts),
            ignored: 0,
            broken: false,
            prior,
            rest: Map::new(),
        });
        Ok(())
    }

    fn keep(&mut self, id: &String, terms: &Terms<'_, Request>) -> Result<(), Infallible> {
        let Request { context, lease, .. } = terms.request;
        let Some(held) = self.held_by(id, context).filter(|_| terms.offer.is_none()) else { return Ok(()) };
        let until = self.table.until(id, held, self.sessions, self.now);
        let (fence, hi) = (held.fence, self.now.hi);
        let all = self.table.ids.get_mut(id).into_iter().flat_map(|state| &mut state.held);
        for held in all.filter(|held| held.fence == fence) {
            held.until = until.max(hi.saturating_add(*lease));
            held.lease = (*lease).max(held.until - hi);
        }
        Ok(())
    }

    fn free(&mut self, id: &String, context: &String, fence: u64) -> Result<Option<LossReason>, Infallible> {
        match self.remove(id, |held| held.fence == fence && held.grant.context == *context) {
            Some(held) if self.table.until(id, &held, self.sessions, self.now) < self.now.lo => {
                Ok(Some(LossReason::Expired))
            }
            Some(_) => Ok(None),
            None => self.why_missing(id, fence).map(Some),
        }
    }

    fn undo(&mut self, id: &String, context: &String, restores: bool) -> Result<(), Infallible> {
        let own = self.remove(id, |held| held.grant.context == *context);
        if let Some(prior) = own.and_then(|own| own.prior).filter(|_| restores) {
            self.table.ids.entry(id.clone()).or_default().held.push(*prior);
        }
        Ok(())
    }

    fn queue(&mut self, request: &Request, ticket: Option<u64>) -> Result<(), Infallible> {
        let (session, since) = (self.session.to_owned(), self.now.hi);
        if let Some(place) = ticket.and_then(|ticket| self.table.places.get_mut(&ticket)) {
            place.lease = request.lease;
            if place.session != session {
                // Its first heartbeat has the time that that of a new place has.
                (place.session, place.since) = (session, since);
            }
            return Ok(());
        }
        let mut ticket = self.table.ticket;
        if self.table.of.is_some() {
            // Those of one id rise. Those of two that two processes make at once hardly ever meet, also after the clock was set back.
            ticket = ticket.max(self.now.hi) + request.attempt % SPREAD;
        }
        self.table.ticket = ticket + 1;
        let Request { context, attempt, claims, lease, owner, nested, .. } = request.clone();
        for claim in &claims {
            let queue = self.queues().entry(claim.id.clone()).or_default();
            queue.insert(Turn { ticket, mode: claim.mode }, nested);
        }
        let rest = Map::new();
        let place = Place { context, attempt, owner, session, since, lease, nested, claims, rest };
        self.table.places.insert(ticket, place);
        Ok(())
    }

    fn leave(&mut self, ticket: u64) -> Result<(), Infallible> {
        let Some(place) = self.table.places.remove(&ticket) else { return Ok(()) };
        for claim in place.claims {
            let queues = self.queues();
            let Some(queue) = queues.get_mut(&claim.id) else { continue };
            queue.remove(ticket);
            if queue.is_empty() {
                queues.remove(&claim.id);
            }
        }
        Ok(())
    }

    fn hand_over(&mut self, ticket: u64, _granted: Vec<Granted>) -> Result<(), Infallible> {
        self.leave(ticket)
    }

    fn withdraw(&mut self, request: &Request) -> Result<(), Infallible> {
        let until = self.now.hi + request.lease.max(TOMBSTONE);
        if self.table.of.is_none() {
            self.table.tombstones.entry(request.attempt).or_insert(until);
            return Ok(());
        }
        // The cell of one id is enough: a request that arrives late takes a write of all of them. In each, the withdrawals of large
        // sets would fill the cells.
        if let Some(first) = request.claims.iter().map(|claim| &claim.id).min() {
            let id = self.table.ids.entry(first.clone()).or_default();
            id.tombstones.entry(request.attempt).or_insert(until);
        }
        Ok(())
    }

    fn rooms(&mut self) -> &mut Vec<(String, u64)> {
        &mut self.rooms
    }
}
