//! Administration through a service: checked requests to the backend's administration.

use std::{borrow::Cow, pin::pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, TryStreamExt, future, stream};

use super::{Inner, waiting::AFTER_FAILURE, watching::Watcher};
use crate::{
    AnyLockDao, BackendError, BackendErrorKind, Backoff, BadRequest, BreakMode, Broken, Capabilities, Change,
    ClaimSet, ContextId, Finding, Grant, Granted, HeldBy, Ident, Ids, Inspection, Listing, Lock, LockDao,
    LockError, LossReason, LostLock, Mode, Page, Released, Renewed, Severity, StoredContext, Swept, Target,
    Uuid, claim::Claim, clock, rules::InUse, wait::Strategy, watch::Look,
};

/// Administration through a service; see [`LockingService::admin`](crate::LockingService::admin).
///
/// Requests that the backend does not declare are refused with [`BadRequest::Unsupported`]; a failure of the backend is
/// [`LockingError::NotLocked`](crate::LockingError::NotLocked) with the failure in it.
pub struct Admin<'a, I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    service: &'a Arc<Inner<I, C, D>>,
}

impl<'a, I: Ident, C: ContextId, D: LockDao<I, C>> Admin<'a, I, C, D> {
    pub(crate) fn new(service: &'a Arc<Inner<I, C, D>>) -> Self {
        Admin { service }
    }

    /// Lists the ids that are held, queued for or frozen, by pages.
    ///
    /// # Errors
    /// Unsupported, a page of zero ids, or a failure of the backend.
    pub async fn list(&self, page: &Page) -> Result<Listing<I, C>, LockError<I, C>> {
        self.need("list", self.service.capabilities.listing)?;
        if page.limit == 0 {
            let expected = "it must be at least 1";
            return Err(BadRequest::out_of_bounds("limit", "0", expected).into());
        }
        Ok(self.service.dao()?.list(page).await?)
    }

    /// Returns everything that the store knows of one id.
    ///
    /// # Errors
    /// Unsupported, a bad id, or a failure of the backend.
    pub async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, LockError<I, C>> {
        self.need("inspect", self.service.capabilities.listing)?;
        check(target)?;
        Ok(self.service.dao()?.inspect(target).await?)
    }

