//! Waiting for a set that others hold: in the backend's queue, or by asking again.

use std::time::Duration;

use super::{
    attempt::{Attempt, Unanswered},
    hold::Hold,
    metrics::{Raised, WAITING},
};
use crate::{
    Acquired, BackendError, BackendErrorKind, Backoff, Conflict, ConflictReason, ContextId, Exponential,
    Failure, Holder, Ident, LockDao, LockError, LockingError, StoredContext, Target, Wake, Wakeup,
    clock::{self, Moment, within},
    rules::InUse,
    wait::Strategy,
};

/// Pauses after a failure of the backend while there is time left.
pub(super) const AFTER_FAILURE: Exponential =
    Exponential { base: Duration::from_millis(50), max: Duration::from_secs(2) };

/// Pauses between two looks at a backend that has no queue.
const BETWEEN_LOOKS: Exponential =
    Exponential { base: Duration::from_millis(20), max: Duration::from_secs(1) };

/// A request whose connection ended within this time was sent by one that had ended before. Those that fail later were tried for
/// long enough by the backend itself.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A store that has not answered for so long is named when the time of a wait is over. An answer that takes less than that may just
/// have been cut off by the end of the wait.
const SILENCE: Duration = Duration::from_secs(1);

/// A store is not named before it has been silent for so many times its slowest answer to the call, or for half of its shortest lease:
/// where many processes write to one cell, a withdrawal may take seconds.
const SLOW: u32 = 10;

type Answer<I, C> = Result<Acquired<I, C>, Unanswered>;

/// The reasons that the store gave last, and when it did.
pub(super) struct Seen<I, C> {
    failures: Vec<Failure<I, C>>,
    at: Moment,
}

type Outcome<'s, I, C, D> = Result<Hold<'s, I, C, D>, LockError<I, C>>;

/// Goes on after the first answer, which was not a grant, as `wait` says.
pub(crate) async fn wait<'s, I: Ident, C: ContextId, D: LockDao<I, C>>(
    attempt: &mut Attempt<'s, I, C, D>,
    first: Answer<I, C>,
    wait: &Strategy,
) -> Outcome<'s, I, C, D> {
    let first = match &first {
        Err(Unanswered::Failed(error)) if attempt.was_cut(error) => {
            let limit = if let Strategy::Queue { limit } = wait { *limit } else { None };
            attempt.ask_again(limit).await
        }
        _ => first,
    };
    if let Ok(Acquired::Refused(conflicts) | Acquired::Queued { conflicts, .. }) = &first
        && let Some(target) = attempt.kept_out_from_outside(conflicts)
    {
        return Err(LockingError::SelfDeadlock { target });
    }
    let first = match first {
        Ok(Acquired::Refused(conflicts)) if attempt.may_have_run(&conflicts) => {
            let limit = if let Strategy::Queue { limit } = wait { *limit } else { None };
            Box::pin(attempt.ask_again(limit)).await
        }
        first => first,
    };
    let is_waiting = !matches!(wait, Strategy::Never);
    let _waiting = is_waiting.then(|| Raised::by(1, WAITING, attempt.service().capabilities.backend));
    match wait {
        Strategy::Queue { limit } if attempt.request().queue => in_queue(attempt, first, *limit).await,
        // In boxes, as is all below that is seldom needed: thousands may wait in a queue at once.
        Strategy::Queue { limit } => Box::pin(by_looking(attempt, first, *limit)).await,
        Strategy::Retry { retries, backoff } => {
            Box::pin(retry_without_queueing(attempt, first, *retries, &**backoff)).await
        }
        Strategy::Never => match first {
            Ok(Acquired::Granted(granted)) => Ok(attempt.hold(granted)),
            Ok(Acquired::Refused(conflicts) | Acquired::Queued { conflicts, .. }) => {
                Err(attempt.refused(conflicts))
            }
            Err(unanswered) => Err(attempt.unanswered(unanswered, Seen::nothing())),
        },
    }
}

