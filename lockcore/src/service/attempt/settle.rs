//! The end of an attempt: as a hold, with an error, or by leaving the queue.

use std::{sync::Arc, time::Duration};

use super::{
    super::{hold::Hold, keep_for::KeepFor, lease::Lease, metrics::count, observe::Event, waiting::Seen},
    Attempt,
};
use crate::{
    BackendError, Capabilities, Conflict, ContextId, Failure, Grant, Granted, Ident, LockDao, LockError,
    LockingError, Offer, Phase, TimedOut, Withdraw, Withdrawn,
    clock::{Moment, within},
};

/// The time that a caller that has timed out still waits for the answer to its withdrawal.
const LAST_ANSWER: Duration = Duration::from_secs(1);

impl<'s, I: Ident, C: ContextId, D: LockDao<I, C>> Attempt<'s, I, C, D> {
    /// All of it is held, for a whole lease from the last request.
    pub(crate) fn hold(&mut self, granted: Vec<Granted>) -> Hold<'s, I, C, D> {
        let lasts = self.request().lease;
        self.become_hold(granted, lasts, false)
    }

    /// Returns whether the offer is certainly still valid. If not, the caller sends the request again.
    pub(crate) fn can_rely_on(&self, offer: &Offer, as_of: Option<Moment>) -> bool {
        if self.keep_for.is_some() {
            return false; // it is kept from the start, not once it was confirmed
        }
        if offer.granted.len() != self.request().claims.len() {
            return false; // the answer to the next request says what is wrong
        }
        match (self.request().lease, offer.remaining, as_of) {
            (None, ..) => true,
            (Some(_), Some(remaining), Some(as_of)) => !as_of.left_of(remaining).is_zero(),
            _ => false,
        }
    }

    /// All of it was pushed to this waiter, in an offer that [can be relied on](Self::can_rely_on): its lease counts
    /// from the moment at which so much was left of it (L1).
    pub(crate) fn hold_offer(&mut self, offer: Offer, as_of: Option<Moment>) -> Hold<'s, I, C, D> {
        if let Some(as_of) = as_of {
            self.counts_from(as_of);
        }
        let lasts = self.request().lease.and_then(|lease| Some(lease.min(offer.remaining?)));
        self.become_hold(offer.granted, lasts, true)
    }

    pub(crate) fn hold_nothing(&mut self) -> Hold<'s, I, C, D> {
        self.become_hold(Vec::new(), None, false)
    }

    #[inline(always)]
    fn become_hold(
        &mut self,
        granted: Vec<Granted>,
        lasts: Option<Duration>,
        offered: bool,
    ) -> Hold<'s, I, C, D> {
        let late = self.unsettled.then(|| self.request().clone());
        let service = self.service.take().expect("taken only here and at the end");
        let request = self.request.take().expect("taken only here and at the end");
        let ticket = self.ticket.take().expect("taken only here and at the end");
        let lease = lasts.and_then(|lasts| {
            let sent = self.sent.as_ref().expect("measured for every request with a lease").last;
            let length = self.lease?;
            Some(Box::new(Lease::new(length, service.margin, self.max_hold, sent, lasts, granted.len())))
        });
        let grant = Grant::new(request.context, request.claims, granted, self.lease);
        let keep_for = self.keep_for.map(|keep_for| Arc::new(KeepFor::from_now(keep_for)));
        // First of all a hold, which releases the set whatever goes wrong after this.
        let span = self.span.take();
        let mut hold = Hold::new(service, grant, lease, keep_for, offered, ticket, span);
        if let Some(late) = late {
            hold.withdraw_late(late);
        }
        let backend = hold.service.capabilities.backend;
        count("lockcore_acquired_total", backend, "granted");
        self.stopwatch.record("lockcore_wait_seconds", backend);
        hold.span.locked(offered);
        if hold.core.lease.is_some() {
            hold.service.start_sweeper();
        }
        hold
    }

    /// The outcome of a refusal.
    pub(crate) fn refused(&mut self, conflicts: Vec<Conflict<I, C>>) -> LockError<I, C> {
        self.not_locked(conflicts.into_iter().map(Failure::Conflict).collect(), None)
    }

    /// The outcome of a failure; what is in doubt is withdrawn in the background.
    pub(crate) fn failed(&mut self, error: BackendError) -> LockError<I, C> {
        self.not_locked(vec![Failure::Backend(error)], None)
    }

    /// The outcome of an attempt that ran out of time.
    pub(crate) fn timed_out(&mut self, seen: Seen<I, C>) -> LockError<I, C> {
        let failures = seen.into_reasons();
        let is_outage = failures.iter().any(|failure| matches!(failure, Failure::Backend(_)));
        let phase = if is_outage { Phase::Asking } else { Phase::Waiting };
        let after = self.sent.as_ref().map(|sent| sent.first.elapsed()).unwrap_or_default();
        let Capabilities { shared_store, dead_holders, .. } = self.service().capabilities;
        let lease_outlasts = self.lease.filter(|lease| shared_store && !dead_holders && *lease > after);
        self.not_locked(failures, Some(TimedOut { after, phase, lease_outlasts }))
    }

    pub(crate) fn not_locked(
        &mut self,
        failures: Vec<Failure<I, C>>,
        timed_out: Option<TimedOut>,
    ) -> LockError<I, C> {
        self.service().observe(|| Event::Refused { context: &self.request().context, failures: &failures });
        LockingError::NotLocked { failures, timed_out }
    }

    /// Leaves the queue, unless the set was granted by now: then it is held.
    pub(crate) async fn give_up(&mut self, seen: Seen<I, C>) -> Result<Hold<'s, I, C, D>, LockError<I, C>> {
        if !self.in_doubt || self.starts_over() {
            return Err(self.timed_out(seen));
        }
        match within(LAST_ANSWER, self.leave_queue()).await {
            Some(Ok(Some(granted))) => Ok(self.hold(granted)),
            Some(Ok(None)) => Err(self.timed_out(seen)),
            Some(Err(error)) => Err(self.timed_out(seen.and_then_failed(error))),
            None => Err(self.timed_out_unanswered(seen, LAST_ANSWER)),
        }
    }

    async fn leave_queue(&mut self) -> Result<Option<Vec<Granted>>, BackendError> {
        let withdrawn = {
            let (service, request) = (self.service(), self.request());
            service.dao_for(request.lease)?.withdraw(request, Withdraw::KeepIfGranted).await?
        };
        Ok(match withdrawn {
            Withdrawn::Left => {
                (self.queued, self.in_doubt) = (false, self.unsettled); // A1
                None
            }
            Withdrawn::Holds(granted) if granted.len() == self.request().claims.len() => {
                self.confirm(&granted).await.then_some(granted)
            }
            // Another number is a bug of the backend: it stays in doubt.
            Withdrawn::Holds(_) => None,
        })
    }

    /// Renews what was granted at an unknown time, before anything relies on it.
    async fn confirm(&mut self, granted: &[Granted]) -> bool {
        let request = self.request();
        if request.lease.is_none() {
            return true;
        }
        let grant =
            Grant::new(request.context.clone(), request.claims.clone(), granted.to_vec(), request.lease);
        let sent = Moment::now();
        let Ok(dao) = self.dao() else { return false };
        let renewed = dao.renew(&grant).await;
        let since = renewed.as_ref().ok().and_then(|renewed| renewed.since);
        self.counts_from(since.unwrap_or(sent));
        renewed.is_ok_and(|renewed| renewed.lost.is_empty())
    }
}
