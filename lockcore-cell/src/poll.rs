//! Waiting: one look at the table for all waiters of a process.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    pin::pin,
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::{Either, select};
use lockcore::{
    Granted,
    backend::{Moment, Offer, ServiceTime, Wake, shared_runtime},
    rules::{self, Again, InUse},
};

use crate::{
    cell::Cell,
    error::StoreError,
    parts::Part,
    progress::Polling,
    request::Request,
    state::OFFER,
    step::Step,
    store::{Store, hosted},
    table::{Held, Table},
    takeover::{Scope, Sessions},
};

/// The pause after a change: another one may follow soon.
const SHORTEST: Duration = Duration::from_millis(200);

/// The longest pause of a waiter that may be served next: an offer must not lapse meanwhile.
const NEAR: Duration = Duration::from_millis(500);

/// The longest pause of all others, give or take a half: shorter than an offer, for those before them may all turn out to be dead.
const LONGEST: Duration = Duration::from_millis(1_200);
const _: () =
    assert!(LONGEST.as_micros() * 3 / 2 < OFFER as u128, "an offer must not lapse between two looks");

/// The number of looks in vain, each after a notification, from which on the least pause precedes the next: what is notified of again
/// and again without a change is not looked at again and again. One may follow a write of this process.
const MOST_IN_VAIN: u32 = 2;

/// The least pause.
const RETRY: Duration = Duration::from_millis(50);

/// The pause between heartbeats of a process with waiters: some stores take one write a second and cell.
const HEARTBEAT: Duration = Duration::from_millis(1_200);

/// A heartbeat that takes longer than this is followed by another one, in time to count.
const LONGEST_BEAT: Duration = Duration::from_millis(1_500);

/// The most waiters whose turn is looked at after a look, those of others among them.
const MOST_FOLLOWED: usize = 256;

/// A waiter has at most this many before it if it may be served next.
const FIRST: usize = 2;

/// The state of a waiter by the table.
pub(crate) enum State {
    Waits,
    /// The grants, and the time for which they certainly last.
    Holds(Vec<Granted>, Duration),
    /// It has no place any more: its offer lapsed, or an administrator took it from the queue.
    Lost,
}

impl<C: Cell> Store<C> {
    /// Starts to look for the waiters of this process, unless that is done already: then for this one as well.
    pub(crate) fn watch(self: &Arc<Self>, request: &Request) {
        let mut polling = self.polling();
        if polling.runs {
            // One that asks again is waited for already.
            if !self.parts(request.ids()).iter().all(|part| polling.watched.contains(part)) {
                self.joined.notify_one();
            }
        } else {
            *polling = Polling { runs: true, ..Polling::default() };
            // Also if it is never polled, as its runtime ends.
            let polls = Polls { store: self.clone(), is_done: false };
            shared_runtime().spawn(polls.poll());
        }
    }

