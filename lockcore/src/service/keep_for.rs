//! Sets that stay locked for a time at least, also after their release: [`Call::keep_for`](crate::Call::keep_for).
//!
//! Their lease is that time from the start, and each renewal asks for what is left of it if that is more than a lease. So nothing
//! has to succeed later: the release only cuts short what would last longer.

use std::time::Duration;

use super::Inner;
use crate::{
    BackendError, ContextId, Grant, Ident, LockDao, LossReason, Released, Renewed, Target, clock::Moment,
};

/// For how long a set stays locked at least.
#[derive(Clone, Copy)]
pub(crate) struct KeepFor {
    granted: Moment,
    at_least: Duration,
}

impl KeepFor {
    pub(crate) fn from_now(at_least: Duration) -> Self {
        KeepFor { granted: Moment::now(), at_least }
    }

    /// How much longer it is.
    pub(crate) fn left(&self) -> Duration {
        self.granted.left_of(self.at_least)
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    /// Releases what is held, or has it end when it has been kept for its time.
    pub(super) async fn give_back(
        &self,
        grant: &Grant<I, C>,
        keep_for: Option<KeepFor>,
    ) -> Result<Released<I>, BackendError> {
        let left = keep_for.map(|keep_for| keep_for.left()).unwrap_or_default();
        let dao = self.dao_for(grant.lease)?;
        if left.is_zero() {
            return dao.release(grant).await;
        }
        let lease = Some(left.max(self.capabilities.min_lease));
        let Renewed { lost } = dao.shorten(&Grant { lease, ..grant.clone() }).await?;
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
