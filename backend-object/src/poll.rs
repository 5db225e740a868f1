//! Waiting: one look at the table for all waiters of a process.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use lockcore::{
    Granted,
    backend::{List, Moment, Offer, ServiceTime, Wake, shared_runtime},
    rules::{self, Again, InUse},
};

use crate::{
    cell::Cell,
    driver::{Known, Store},
    step::{Request, Sessions},
    table::Table,
    takeover::Scope,
};

/// The pause after a change: another one may follow soon.
const SHORTEST: Duration = Duration::from_millis(200);

/// The longest pause of a waiter that may be served next: an offer must not lapse meanwhile.
const NEAR: Duration = Duration::from_millis(500);

/// The longest pause of all others.
const LONGEST: Duration = Duration::from_secs(2);

/// A waiter has at most this many before it if it may be served next.
const FIRST: usize = 2;

/// What the table has for a waiter.
pub(crate) enum State {
    Waits,
    /// How long it certainly lasts.
    Holds(List<Granted>, Duration),
    /// It has no place any more: its offer lapsed, or an administrator took it from the queue.
    Lost,
}

impl<C: Cell> Store<C> {
    /// Starts to look for the waiters of this process, unless that is done already.
    pub(crate) fn watch(self: &Arc<Self>) {
        let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *polling, true) {
            shared_runtime().spawn(self.clone().poll());
        }
    }

    async fn poll(self: Arc<Self>) {
        let mut pause = SHORTEST;
        loop {
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            {
                let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
                if self.waiters.count() == 0 {
                    *polling = false;
                    return;
                }
            }
            // A store that gives no answer is asked again: each waiter has a limit of its own.
            let changed = self.look().await.unwrap_or(false);
            let next = self.notify().await;
            if next == Some(Next::TakeOver) {
                let scope = Scope { takes_over: true, ..Scope::default() };
                // What fails now is tried at the next look.
                let _ = self.submit(scope, |step| step.clean()).await;
            }
            let longest = if next == Some(Next::Far) { LONGEST } else { NEAR };
            pause = if changed { SHORTEST } else { (pause * 3 / 2).min(longest) };
        }
    }

    /// Notifies the waiters of this process of what the table has for them; returns what there is to do, `None` if none
    /// waits.
    pub(crate) async fn notify(&self) -> Option<Next> {
        let waiting = self.waiters.noted();
        if waiting.is_empty() {
            return None;
        }
        let known = self.known()?;
        // Before the time is worked out from which what is left is counted.
        let as_of = Moment::now();
        let now = self.cell.now().await.ok()?;
        let (sessions, mut next) = (self.sessions.all(), Next::Far);
        for (attempt, request) in waiting {
            match state(&known.table, &sessions, now, &request) {
                State::Waits => next = next.max(self.next(&known.table, &sessions, now, &request)),
                State::Holds(granted, remaining) => {
                    let offer = Offer { granted, remaining: Some(remaining) };
                    // One that is gone withdraws, and its offer goes to the next.
                    let _ = self.waiters.wake_as_of(&attempt, Wake::Offer(offer), as_of);
                }
                State::Lost => {
                    let _ = self.waiters.wake(&attempt, Wake::Recheck);
                }
            }
        }
        Some(next)
    }

    fn next(&self, table: &Table, sessions: &Sessions, now: ServiceTime, request: &Request) -> Next {
        let on = |id: &str| table.ids.get(id).map(|id| &id.held[..]).unwrap_or_default();
        let is_over = |id: &str| on(id).iter().any(|held| table.until(id, held, sessions, now) < now.lo);
        if request.claims.iter().any(|claim| is_over(&claim.id)) {
            return Next::TakeOver;
        }
        let ticket = table.ticket_of(&request.context, request.attempt).unwrap_or(0);
        let shares = |claims: &[crate::table::Claim]| {
            claims.iter().any(|claim| request.claims.iter().any(|own| own.id == claim.id))
        };
        let before = table.places.range(..ticket).filter(|(_, place)| shares(&place.claims));
        if before.count() < FIRST { Next::Near } else { Next::Far }
    }
}

/// What there is to do for the waiters, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Next {
    /// Others come first.
    Far,
    /// One of them may be served next.
    Near,
    /// The lease of a holder in the way seems to be over.
    TakeOver,
}

pub(crate) fn state(table: &Table, sessions: &Sessions, now: ServiceTime, request: &Request) -> State {
    if table.ticket_of(&request.context, request.attempt).is_some() {
        return State::Waits;
    }
    let (mut granted, mut left) = (List::new(), Duration::MAX);
    for claim in &request.claims {
        let all = table.ids.get(&claim.id).map(|id| &id.held[..]).unwrap_or_default();
        let own = all.iter().find(|held| table.context_of(held) == request.context);
        let Some(own) = own.filter(|own| !own.broken && rules::again(own.mode, claim.mode) == Again::Keep)
        else {
            return State::Lost;
        };
        let remaining = Known::left(table.until(&claim.id, own, sessions, now), now);
        if remaining.is_zero() {
            return State::Lost;
        }
        left = left.min(remaining);
        let in_use = InUse::of(all.iter().map(|held| held.mode)).units();
        let permits = own.permits.iter().copied().collect();
        granted.push(Granted { mode: own.mode, fence: own.fence, permits, in_use });
    }
    State::Holds(granted, left)
}
