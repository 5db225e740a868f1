//! One call of the service and its options. The ways to run something with it are in `with_locks.rs`.

use std::time::Duration;

use super::{
    LockingService, acquire::acquire, attempt::Attempt, hold::Hold, hold::ServiceRef, settings::Settings,
};
use crate::{
    AnyLockDao, BadRequest, ClaimSet, ContextId, Ident, Ids, LockDao, LockError, Mode, Owner, Uuid, Wait,
};

/// One call with its own options. Created by any of the options of [`LockingService`], or by [`LockingService::call`].
///
/// Every method that runs something under locks releases the set on success, error and panic, and when its future is
/// dropped at any await point. Ids are converted when the method is called; nothing is sent until the future is polled.
///
/// # Which call do I take?
/// | the callback is | and returns | take |
/// | --- | --- | --- |
/// | async | a `Result` | [`with_locks`](Self::with_locks) |
/// | async, and needs fences or looks for a loss itself | a `Result` | [`with_held_locks`](Self::with_held_locks) |
/// | async | `anyhow::Result`, or an error made from a [`LockError`] | [`try_with_locks`](Self::try_with_locks) |
/// | any that may fail, with such an error | | any other call, with `.map_err(`[`LockingError::flatten`](crate::LockingError::flatten)`)` |
/// | async | a value that is no `Result` | [`run_locked`](Self::run_locked) |
/// | async, and its value counts though locks were lost | anything | [`outcome`](Self::outcome) |
/// | plain code, short, may borrow | a `Result` | [`with_locks_sync`](Self::with_locks_sync) |
/// | plain code, and needs fences or looks for a loss | a `Result` | [`with_held_locks_sync`](Self::with_held_locks_sync) |
/// | plain code that blocks for long | a `Result` | [`with_locks_blocking`](Self::with_locks_blocking) |
/// | no callback: locked here, released there | | [`lock`](Self::lock) |
/// | a job that is to run on one of many hosts | a `Result` | [`once`](Call::once), [`once_per`](Call::once_per) |
///
/// Without an async runtime use [`blocking::LockingService`](crate::blocking::LockingService).
#[must_use = "a call does nothing until it is given ids"]
pub struct Call<'a, I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    pub(super) service: &'a LockingService<I, C, D>,
    /// `None` while they are the service's defaults.
    own: Option<Box<Settings<C>>>,
}

