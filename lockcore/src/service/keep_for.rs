//! Sets that stay locked for a time at least, also after their release: [`Call::keep_for`](crate::Call::keep_for).
//!
//! Their lease is that time from the start, and each renewal asks for what is left of it if that is more than a lease. So nothing
//! has to succeed later: the release only cuts short what would last longer.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::{RwLock, RwLockWriteGuard};

use super::Inner;
use crate::{
    BackendError, ContextId, Grant, Ident, LockDao, LossReason, Released, Renewed, Target, clock::Moment,
};

/// The time that a set stays locked at least; shared by its hold, its renewal and its clean-up.
#[derive(Debug)]
pub(crate) struct KeepFor {
    granted: Moment,
    at_least: Duration,
    /// It is freed at once all the same.
    given_up: AtomicBool,
    /// Its lease is or was cut short: a renewal that arrived after that would lengthen it again, so that none begins.
    given_back: AtomicBool,
    /// Written to while a renewal is under way. What cuts the lease short reads it first: readers do not wait for each other, so
    /// that a clean-up on a runtime that rests holds no other try up.
    renewal: RwLock<()>,
}

impl KeepFor {
    pub(crate) fn from_now(at_least: Duration) -> Self {
        let [given_up, given_back] = [false; 2].map(AtomicBool::new);
        KeepFor { granted: Moment::now(), at_least, given_up, given_back, renewal: RwLock::new(()) }
    }

    /// Has the set be freed at once.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Relaxed);
    }

    /// Returns how much longer the set is kept.
    pub(crate) fn left(&self) -> Duration {
        if self.given_up.load(Relaxed) { Duration::ZERO } else { self.lasts() }
    }

    /// Returns how much longer the store keeps it, unless it is told otherwise.
    pub(crate) fn lasts(&self) -> Duration {
        self.granted.left_of(self.at_least)
    }

    /// Takes the turn of a renewal; gives `None` if the set is or was given back.
    pub(crate) fn renewing(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.renewal.try_write().ok().filter(|_| !self.given_back.load(Relaxed))
    }

    /// Lets no renewal begin, and waits for the one that is under way, which ends in its own time.
    async fn end_renewal(&self) {
        self.given_back.store(true, Relaxed);
        drop(self.renewal.read().await);
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    /// Releases what is held, or has it end when it has been kept for its time.
    pub(super) async fn give_back(
        &self,
        grant: &Grant<I, C>,
        keep_for: Option<&KeepFor>,
    ) -> Result<Released<I>, BackendError> {
        let dao = self.dao_for(grant.lease)?;
        let mut left = Duration::ZERO;
        if let Some(keep_for) = keep_for.filter(|keep_for| !keep_for.left().is_zero()) {
            keep_for.end_renewal().await;
            left = keep_for.left();
        }
        // A renewal that arrives after a release changes nothing.
        if left.is_zero() {
            return dao.release(grant).await;
        }
        let lease = Some(left.max(self.capabilities.min_lease));
        let Renewed { lost, .. } = dao.shorten(&Grant { lease, ..grant.clone() }).await?;
        let mut released = Released { lost, failed: Vec::new() };
        // A lock that was broken is free once its holder gives it up.
        let is_broken = |target: &Target<I>| {
            released.lost.iter().any(|lost| lost.target == *target && lost.reason == LossReason::Broken)
        };
        let broken = grant.locks.iter().filter(|lock| is_broken(&lock.target)).cloned().collect();
        let broken = Grant { locks: broken, ..grant.clone() };
        if !broken.locks.is_empty() {
            released.failed = dao.release(&broken).await?.failed;
        }
        Ok(released)
    }
}
