//! The time until when the command may run under its locks.

use std::time::Duration;

use lockcore::{Held, LockDao, LockingService, LossReason, LostLock, StoredContext};
use nix::unistd::Pid;
use uuid::Uuid;

use crate::{
    clock::{self, LONGEST_SLEEP},
    session::MARGIN,
    watchdog::Order,
};

/// The time that the store may take to tell whether a broken lock is still held.
const ASKING: Duration = Duration::from_secs(1);

/// The time at which the command has to end if nothing renews the lease. Times are those of [`clock::now`].
///
/// A handle shows only the time until the margin, and after a loss nothing; so it is asked now and then.
pub(crate) struct LeaseEnd {
    /// The beginning of the margin, before whose end the command has to be gone.
    margin_begins: Option<Duration>,
    margin: Duration,
}

impl LeaseEnd {
    pub(crate) fn of(held: &Held<String, Uuid>) -> Self {
        // Of what renewals give. A lease that is longer from the start has a longer one.
        let margin = held.grant().lease.unwrap_or_default().mul_f64(MARGIN);
        let mut end = LeaseEnd { margin_begins: None, margin };
        end.look(held);
        end
    }

    /// Takes account of what the last renewal brought.
    pub(crate) fn look(&mut self, held: &Held<String, Uuid>) {
        let now = clock::now();
        match held.time_left() {
            // Lost; what was known before still says when to end.
            Some(Duration::ZERO) => {}
            left => self.margin_begins = left.map(|left| now + left),
        }
    }

    /// Returns the time until the next look: often enough that the watchdog knows of a renewal before it acts.
    pub(crate) fn pause(&self) -> Duration {
        (self.margin / 8).clamp(Duration::from_millis(1), LONGEST_SLEEP)
    }

    /// Returns when the command gets KILL: so early that nothing of it is left when another holder can have what was
    /// lost.
    pub(crate) fn kill(&self) -> Option<Duration> {
        self.margin_begins.map(|begins| begins + self.margin.mul_f64(0.75))
    }

    /// Returns what the watchdog does if it receives nothing more. It leaves the first part of the margin to this
    /// process.
    pub(crate) fn order(&self, group: Option<Pid>) -> Order {
        Order { group, term: self.margin_begins.map(|begins| begins + self.margin / 4), kill: self.kill() }
    }

    /// Returns whether the loss was reported by the store, before the local deadline.
    fn is_reported_by_the_store(&self) -> bool {
        self.margin_begins.is_none_or(|begins| clock::now() < begins)
    }

    /// Returns as soon as it is known that another holder can have what was lost before the lease ends; else never.
    pub(crate) async fn others_may_hold(
        &self,
        locks: &LockingService,
        held: &Held<String, Uuid>,
        lost: &[LostLock<String>],
    ) {
        for lock in lost {
            match lock.reason {
                LossReason::Vanished => return,
                LossReason::Expired if self.is_reported_by_the_store() => return,
                LossReason::Broken if !is_still_held(locks, held, lock).await => return,
                _ => {}
            }
        }
        std::future::pending().await
    }
}

/// Returns whether a broken lock keeps others out until it is released or its lease ends, as a plain `break` leaves it.
async fn is_still_held(locks: &LockingService, held: &Held<String, Uuid>, lock: &LostLock<String>) -> bool {
    if !locks.dao().capabilities().listing {
        return false;
    }
    let admin = locks.admin();
    match tokio::time::timeout(ASKING, admin.inspect(&lock.target)).await {
        Ok(Ok(seen)) => {
            let own = StoredContext::Known(*held.context());
            seen.holders.iter().any(|holder| holder.context == own && holder.fence == lock.fence)
        }
        _ => false,
    }
}
