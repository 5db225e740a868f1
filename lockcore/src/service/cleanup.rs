//! Clean-up in the background: tried until the store answers, or until nothing can be locked any more.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{Either, select},
};
use tokio::{runtime::Handle, sync::oneshot};

use super::{Inner, keep_for::KeepFor, observe::Event, open::Ticket};
use crate::{
    AcquireRequest, BackendError, Backoff, ContextId, Exponential, Grant, Ident, LockDao, LossReason,
    Released, Withdraw, background, clock, clock::Moment, protocol::RENEWALS_PER_LEASE,
};

/// Pauses between two tries of a service.
const PAUSES: Exponential = Exponential { base: Duration::from_millis(20), max: Duration::from_secs(2) };

/// Delay before the library's own thread tries too: the runtime of the first try may have come to rest.
const FIRST_TRY: Duration = Duration::from_millis(500);

/// The time for which clean-up of permanent locks is tried: no lease ends them.
const WITHOUT_LEASE: Duration = Duration::from_secs(600);

/// The request or the locks to clean up.
pub(crate) enum Cleanup<I, C> {
    /// Locks that are held.
    Release {
        /// The grant that is held.
        grant: Grant<I, C>,
        /// The time for which they stay locked at least.
        keep_for: Option<Arc<KeepFor>>,
        /// The time for which the lease lasts from when it was given up; `None` if nothing that the store answers is
        /// news.
        lasts: Option<Duration>,
        /// The number of releases sent. A lock that is missing may have been freed by another of them, so it does not
        /// count as lost.
        asked: AtomicU32,
    },
    /// A request of which it is not known what became.
    Withdraw { request: AcquireRequest<I, C> },
}

impl<I: Ident, C: ContextId> Cleanup<I, C> {
    /// The release of what is held. With `lasts` it reports what turns out to be lost, as a release by the caller would
    /// tell.
    pub(crate) fn release(
        grant: Grant<I, C>,
        keep_for: Option<Arc<KeepFor>>,
        lasts: Option<Duration>,
    ) -> Self {
        Cleanup::Release { grant, keep_for, lasts, asked: AtomicU32::new(0) }
    }

