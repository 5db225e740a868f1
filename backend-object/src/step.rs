//! A step: what a request makes of a table. Pure: no input or output, no clock of its own, and only `lockcore::rules`
//! decide.
//!
//! Whether a holder's lease has ended is known from the table and from the object of its session. A step takes over from a
//! holder only if that object was [closed](Session::closed) before, so that no later renewal succeeds; `driver` sees to it.

use std::{collections::BTreeMap, time::Duration};

use lockcore::{
    Granted, LossReason,
    backend::{ServiceTime, Withdraw},
    protocol,
    rules::{self, Again},
};

use crate::table::{Claim, Conflicts, Held, Place, Session, Table};

/// How long the tombstone of a withdrawn attempt is kept at least.
const TOMBSTONE: u64 = micros(protocol::TOMBSTONE);

/// What is known of sessions, by name.
pub(crate) type Sessions = BTreeMap<String, Session>;

/// A request in stored forms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) context: String,
    pub(crate) attempt: u64,
    pub(crate) claims: Vec<Claim>,
    pub(crate) lease: u64,
    pub(crate) owner: String,
    pub(crate) queue: bool,
    pub(crate) nested: bool,
}

/// How a claim relates to what its context holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stance {
    /// Nothing.
    New,
    /// As much: it goes on, under the same fence.
    Keep,
    /// Otherwise: a new grant if no other context is in the way.
    Change,
    /// It was broken: it is not extended, and so in the way.
    Broken,
}

/// A set that a context wants.
pub(crate) struct Wants<'r> {
    pub(crate) context: &'r str,
    pub(crate) claims: &'r [Claim],
    pub(crate) nested: bool,
}

impl<'r> Wants<'r> {
    pub(crate) fn of(request: &'r Request) -> Self {
        let Request { context, claims, nested, .. } = request;
        Wants { context, claims, nested: *nested }
    }

    pub(crate) fn of_waiter(place: &'r Place) -> Self {
        Wants { context: &place.context, claims: &place.claims, nested: place.nested }
    }
}

/// A grant in stored forms: ids with fences.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hold {
    pub(crate) context: String,
    pub(crate) locks: Vec<(String, u64)>,
    pub(crate) lease: u64,
}

/// What was lost of a grant, by position.
pub(crate) type Losses = Vec<(usize, LossReason)>;

/// What became of a request.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Verdict {
    Granted(Vec<Granted>),
    Refused(Conflicts),
    Queued(Conflicts),
    Withdrawn,
}

/// What a renewal finds in the table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Renewable {
    pub(crate) lost: Losses,
    /// The sessions and fences to extend.
    pub(crate) extend: Vec<(String, u64)>,
}

/// A table under change.
pub(crate) struct Step<'a> {
    pub(crate) table: &'a mut Table,
    pub(crate) sessions: &'a Sessions,
    pub(crate) now: ServiceTime,
    /// The least fence of a grant.
    pub(crate) least_fence: u64,
    /// The session of this process.
    pub(crate) session: &'a str,
}

