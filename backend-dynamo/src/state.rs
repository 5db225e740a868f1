//! The items of a step as the engine sees them.
//!
//! An item that was not read counts as one that is free: the condition of its write is that it is.

use std::{collections::HashMap, convert::Infallible};

use lockcore::{
    ConflictReason, Granted, Holder, LossReason, Mode, Owner, StoredContext,
    backend::{AttemptId, ServiceTime},
    engine::{self, Back, Held, Look, New, Own, Terms, Turn},
    rules::{Admission, InUse},
};

use crate::{
    request::Request,
    row::{Entry, Row, left},
};

/// The items of a step, which change as it decides.
#[derive(Debug)]
pub(crate) struct Step {
    rows: HashMap<String, Row>,
    now: ServiceTime,
    /// The fence of a new grant, above those of the items.
    fence: u64,
    /// The context whose attempt is withdrawn, and the end of a tombstone.
    withdrawn: Option<(String, u64)>,
    /// Always empty: this table has no queue.
    rooms: Vec<(String, u64)>,
}

impl Step {
    pub(crate) fn new(rows: impl IntoIterator<Item = (String, Row)>, now: ServiceTime) -> Self {
        Step { rows: rows.into_iter().collect(), now, fence: 0, withdrawn: None, rooms: Vec::new() }
    }

    pub(crate) fn granting(self, fence: u64) -> Self {
        Step { fence, ..self }
    }

    pub(crate) fn withdrawing(self, context: &str, tombstone: u64) -> Self {
        Step { withdrawn: Some((context.to_owned(), tombstone)), ..self }
    }

    /// Returns the item with this key as it is by now.
    pub(crate) fn row(&self, key: &str) -> &Row {
        &self.rows[key]
    }

    /// Returns the item as it is to be written.
    pub(crate) fn pruned(&self, key: &str) -> Row {
        let mut row = self.row(key).clone();
        row.prune(self.now);
        row
    }

    /// Returns the reason against a claim, which may be another client's lock: the engine knows our contexts only.
    pub(crate) fn named(&self, key: &str, reason: ConflictReason<String>) -> ConflictReason<String> {
        match (&self.row(key).foreign, reason) {
            (Some(foreign), ConflictReason::Held { .. }) => {
                let holder = Holder {
                    context: StoredContext::Foreign(foreign.context.clone()),
                    owner: Owner::default(),
                    mode: Mode::Exclusive,
                    fence: 0,
                    remaining: foreign.until.map(|until| left(until, self.now)),
                };
                ConflictReason::Held { holders: vec![holder], count: 1, in_use: 1 }
            }
            (_, reason) => reason,
        }
    }

    /// Extends what the context holds to at least a lease from now.
    pub(crate) fn extend(&mut self, key: &str, context: &str, lease: u64) {
        let now = self.now;
        if let Some(own) = self.row_mut(key).holder_mut(context) {
            own.extend(lease, now);
        }
    }

    fn row_mut(&mut self, key: &str) -> &mut Row {
        self.rows.get_mut(key).expect("a step has all its items")
    }

    fn seen(&self, entry: &Entry) -> Own {
        Own {
            attempt: AttemptId(entry.attempt),
            mode: entry.mode,
            permits: entry.permits.clone(),
            fence: entry.fence,
            // One that may have ended becomes a new grant, so that none is ever revived.
            lasts: entry.certainly_lasts(self.now),
            broken: entry.broken,
        }
    }
}

impl engine::Table for Step {
    type Error = Infallible;
    type Id = String;
    type Context = String;
    type Request = Request;
    type Waiter = Request;

    fn look(&mut self, id: &String) -> Result<Look, Infallible> {
        let row = self.row(id);
        let held = row.foreign.is_some() || !row.holders.is_empty();
        Ok(Look { held, waited_for: false, frozen: row.frozen })
    }