    /// Cleans up, at once if the backend needs no waiting, else in the background; then the hold has ended, and
    /// the context of `ticket` is no longer in use.
    ///
    /// The first try is made where the caller is, whose runtime has its connections at hand. All others are made on the
    /// library's own thread, which goes on whatever becomes of that runtime.
    pub(crate) fn start<D: LockDao<I, C>>(self, service: Arc<Inner<I, C, D>>, ticket: Ticket) {
        if service.dao_for(self.lease()).is_err() {
            return; // a copy of what the parent of this process goes on holding
        }
        if background::is_ending() {
            // Elsewhere all of it: this thread has neither a runtime nor, in a test that paused it, a clock any more.
            background::handle().spawn(async move { self.start(service, ticket) });
            return;
        }
        let task = Arc::new(Task { cleanup: self, started: Moment::now(), service });
        let counted = Counted { task: task.clone(), ticket: Some(ticket) };
        let here = Handle::try_current().ok();
        let mut first = Box::pin(task.clone().first());
        let polled = {
            let _own = here.is_none().then(|| background::handle().enter());
            first.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        let first = match polled {
            Poll::Ready(answer) if !may_pass(&answer) => return counted.end(answer),
            Poll::Ready(answer) => First::Over(answer),
            Poll::Pending => {
                let (tell, ended) = oneshot::channel();
                here.as_ref().unwrap_or(background::handle()).spawn(async move {
                    // Without a receiver a later try is over.
                    let _ = tell.send(first.await);
                });
                First::UnderWay(ended)
            }
        };
        // The clock of a test may stand still: then the pauses have to be by that clock.
        let paused = here.filter(|_| background::is_paused());
        paused.as_ref().unwrap_or(background::handle()).spawn(task.go_on(first, counted));
    }

    fn lease(&self) -> Option<Duration> {
        match self {
            Cleanup::Release { grant, .. } => grant.lease,
            Cleanup::Withdraw { request } => request.lease,
        }
    }

    /// Returns how much longer the store may keep locked what was given up at `started`.
    fn left(&self, started: &Moment) -> Duration {
        let left = started.left_of(self.lease().unwrap_or(WITHOUT_LEASE));
        match self {
            Cleanup::Release { keep_for: Some(keep_for), .. } => left.max(keep_for.lasts()),
            _ => left,
        }
    }

    async fn once<D: LockDao<I, C>>(
        &self,
        service: &Inner<I, C, D>,
        started: &Moment,
    ) -> Result<(), BackendError> {
        match self {
            Cleanup::Release { grant, keep_for, lasts, asked } => {
                asked.fetch_add(1, Relaxed);
                let Released { lost, failed } = service.give_back(grant, keep_for.as_deref()).await?;
                let is_news = asked.load(Relaxed) == 1;
                if let (Some(lasts), true, false) = (*lasts, is_news, lost.is_empty()) {
                    let is_broken = lost.iter().any(|lock| lock.reason == LossReason::Broken);
                    let is_late = started.left_of(lasts).is_zero() && !is_broken;
                    service.observe_owned((grant.clone(), lost), move |(grant, lost)| match is_late {
                        true => Event::ReleasedLate { grant, lost },
                        false => Event::Lost { grant, lost },
                    });
                }
                failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
            }
            Cleanup::Withdraw { request } => {
                service.dao_for(request.lease)?.withdraw(request, Withdraw::Undo).await.map(drop)
            }
        }
    }
}

/// The longest patience: a set kept for a day has a lease of a day, and one try is not to wait for hours.
const LONGEST_PATIENCE: Duration = Duration::from_secs(60);

/// Returns how long one release, or one try of a clean-up, waits for the store's answer.
pub(crate) fn patience(lease: Option<Duration>) -> Duration {
    (lease.unwrap_or(WITHOUT_LEASE) / RENEWALS_PER_LEASE).clamp(Duration::from_secs(1), LONGEST_PATIENCE)
}

/// A clean-up on its way.
struct Task<I: Ident, C: ContextId, D: LockDao<I, C>> {
    cleanup: Cleanup<I, C>,
    started: Moment,
    service: Arc<Inner<I, C, D>>,
}

type TryResult = Result<(), BackendError>;

/// The state of the first try.
enum First {
    Over(TryResult),
    /// It is a task of another runtime.
    UnderWay(oneshot::Receiver<TryResult>),
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Task<I, C, D> {
    /// The first try. A step that panics is not tried again: this may be polled while another panic unwinds.
    async fn first(self: Arc<Self>) -> TryResult {
        AssertUnwindSafe(self.once()).catch_unwind().await.unwrap_or(Ok(()))
    }

    /// Goes on after the first try until the clean-up is over, and returns whether it failed.
    async fn go_on(self: Arc<Self>, first: First, counted: Counted<I, C, D>) {
        let answer = match first {
            First::Over(answer) if !may_pass(&answer) => answer,
            First::Over(_) => self.retry().await,
            First::UnderWay(first) => self.after(first).await,
        };
        counted.end(answer);
    }

    /// Tries on if the first try fails, is dropped with its runtime, or takes so long that its runtime may have come to
    /// rest. Both tries may reach the store: each step is idempotent.
    async fn after(&self, mut first: oneshot::Receiver<TryResult>) -> TryResult {
        match clock::within(FIRST_TRY, &mut first).await {
            Some(Ok(answer)) if !may_pass(&answer) => return answer,
            Some(_) => return self.retry().await,
            None => {}
        }
        match select(first, pin!(self.retry())).await {
            Either::Left((Ok(answer), _)) if !may_pass(&answer) => answer,
            Either::Left((_, retry)) => retry.await,
            Either::Right((answer, _)) => answer,
        }
    }

    /// Tries until the store answers or nothing can be locked any more, in turn with the other clean-ups of the service.
    async fn retry(&self) -> TryResult {
        let mut answer = Err(BackendError::no_answer());
        loop {
            let left = self.cleanup.left(&self.started);
            let Some(mut failures) = clock::within(left, self.service.cleaning.lock()).await else {
                return answer;
            };
            if let Some(last) = failures.checked_sub(1) {
                clock::sleep(PAUSES.delay(last).min(left)).await;
            }
            answer = self.once().await;
            if !may_pass(&answer) {
                *failures = 0;
                return answer;
            }
            *failures = failures.saturating_add(1);
            if self.cleanup.left(&self.started).is_zero() {
                return answer;
            }
        }
    }

    async fn once(&self) -> TryResult {
        let once = self.cleanup.once(&self.service, &self.started);
        let answer = clock::within(patience(self.cleanup.lease()), once).await;
        answer.unwrap_or_else(|| Err(BackendError::no_answer()))
    }
}

fn may_pass(answer: &TryResult) -> bool {
    answer.as_ref().is_err_and(BackendError::is_retryable)
}

/// The guard that a shutdown waits for: the hold ends with its clean-up.
struct Counted<I: Ident, C: ContextId, D: LockDao<I, C>> {
    task: Arc<Task<I, C, D>>,
    /// `None` at the end.
    ticket: Option<Ticket>,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Counted<I, C, D> {
    /// Ends the clean-up; returns whether it failed.
    fn end(mut self, answer: TryResult) {
        let service = &self.task.service;
        if let Err(error) = answer {
            service.observe_owned((self.task.clone(), error), |(task, error)| match &task.cleanup {
                Cleanup::Release { grant, .. } => Event::ReleaseFailed { grant, error },
                Cleanup::Withdraw { request } => Event::WithdrawFailed { context: &request.context, error },
            });
        }
        if let Some(ticket) = self.ticket.take() {
            service.ended(ticket);
        }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Drop for Counted<I, C, D> {
    fn drop(&mut self) {
        match self.ticket.take() {
            None => {}
            // A step that panics is not tried for ever; and in a forked child nothing of this is.
            Some(ticket) if thread::panicking() || self.task.service.dao().is_err() => {
                self.task.service.ended(ticket);
            }
            // Its runtime is gone: a test's, whose clock stood still.
            Some(ticket) => {
                let again = Counted { task: self.task.clone(), ticket: Some(ticket) };
                let none = First::Over(Err(BackendError::no_answer()));
                background::handle().spawn(self.task.clone().go_on(none, again));
            }
        }
    }
}