    /// Watches an id: what it is at first, and then each change that a look at it finds. The service looks after `every` at the
    /// latest, once for all that watch the id, so that a lock that was held for less than that may not be seen. The stream ends with
    /// the first error.
    ///
    /// ```
    /// use std::{pin::pin, time::Duration};
    ///
    /// use futures_util::StreamExt;
    /// use lockcore::{Change, LockingService, Target};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let guard = locks.lock(["a"]).await?;
    /// let (admin, target) = (locks.admin(), Target::Id("a".to_owned()));
    /// let mut changes = pin!(admin.watch(&target, Duration::from_millis(100)));
    /// assert!(matches!(changes.next().await, Some(Ok(Change::Acquired(_)))));
    /// guard.release().await?;
    /// assert!(matches!(changes.next().await, Some(Ok(Change::Ended { .. }))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Unsupported, a bad id, an interval of zero, or a failure of the backend.
    pub fn watch<'w>(
        &'w self,
        target: &'w Target<I>,
        every: Duration,
    ) -> impl Stream<Item = Result<Change<C>, LockError<I, C>>> + Send + 'w {
        let changes = self.looks(target, every).scan(None::<Look<I, C>>, |last, seen| {
            let changes = seen.map(|look| {
                let changes = look.changes_since(last.as_ref());
                *last = Some(look);
                stream::iter(changes.into_iter().map(Ok))
            });
            future::ready(Some(changes))
        });
        changes.try_flatten()
    }

    /// Waits until no id of the set is held, without taking any; another context may hold them again when this returns. Looks as
    /// [`watch`](Self::watch) does, and takes no place in a queue. Goes on while the backend fails for a while.
    ///
    /// # Errors
    /// Unsupported, a bad id, an interval of zero, or a failure of the backend that does not pass.
    ///
    /// # Cancel safety
    /// Nothing is kept in the store.
    pub async fn until_free(&self, ids: impl Ids<I>, every: Duration) -> Result<(), LockError<I, C>> {
        let claims = ClaimSet::new(ids, Mode::Exclusive)?;
        // Until all were seen free in a row, without a wait in between.
        let (mut free, mut failed) = (0, 0);
        for claim in claims.iter().cycle() {
            if free == claims.len() {
                break;
            }
            let mut looks = pin!(self.looks(&claim.target, every));
            free += 1;
            while let Some(seen) = looks.next().await {
                match seen {
                    Ok(look) if look.seen.is_free() => {
                        failed = 0;
                        break;
                    }
                    Ok(_) => free = 1,
                    Err(error) if error.is_retryable() => {
                        free = 0;
                        clock::sleep(AFTER_FAILURE.delay(failed)).await;
                        failed += 1;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Looks at an id as [`watch`](Self::watch) does, after a check of the request.
    pub(crate) fn looks<'w>(
        &self,
        target: &'w Target<I>,
        every: Duration,
    ) -> impl Stream<Item = Result<Look<I, C>, LockError<I, C>>> + Send + use<'w, I, C, D>
    where
        'a: 'w,
    {
        let service: &'w _ = self.service;
        let checked = self.check_watch(target, every);
        stream::try_unfold((checked, None::<Watcher<I, C>>), move |(checked, watcher)| async move {
            checked.clone()?;
            service.dao()?;
            let mut watcher = watcher.unwrap_or_else(|| service.watch(target, every));
            let look = watcher.next().await?;
            Ok(Some((look, (checked, Some(watcher)))))
        })
    }

    fn check_watch(&self, target: &Target<I>, every: Duration) -> Result<(), BadRequest> {
        self.need("watch", self.service.capabilities.listing)?;
        check(target)?;
        match every.is_zero() {
            true => {
                let expected = "it must be longer than zero";
                Err(BadRequest::out_of_bounds("every", "0s", expected))
            }
            false => Ok(()),
        }
    }

    /// Breaks the lock that is held under exactly this fence; recorded with the service's owner label.
    ///
    /// # Errors
    /// Unsupported, a bad id, or a failure of the backend.
    pub async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
    ) -> Result<Broken, LockError<I, C>> {
        self.need("break_lock", self.service.capabilities.breaking)?;
        check(target)?;
        Ok(self.service.dao()?.break_lock(target, fence, how, &self.service.defaults.owner).await?)
    }

    /// Freezes an id, so that it is granted to no other context, or thaws it and serves its waiters.
    ///
    /// A call that is dropped, or whose outcome is in doubt, may take effect after one that came next. One that has ended in doubt does not
    /// on a bucket, a share, etcd, and SQL without routines. [`inspect`](Self::inspect) returns what is in force.
    ///
    /// # Errors
    /// Unsupported, a bad id, or a failure of the backend.
    pub async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), LockError<I, C>> {
        self.need("freeze", self.service.capabilities.breaking)?;
        check(target)?;
        Ok(self.service.dao()?.freeze(target, frozen).await?)
    }

    /// Frees everything that a context holds: after a restart, or for a process that is gone.
    ///
    /// # Errors
    /// Unsupported, or a failure of the backend.
    pub async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, LockError<I, C>> {
        self.need("release_context", self.service.capabilities.listing)?;
        Ok(self.service.dao()?.release_context(context).await?)
    }

    /// Releases a grant that was left locked ([`LockGuard::leave`](crate::LockGuard::leave)), here or elsewhere. Locks may
    /// stand in it in any order, and more than once.
    ///
    /// # Errors
    /// A failure of the backend. That it is no longer held is no error: see [`Released::lost`].
    pub async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, LockError<I, C>> {
        Ok(self.service.dao()?.release(&in_order(grant)).await?)
    }

    /// Extends a grant that was left locked ([`LockGuard::leave`](crate::LockGuard::leave)), here or elsewhere, to the
    /// whole of its [`lease`](Grant::lease) from now on, which may be another than before. A longer one that it has is not cut
    /// short. Locks may stand in it in any order, and more than once.
    ///
    /// # Errors
    /// A lease that the backend cannot keep, or a failure of the backend. That it is no longer held is no error: see
    /// [`Renewed::lost`].
    pub async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, LockError<I, C>> {
        self.service.check_lease(grant.lease)?;
        Ok(self.service.dao()?.renew(&in_order(grant)).await?)
    }

    /// Checks what of a grant is held no more, also one that another process holds. Returns what is not held: broken by an
    /// administrator, or otherwise [`Vanished`](LossReason::Vanished), since the store does not know whether it was released or
    /// expired. One request for each lock.
    ///
    /// ```
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let guard = locks.lock(["a", "b"]).await?;
    /// let grant = guard.held().grant().clone();
    /// assert!(locks.admin().check(&grant).await?.is_empty());
    /// guard.release().await?;
    /// assert_eq!(locks.admin().check(&grant).await?.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Unsupported, or a failure of the backend.
    pub async fn check(&self, grant: &Grant<I, C>) -> Result<Vec<LostLock<I>>, LockError<I, C>> {
        let mut lost = Vec::new();
        for lock in &grant.locks {
            let (context, fence) = (StoredContext::Known(grant.context.clone()), lock.granted.fence);
            let seen = self.inspect(&lock.target).await?;
            let holder =
                seen.holders.iter().find(|holder| holder.fence == fence && holder.context == context);
            let is_broken = holder.map(|holder| holder.broken);
            match is_broken.unwrap_or_else(|| seen.breaks.iter().any(|broken| broken.fence == fence)) {
                true => lost.push(lock.lost(LossReason::Broken)),
                false if holder.is_none() => lost.push(lock.lost(LossReason::Vanished)),
                false => {}
            }
        }
        Ok(lost)
    }

    /// Returns what a context holds. Lists the whole namespace.
    ///
    /// # Errors
    /// Unsupported, or a failure of the backend.
    pub async fn held_by(&self, context: &C) -> Result<Vec<Lock<I>>, LockError<I, C>> {
        let context = StoredContext::Known(context.clone());
        let mut held = Vec::new();
        for seen in self.list_all().await? {
            let in_use = InUse::of(seen.holders.iter().map(|holder| holder.mode)).units();
            let own = seen.holders.into_iter().find(|holder| holder.context == context);
            if let (Ok(target), Some(HeldBy { mode, fence, permits, .. })) = (seen.target, own) {
                held.push(Lock { target, granted: Granted { mode, fence, permits, in_use } });
            }
        }
        Ok(held)
    }

    /// Removes at most `batch` expired locks now.
    ///
    /// # Errors
    /// Unsupported, a batch of zero, or a failure of the backend.
    pub async fn sweep(&self, batch: usize) -> Result<Swept, LockError<I, C>> {
        self.need("sweep", self.service.capabilities.sweeping)?;
        if batch == 0 {
            let expected = "it must be at least 1";
            return Err(BadRequest::out_of_bounds("batch", "0", expected).into());
        }
        let unconditionally: Option<Duration> = None;
        Ok(self.service.dao()?.sweep(batch, unconditionally).await?)
    }

    /// Looks at the store for what would weaken a promise, and at the service's wait: whether it outlasts the lease of a holder that
    /// died.
    ///
    /// # Errors
    /// A failure of the backend.
    pub async fn doctor(&self) -> Result<Vec<Finding>, LockError<I, C>> {
        let mut findings = self.service.dao()?.doctor().await?;
        findings.extend(self.service.crashes());
        Ok(findings)
    }

    /// Tries for so long, at most an hour, whether the store keeps its promises on the way from here: run it on several hosts at the same
    /// time. It writes beside the locks, and touches none. Where a server decides, whatever the way to it, there is nothing to try.
    ///
    /// # Errors
    /// [`BadRequest`] if the time is not possible, or the backend has nothing to try; a failure of the backend.
    ///
    /// # Cancel safety
    /// The trial goes on in the background until its time is over.
    pub async fn verify(&self, time: Duration) -> Result<Vec<Finding>, LockError<I, C>> {
        const LONGEST: Duration = Duration::from_secs(3600);
        if time.is_zero() || time > LONGEST {
            let (value, expected) = (format!("{time:?}"), "it must be longer than zero, and at most an hour");
            return Err(BadRequest::out_of_bounds("time", value, expected).into());
        }
        let tried = self.service.dao()?.verify(time).await;
        let is_unsupported = |error: &BackendError| error.kind() == BackendErrorKind::Unsupported;
        self.need("verify", !tried.as_ref().is_err_and(is_unsupported))?;
        Ok(tried?)
    }

    /// Lists the whole namespace.
    async fn list_all(&self) -> Result<Vec<Inspection<I, C>>, LockError<I, C>> {
        let (mut all, mut page) = (Vec::new(), Page::default());
        loop {
            let listing = self.list(&page).await?;
            all.extend(listing.ids);
            match listing.next {
                Some(next) => page.after = Some(next),
                None => return Ok(all),
            }
        }
    }

    fn need(&self, what: &'static str, declared: bool) -> Result<(), BadRequest> {
        match declared {
            true => Ok(()),
            false => Err(BadRequest::Unsupported { what, backend: self.service.capabilities.backend }),
        }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    /// Checks whether the default wait outlasts a crash, where the store has to wait for the lease of a process that died.
    fn crashes(&self) -> Option<Finding> {
        let Capabilities { shared_store, dead_holders, .. } = self.capabilities;
        let lease = self.defaults.lease.filter(|_| shared_store && !dead_holders)?;
        let detail = format!("the locks of a process that died end with their lease of {lease:?}");
        let (severity, detail) = match self.defaults.wait.0 {
            Strategy::Queue { limit: Some(wait) } if wait <= lease => (
                Severity::Warning,
                format!(
                    "{detail}, and a call waits for {wait:?}: after a crash it gives up, so let it wait for longer"
                ),
            ),
            _ => (Severity::Ok, format!("{detail}: a call that is to outlast a crash waits for longer")),
        };
        Some(Finding { severity, check: "crashes", detail })
    }
}

/// The grant as backends expect it: each lock once, ordered by the stored form of its target.
fn in_order<I: Ident, C: ContextId>(grant: &Grant<I, C>) -> Cow<'_, Grant<I, C>> {
    let ascends = |pair: &[Lock<I>]| pair[0].target.cmp_stored(&pair[1].target).is_lt();
    if grant.locks.windows(2).all(ascends) {
        return Cow::Borrowed(grant);
    }
    let mut in_order = grant.clone();
    in_order.locks.sort_by(|a, b| a.target.cmp_stored(&b.target));
    in_order.locks.dedup_by(|later, kept| later.target == kept.target);
    Cow::Owned(in_order)
}

fn check<I: Ident>(target: &Target<I>) -> Result<(), BadRequest> {
    let claim = Claim { target: target.clone(), mode: Mode::Exclusive };
    ClaimSet::new([claim], Mode::Exclusive).map(drop)
}