impl<'a, I: Ident, C: ContextId, D: LockDao<I, C>> Call<'a, I, C, D> {
    /// Sets how long and in what manner to wait for locks that others hold.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.settings().wait = wait;
        self
    }

    /// Sets how long the locks last without a renewal; they are renewed each third of it. From the backend's
    /// [`min_lease`](crate::Capabilities::min_lease) to 365 days.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings().lease = Some(lease);
        self
    }

    /// Locks without a lease, until they are released, where [`permanent`](crate::Capabilities::permanent) is declared.
    pub fn permanent(mut self) -> Self {
        self.settings().lease = None;
        self
    }

    /// Claims one permit of each id that is given without a mode. At most `limit` permits may be held at once, as this
    /// caller sees it.
    pub fn slots(mut self, limit: u32) -> Self {
        self.settings().bare = Mode::Slots { permits: 1, limit };
        self
    }

    /// Claims each id shared that is given without a mode.
    pub fn shared(mut self) -> Self {
        self.settings().bare = Mode::Shared;
        self
    }

    /// Sets the owner label, which administration shows.
    pub fn owner(mut self, owner: impl Into<Owner>) -> Self {
        self.settings().owner = owner.into();
        self
    }

    /// Bounds how long the callback may hold the locks, however often they are renewed: after that it is stopped with
    /// [`LockingError::HeldTooLong`](crate::LockingError::HeldTooLong). A sync callback and the owner of a guard cannot be
    /// stopped; their locks are no longer renewed.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings().max_hold = Some(max_hold);
        self
    }

    /// Keeps the set locked for `keep_for` at least, counted from the grant: a release before that, also after an error or a
    /// panic, leaves it locked. For a job that is started on several hosts whose clocks differ, and is shorter than that.
    ///
    /// The locks last for that time from the start, whatever becomes of this process: they are [detached](Self::detached), and their
    /// lease is the greater of the call's and what is left of `keep_for`. A release before the time is over only sees to it that they
    /// last no longer; if it fails, or if the process ends without it, they last for a lease of the call at most after that time, or
    /// after the last renewal. [`LockGuard::release_now`](crate::LockGuard::release_now) frees them at once.
    ///
    /// A renewal that is under way is waited for before the set is cut short. One that got no answer may still arrive after that: a
    /// set whose lease is longer than what is left of `keep_for` then lasts for a lease from that moment on.
    ///
    /// A [context](Self::context) cannot be given: asking again under the same one would be granted what is kept. For the same reason
    /// [`Builder::contexts`](crate::Builder::contexts) must not create one again while its set is kept, in any process. On a bucket
    /// and on DynamoDB a lease that is longer than `keep_for` is not cut short.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let nightly = || locks.keep_for(Duration::from_secs(50)).run_locked(["nightly"], async || { /* a short job */ });
    /// nightly().await?;
    /// assert!(nightly().await.is_err_and(|error| error.is_contention()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_for(mut self, keep_for: Duration) -> Self {
        self.settings().keep_for = Some(keep_for);
        self
    }

    /// Lets the callback go on when locks are lost. It checks for that itself, by [`Held::check`](crate::Held::check) or
    /// [`Held::lost`](crate::Held::lost).
    pub fn tell_when_lost(mut self) -> Self {
        self.settings().tell_when_lost = true;
        self
    }

    /// States that the caller already holds locks of which the service does not know, through a guard or in another task,
    /// and so must not queue behind waiters that may be waiting for it. Inside a callback this is known.
    pub fn nested(mut self) -> Self {
        self.settings().nested = true;
        self
    }

    /// Lets the locks outlive this process: its death does not free them, only a release or the end of their lease.
    pub fn detached(mut self) -> Self {
        self.settings().detached = true;
        self
    }

    /// Sets the context of this call: a value that no other call of any process uses, or both hold the locks; see [`ContextId`].
    pub fn context(mut self, context: C) -> Self {
        self.settings().context = Some(context);
        self
    }

    pub(super) fn new(service: &'a LockingService<I, C, D>) -> Self {
        Call { service, own: None }
    }

    pub(super) fn effective(&self) -> &Settings<C> {
        self.own.as_deref().unwrap_or(&self.service.inner().defaults)
    }

    pub(super) fn claims(&self, ids: impl Ids<I>) -> Result<ClaimSet<I>, BadRequest> {
        ClaimSet::new(ids, self.effective().bare)
    }

    pub(super) fn settings(&mut self) -> &mut Settings<C> {
        self.own.get_or_insert_with(|| Box::new(self.service.inner().defaults.clone()))
    }

    /// Locks the set, for a caller that runs something under it on its own thread and then [finishes](run::finish) it.
    pub(crate) fn hold<K: Ids<I>>(
        &self,
        ids: K,
    ) -> impl Future<Output = Result<Hold<'a, I, C, D>, LockError<I, C>>> + use<'a, '_, I, C, D, K> {
        take(ServiceRef::Borrowed(self.service.inner()), self.effective(), self.claims(ids))
    }
}

/// Takes the set, for what is not a future that runs under locks.
pub(super) async fn take<'s, I: Ident, C: ContextId, D: LockDao<I, C>>(
    service: ServiceRef<'s, I, C, D>,
    settings: &Settings<C>,
    claims: Result<ClaimSet<I>, BadRequest>,
) -> Result<Hold<'s, I, C, D>, LockError<I, C>> {
    let mut attempt = Attempt::new(service, claims, settings)?;
    acquire(&mut attempt, &settings.wait.0).await
}
