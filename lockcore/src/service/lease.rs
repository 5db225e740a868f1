//! What is known here of a lease: until when it certainly lasts, and whether it was lost.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

use crate::{Grant, LossReason, LostLock, Target, clock::Moment};

/// The local view of a finite lease.
///
/// Invariant L1: the deadline counts from a moment before the request that obtained the lease was sent,
/// so that it is never later than the store's own.
///
/// Invariant L2: once lost, always lost: a renewal that succeeds afterwards does not bring it back.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) length: Duration,
    /// The share of the lease before whose end the callback is stopped.
    margin: f64,
    /// No renewal after this long.
    pub(crate) max_hold: Option<Duration>,
    pub(crate) since: Moment,
    state: Mutex<State>,
    /// The task that runs the callback.
    pub(crate) task: AtomicWaker,
    /// Whoever waits for [`Held::lost`](crate::Held::lost).
    pub(crate) loss: Notify,
}

#[derive(Debug)]
struct State {
    /// When the request that obtained the lease was about to be sent.
    sent: Moment,
    /// How long it lasts from then.
    lasts: Duration,
    lost: Lost,
}

/// What of a grant is lost.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Lost {
    Nothing,
    /// All of it, for this reason.
    All(LossReason),
    /// These of its locks, by position in the grant.
    Some(Vec<(usize, LossReason)>),
}

impl Lease {
    /// A lease that lasts for `lasts` from `sent`, and for `length` from each renewal.
    pub(crate) fn new(
        length: Duration,
        margin: f64,
        max_hold: Option<Duration>,
        sent: Moment,
        lasts: Duration,
    ) -> Self {
        Lease {
            length,
            margin,
            max_hold,
            since: sent,
            state: Mutex::new(State { sent, lasts, lost: Lost::Nothing }),
            task: AtomicWaker::new(),
            loss: Notify::new(),
        }
    }

    /// How long the lease certainly lasts, the margin not deducted.
    pub(crate) fn left(&self) -> Duration {
        let state = self.state();
        state.sent.left_of(state.lasts)
    }

    /// How long the callback may go on without a renewal.
    pub(crate) fn left_to_run(&self) -> Duration {
        self.left_to_run_by(&self.state())
    }

    /// Whether it was lost, also if only the clock says so.
    pub(crate) fn is_lost(&self) -> bool {
        let state = self.state();
        state.lost != Lost::Nothing || self.left_to_run_by(&state).is_zero()
    }

    /// Whether the store said that locks are lost, or their time ran out unrenewed and was noticed.
    pub(crate) fn is_known_lost(&self) -> bool {
        self.state().lost != Lost::Nothing
    }

    /// A renewal that was sent at `sent` extended the lease (L1, L2); gives the age that it had reached.
    pub(crate) fn extended(&self, sent: Moment) -> Duration {
        let mut state = self.state();
        let age = state.sent.elapsed();
        if state.lost == Lost::Nothing {
            state.sent = sent;
            state.lasts = self.length;
        }
        age
    }

    /// Notes that all of it is lost, unless it was known before, and tells everybody.
    pub(crate) fn lose_all(&self, reason: LossReason) {
        self.lose(Lost::All(reason));
    }

    /// Notes that some locks are lost and tells everybody.
    pub(crate) fn lose_some<I: PartialEq, C>(&self, grant: &Grant<I, C>, lost: &[LostLock<I>]) {
        let position = |target: &Target<I>| grant.locks.iter().position(|lock| lock.target == *target);
        self.lose(Lost::Some(
            lost.iter()
                .filter_map(|lock| position(&lock.target).map(|position| (position, lock.reason)))
                .collect(),
        ));
    }

    fn lose(&self, lost: Lost) {
        {
            let mut state = self.state();
            if state.lost != Lost::Nothing {
                return;
            }
            state.lost = lost;
        }
        self.task.wake();
        self.loss.notify_waiters();
    }

    /// What is lost, and why; if only the clock says so, all of it for `otherwise`.
    pub(crate) fn lost<I: Clone, C>(&self, grant: &Grant<I, C>, otherwise: LossReason) -> Vec<LostLock<I>> {
        let state = self.state();
        let (lost, left) = (state.lost.clone(), self.left_to_run_by(&state));
        drop(state);
        let all = |reason| (0..grant.locks.len()).map(|position| (position, reason)).collect();
        let lost = match lost {
            Lost::Nothing if left.is_zero() => all(otherwise),
            Lost::Nothing => Vec::new(),
            Lost::All(reason) => all(reason),
            Lost::Some(lost) => lost,
        };
        let lost = lost.into_iter().map(|(position, reason)| {
            let lock = &grant.locks[position];
            LostLock { target: lock.target.clone(), fence: lock.granted.fence, reason }
        });
        lost.collect()
    }

    fn left_to_run_by(&self, state: &State) -> Duration {
        state.sent.left_of(state.lasts.mul_f64(1.0 - self.margin))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