    /// Returns why this process may show no more that its waiters live: none is served then.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        self.polling().refused.clone()
    }

    fn polling(&self) -> MutexGuard<'_, Polling> {
        self.polling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn beat_for_waiters(self: &Arc<Self>) -> Infallible {
        loop {
            // One that fails is followed by the next. One that is slow goes on, so that its outcome is known to the next.
            let store = self.clone();
            let beat = hosted(async move {
                let refused = store.show_life(HEARTBEAT).await.err().filter(StoreError::is_final);
                let is_refused = refused.is_some();
                store.polling().refused = refused;
                if is_refused {
                    store.waiters.wake_all();
                }
                Ok(())
            });
            let _ = tokio::time::timeout(LONGEST_BEAT, beat).await;
            let since = self.own.last().map_or(Duration::MAX, |last| last.elapsed());
            tokio::time::sleep(HEARTBEAT.saturating_sub(since).max(RETRY)).await;
        }
    }

    /// Takes over after each look, one at a time: nothing else waits for that.
    async fn take_over_for_waiters(self: &Arc<Self>) -> Infallible {
        loop {
            self.looked.notified().await;
            // A takeover that fails now is tried after the next look.
            let _ = self.take_over().await;
        }
    }

    /// Looks until none of this process waits.
    async fn look_for_waiters(self: &Arc<Self>) {
        let (mut pause, mut looked_at, mut in_vain) = (SHORTEST, Moment::now(), 0);
        let mut put_back_at: Option<Moment> = None;
        loop {
            let is_notified = self.notified_within(pause.mul_f64(0.5 + fastrand::f64())).await;
            if is_notified && in_vain >= MOST_IN_VAIN {
                tokio::time::sleep(looked_at.left_of(RETRY)).await;
            }
            looked_at = Moment::now();
            {
                let mut polling = self.polling();
                if self.waiters.count() == 0 {
                    polling.runs = false;
                    return;
                }
            }
            let parts = self.waited_for();
            let looked = self.look(&parts).await;
            if looked.as_ref().is_err_and(StoreError::is_final) {
                // Each waiter asks by itself, and ends by that.
                self.waiters.wake_all();
            }
            // A store that gives no answer is asked again: each waiter has a limit of its own.
            let changed = looked.unwrap_or(false);
            in_vain = if is_notified && !changed { in_vain + 1 } else { 0 };
            // Each is a write, and another process may remove the place again.
            let puts_back = put_back_at.is_none_or(|at| at.elapsed() >= LONGEST);
            if puts_back {
                put_back_at = Some(looked_at);
            }
            let next = self.notify(&parts, puts_back).await;
            self.looked.notify_one();
            let longest = if next == Some(Next::Far) { LONGEST } else { NEAR };
            pause = if changed { SHORTEST } else { (pause * 3 / 2).min(longest) };
        }
    }

    /// Waits for a change of what the waiters of this process wait for, also those that come meanwhile; returns whether there was one.
    async fn notified_within(&self, pause: Duration) -> bool {
        let is_notified = async {
            loop {
                // A waiter that comes before it is set again notifies.
                self.polling().watched.clear();
                let parts = self.waited_for();
                let version = |part: &Part| self.known_of(part).and_then(|known| known.version.clone());
                let cells: Vec<_> =
                    parts.iter().map(|part| (part.name().to_owned(), version(part))).collect();
                self.polling().watched.extend(parts);
                let (changed, joined) = (pin!(self.cell.changed(&cells)), pin!(self.joined.notified()));
                if let Either::Left(((), _)) = select(changed, joined).await {
                    return;
                }
            }
        };
        tokio::time::timeout(pause, is_notified).await.is_ok()
    }

    /// Returns the parts with what the waiters of this process wait for.
    fn waited_for(&self) -> Vec<Part> {
        let waiting = self.waiters.noted();
        self.parts(waiting.iter().flat_map(|(_, request)| request.ids()))
    }

    /// Removes the dead and what is over from before the waiters of this process.
    async fn take_over(self: &Arc<Self>) -> Result<(), StoreError> {
        let waiting = self.waiters.noted();
        if waiting.is_empty() {
            return Ok(());
        }
        let ids = waiting.iter().flat_map(|(_, request)| request.ids().cloned());
        let (mut ids, waits): (Vec<_>, Vec<_>) =
            (ids.collect(), waiting.iter().map(|(_, request)| request.clone()).collect());
        ids.sort_unstable();
        ids.dedup();
        let scope = Scope { ids, waits, ..Scope::default() };
        self.prepare(&scope).await?;
        if self.is_apart() {
            return self.serve_waiters(&scope.waits).await;
        }
        let parts = [Part::rest()];
        let Some(known) = self.known(&parts) else { return Ok(()) };
        let now = self.cell.now().await?;
        let (mut table, sessions) = ((*known.table).clone(), self.sessions.all());
        let (own, _) = self.own.name();
        let step = Step::new(&mut table, &sessions, now, 0, &own);
        match step.has_ended(&scope) {
            true => self.submit(parts.to_vec(), |step| step.clean()).await,
            false => Ok(()),
        }
    }

    /// Grants what is free to the waiters of this process, and to those before them. Who frees an id serves those of its waiters who
    /// wait for nothing else than what its step looked at: two such steps may each take the other's id for held. One that was given
    /// up while the store was away is served by nobody else either: what it gets ends as an offer does.
    async fn serve_waiters(self: &Arc<Self>, waits: &[Arc<Request>]) -> Result<(), StoreError> {
        let mut left = Vec::new();
        for request in waits {
            let known = self.view(&self.parts(request.ids()));
            let ticket = known.table.ticket_of(&request.context, request.attempt);
            left.extend(ticket.map(|ticket| (ticket, request.claims.clone())));
        }
        // Others come first the next time.
        fastrand::shuffle(&mut left);
        let (mut seen, mut tried, looked) = (BTreeSet::new(), BTreeSet::new(), self.waited_for());
        while let Some((ticket, claims)) = left.pop().filter(|_| seen.len() < MOST_FOLLOWED) {
            let parts = self.parts(claims.iter().map(|claim| &claim.id));
            if !seen.insert(ticket) {
                continue;
            }
            if !parts.iter().all(|part| looked.contains(part)) {
                match self.look(&parts).await {
                    // It is about this waiter only.
                    Err(error) if error.is_of_content() => continue,
                    looked => looked.map(drop)?,
                }
            }
            let known = self.view(&parts);
            if tried.insert(parts.clone()) {
                let changes = |step: &mut Step<'_>| {
                    step.serve_all();
                    *step.table != *known.table
                };
                if self.by(&parts, changes).await? || known.has_left_places() {
                    match self.submit(parts, |step| step.serve_all()).await {
                        // It is about this waiter only.
                        Err(error) if error.is_of_some() => {}
                        served => served?,
                    }
                    continue;
                }
            }
            let first = claims.iter().filter_map(|claim| known.table.blocker(&claim.id, claim.mode, ticket));
            left.extend(first.map(|(ticket, place)| (ticket, place.claims.clone())));
        }
        Ok(())
    }

    /// Notifies the waiters of this process of what these parts have for them, and one, if it `puts_back`, whose place is not whole; returns
    /// what there is to do, `None` if none waits.
    pub(crate) async fn notify(&self, parts: &[Part], puts_back: bool) -> Option<Next> {
        let mut waiting = self.waiters.noted();
        if self.is_apart() {
            waiting.retain(|(_, request)| self.parts(request.ids()).iter().any(|part| parts.contains(part)));
        }
        if waiting.is_empty() {
            return None;
        }
        let whole = self.view(&[Part::rest()]).table;
        // Before the time is worked out from which what is left is counted.
        let as_of = Moment::now();
        let now = self.cell.now().await.ok()?;
        let (sessions, mut next, mut last_part) = (self.sessions.all(), Next::Far, None);
        for (attempt, request) in waiting {
            let (table, is_whole) = match self.is_apart() {
                false => (whole.clone(), true),
                true => match self.known(&self.parts(request.ids())) {
                    Some(known) => (known.table.clone(), known.has_whole_place(&request)),
                    None => continue,
                },
            };
            match state(&table, &sessions, now, &request) {
                State::Waits if is_whole => next = next.max(of_waiter(&table, &sessions, now, &request)),
                State::Holds(granted, remaining) => {
                    let offer = Offer { granted, remaining: Some(remaining) };
                    // One that is gone withdraws, and its offer goes to the next.
                    let _ = self.waiters.wake_as_of(&attempt, Wake::Offer(offer), as_of);
                }
                State::Waits => {
                    let ticket = table.ticket_of(&request.context, request.attempt);
                    last_part = last_part.max(Some((ticket, attempt)));
                }
                State::Lost => {
                    let _ = self.waiters.wake(&attempt, Wake::Recheck);
                }
            }
        }
        // A part of a place keeps out those behind it, and is in no line elsewhere. A request puts back all parts of this process, or
        // gives up its own place where there is no room: the last one asks, so that those before it keep theirs.
        if let Some((_, attempt)) = last_part.filter(|_| puts_back) {
            let _ = self.waiters.wake(&attempt, Wake::Recheck);
        }
        Some(next)
    }
}

