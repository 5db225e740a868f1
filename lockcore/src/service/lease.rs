//! The local knowledge of a lease: until when it certainly lasts, and whether it was lost.

#[cfg(test)]
mod model_tests;

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::keeper::Keeper;
use crate::{ContextId, Grant, Ident, LossReason, LostLock, clock::Moment, protocol::RENEWALS_PER_LEASE};

/// The local view of a finite lease.
///
/// Invariant L1: the deadline counts from a moment before the request that obtained the lease was sent,
/// so that it is never later than the store's own.
///
/// Invariant L2: once lost, always lost: a renewal that succeeds afterwards does not bring it back. What the clock
/// alone says is noted as soon as it was reported.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) length: Duration,
    /// The share of the lease before whose end the callback is stopped.
    margin: f64,
    /// No renewal after this long.
    pub(crate) max_hold: Option<Duration>,
    pub(crate) since: Moment,
    /// The number of locks that it is for.
    locks: usize,
    state: Mutex<State>,
    /// The task that runs the callback, and then the release.
    pub(crate) task: AtomicWaker,
    /// The keeper that confirms a lease that was handed over, and its key there.
    pub(crate) confirms: OnceLock<(Arc<Keeper>, u64)>,
}

#[derive(Debug)]
struct State {
    /// The moment at which the request that obtained the lease was about to be sent.
    sent: Moment,
    /// The time for which it lasts from then.
    lasts: Duration,
    /// The last renewal has no answer, yet or at all.
    unanswered: bool,
    /// It is neither renewed nor released here any more.
    left: bool,
    /// The end of the release's wait for its answer, once it has begun.
    patience: Option<Instant>,
    /// The lost locks by their position in the grant.
    lost: Vec<(usize, LossReason)>,
}

impl Lease {
    /// Returns the delay from when an extension was sent to the next one.
    pub(crate) fn renew_after(&self) -> Duration {
        self.length / RENEWALS_PER_LEASE
    }

