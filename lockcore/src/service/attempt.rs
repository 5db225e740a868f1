//! One attempt to take a set: its requests and their answers, and its withdrawal on every way out but a hold.

use std::{sync::Arc, time::Duration};

use super::{
    Inner, cleanup::Cleanup, door::Forked, hold::ServiceRef, metrics::Stopwatch, observe::CallSpan,
    open::Ticket,
};
use crate::{
    AcquireRequest, Acquired, AttemptId, BackendError, Conflict, ConflictReason, ContextId, Ident, LockDao,
    Withdraw,
    clock::{Moment, within},
};

mod begin;
mod settle;

/// The reason why a request has no answer.
pub(crate) enum Unanswered {
    Failed(BackendError),
    TimedOut,
}

/// One attempt on its way. Dropping it withdraws what is not settled.
///
/// Invariant A1: from before a request is sent until its answer settles it, `in_doubt` is set; so on every way out,
/// also if the future is dropped, either the answer is known or the attempt is withdrawn.
pub(crate) struct Attempt<'s, I: Ident, C: ContextId, D: LockDao<I, C>> {
    /// `None` once it became a hold.
    service: Option<ServiceRef<'s, I, C, D>>,
    request: Option<AcquireRequest<I, C>>,
    /// `None` once it became a hold.
    ticket: Option<Ticket>,
    in_doubt: bool,
    /// An earlier request of this attempt failed in doubt. It may still reach the store, even after a later one was
    /// answered.
    unsettled: bool,
    /// It may have a place in the queue: no grant and no withdrawal followed.
    queued: bool,
    max_hold: Option<Duration>,
    /// Of the hold; that of the request is longer if the set is to be kept for longer.
    lease: Option<Duration>,
    keep_for: Option<Duration>,
    once: bool,
    /// The fence of the grant of the first id by which the fire seems to have run.
    ran: Option<u64>,
    /// Measured where a lease or a limit needs it.
    sent: Option<Box<Sent>>,
    stopwatch: Stopwatch,
    pub(crate) span: CallSpan,
}

/// The moments at which requests were about to be sent.
struct Sent {
    first: Moment,
    last: Moment,
    /// The longest time that an answer has taken, but for one that grants.
    slowest: Duration,
}

impl<'s, I: Ident, C: ContextId, D: LockDao<I, C>> Attempt<'s, I, C, D> {
    pub(crate) fn service(&self) -> &Arc<Inner<I, C, D>> {
        self.service.as_deref().expect("taken only when the attempt ends")
    }

    /// The backend for the request.
    pub(crate) fn dao(&self) -> Result<&D, Forked> {
        self.service().dao_for(self.request().lease)
    }

    pub(crate) fn request(&self) -> &AcquireRequest<I, C> {
        self.request.as_ref().expect("taken only when the attempt ends")
    }

    /// Returns whether the fire of [`once`](super::Call::once) that was asked for has run, so that it would be waited for in vain: two
    /// answers one after the other say that the same grant holds the first id, and none the second one, which is locked while it runs.
    /// Not every store looks at both at one moment.
    pub(crate) fn has_run(&mut self, conflicts: &[Conflict<I, C>]) -> bool {
        let ran = self.ran(conflicts);
        ran.is_some() && std::mem::replace(&mut self.ran, ran) == ran
    }

    /// Returns whether one answer says so.
    pub(crate) fn may_have_run(&mut self, conflicts: &[Conflict<I, C>]) -> bool {
        self.ran = self.ran(conflicts);
        self.ran.is_some()
    }

    fn ran(&self, conflicts: &[Conflict<I, C>]) -> Option<u64> {
        let [first, running] = &self.request().claims[..] else { return None };
        let of_first = |conflict: &Conflict<I, C>| match &conflict.reason {
            ConflictReason::Held { holders, .. } if conflict.target == first.target => {
                holders.first().map(|holder| holder.fence)
            }
            _ => None,
        };
        let is_running = conflicts.iter().any(|conflict| conflict.target == running.target);
        conflicts.iter().find_map(of_first).filter(|_| self.once && !is_running)
    }

