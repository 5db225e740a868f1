//! A set that is held: its release on every way out, and the renewal that keeps it.

use std::{
    future::poll_fn,
    ops::Deref,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    Inner,
    cleanup::{Cleanup, patience},
    hold_core::HoldCore,
    keep_for::KeepFor,
    keeper::{Keeper, Tick},
    lease::Lease,
    metrics::{HELD, Raised, Stopwatch},
    observe::{self, CallSpan, Event},
    open::Ticket,
};
use crate::{
    AcquireRequest, BackendError, ContextId, Grant, Ident, Lock, LockDao, LossReason, LostLock, Released,
    Renewed, background,
    clock::{self, Moment},
    protocol::OFFER,
};

/// Delay before an offer is confirmed. Short holds end before it and save the request.
pub(crate) const CONFIRM: Duration = OFFER.checked_div(100).expect("it is not divided by zero");

/// The service of a hold: borrowed for the length of a call, or owned by a guard.
pub(crate) enum ServiceRef<'s, I: Ident, C: ContextId, D: LockDao<I, C>> {
    Borrowed(&'s Arc<Inner<I, C, D>>),
    Owned(Arc<Inner<I, C, D>>),
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Deref for ServiceRef<'_, I, C, D> {
    type Target = Arc<Inner<I, C, D>>;

    fn deref(&self) -> &Self::Target {
        match self {
            ServiceRef::Borrowed(inner) => inner,
            ServiceRef::Owned(inner) => inner,
        }
    }
}

/// The progress of a hold to its end, and so what its drop has still to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    /// It is held: the drop releases it and reports what it lost.
    Held,
    /// A release was sent and is not answered: the drop sends another, to which what is missing is no loss.
    Asked,
    /// A release failed, and what was lost until then is reported: the drop sends another.
    Failed,
    /// Nothing is held, and what was lost is reported.
    Released,
    /// It is left to its lease: the drop only reports what was lost.
    Left,
}

/// A set that is held. Dropping it releases the set in the background.
pub(crate) struct Hold<'s, I: Ident, C: ContextId, D: LockDao<I, C>> {
    pub(crate) service: ServiceRef<'s, I, C, D>,
    pub(crate) core: Arc<HoldCore<I, C>>,
    renewal: Option<(Arc<Keeper>, u64)>,
    /// `None` once the clean-up has it.
    ticket: Option<Ticket>,
    /// A request that failed in doubt before another was granted, and so may still arrive.
    late: Option<Box<AcquireRequest<I, C>>>,
    /// The time for which it stays locked at least.
    keep_for: Option<Arc<KeepFor>>,
    rest: Rest,
    stopwatch: Stopwatch,
    _held: Raised,
    /// Entered around every poll of the callback.
    pub(crate) span: CallSpan,
}

impl<'s, I: Ident, C: ContextId, D: LockDao<I, C>> Hold<'s, I, C, D> {
    /// Starts to keep what was granted. `offered`: the lease is short, and a renewal confirms it.
    #[inline(always)]
    pub(crate) fn new(
        service: ServiceRef<'s, I, C, D>,
        grant: Grant<I, C>,
        lease: Option<Box<Lease>>,
        keep_for: Option<Arc<KeepFor>>,
        offered: bool,
        ticket: Ticket,
        span: CallSpan,
    ) -> Self {
        let held = Raised::by(grant.locks.len(), HELD, service.capabilities.backend);
        let process = service.owner_of(grant.lease);
        let rest = if grant.locks.is_empty() { Rest::Released } else { Rest::Held };
        let (released, news) = (AtomicBool::new(false), Notify::new());
        let core = Arc::new(HoldCore { grant, lease, process, released, news });
        let mut hold = Hold {
            service,
            core,
            renewal: None,
            ticket: Some(ticket),
            late: None,
            keep_for,
            rest,
            stopwatch: Stopwatch::start(),
            _held: held,
            span,
        };
        if let Some(lease) = &hold.core.lease {
            let keeper = Keeper::current();
            let renewal = Arc::new(Renewal {
                keeper: keeper.clone(),
                service: (*hold.service).clone(),
                core: hold.core.clone(),
                keep_for: hold.keep_for.clone(),
                key: keeper.key(),
                under_way: AtomicBool::new(false),
                failures: AtomicU32::new(0),
            });
            let due = match offered {
                // One that is released sooner needs no other confirmation: most of the short ones under contention.
                true => Instant::now() + (lease.left_to_run() / 8).min(CONFIRM),
                false => lease.since.instant() + (lease.renew_after()).min(lease.runs_for()),
            };
            let key = renewal.key;
            if offered {
                lease.confirms.get_or_init(|| (keeper.clone(), key));
            }
            keeper.add(key, renewal, due);
            hold.renewal = Some((keeper, key));
        }
        hold
    }

