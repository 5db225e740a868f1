//! A set that is held: its release on every way out, and the renewal that keeps it.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tracing::Span;

use super::{
    Inner,
    cleanup::Cleanup,
    keeper::{Keeper, Tick},
    lease::Lease,
    nesting::Entered,
    observe::{Event, Stopwatch},
};
use crate::{ContextId, Grant, Ident, LockDao, LossReason, LostLock, Released, clock::Moment};

/// What is known of a held set, shared by the call, its handles and its renewal.
#[derive(Debug)]
pub(crate) struct HoldCore<I, C> {
    pub(crate) grant: Grant<I, C>,
    /// `None` if the locks last until they are released.
    pub(crate) lease: Option<Box<Lease>>,
}

impl<I: Ident, C: ContextId> HoldCore<I, C> {
    /// What of it is lost.
    pub(crate) fn lost(&self) -> Vec<LostLock<I>> {
        self.lease.as_ref().map(|lease| lease.lost(&self.grant, LossReason::Expired)).unwrap_or_default()
    }
}

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

/// A set that is held. Dropping it releases the set in the background.
pub(crate) struct Hold<'s, I: Ident, C: ContextId, D: LockDao<I, C>> {
    pub(crate) service: ServiceRef<'s, I, C, D>,
    pub(crate) core: Arc<HoldCore<I, C>>,
    renewal: Option<(Arc<Keeper>, u64)>,
    /// The context is remembered as in use.
    pub(crate) context_tracked: bool,
    over: bool,
    stopwatch: Stopwatch,
    /// Entered around every poll of the callback.
    pub(crate) span: Span,
}

impl<'s, I: Ident, C: ContextId, D: LockDao<I, C>> Hold<'s, I, C, D> {
    /// Starts to keep what was granted. `offered`: the lease is short, and a renewal confirms it.
    pub(crate) fn new(
        service: ServiceRef<'s, I, C, D>,
        grant: Grant<I, C>,
        lease: Option<Box<Lease>>,
        offered: bool,
        context_tracked: bool,
        span: Span,
    ) -> Self {
        let core = Arc::new(HoldCore { grant, lease });
        let mut hold = Hold {
            service,
            core,
            renewal: None,
            context_tracked,
            over: false,
            stopwatch: Stopwatch::start(),
            span,
        };
        if let Some(lease) = &hold.core.lease {
            let keeper = Keeper::current();
            let renewal = Arc::new(Renewal {
                keeper: keeper.clone(),
                service: (*hold.service).clone(),
                core: hold.core.clone(),
                key: keeper.key(),
                under_way: AtomicBool::new(false),
                failed: AtomicBool::new(false),
            });
            let first = if offered { Duration::ZERO } else { lease.length / 3 };
            let key = renewal.key;
            keeper.add(key, renewal, first.min(lease.left_to_run()));
            hold.renewal = Some((keeper, key));
        }
        hold
    }

    /// Marks what runs until the result is dropped as running inside this hold.
    pub(crate) fn entered(&self) -> Entered {
        Entered::new(self.service.identity(), self.core.clone())
    }

    /// Stops the renewal and releases, and tells what was lost while it was held. If the caller goes away meanwhile, the drop of the hold finishes it
    /// in the background.
    pub(crate) async fn release(&mut self) -> Vec<LostLock<I>> {
        let mut lost = self.stop_renewal();
        let was_valid = self.core.lease.as_ref().is_none_or(|lease| !lease.left().is_zero());
        let answer = match self.core.grant.locks.is_empty() {
            true => Ok(Released { lost: Vec::new(), failed: Vec::new() }),
            false => self.service.dao.release(&self.core.grant).await,
        };
        let known_lost = !lost.is_empty();
        match answer {
            Ok(released) => {
                if !released.lost.is_empty() {
                    if was_valid && !known_lost {
                        lost = released.lost.clone();
                    } else if !known_lost {
                        self.service.observe(|| Event::ReleasedLate {
                            grant: &self.core.grant,
                            lost: &released.lost,
                        });
                    }
                }
                self.over = true;
                self.settle_failed(released);
            }
            // The caller does not wait for more: the drop of `self` tries on in the background.
            Err(error) => {
                self.service.observe(|| Event::ReleaseFailed { grant: &self.core.grant, error: &error });
            }
        }
        if !lost.is_empty() {
            self.service.observe(|| Event::Lost { grant: &self.core.grant, lost: &lost });
        }
        lost
    }