fn of_waiter(table: &Table, sessions: &Sessions, now: ServiceTime, request: &Request) -> Next {
    // An offer to one before it may lapse, and all others before it may be dead. The lease of an offer is longer than it lasts.
    let soon = now.hi.saturating_add(OFFER);
    let is_offer = |held: &Held| held.until < held.grant.since.saturating_add(held.lease);
    let may_lapse = |claim: &crate::table::Claim| {
        let held = table.ids.get(&claim.id).map(|id| &id.held[..]).unwrap_or_default();
        held.iter().any(|held| is_offer(held) && table.until(&claim.id, held, sessions, now) <= soon)
    };
    if request.claims.iter().any(may_lapse) {
        return Next::Near;
    }
    let ticket = table.ticket_of(&request.context, request.attempt).unwrap_or(0);
    let keeps_out = |claim: &crate::table::Claim| {
        request.claims.iter().any(|own| own.id == claim.id && !rules::passes(own.mode, claim.mode))
    };
    let before = table.places.range(..ticket).filter(|(_, place)| place.claims.iter().any(keeps_out));
    if before.count() < FIRST { Next::Near } else { Next::Far }
}

/// The poll at work. If it panics, or its runtime ends, the next waiter starts another one.
struct Polls<C: Cell> {
    store: Arc<Store<C>>,
    is_done: bool,
}

impl<C: Cell> Polls<C> {
    async fn poll(mut self) {
        let store = self.store.clone();
        // None of these waits for another.
        let (looks, beats) = (pin!(store.look_for_waiters()), pin!(store.beat_for_waiters()));
        let take_overs = pin!(store.take_over_for_waiters());
        match select(looks, select(beats, take_overs)).await {
            Either::Left(((), _)) => self.is_done = true,
            Either::Right((Either::Left((never, _)) | Either::Right((never, _)), _)) => match never {},
        }
    }
}

impl<C: Cell> Drop for Polls<C> {
    fn drop(&mut self) {
        if !self.is_done {
            self.store.polling().runs = false;
        }
    }
}

/// The next step for the waiters, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Next {
    /// Others come first.
    Far,
    /// One of them may be served next.
    Near,
}

pub(crate) fn state(table: &Table, sessions: &Sessions, now: ServiceTime, request: &Request) -> State {
    if table.ticket_of(&request.context, request.attempt).is_some() {
        return State::Waits;
    }
    let (mut granted, mut left) = (Vec::new(), Duration::MAX);
    for claim in &request.claims {
        let all = table.ids.get(&claim.id).map(|id| &id.held[..]).unwrap_or_default();
        let own = all.iter().find(|held| held.grant.context == request.context);
        let Some(own) = own.filter(|own| !own.broken && rules::again(own.mode, claim.mode) == Again::Keep)
        else {
            return State::Lost;
        };
        let until = table.until(&claim.id, own, sessions, now);
        let remaining = Duration::from_micros(until.saturating_sub(now.hi));
        if remaining.is_zero() {
            return State::Lost;
        }
        left = left.min(remaining);
        let in_use = InUse::of(all.iter().map(|held| held.mode)).units();
        let permits = own.permits.clone();
        granted.push(Granted { mode: own.mode, fence: own.fence, permits, in_use });
    }
    State::Holds(granted, left)
}