    /// Sends the request and waits for the answer.
    pub(crate) async fn ask(&mut self) -> Result<Acquired<I, C>, Unanswered> {
        if self.starts_over() {
            self.start_over().await.map_err(Unanswered::Failed)?;
        }
        self.asking();
        let answer = match self.dao() {
            Ok(dao) => dao.acquire(self.request()).await,
            Err(forked) => Err(forked.into()),
        };
        self.answered(answer)
    }

    /// Returns whether a request that may still arrive is withdrawn before the next one, and not in the end: by then none may be
    /// there to do so, for the set may be kept, or left to its lease. Only for a set that is kept a known place is given up.
    fn starts_over(&self) -> bool {
        self.unsettled && (self.keep_for.is_some() || !self.queued)
    }

    /// Withdraws a request that may still arrive, and goes on with another attempt.
    async fn start_over(&mut self) -> Result<(), BackendError> {
        self.dao()?.withdraw(self.request(), Withdraw::Undo).await?;
        self.request.as_mut().expect("taken only when the attempt ends").attempt = AttemptId::fresh();
        (self.in_doubt, self.unsettled, self.queued) = (false, false, false); // A1
        Ok(())
    }

    pub(crate) fn asking(&mut self) {
        if self.request().lease.is_some() {
            self.sending();
        }
        self.in_doubt = true; // A1
    }

    pub(crate) fn answered(
        &mut self,
        answer: Result<Acquired<I, C>, BackendError>,
    ) -> Result<Acquired<I, C>, Unanswered> {
        match answer.and_then(|answer| answer.checked(self.request().claims.len())) {
            Ok(answer) => {
                if let (Some(sent), false) = (&mut self.sent, matches!(answer, Acquired::Granted(_))) {
                    sent.slowest = sent.slowest.max(sent.last.elapsed());
                }
                self.queued = match answer {
                    Acquired::Queued { .. } => true,
                    Acquired::Granted(_) => false,
                    // A refusal takes no place away: it is withdrawn with the attempt.
                    Acquired::Refused(_) => self.queued,
                };
                self.in_doubt = self.unsettled || self.queued || matches!(answer, Acquired::Granted(_)); // A1
                Ok(answer)
            }
            Err(error) => {
                self.unsettled |= error.in_doubt();
                // A place that was taken before may still stand; without one there is nothing to withdraw.
                self.in_doubt = self.unsettled || self.queued;
                Err(Unanswered::Failed(error))
            }
        }
    }

    /// Does as [`ask`](Self::ask), but waits no longer than is left of `limit`, which counts from the first request.
    pub(crate) async fn ask_within(&mut self, limit: Duration) -> Result<Acquired<I, C>, Unanswered> {
        self.sending();
        let left = self.left_of(limit);
        within(left, self.ask()).await.unwrap_or(Err(Unanswered::TimedOut))
    }

    /// Returns how much is left of `limit`, which counts from the first request.
    pub(crate) fn left_of(&self, limit: Duration) -> Duration {
        self.sent.as_ref().map_or(limit, |sent| sent.first.left_of(limit))
    }

    /// Returns how long ago the last request was sent.
    pub(crate) fn waits_for_answer(&self) -> Duration {
        self.sent.as_ref().map(|sent| sent.last.elapsed()).unwrap_or_default()
    }

    /// Returns the longest time that an answer has taken, but for one that grants.
    pub(crate) fn slowest_answer(&self) -> Duration {
        self.sent.as_ref().map(|sent| sent.slowest).unwrap_or_default()
    }

    fn sending(&mut self) {
        self.counts_from(Moment::now());
    }

    /// Counts the lease of the next grant from `now`.
    fn counts_from(&mut self, now: Moment) {
        match &mut self.sent {
            Some(sent) => sent.last = now,
            None => self.sent = Some(Box::new(Sent { first: now, last: now, slowest: Duration::ZERO })),
        }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Drop for Attempt<'_, I, C, D> {
    fn drop(&mut self) {
        let (Some(service), Some(request), Some(ticket)) =
            (self.service.take(), self.request.take(), self.ticket.take())
        else {
            return; // it became a hold
        };
        if !self.in_doubt {
            return service.ended(ticket);
        }
        Cleanup::Withdraw { request }.start((*service).clone(), ticket);
    }
}