    /// Stops the renewal and forgets the set, which stays locked until its lease ends or somebody releases it.
    pub(crate) fn leave(mut self) -> Grant<I, C> {
        self.stop_renewal();
        self.over = true;
        self.core.grant.clone()
    }

    /// Nothing renews afterwards; gives what was lost by then.
    fn stop_renewal(&mut self) -> Vec<LostLock<I>> {
        match self.renewal.take() {
            None => Vec::new(),
            Some((keeper, key)) => {
                keeper.remove(key);
                let lease = self.core.lease.as_ref().expect("only leases are renewed");
                if lease.is_known_lost() { self.core.lost() } else { Vec::new() }
            }
        }
    }

    /// Frees in the background what the store could not free at once.
    fn settle_failed(&self, released: Released<I>) {
        let Some((_, error)) = released.failed.first() else { return };
        self.service.observe(|| Event::ReleaseFailed { grant: &self.core.grant, error });
        let mut grant = self.core.grant.clone();
        grant.locks.retain(|lock| released.failed.iter().any(|(target, _)| *target == lock.target));
        Cleanup::Release(grant).start((*self.service).clone(), None);
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Drop for Hold<'_, I, C, D> {
    fn drop(&mut self) {
        self.stop_renewal();
        tracing::debug!(parent: &self.span, released = self.over, "no longer held");
        self.stopwatch.record("lockcore_held_seconds", self.service.capabilities.backend);
        let context = self.context_tracked.then(|| self.core.grant.context.clone());
        if self.over || self.core.grant.locks.is_empty() {
            self.service.ended(context);
        } else {
            let grant = self.core.grant.clone();
            Cleanup::Release(grant).start((*self.service).clone(), Some(context));
        }
    }
}

/// Keeps one hold's lease, on the keeper's runtime.
struct Renewal<I: Ident, C: ContextId, D: LockDao<I, C>> {
    keeper: Arc<Keeper>,
    service: Arc<Inner<I, C, D>>,
    core: Arc<HoldCore<I, C>>,
    key: u64,
    under_way: AtomicBool,
    /// The last renewal got no answer.
    failed: AtomicBool,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Tick for Renewal<I, C, D> {
    fn tick(self: Arc<Self>) -> Option<Duration> {
        let lease = self.lease();
        let left = lease.left_to_run();
        if lease.is_known_lost() {
            return None;
        }
        if left.is_zero() {
            let unanswered = self.failed.load(Relaxed) || self.under_way.load(Relaxed);
            lease.lose_all(if unanswered { LossReason::Unreachable } else { LossReason::Expired });
            return None;
        }
        let may_renew = lease.max_hold.is_none_or(|max_hold| !lease.since.left_of(max_hold).is_zero());
        if may_renew && !self.under_way.swap(true, Relaxed) {
            tokio::spawn(self.clone().renew());
        }
        Some(left)
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Renewal<I, C, D> {
    fn lease(&self) -> &Lease {
        self.core.lease.as_ref().expect("only leases are renewed")
    }

    async fn renew(self: Arc<Self>) {
        let lease = self.lease();
        let sent = Moment::now();
        let patience = lease.length / 3;
        let answer = tokio::time::timeout(patience, self.service.dao.renew(&self.core.grant)).await;
        let pause = match answer {
            Ok(Ok(renewed)) if renewed.lost.is_empty() => {
                let age = lease.extended(sent);
                self.failed.store(false, Relaxed);
                self.service.observe_renewal(age.saturating_sub(lease.length / 3));
                sent.left_of(lease.length / 3)
            }
            Ok(Ok(renewed)) => {
                lease.lose_some(&self.core.grant, &renewed.lost);
                return;
            }
            Ok(Err(error)) => {
                self.failed.store(true, Relaxed);
                self.service
                    .observe(|| Event::RenewalFailed { grant: &self.core.grant, error: Some(&error) });
                self.pause_after_failure()
            }
            Err(_elapsed) => {
                self.failed.store(true, Relaxed);
                self.service.observe(|| Event::RenewalFailed { grant: &self.core.grant, error: None });
                self.pause_after_failure()
            }
        };
        self.under_way.store(false, Relaxed);
        self.keeper.hasten(self.key, pause.min(lease.left_to_run()));
    }

    /// Soon enough for some tries before the lease ends, spread so that many holders do not come at once.
    fn pause_after_failure(&self) -> Duration {
        (self.lease().length / 20).mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}
