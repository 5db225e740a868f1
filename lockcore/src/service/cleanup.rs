//! Clean-up that nobody waits for: tried until the store answers or the lease is over anyway.

use std::{sync::Arc, time::Duration};

use super::{Inner, observe::Event};
use crate::{
    AcquireRequest, BackendError, Backoff, ContextId, Exponential, Grant, Ident, LockDao, Withdraw,
    background, clock, clock::Moment,
};

/// Pauses between two tries.
const PAUSES: Exponential = Exponential { base: Duration::from_millis(20), max: Duration::from_secs(2) };

/// For how long clean-up of permanent locks is tried: no lease ends them.
const WITHOUT_LEASE: Duration = Duration::from_secs(600);

/// What has to be cleaned up.
pub(crate) enum Cleanup<I, C> {
    /// Locks that are held.
    Release(Grant<I, C>),
    /// A request of which it is not known what became.
    Withdraw(AcquireRequest<I, C>),
}

impl<I: Ident, C: ContextId> Cleanup<I, C> {
    /// Cleans up, at once if the backend needs no waiting, else in the background; then counts the hold as ended if
    /// that is asked for, with the context that is no longer in use.
    pub(crate) fn start<D: LockDao<I, C>>(self, service: Arc<Inner<I, C, D>>, ends: Option<Option<C>>) {
        background::finish(async move {
            if let Err(error) = self.until_answered(&service.dao).await {
                service.observe(|| match &self {
                    Cleanup::Release(grant) => Event::ReleaseFailed { grant, error: &error },
                    Cleanup::Withdraw(request) => {
                        Event::WithdrawFailed { context: &request.context, error: &error }
                    }
                });
            }
            if let Some(context) = ends {
                service.ended(context);
            }
        });
    }

    async fn until_answered<D: LockDao<I, C>>(&self, dao: &D) -> Result<(), BackendError> {
        let lease = match self {
            Cleanup::Release(grant) => grant.lease,
            Cleanup::Withdraw(request) => request.lease,
        };
        let mut started = None;
        for attempt in 0.. {
            let answer = match self {
                Cleanup::Release(grant) => dao.release(grant).await.map(drop),
                Cleanup::Withdraw(request) => dao.withdraw(request, Withdraw::Undo).await.map(drop),
            };
            match answer {
                Err(error) if error.is_retryable() => {
                    let started = started.get_or_insert_with(Moment::now);
                    if started.left_of(lease.unwrap_or(WITHOUT_LEASE)).is_zero() {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
            clock::sleep(PAUSES.delay(attempt)).await;
        }
        unreachable!("the loop ends by returning")
    }
}
