//! Clean-up that nobody waits for: tried until the store answers or the lease is over anyway.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{Inner, gauge::Ticket, observe::Event};
use crate::{
    AcquireRequest, BackendError, Backoff, ContextId, Exponential, Grant, Ident, LockDao, Released, Withdraw,
    background, clock, clock::Moment,
};

/// Pauses between two tries.
const PAUSES: Exponential = Exponential { base: Duration::from_millis(20), max: Duration::from_secs(2) };

/// For how long clean-up of permanent locks is tried: no lease ends them.
const WITHOUT_LEASE: Duration = Duration::from_secs(600);

/// What has to be cleaned up.
pub(crate) enum Cleanup<I, C> {
    /// Locks that are held.
    Release {
        /// What is held.
        grant: Grant<I, C>,
        /// Whether the lease lasted when it was given up; `None` if nothing that the store answers is news.
        was_valid: Option<bool>,
        /// It was asked for before: what is gone may be gone by that.
        again: AtomicBool,
    },
    /// A request of which it is not known what became.
    Withdraw(AcquireRequest<I, C>),
}

impl<I: Ident, C: ContextId> Cleanup<I, C> {
    /// The release of what is held. With `was_valid` it is told what turns out to be lost, as a release by the caller
    /// would tell.
    pub(crate) fn release(grant: Grant<I, C>, was_valid: Option<bool>) -> Self {
        Cleanup::Release { grant, was_valid, again: AtomicBool::new(false) }
    }

    /// Cleans up, at once if the backend needs no waiting, else in the background; then the hold has ended, and
    /// the context of `ticket` is no longer in use.
    pub(crate) fn start<D: LockDao<I, C>>(self, service: Arc<Inner<I, C, D>>, ticket: Ticket) {
        let task = Arc::new(Task { cleanup: self, service, ticket: Some(ticket) });
        background::finish(move || {
            let task = task.clone();
            async move { task.run().await }
        });
    }

    fn lease(&self) -> Option<Duration> {
        match self {
            Cleanup::Release { grant, .. } => grant.lease,
            Cleanup::Withdraw(request) => request.lease,
        }
    }

    async fn until_answered<D: LockDao<I, C>>(&self, service: &Inner<I, C, D>) -> Result<(), BackendError> {
        let started = Moment::now();
        let patience = patience(self.lease());
        for attempt in 0.. {
            match clock::within(patience, self.once(service))
                .await
                .unwrap_or_else(|| Err(BackendError::no_answer()))
            {
                Err(error) if error.is_retryable() => {
                    if started.left_of(self.lease().unwrap_or(WITHOUT_LEASE)).is_zero() {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
            clock::sleep(PAUSES.delay(attempt)).await;
        }
        unreachable!("the loop ends by returning")
    }

    async fn once<D: LockDao<I, C>>(&self, service: &Inner<I, C, D>) -> Result<(), BackendError> {
        match self {
            Cleanup::Release { grant, was_valid, again } => {
                let is_news = !again.swap(true, Relaxed);
                let Released { lost, failed } = service.dao.release(grant).await?;
                match was_valid {
                    Some(true) if is_news && !lost.is_empty() => {
                        service.observe(|| Event::Lost { grant, lost: &lost });
                    }
                    Some(false) if is_news && !lost.is_empty() => {
                        service.observe(|| Event::ReleasedLate { grant, lost: &lost });
                    }
                    _ => {}
                }
                failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
            }
            Cleanup::Withdraw(request) => service.dao.withdraw(request, Withdraw::Undo).await.map(drop),
        }
    }
}

/// For how long one release, or one try of a clean-up, waits for the store's answer.
pub(crate) fn patience(lease: Option<Duration>) -> Duration {
    (lease.unwrap_or(WITHOUT_LEASE) / 3).max(Duration::from_secs(1))
}

/// A clean-up on its way. The hold ends with it, however it ends.
struct Task<I: Ident, C: ContextId, D: LockDao<I, C>> {
    cleanup: Cleanup<I, C>,
    service: Arc<Inner<I, C, D>>,
    /// `None` at the end.
    ticket: Option<Ticket>,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Task<I, C, D> {
    async fn run(&self) {
        let Err(error) = self.cleanup.until_answered(&self.service).await else { return };
        self.service.observe(|| match &self.cleanup {
            Cleanup::Release { grant, .. } => Event::ReleaseFailed { grant, error: &error },
            Cleanup::Withdraw(request) => Event::WithdrawFailed { context: &request.context, error: &error },
        });
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Drop for Task<I, C, D> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.service.ended(ticket);
        }
    }
}