/// Waits with a place in the backend's queue.
async fn in_queue<'s, I: Ident, C: ContextId, D: LockDao<I, C>>(
    attempt: &mut Attempt<'s, I, C, D>,
    mut answer: Answer<I, C>,
    limit: Option<Duration>,
) -> Outcome<'s, I, C, D> {
    let (mut failed, mut seen) = (0, Seen::nothing());
    loop {
        let (mut wakeup, pause) = match answer {
            Ok(Acquired::Granted(granted)) => return Ok(attempt.hold(granted)),
            Ok(Acquired::Refused(conflicts)) => return Err(attempt.refused(conflicts)),
            Ok(Acquired::Queued { conflicts, wakeup, recheck }) => {
                failed = 0;
                // Without a limit no error will say what was in the way.
                if limit.is_some() {
                    seen = Seen::now(conflicts.into_iter().map(Failure::Conflict));
                }
                (wakeup, recheck)
            }
            Err(Unanswered::Failed(error)) if error.is_retryable() => {
                failed += 1;
                seen = Seen::now([Failure::Backend(error)]);
                (Wakeup::never(), Some(AFTER_FAILURE.delay(failed)))
            }
            Err(unanswered) => return Err(attempt.unanswered(unanswered, seen)),
        };
        let left = attempt.left(limit);
        let woken = match min(pause, left) {
            Some(pause) => Box::pin(within(pause, wakeup.recv_as_of())).await,
            None => Some(wakeup.recv_as_of().await),
        };
        match woken {
            Some((Wake::Offer(offer), as_of)) if attempt.can_rely_on(&offer, as_of) => {
                return Ok(attempt.hold_offer(offer, as_of));
            }
            _ => {}
        }
        if attempt.left(limit).is_some_and(|left| left.is_zero()) {
            return Box::pin(attempt.give_up(seen)).await;
        }
        answer = Box::pin(attempt.ask_again(limit)).await;
    }
}

/// Waits by asking again at growing intervals; of this process's waiters for an id only the first asks.
async fn by_looking<'s, I: Ident, C: ContextId, D: LockDao<I, C>>(
    attempt: &mut Attempt<'s, I, C, D>,
    mut answer: Answer<I, C>,
    limit: Option<Duration>,
) -> Outcome<'s, I, C, D> {
    let service = attempt.service().clone();
    let (mut turn, mut seen) = (None, Seen::nothing());
    for look in 0.. {
        let pause = match answer {
            Ok(Acquired::Granted(granted)) => return Ok(attempt.hold(granted)),
            Ok(Acquired::Refused(conflicts)) if attempt.has_run(&conflicts) => {
                return Err(attempt.refused(conflicts));
            }
            Ok(Acquired::Refused(conflicts) | Acquired::Queued { conflicts, .. }) => {
                let pause = BETWEEN_LOOKS.delay(look).min(soonest_end(&conflicts));
                seen = Seen::now(conflicts.into_iter().map(Failure::Conflict));
                pause
            }
            Err(Unanswered::Failed(error)) if error.is_retryable() => {
                seen = Seen::now([Failure::Backend(error)]);
                AFTER_FAILURE.delay(look)
            }
            Err(unanswered) => return Err(attempt.unanswered(unanswered, seen)),
        };
        let left = attempt.left(limit);
        let waited = async {
            // As with a queue, a call that holds locks does not wait behind others, which may be waiting for those.
            if turn.is_none() && !attempt.request().nested {
                let ids = attempt.request().claims.iter().map(|claim| claim.target.stored().into_owned());
                turn = Some(service.gate.turn(ids).await);
            }
            clock::sleep(pause).await;
        };
        let in_time = match left {
            Some(left) => within(left, waited).await.is_some(),
            None => {
                waited.await;
                true
            }
        };
        if !in_time {
            return Err(attempt.timed_out(seen));
        }
        answer = attempt.ask_again(limit).await;
    }
    unreachable!("the loop ends by returning")
}