    /// Notes a request that may still arrive, and withdraws it in the end.
    pub(crate) fn withdraw_late(&mut self, request: AcquireRequest<I, C>) {
        self.late = Some(Box::new(request));
    }

    /// Has the release free the set at once.
    pub(crate) fn keep_no_longer(&self) {
        if let Some(keep_for) = &self.keep_for {
            keep_for.give_up();
        }
    }

    /// Stops the renewal, releases, and gives what was lost while it was held. If the caller goes away meanwhile, the
    /// drop of the hold finishes it in the background.
    pub(crate) async fn release(&mut self) -> Vec<LostLock<I>> {
        let forked = self.forked();
        if !forked.is_empty() {
            return forked;
        }
        self.begin_release();
        self.rest = Rest::Asked;
        let mut lost = self.core.known_lost();
        let grant = &self.core.grant;
        let answer = match (self.service.dao_for(grant.lease), &self.core.lease, self.keep_for.as_deref()) {
            _ if grant.locks.is_empty() => Ok(Released { lost: Vec::new(), failed: Vec::new() }),
            (Err(forked), ..) => Err(forked.into()),
            (Ok(_), _, Some(keep_for)) => {
                let given_back = self.service.give_back(grant, Some(keep_for));
                // In a box, for few sets are kept.
                let answer = Box::pin(clock::within(patience(grant.lease), given_back)).await;
                answer.unwrap_or_else(|| Err(BackendError::no_answer()))
            }
            (Ok(dao), None, None) => dao.release(grant).await,
            (Ok(dao), Some(lease), None) => {
                let mut answer = pin!(dao.release(grant));
                poll_fn(|cx| {
                    if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                        return Poll::Ready(answer);
                    }
                    // Registered before the look, so that the keeper's word in between wakes.
                    lease.task.register(cx.waker());
                    match lease.patience_left() {
                        Some(Duration::ZERO) => Poll::Ready(Err(BackendError::no_answer())),
                        _ => Poll::Pending,
                    }
                })
                .await
            }
        };
        self.remove_renewal();
        match answer {
            Ok(released) => {
                // That a lock is gone is a loss only as long as the lease lasts: before a later answer it may have ended by
                // itself, after all that ran under it. Not so for a lock that was broken.
                let lasts = self.core.lease.as_ref().is_none_or(|lease| !lease.left().is_zero());
                let known = lost.clone();
                let is_loss =
                    |lock: &LostLock<I>| !known.is_empty() || lasts || lock.reason == LossReason::Broken;
                let (new, late): (Vec<_>, Vec<_>) = (released.lost.into_iter())
                    .filter(|lock| !known.iter().any(|old| old.target == lock.target))
                    .partition(is_loss);
                lost.extend(new);
                if !late.is_empty() {
                    self.service.observe(|| Event::ReleasedLate { grant: &self.core.grant, lost: &late });
                }
                match released.failed.first() {
                    None => self.rest = Rest::Released,
                    Some((_, error)) => self.release_failed(error),
                }
            }
            Err(error) => self.release_failed(&error),
        }
        self.report_loss(&lost);
        lost
    }

    fn report_loss(&self, lost: &[LostLock<I>]) {
        if !lost.is_empty() {
            self.service.observe(|| Event::Lost { grant: &self.core.grant, lost });
        }
    }

    /// The caller does not wait for more: the drop of `self` tries on in the background.
    fn release_failed(&mut self, error: &BackendError) {
        self.rest = Rest::Failed;
        self.service.observe(|| Event::ReleaseFailed { grant: &self.core.grant, error });
    }

    /// Stops the renewal and forgets the set, which stays locked until its lease ends or it is released.
    pub(crate) fn leave(mut self) -> Grant<I, C> {
        match &self.core.lease {
            _ if self.core.is_forked() => return self.core.grant.clone(),
            // Handles are notified when the lease ends.
            Some(lease) if self.has_handles() => {
                lease.leave();
                self.renewal = None;
            }
            _ => self.remove_renewal(),
        }
        (self.rest, self.late) = (Rest::Left, None);
        self.core.grant.clone()
    }

    /// Has the first lock of the set last for `keep` from now on, releases the others, and returns whether the store confirmed that. It
    /// is tried as renewals are, until the lease ends. Dropped before that it leaves all of it to its lease: what was asked for may
    /// have been done.
    ///
    /// # Errors
    /// What was lost before; the rest is released.
    pub(crate) async fn keep_first(&mut self, keep: Duration) -> Result<bool, Vec<LostLock<I>>> {
        let core = self.core.clone();
        if !core.known_lost().is_empty() {
            return Err(self.release().await);
        }
        let lease = core.lease.as_ref().expect("only what has a lease is kept");
        self.rest = Rest::Left;
        self.remove_renewal();
        self.notify_released();
        lease.renewing();
        let (first, others) = core.grant.locks.split_at(1);
        let part = |locks: &[Lock<I>], lease| Grant { locks: locks.to_vec(), lease, ..core.grant.clone() };
        let keep = part(first, Some(keep.max(self.service.capabilities.min_lease)));
        for failures in 1.. {
            // Half of what is left, so that there is time for another try.
            let limit = lease.renew_after().min(lease.left_to_run() / 2);
            let last = async { self.service.dao_for(keep.lease)?.shorten(&keep).await };
            let error = match clock::within(limit, last).await {
                Some(Ok(Renewed { lost, .. })) if lost.is_empty() => break,
                Some(Ok(Renewed { lost, .. })) => {
                    let is_broken = lost.iter().any(|lock| lock.reason == LossReason::Broken);
                    if lease.left().is_zero() && !is_broken {
                        return Ok(false); // the lease ended before the store answered
                    }
                    lease.lose(&core.grant, &lost);
                    let released = clock::within(patience(core.grant.lease), self.release()).await;
                    return Err(released.unwrap_or_else(|| core.known_lost()));
                }
                Some(Err(error)) => Some(error),
                None => None,
            };
            let failed = Event::RenewalFailed { grant: &core.grant, failures, error: error.as_ref() };
            self.service.observe(|| failed);
            if core.is_lost() {
                return Ok(false);
            }
            clock::sleep(lease.pause_after_failure().min(lease.left_to_run())).await;
        }
        let others = part(others, core.grant.lease);
        let release = async { self.service.dao_for(others.lease)?.release(&others).await };
        let released = clock::within(patience(others.lease), release).await;
        let is_done = matches!(released, Some(Ok(Released { failed, .. })) if failed.is_empty());
        if let Some(ticket) = self.ticket.take_if(|_| !is_done) {
            Cleanup::release(others, None, None).start((*self.service).clone(), ticket);
        }
        // A renewal that was under way may call the other locks lost.
        self.rest = Rest::Released;
        Ok(true)
    }

    /// Nothing renews afterwards: the keeper, which looks at the lease anyway, sees to the release's patience instead.
    fn begin_release(&self) {
        self.notify_released();
        if let Some(lease) = &self.core.lease {
            let patience = patience(self.core.grant.lease);
            lease.begin_release(patience);
            if let Some((keeper, key)) = self.renewal.as_ref().filter(|_| patience < lease.renew_after()) {
                keeper.hasten(*key, patience);
            }
        }
    }

    /// Notifies handles that the set is being released.
    fn notify_released(&self) {
        // Without handles there is nothing to notify.
        if self.has_handles() && !self.core.released.swap(true, Relaxed) {
            self.core.news.notify_waiters();
        }
    }

    /// Returns whether there are handles beside this and the keeper's.
    fn has_handles(&self) -> bool {
        Arc::strong_count(&self.core) > 1 + usize::from(self.renewal.is_some())
    }

    /// All of the set, if this is a forked child's copy: the child holds nothing of it.
    pub(crate) fn forked(&self) -> Vec<LostLock<I>> {
        if self.core.is_forked() { self.core.known_lost() } else { Vec::new() }
    }

    fn remove_renewal(&mut self) {
        if let Some((keeper, key)) = self.renewal.take() {
            keeper.remove(key);
        }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Drop for Hold<'_, I, C, D> {
    fn drop(&mut self) {
        if self.core.is_forked() {
            return;
        }
        let Some(ticket) = self.ticket.take() else { return };
        let is_over = matches!(self.rest, Rest::Released | Rest::Left);
        if !is_over {
            self.remove_renewal();
            self.notify_released();
        }
        let lost = match self.rest {
            // No release reports the loss of a guard that is dropped, and no outcome that of a call that is dropped.
            Rest::Held | Rest::Asked | Rest::Left => self.core.known_lost(),
            Rest::Failed | Rest::Released => Vec::new(),
        };
        self.report_loss(&lost);
        let cleanup = match self.late.take() {
            // Frees the set if it has to, and refuses the request that may still arrive.
            Some(request) => Some(Cleanup::Withdraw { request: *request }),
            None if is_over => None,
            None => {
                let is_news = self.rest == Rest::Held && lost.is_empty() && !background::is_ending();
                let lasts = || self.core.lease.as_ref().map_or(Duration::MAX, |lease| lease.left());
                let untold = is_news.then(lasts);
                Some(Cleanup::release(self.core.grant.clone(), self.keep_for.clone(), untold))
            }
        };
        match cleanup {
            Some(cleanup) => cleanup.start((*self.service).clone(), ticket),
            None => self.service.ended(ticket),
        }
        self.span.ended(is_over);
        self.stopwatch.record("lockcore_held_seconds", self.service.capabilities.backend);
    }
}