    fn holders(&mut self, id: &String) -> Result<impl Iterator<Item = Held<'_, String>>, Infallible> {
        let now = self.now;
        Ok(self.row(id).holders.iter().map(move |(context, entry)| Held {
            context,
            owner: &entry.owner,
            mode: entry.mode,
            permits: &entry.permits,
            fence: entry.fence,
            remaining: Some(entry.left(now)),
        }))
    }

    fn in_use(&mut self, id: &String, but: Option<&String>) -> Result<InUse, Infallible> {
        let row = self.row(id);
        let others = row.holders.iter().filter(|(context, _)| but != Some(context));
        let foreign = row.foreign.iter().map(|_| Mode::Exclusive);
        Ok(InUse::of(others.map(|(_, entry)| entry.mode).chain(foreign)))
    }

    fn own(&mut self, id: &String, context: &String) -> Result<Option<Own>, Infallible> {
        Ok(self.row(id).holder(context).map(|own| self.seen(own)))
    }

    fn replaced(&mut self, id: &String, context: &String) -> Result<Option<Own>, Infallible> {
        let prior = self.row(id).holder(context).and_then(|own| own.prior.as_deref());
        Ok(prior.filter(|prior| !prior.certainly_ended(self.now)).map(|prior| self.seen(prior)))
    }

    fn is_withdrawn(&mut self, request: &Request) -> Result<bool, Infallible> {
        Ok(request.claims.iter().any(|claim| self.row(&claim.key).was_withdrawn(request.attempt)))
    }

    fn why_missing(&mut self, id: &String, fence: u64) -> Result<LossReason, Infallible> {
        Ok(self.row(id).why_missing(fence))
    }

    fn remove_ended(&mut self) -> Result<(), Infallible> {
        for row in self.rows.values_mut() {
            // An attempt gives back what it replaced though its own lease has ended.
            let own = self.withdrawn.as_ref().and_then(|(context, _)| Some((context, row.remove(context)?)));
            row.prune(self.now);
            if let Some((context, own)) = own {
                row.insert(context, own);
            }
        }
        Ok(())
    }

    fn new_fence(&mut self, _terms: &Terms<'_, Request>) -> Result<u64, Infallible> {
        Ok(self.fence)
    }

    fn hold(
        &mut self,
        id: &String,
        new: New,
        back: Back,
        terms: &Terms<'_, Request>,
    ) -> Result<(), Infallible> {
        let Request { context, attempt, lease, owner, .. } = terms.request;
        let now = self.now;
        let row = self.row_mut(id);
        let own = row.remove(context);
        let entry = Entry {
            mode: new.mode,
            permits: new.permits,
            fence: new.fence,
            attempt: *attempt,
            lease: *lease,
            // A whole lease, wherever the service's time is within its bounds.
            until: now.hi.saturating_add(*lease),
            since: now.lo,
            owner: owner.clone(),
            broken: false,
            prior: match back {
                Back::ToNothing => None,
                Back::ToOwn => own.map(Box::new),
                Back::ToBeforeOwn => own.and_then(|own| own.prior),
            },
        };
        row.insert(context, entry);
        row.fence = row.fence.max(new.fence);
        Ok(())
    }

    fn keep(&mut self, id: &String, terms: &Terms<'_, Request>) -> Result<(), Infallible> {
        self.extend(id, &terms.request.context, terms.request.lease);
        Ok(())
    }

    fn free(&mut self, id: &String, context: &String, fence: u64) -> Result<Option<LossReason>, Infallible> {
        let now = self.now;
        let row = self.row_mut(id);
        if row.holder(context).is_none_or(|own| own.fence != fence) {
            return Ok(Some(row.why_missing(fence)));
        }
        let own = row.remove(context);
        Ok(own.filter(|own| own.certainly_ended(now)).map(|_| LossReason::Expired))
    }

    fn undo(&mut self, id: &String, context: &String, restores: bool) -> Result<(), Infallible> {
        let row = self.row_mut(id);
        let own = row.remove(context);
        if let Some(prior) = own.and_then(|own| own.prior).filter(|_| restores) {
            row.insert(context, *prior);
        }
        Ok(())
    }

    fn withdraw(&mut self, request: &Request) -> Result<(), Infallible> {
        let Some((_, until)) = self.withdrawn else { return Ok(()) };
        for row in self.rows.values_mut().filter(|row| !row.was_withdrawn(request.attempt)) {
            row.tombstones.push((request.attempt, until));
        }
        Ok(())
    }

    fn room(&mut self, _id: &String, _behind: u64) {}

    fn rooms(&mut self) -> &mut Vec<(String, u64)> {
        &mut self.rooms
    }

    // There is no queue: waiters poll.

    fn ticket(&mut self, _request: &Request) -> Result<Option<u64>, Infallible> {
        Ok(None)
    }

    fn next(
        &mut self,
        _id: &String,
        _nested: bool,
        _admission: Admission,
        _behind: u64,
    ) -> Result<Option<Turn>, Infallible> {
        Ok(None)
    }

    fn blocker(&mut self, _id: &String, _mode: Mode, _before: u64) -> Result<Option<Turn>, Infallible> {
        Ok(None)
    }

    fn count_blockers(&mut self, _id: &String, _mode: Mode, _before: u64) -> Result<usize, Infallible> {
        Ok(0)
    }

    fn waiter(&mut self, ticket: u64) -> Result<Request, Infallible> {
        unreachable!("{ticket} is not a ticket of this table")
    }

    fn queue(&mut self, _request: &Request, _ticket: Option<u64>) -> Result<(), Infallible> {
        unreachable!("no request asks for a place")
    }

    fn leave(&mut self, ticket: u64) -> Result<(), Infallible> {
        unreachable!("{ticket} is not a ticket of this table")
    }

    fn hand_over(&mut self, ticket: u64, _granted: Vec<Granted>) -> Result<(), Infallible> {
        unreachable!("{ticket} is not a ticket of this table")
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