    /// Returns the pause before a renewal that failed is tried again: soon enough for some tries before the lease ends, spread so that
    /// many holders do not come at once.
    pub(crate) fn pause_after_failure(&self) -> Duration {
        (self.length / 20).mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// A lease for this many locks that lasts for `lasts` from `sent`, and for `length` at least from each renewal.
    pub(crate) fn new(
        length: Duration,
        margin: f64,
        max_hold: Option<Duration>,
        sent: Moment,
        lasts: Duration,
        locks: usize,
    ) -> Self {
        Lease {
            length,
            margin,
            max_hold,
            since: sent,
            locks,
            state: Mutex::new(State {
                sent,
                lasts,
                unanswered: false,
                left: false,
                patience: None,
                lost: Vec::new(),
            }),
            task: AtomicWaker::new(),
            confirms: OnceLock::new(),
        }
    }

    /// Returns how long the lease certainly lasts, the margin not deducted.
    pub(crate) fn left(&self) -> Duration {
        let state = self.state();
        state.sent.left_of(state.lasts)
    }

    /// Returns how long the callback may go on without a renewal.
    pub(crate) fn left_to_run(&self) -> Duration {
        self.left_to_run_by(&self.state())
    }

    /// Returns how long the callback may go on without a renewal, from the request that obtained the lease last.
    pub(crate) fn runs_for(&self) -> Duration {
        self.runs_for_by(&self.state())
    }

    /// Returns whether any of it was lost, also if only the clock says so (L2). The second is whether that is news.
    pub(crate) fn look(&self) -> (bool, bool) {
        let mut state = self.state();
        let is_news = state.lost.len() < self.locks && self.left_to_run_by(&state).is_zero();
        if is_news {
            let reason = if state.unanswered { LossReason::Unreachable } else { LossReason::Expired };
            let known = std::mem::take(&mut state.lost);
            let rest = (0..self.locks).filter(|position| !known.iter().any(|(lost, _)| lost == position));
            state.lost = rest.map(|position| (position, reason)).collect();
            state.lost.extend(known);
            state.lost.sort_unstable_by_key(|(position, _)| *position);
        }
        (!state.lost.is_empty(), is_news)
    }

    /// Returns whether all of it is known to be lost, so that there is nothing left to renew.
    pub(crate) fn is_over(&self) -> bool {
        self.state().lost.len() == self.locks
    }

    /// Returns the locks of the grant that are not known to be lost.
    pub(crate) fn still_held<'g, I: Ident, C: ContextId>(
        &self,
        grant: &'g Grant<I, C>,
    ) -> Cow<'g, Grant<I, C>> {
        let state = self.state();
        if state.lost.is_empty() {
            return Cow::Borrowed(grant);
        }
        let is_lost = |position| state.lost.iter().any(|(lost, _)| *lost == position);
        let held = grant.locks.iter().enumerate().filter(|(position, _)| !is_lost(*position));
        Cow::Owned(Grant {
            context: grant.context.clone(),
            locks: held.map(|(_, lock)| lock.clone()).collect(),
            lease: grant.lease,
        })
    }

    /// It is not renewed any more, and runs out.
    pub(crate) fn leave(&self) {
        self.state().left = true;
    }

    /// Returns whether it was [left](Self::leave).
    pub(crate) fn is_left(&self) -> bool {
        self.state().left
    }

    /// A renewal is about to be sent.
    pub(crate) fn renewing(&self) {
        self.state().unanswered = true;
    }

    /// The release begins, which waits for its answer as long as `patience`.
    pub(crate) fn begin_release(&self, patience: Duration) {
        self.state().patience = Some(Instant::now() + patience);
    }

    /// Returns how much longer the release waits for its answer, if it has begun.
    pub(crate) fn patience_left(&self) -> Option<Duration> {
        let patience = self.state().patience?;
        Some(patience.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the last request that extended it gave it its whole length; a hand-over gives less.
    pub(crate) fn is_whole(&self) -> bool {
        self.state().lasts >= self.length
    }

    /// A renewal that was sent at `sent` has the lease of what is not lost last for `lasts` (L1, L2), which is its length at
    /// least. Returns the age that it had reached, and whether it is [whole](Self::is_whole) since then.
    pub(crate) fn extended(&self, sent: Moment, lasts: Duration) -> (Duration, bool) {
        let mut state = self.state();
        let age = state.sent.elapsed();
        let was_whole = state.lasts >= self.length;
        if state.lost.len() < self.locks {
            state.sent = sent;
            state.lasts = lasts;
            state.unanswered = false;
        }
        (age, !was_whole)
    }

    /// Notes what the store says is lost; gives whether any of it was not known before.
    pub(crate) fn lose<I: PartialEq, C>(&self, grant: &Grant<I, C>, lost: &[LostLock<I>]) -> bool {
        let mut state = self.state();
        let known = state.lost.len();
        for lock in lost {
            let position = grant.locks.iter().position(|held| held.target == lock.target);
            if let Some(position) = position
                && !state.lost.iter().any(|(known, _)| *known == position)
            {
                state.lost.push((position, lock.reason));
            }
        }
        state.lost.sort_unstable_by_key(|(position, _)| *position);
        state.lost.len() > known
    }

    /// Returns the locks that are known to be lost, and why.
    pub(crate) fn known_lost<I: Clone, C>(&self, grant: &Grant<I, C>) -> Vec<LostLock<I>> {
        self.state().lost.iter().map(|(position, reason)| grant.locks[*position].lost(*reason)).collect()
    }

    fn left_to_run_by(&self, state: &State) -> Duration {
        state.sent.left_of(self.runs_for_by(state))
    }

    fn runs_for_by(&self, state: &State) -> Duration {
        state.lasts.mul_f64(1.0 - self.margin)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