/// Keeps one hold's lease, on the keeper's runtime.
struct Renewal<I: Ident, C: ContextId, D: LockDao<I, C>> {
    keeper: Arc<Keeper>,
    service: Arc<Inner<I, C, D>>,
    core: Arc<HoldCore<I, C>>,
    keep_for: Option<Arc<KeepFor>>,
    key: u64,
    under_way: AtomicBool,
    /// The number of renewals that have failed in a row.
    failures: AtomicU32,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Tick for Renewal<I, C, D> {
    // A third of the lease later at the latest: a release that begins meanwhile and is less patient hastens it.
    fn tick(self: Arc<Self>) -> Option<Duration> {
        let lease = self.lease();
        match lease.patience_left() {
            Some(Duration::ZERO) => {
                lease.task.wake();
                return None;
            }
            Some(patience) => return Some(patience),
            None => {}
        }
        if self.core.is_lost() && lease.is_over() {
            // Only the patience of a release is still to be seen to, which is no shorter.
            return (!lease.is_left()).then(|| patience(Some(lease.length)));
        }
        if lease.is_left() {
            return Some(lease.left_to_run());
        }
        let may_renew = lease.max_hold.is_none_or(|max_hold| !lease.since.left_of(max_hold).is_zero());
        if may_renew && !self.under_way.swap(true, Relaxed) {
            tokio::spawn(self.clone().renew());
        }
        Some(lease.left_to_run().min(lease.renew_after()))
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Renewal<I, C, D> {
    fn lease(&self) -> &Lease {
        self.core.lease.as_ref().expect("only leases are renewed")
    }

    async fn renew(self: Arc<Self>) {
        let lease = self.lease();
        // Also if the backend panics: then the next look tries again.
        let under_way = UnderWay(&self.under_way);
        let turn = self.keep_for.as_deref().map(KeepFor::renewing);
        if matches!(turn, Some(None)) {
            return;
        }
        lease.renewing();
        let sent = Moment::now();
        // Half of what is left, so that there is time for another try.
        let patience = (lease.renew_after()).min(lease.left_to_run() / 2);
        let lasts = self.keep_for.as_deref().map(KeepFor::left).unwrap_or_default().max(lease.length);
        let mut grant = lease.still_held(&self.core.grant);
        if lasts > lease.length {
            grant.to_mut().lease = Some(lasts);
        }
        let Ok(dao) = self.service.dao_for(grant.lease) else { return };
        let answer = tokio::time::timeout(patience, dao.renew(&grant)).await;
        let pause = match answer {
            Ok(Ok(renewed)) => {
                if lease.lose(&self.core.grant, &renewed.lost) {
                    self.core.notify();
                }
                if lease.is_over() {
                    return;
                }
                // The locks that are left of the set were extended. The next renewal goes by that time as well, so that the holds
                // that a backend renews together are due together.
                let sent = renewed.since.unwrap_or(sent);
                let (age, confirmed) = lease.extended(sent, lasts);
                if confirmed {
                    self.core.news.notify_waiters();
                }
                self.service.observe_renewal(age.saturating_sub(lease.renew_after()));
                self.recovered();
                sent.left_of(lease.renew_after())
            }
            Ok(Err(error)) => self.failed(Some(error)),
            Err(_elapsed) => self.failed(None),
        };
        drop(under_way);
        self.keeper.hasten(self.key, pause.min(lease.left_to_run()));
    }

    /// Reports a renewal that failed; returns the pause before the next.
    fn failed(&self, error: Option<BackendError>) -> Duration {
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        self.service.observe_owned((self.core.clone(), error), move |(core, error)| Event::RenewalFailed {
            grant: &core.grant,
            failures,
            error: error.as_ref(),
        });
        self.lease().pause_after_failure()
    }

    /// A renewal succeeded: others may have failed before it.
    fn recovered(&self) {
        let failures = self.failures.swap(0, Relaxed);
        if failures > 0 {
            observe::recovered(self.service.capabilities.backend, &self.core.grant, failures);
        }
    }
}

/// The mark of a renewal that is under way, until this is dropped.
struct UnderWay<'a>(&'a AtomicBool);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}