/// Waits by asking again as often and as fast as the user wants, with no place in any queue.
async fn retry_without_queueing<'s, I: Ident, C: ContextId, D: LockDao<I, C>>(
    attempt: &mut Attempt<'s, I, C, D>,
    mut answer: Answer<I, C>,
    retries: Option<u32>,
    backoff: &dyn Backoff,
) -> Outcome<'s, I, C, D> {
    for tried in 0.. {
        let over = retries.is_some_and(|retries| tried >= retries);
        match answer {
            Ok(Acquired::Granted(granted)) => return Ok(attempt.hold(granted)),
            Ok(Acquired::Refused(conflicts) | Acquired::Queued { conflicts, .. })
                if over || attempt.has_run(&conflicts) =>
            {
                return Err(attempt.refused(conflicts));
            }
            Err(unanswered) if over || !unanswered.is_retryable() => {
                return Err(attempt.unanswered(unanswered, Seen::nothing()));
            }
            _ => {}
        }
        clock::sleep(backoff.delay(tried)).await;
        answer = attempt.ask().await;
    }
    unreachable!("the loop ends by returning")
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Attempt<'_, I, C, D> {
    /// The outcome of a request without an answer, after one with the answer `before` if there was any.
    fn unanswered(&mut self, unanswered: Unanswered, before: Seen<I, C>) -> LockError<I, C> {
        match unanswered {
            Unanswered::Failed(error) => self.failed(error),
            Unanswered::TimedOut => {
                let waits = self.waits_for_answer();
                self.timed_out_unanswered(before, waits)
            }
        }
    }

    /// The outcome of an attempt that ran out of time when the store had not answered for so long. What was seen before says why it
    /// waits, unless that is long for this store.
    pub(super) fn timed_out_unanswered(&mut self, seen: Seen<I, C>, silent: Duration) -> LockError<I, C> {
        let least = self.service().capabilities.min_lease / 2;
        let long = SILENCE.max(least.min(self.slowest_answer() * SLOW));
        match silent < long && !seen.failures.is_empty() {
            true => self.timed_out(seen),
            false => self.timed_out(seen.and_then_failed(BackendError::no_answer())),
        }
    }

    /// Finds an id that what this process runs in keeps from being granted for as long as this process runs.
    fn kept_out_from_outside(&self, conflicts: &[Conflict<I, C>]) -> Option<Target<I>> {
        let outside = &self.service().enclosed_by;
        let is_outside = |holder: &&Holder<C>| matches!(&holder.context, StoredContext::Known(context) if outside.contains(context));
        let keeps_out = |conflict: &&Conflict<I, C>| {
            let ConflictReason::Held { holders, .. } = &conflict.reason else { return false };
            let in_use = InUse::of(holders.iter().filter(is_outside).map(|holder| holder.mode));
            let mut claims = self.request().claims.iter().filter(|claim| claim.target == conflict.target);
            in_use != InUse::default() && claims.any(|claim| !in_use.fits(claim.mode))
        };
        conflicts.iter().find(keeps_out).map(|conflict| conflict.target.clone())
    }

    fn left(&self, limit: Option<Duration>) -> Option<Duration> {
        limit.map(|limit| self.left_of(limit))
    }

    /// Returns whether the first request failed because its connection ended: while it was idle, the server or a router
    /// on the way may have closed it. Another may work, and the same request can be sent again: it is the same attempt.
    fn was_cut(&self, error: &BackendError) -> bool {
        error.kind() == BackendErrorKind::Unavailable && error.in_doubt() && !self.left_of(AT_ONCE).is_zero()
    }

    async fn ask_again(&mut self, limit: Option<Duration>) -> Answer<I, C> {
        match limit {
            Some(limit) => self.ask_within(limit).await,
            None => self.ask().await,
        }
    }
}

impl<I, C> Seen<I, C> {
    fn nothing() -> Self {
        Seen::now([])
    }

    fn now(failures: impl IntoIterator<Item = Failure<I, C>>) -> Self {
        Seen { failures: failures.into_iter().collect(), at: Moment::now() }
    }

    /// Adds that the store failed, or did not answer, when it was asked after that.
    pub(super) fn and_then_failed(mut self, error: BackendError) -> Self {
        if !self.failures.iter().any(|failure| matches!(failure, Failure::Backend(_))) {
            self.failures.push(Failure::Backend(error));
        }
        self
    }

    /// Returns the reasons, with the leases as they are by now unless they were renewed.
    pub(super) fn into_reasons(self) -> Vec<Failure<I, C>> {
        let (mut failures, ago) = (self.failures, self.at.elapsed());
        let holders = failures.iter_mut().filter_map(|failure| match failure {
            Failure::Conflict(Conflict { reason: ConflictReason::Held { holders, .. }, .. }) => Some(holders),
            _ => None,
        });
        for holder in holders.flatten() {
            holder.remaining = holder.remaining.map(|remaining| remaining.saturating_sub(ago));
        }
        failures
    }
}

impl Unanswered {
    fn is_retryable(&self) -> bool {
        matches!(self, Unanswered::Failed(error) if error.is_retryable())
    }
}

/// Returns when the first of the leases in the way ends, and not at once.
fn soonest_end<I, C>(conflicts: &[Conflict<I, C>]) -> Duration {
    let holders = conflicts.iter().flat_map(|conflict| match &conflict.reason {
        ConflictReason::Held { holders, .. } => holders.as_slice(),
        _ => &[],
    });
    let soonest = holders.filter_map(|holder| holder.remaining).min().unwrap_or(Duration::MAX);
    soonest.max(Duration::from_millis(1))
}

fn min(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests;