impl Step<'_> {
    /// Takes the whole set, or nothing of it; a request that is to wait gets a place.
    pub(crate) fn acquire(&mut self, request: &Request) -> Verdict {
        if self.table.tombstones.get(&request.attempt).is_some_and(|until| *until >= self.now.lo) {
            return Verdict::Withdrawn;
        }
        self.clean();
        let ticket = self.table.ticket_of(&request.context, request.attempt);
        let admissions = self.admissions(ticket.unwrap_or(u64::MAX));
        let weighed = self.weigh(Wants::of(request), &admissions, ticket);
        if weighed.conflicts.is_empty() {
            if let Some(ticket) = ticket {
                self.table.places.remove(&ticket);
            }
            let granted = self.grant(&request.claims, &weighed.stances, &self.terms(request));
            // A change may be to fewer permits, and a place that was left lets others pass.
            self.serve();
            return Verdict::Granted(granted);
        }
        // A stronger mode never waits: two who share an id and both want it alone would wait for ever.
        let changes = weighed.stances.iter().any(|stance| matches!(stance, Stance::Change | Stance::Broken));
        if !request.queue || changes {
            return Verdict::Refused(weighed.conflicts);
        }
        self.queue(request, ticket);
        Verdict::Queued(weighed.conflicts)
    }

    /// Ends an attempt. `None`: it left; otherwise what it holds.
    pub(crate) fn withdraw(&mut self, request: &Request, how: Withdraw) -> Option<Vec<Granted>> {
        self.clean();
        if let Some(ticket) = self.table.ticket_of(&request.context, request.attempt) {
            self.table.places.remove(&ticket);
        }
        let own = |step: &Self, claim: &Claim| step.own(&request.context, &claim.id).cloned();
        let held: Vec<_> = request.claims.iter().map(|claim| own(self, claim)).collect();
        let holds_all = held.iter().zip(&request.claims).all(|(held, claim)| {
            held.as_ref()
                .is_some_and(|held| !held.broken && rules::again(held.mode, claim.mode) == Again::Keep)
        });
        let holds_any =
            held.iter().flatten().any(|held| self.table.grants[&held.fence].attempt == request.attempt);
        let kept = if how == Withdraw::KeepIfGranted && holds_all && holds_any {
            Some(self.grant(&request.claims, &vec![Stance::Keep; held.len()], &self.terms(request)))
        } else {
            for claim in &request.claims {
                self.undo(&request.context, request.attempt, &claim.id);
            }
            None
        };
        if how == Withdraw::Undo {
            let until = self.now.hi + request.lease.max(TOMBSTONE);
            self.table.tombstones.entry(request.attempt).or_insert(until);
        }
        self.serve();
        kept
    }

    /// Frees what the grant holds. What it lost does not keep the rest from being freed.
    pub(crate) fn release(&mut self, hold: &Hold) -> Losses {
        let mut lost = Losses::new();
        for (position, (id, fence)) in hold.locks.iter().enumerate() {
            match self
                .remove(id, |table, held| held.fence == *fence && table.context_of(held) == hold.context)
            {
                Some(held) if self.table.until(id, &held, self.sessions, self.now) < self.now.lo => {
                    lost.push((position, LossReason::Expired));
                }
                Some(_) => {}
                None => lost.push((position, self.why_missing(id, *fence))),
            }
        }
        self.clean();
        lost
    }

    /// Looks which of a grant's locks can be renewed in the objects of their sessions. A lock that may have ended cannot.
    pub(crate) fn renew(&self, hold: &Hold) -> Renewable {
        let mut found = Renewable::default();
        for (position, (id, fence)) in hold.locks.iter().enumerate() {
            let reason = match self.held_under(hold, id, *fence) {
                None => self.why_missing(id, *fence),
                Some(held) if self.table.until(id, held, self.sessions, self.now) < self.now.hi => {
                    LossReason::Expired
                }
                Some(held) if held.broken => LossReason::Broken,
                Some(_) => {
                    found.extend.push((self.table.grants[fence].session.clone(), *fence));
                    continue;
                }
            };
            found.lost.push((position, reason));
        }
        found.extend.sort_unstable();
        found.extend.dedup();
        found
    }

    /// Returns whether a grant has all that is held under its fences: only then are these what a session may extend.
    pub(crate) fn is_whole(&self, hold: &Hold) -> bool {
        let ours = |id: &str, fence: u64| hold.locks.iter().any(|(own, under)| own == id && *under == fence);
        let fences: Vec<u64> = hold.locks.iter().map(|(_, fence)| *fence).collect();
        self.table.ids.iter().all(|(id, state)| {
            state.held.iter().all(|held| !fences.contains(&held.fence) || ours(id, held.fence))
        })
    }

    /// Extends a part of what is held under a fence, in the table.
    pub(crate) fn extend(&mut self, hold: &Hold) -> Losses {
        let Renewable { lost, .. } = self.renew(hold);
        let until = self.now.hi.saturating_add(hold.lease);
        for (position, (id, fence)) in hold.locks.iter().enumerate() {
            if lost.iter().any(|(at, _)| *at == position) {
                continue;
            }
            let state = self.table.ids.get_mut(id);
            for held in
                state.into_iter().flat_map(|state| &mut state.held).filter(|held| held.fence == *fence)
            {
                held.until = held.until.max(until);
                held.lease = held.lease.max(hold.lease);
            }
        }
        lost
    }

    fn held_under(&self, hold: &Hold, id: &str, fence: u64) -> Option<&Held> {
        let state = self.table.ids.get(id)?;
        state.held.iter().find(|held| held.fence == fence && self.table.context_of(held) == hold.context)
    }

    fn why_missing(&self, id: &str, fence: u64) -> LossReason {
        match self.table.ids.get(id).is_some_and(|state| state.was_broken(fence)) {
            true => LossReason::Broken,
            false => LossReason::Vanished,
        }
    }

    pub(crate) fn remove(&mut self, id: &str, which: impl Fn(&Table, &Held) -> bool) -> Option<Held> {
        let held = &self.table.ids.get(id)?.held;
        let position = held.iter().position(|held| which(self.table, held))?;
        Some(self.table.ids.get_mut(id)?.held.remove(position))
    }
}

pub(crate) const fn micros(duration: Duration) -> u64 {
    let micros = duration.as_micros();
    if micros > u64::MAX as u128 / 8 { u64::MAX / 8 } else { micros as u64 }
}
