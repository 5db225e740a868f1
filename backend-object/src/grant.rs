//! Granting: what a grant leaves in the table, what an attempt takes back, and handing over in the order of the queue.

use std::collections::HashSet;

use lockcore::{
    Granted, protocol,
    rules::{self, InUse},
};

use crate::{
    step::{Request, Stance, Step, Wants, micros},
    table::{Claim, Grant, Held, Place, Table},
    weigh::{Admissions, leave_behind},
};

/// How long an offer lasts at most.
const OFFER: u64 = micros(protocol::OFFER);

/// The terms of a grant.
pub(crate) struct Terms<'r> {
    context: &'r str,
    attempt: u64,
    owner: &'r str,
    session: &'r str,
    lease: u64,
    /// How long it lasts unless it is confirmed; `None` for the whole lease.
    offer: Option<u64>,
}

impl Step<'_> {
    pub(crate) fn terms<'r>(&self, request: &'r Request) -> Terms<'r>
    where
        Self: 'r,
    {
        Terms {
            context: &request.context,
            attempt: request.attempt,
            owner: &request.owner,
            session: self.session,
            lease: request.lease,
            offer: None,
        }
    }

    /// Grants the set, against which nothing may stand.
    pub(crate) fn grant(&mut self, claims: &[Claim], stances: &[Stance], terms: &Terms<'_>) -> Vec<Granted> {
        let fence = match stances.iter().all(|stance| *stance == Stance::Keep) {
            true => None,
            false => Some(self.new_grant(terms)),
        };
        let each = claims.iter().zip(stances);
        each.map(|(claim, stance)| match (stance, fence) {
            (Stance::Keep, _) | (_, None) => self.keep(claim, terms),
            (_, Some(fence)) => self.hold(claim, *stance, fence, terms),
        })
        .collect()
    }

    fn new_grant(&mut self, terms: &Terms<'_>) -> u64 {
        let fence = rules::next_fence(self.table.high, self.least_fence);
        self.table.high = fence;
        let grant = Grant {
            context: terms.context.to_owned(),
            attempt: terms.attempt,
            owner: terms.owner.to_owned(),
            session: terms.session.to_owned(),
            since: self.now.lo,
        };
        self.table.grants.insert(fence, grant);
        fence
    }

    fn hold(&mut self, claim: &Claim, stance: Stance, fence: u64, terms: &Terms<'_>) -> Granted {
        let own = self.remove(&claim.id, |table, held| table.context_of(held) == terms.context);
        let prior = own.filter(|_| matches!(stance, Stance::Change | Stance::Broken)).and_then(|own| {
            // A repeated attempt goes back to what was held before its first grant.
            let repeated = self.table.grants[&own.fence].attempt == terms.attempt;
            if repeated { own.prior } else { Some(Box::new(Held { prior: None, ..own })) }
        });
        let held = &mut self.table.ids.entry(claim.id.clone()).or_default().held;
        let taken = held.iter().flat_map(|held| held.permits.iter().copied());
        let permits = rules::lowest_free(taken, claim.mode.permits());
        let in_use = InUse::of(held.iter().map(|held| held.mode)).plus(claim.mode).units();
        held.push(Held {
            fence,
            mode: claim.mode,
            permits: permits.to_vec(),
            in_use,
            lease: terms.lease,
            until: self.now.hi.saturating_add(terms.offer.unwrap_or(terms.lease)),
            ignored: 0,
            broken: false,
            prior,
        });
        Granted { mode: claim.mode, fence, permits, in_use }
    }

    /// Goes on holding what the context holds. A longer lease is not cut short; in an offer, what is kept stays as it is until
    /// the offer is confirmed.
    fn keep(&mut self, claim: &Claim, terms: &Terms<'_>) -> Granted {
        let table = &*self.table;
        let all = &table.ids[&claim.id].held;
        let in_use = InUse::of(all.iter().map(|held| held.mode)).units();
        let position = all.iter().position(|held| table.context_of(held) == terms.context);
        let position = position.expect("only what the context holds is kept");
        let until = table.until(&claim.id, &all[position], self.sessions, self.now);
        let hi = self.now.hi;
        let held = &mut self.table.ids.get_mut(&claim.id).expect("it was found above").held[position];
        if terms.offer.is_none() {
            held.until = until.max(hi.saturating_add(terms.lease));
            held.lease = terms.lease.max(held.until - hi);
        }
        let permits = held.permits.iter().copied().collect();
        Granted { mode: held.mode, fence: held.fence, permits, in_use }
    }

    /// Removes what an attempt got of an id, and gives back what it replaced, so far as that still lasts.
    pub(crate) fn undo(&mut self, context: &str, attempt: u64, id: &str) {
        let of_attempt = |table: &Table, held: &Held| {
            let grant = &table.grants[&held.fence];
            grant.attempt == attempt && grant.context == context
        };
        let Some(own) = self.remove(id, of_attempt) else { return };
        let Some(prior) = own.prior else { return };
        if self.table.until(id, &prior, self.sessions, self.now) < self.now.lo {
            return;
        }
        let held = &mut self.table.ids.entry(id.to_owned()).or_default().held;
        // Where there were fewer permits for a while, others may have some of them by now, or need the rest: then it is lost.
        let permits: HashSet<u32> = prior.permits.iter().copied().collect();
        let is_taken = held.iter().any(|held| held.permits.iter().any(|permit| permits.contains(permit)));
        if !is_taken && InUse::of(held.iter().map(|held| held.mode)).fits(prior.mode) {
            held.push(*prior);
        }
    }

    /// Takes a place, or keeps it for the session that asked last.
    pub(crate) fn queue(&mut self, request: &Request, ticket: Option<u64>) {
        let session = self.session.to_owned();
        if let Some(place) = ticket.and_then(|ticket| self.table.places.get_mut(&ticket)) {
            (place.session, place.lease) = (session, request.lease);
            return;
        }
        let ticket = self.table.ticket;
        self.table.ticket += 1;
        let Request { context, attempt, claims, lease, owner, nested, .. } = request.clone();
        let place = Place { context, attempt, owner, session, since: self.now.lo, lease, nested, claims };
        self.table.places.insert(ticket, place);
    }

    /// Grants what is free to those who wait for it, in the order of their tickets, unless a waiter before them, whom they may
    /// not pass, goes on waiting.
    pub(crate) fn serve(&mut self) {
        'again: loop {
            let mut admissions = Admissions::new();
            for (ticket, place) in &self.table.places {
                let weighed = self.weigh(Wants::of_waiter(place), &admissions, Some(*ticket));
                if weighed.conflicts.is_empty() {
                    let (ticket, place) = (*ticket, place.clone());
                    self.table.places.remove(&ticket);
                    let terms = Terms {
                        context: &place.context,
                        attempt: place.attempt,
                        owner: &place.owner,
                        session: &place.session,
                        lease: place.lease,
                        offer: Some(place.lease.min(OFFER)),
                    };
                    self.grant(&place.claims, &weighed.stances, &terms);
                    continue 'again;
                }
                leave_behind(&mut admissions, place);
            }
            return;
        }
    }
}
