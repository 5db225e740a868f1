//! One call of the service: its options, and the ways to run something under a set of locks.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{
    LockGuard, LockingService,
    acquire::{Attempt, acquire},
    held::Held,
    hold::{Hold, HoldCore, ServiceRef},
    nesting::Enclosing,
    run::{self, Bounds, Ended},
};
use crate::{
    BadRequest, Capabilities, ClaimSet, ContextId, Ident, Ids, LockDao, LockError, LockingError, Mode, Owner,
    Wait,
};

/// What a callback may give: a `Result`, or nothing.
#[diagnostic::on_unimplemented(
    message = "the callback of `with_locks` gives `{Self}`, it must give a `Result` or `()`",
    label = "for a callback that cannot fail use `run_locked`, or end it with `Ok::<_, YourError>(..)`"
)]
pub trait CallbackResult {
    /// What it gives on success.
    type Ok;
    /// Its own error.
    type Error;

    /// The plain result.
    fn into_result(self) -> Result<Self::Ok, Self::Error>;
}

impl<T, E> CallbackResult for Result<T, E> {
    type Ok = T;
    type Error = E;

    fn into_result(self) -> Result<T, E> {
        self
    }
}

impl CallbackResult for () {
    type Ok = ();
    type Error = Infallible;

    fn into_result(self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// What a callback with the future `Fut` gives on success.
pub type OkOf<Fut> = <<Fut as Future>::Output as CallbackResult>::Ok;

/// The own error of a callback with the future `Fut`.
pub type ErrOf<Fut> = <<Fut as Future>::Output as CallbackResult>::Error;

/// The options of a call.
#[derive(Clone, Debug)]
pub(crate) struct Settings<C> {
    pub(crate) wait: Wait,
    pub(crate) lease: Option<Duration>,
    pub(crate) bare: Mode,
    pub(crate) owner: Owner,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) tell_when_lost: bool,
    pub(crate) nested: bool,
    pub(crate) detached: bool,
    pub(crate) context: Option<C>,
}

impl<C> Settings<C> {
    pub(crate) fn new(capabilities: &Capabilities) -> Self {
        Settings {
            wait: Wait::never(),
            lease: capabilities.default_lease,
            bare: Mode::Exclusive,
            owner: Owner::default(),
            max_hold: None,
            tell_when_lost: false,
            nested: false,
            detached: false,
            context: None,
        }
    }
}

/// One call with options of its own. Made by any of the options of [`LockingService`], or [`LockingService::call`].
///
/// Every way to run something under locks releases the set on success, error and panic, and when its future is dropped
/// at any await point; ids are taken over when the method is called, nothing is sent before the future is polled.
#[must_use = "a call does nothing until it is given ids"]
pub struct Call<'a, I: Ident, C: ContextId, D: LockDao<I, C>> {
    service: &'a LockingService<I, C, D>,
    /// `None` while they are the service's defaults.
    own: Option<Box<Settings<C>>>,
}

impl<'a, I: Ident, C: ContextId, D: LockDao<I, C>> Call<'a, I, C, D> {
    /// How long and in what manner to wait for locks that others hold.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.settings().wait = wait;
        self
    }

    /// How long the locks last unless they are renewed, which happens at a third of it. From the backend's
    /// [`min_lease`](Capabilities::min_lease) to 365 days.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings().lease = Some(lease);
        self
    }

    /// Locks that last until they are released, where [`permanent`](Capabilities::permanent) is declared.
    pub fn permanent(mut self) -> Self {
        self.settings().lease = None;
        self
    }

    /// Wants one permit of each id that is given without a mode of its own, of which at most `limit` may be held at
    /// once as this caller sees it.
    pub fn slots(mut self, limit: u32) -> Self {
        self.settings().bare = Mode::Slots { permits: 1, limit };
        self
    }

    /// Wants each id that is given without a mode of its own shared.
    pub fn shared(mut self) -> Self {
        self.settings().bare = Mode::Shared;
        self
    }

    /// The owner label, for people to read.
    pub fn owner(mut self, owner: impl Into<Owner>) -> Self {
        self.settings().owner = owner.into();
        self
    }

    /// Bounds how long the callback may hold the locks, also under renewal: then it is stopped with
    /// [`LockingError::HeldTooLong`]. A sync callback cannot be stopped: its locks are no longer renewed. A guard is not
    /// stopped either.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings().max_hold = Some(max_hold);
        self
    }

    /// Does not stop the callback when locks are lost: it looks itself, at [`Held::check`] or [`Held::lost`].
    pub fn tell_when_lost(mut self) -> Self {
        self.settings().tell_when_lost = true;
        self
    }

    /// The caller already holds locks that the service cannot see it hold - through a guard, or in another task - and
    /// so must not wait behind waiters who may be waiting for it. Inside a callback this is known.
    pub fn nested(mut self) -> Self {
        self.settings().nested = true;
        self
    }

    /// The locks are to outlive this process: only their lease ends them, not its death.
    pub fn detached(mut self) -> Self {
        self.settings().detached = true;
        self
    }

    /// The context of this call; a fresh value, see [`ContextId`].
    pub fn context(mut self, context: C) -> Self {
        self.settings().context = Some(context);
        self
    }

    pub(super) fn new(service: &'a LockingService<I, C, D>) -> Self {
        Call { service, own: None }
    }

    fn effective(&self) -> &Settings<C> {
        self.own.as_deref().unwrap_or(&self.service.inner().defaults)
    }

    fn claims(&self, ids: impl Ids<I>) -> Result<ClaimSet<I>, BadRequest> {
        ClaimSet::new(ids, self.effective().bare)
    }

    fn settings(&mut self) -> &mut Settings<C> {
        self.own.get_or_insert_with(|| Box::new(self.service.inner().defaults.clone()))
    }

    /// Locks the set, runs the callback, releases, and gives the callback's value.
    ///
    /// The callback's future is polled only while the locks are certainly held: it is dropped when they are lost,
    /// unless [`tell_when_lost`](Self::tell_when_lost).
    ///
    /// # Errors
    /// [`LockingError`], by what the caller may want to do about it. In short: the callback did not run, unless it is
    /// `Callback`, `Lost` or `HeldTooLong`.
    ///
    /// # Cancel safety
    /// Safe at every await point: nothing stays locked or queued once the store answers.
    ///
    /// # Panics
    /// If the callback does, after the release.
    pub fn with_locks<K, F, Fut>(
        self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<OkOf<Fut>, LockingError<I, C, ErrOf<Fut>>>> + use<'a, I, C, D, K, F, Fut>
    where
        K: Ids<I>,
        F: FnOnce() -> Fut,
        Fut: Future<Output: CallbackResult>,
    {
        self.start(ids, move |_| callback(), into_result)
    }

    /// As [`with_locks`](Self::with_locks); the callback gets a handle to what is held.
    ///
    /// # Errors
    /// As [`with_locks`](Self::with_locks).
    pub fn with_held_locks<K, F, Fut>(
        self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<OkOf<Fut>, LockingError<I, C, ErrOf<Fut>>>> + use<'a, I, C, D, K, F, Fut>
    where
        K: Ids<I>,
        F: FnOnce(Held<I, C>) -> Fut,
        Fut: Future<Output: CallbackResult>,
    {
        self.start(ids, move |core| callback(Held(core.clone())), into_result)
    }

    /// As [`with_held_locks`](Self::with_held_locks), but tells of a loss beside the callback's value instead of in its
    /// place.
    ///
    /// # Errors
    /// Everything that keeps the callback from running to its end but the loss of locks.
    pub fn outcome<K, F, Fut>(
        self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<Ended<Fut::Output, I>, LockError<I, C>>> + use<'a, I, C, D, K, F, Fut>
    where
        K: Ids<I>,
        F: FnOnce(Held<I, C>) -> Fut,
        Fut: Future,
    {
        self.start(ids, move |core| callback(Held(core.clone())), |ended| ended)
    }

    /// As [`with_locks`](Self::with_locks) for a callback that cannot fail.
    ///
    /// # Errors
    /// As [`with_locks`](Self::with_locks), without the callback's own.
    pub fn run_locked<K, F, Fut>(
        self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<Fut::Output, LockError<I, C>>> + use<'a, I, C, D, K, F, Fut>
    where
        K: Ids<I>,
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        self.start(
            ids,
            move |_| callback(),
            |ended| {
                let Ended { value, lost } = ended?;
                Ended { value: value.map(Ok), lost }.into_result()
            },
        )
    }

    /// As [`with_locks`](Self::with_locks) for application errors, such as `anyhow::Error`, a boxed error, or an enum
    /// of one's own: what goes wrong with the locks arrives as the callback's error type.
    ///
    /// # Errors
    /// The callback's own, or a [`LockError`] turned into it.
    pub fn try_with_locks<K, F, Fut, T, E>(
        self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<T, E>> + use<'a, I, C, D, K, F, Fut, T, E>
    where
        K: Ids<I>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<LockError<I, C>>,
    {
        self.start(
            ids,
            move |_| callback(),
            |ended| {
                let result = ended.map_err(E::from)?.into_result();
                result.map_err(|error| error.split().unwrap_or_else(E::from))
            },
        )
    }

    /// Locks the set, runs plain code on the caller's thread, releases, and gives its value.
    ///
    /// The code may borrow. It blocks the thread that polls the future; the locks are renewed all the same. It cannot
    /// be stopped: [`with_held_locks_sync`](Self::with_held_locks_sync) lets it look whether it still holds them.
    ///
    /// # Errors
    /// As [`with_locks`](Self::with_locks).
    ///
    /// # Cancel safety
    /// As [`with_locks`](Self::with_locks).
    pub fn with_locks_sync<K, F, T, E>(
        self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<T, LockingError<I, C, E>>> + use<'a, I, C, D, K, F, T, E>
    where
        K: Ids<I>,
        F: FnOnce() -> Result<T, E>,
    {
        self.with_held_locks_sync(ids, move |_| callback())
    }

    /// As [`with_locks_sync`](Self::with_locks_sync); the callback gets a handle to what is held.
    ///
    /// # Errors
    /// As [`with_locks`](Self::with_locks).
    pub fn with_held_locks_sync<K, F, T, E>(
        self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<T, LockingError<I, C, E>>> + use<'a, I, C, D, K, F, T, E>
    where
        K: Ids<I>,
        F: FnOnce(&Held<I, C>) -> Result<T, E>,
    {
        let claims = self.claims(ids);
        async move {
            let hold = take(ServiceRef::Borrowed(self.service.inner()), self.effective(), claims).await;
            let mut hold = hold.map_err(LockError::widen)?;
            let end = run::call_sync(&hold, |core| callback(&Held(core.clone())));
            run::finish(&mut hold, end).await.map_err(LockError::widen)?.into_result()
        }
    }

    /// As [`with_held_locks_sync`](Self::with_held_locks_sync) on a thread of its own, so that long blocking work does
    /// not keep other tasks from running.
    ///
    /// # Errors
    /// As [`with_locks`](Self::with_locks).
    ///
    /// # Cancel safety
    /// The callback cannot be stopped: if the future is dropped while it runs, it keeps the locks until it ends. If it
    /// is dropped before that, the callback does not run.
    ///
    /// # Panics
    /// Where no tokio runtime runs, before anything is locked; if the runtime shuts down before the callback begins; and
    /// if the callback does, after the release.
    pub fn with_locks_blocking<K, F, T, E>(
        self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<T, LockingError<I, C, E>>> + use<'a, I, C, D, K, F, T, E>
    where
        K: Ids<I>,
        F: FnOnce(&Held<I, C>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let claims = self.claims(ids);
        async move {
            let runtime = Handle::current();
            let hold = take(ServiceRef::Owned(self.service.inner().clone()), self.effective(), claims).await;
            let hold = hold.map_err(LockError::widen)?;
            // Until it begins it can be taken back: by the drop of `ours`.
            let ours = Shared(Arc::new(Mutex::new(Some((hold, callback)))));
            let (theirs, enclosing) = (ours.0.clone(), Enclosing::here());
            let on_its_thread = runtime.spawn_blocking(move || {
                let (hold, callback) = take_from(&theirs)?;
                let code = || run::call_sync(&hold, |core| callback(&Held(core.clone())));
                let end = enclosing.around(code);
                Some((hold, end))
            });
            let ended = on_its_thread.await.expect("the runtime did not shut down before the callback began");
            let (mut hold, end) = ended.expect("taken back only if nobody waits for it");
            run::finish(&mut hold, end).await.map_err(LockError::widen)?.into_result()
        }
    }

    /// Locks the set and gives it as a guard, for flows that no callback fits.
    ///
    /// # Errors
    /// As [`with_locks`](Self::with_locks), without the callback's own.
    ///
    /// # Cancel safety
    /// As [`with_locks`](Self::with_locks).
    pub fn lock<K>(
        self,
        ids: K,
    ) -> impl Future<Output = Result<LockGuard<I, C, D>, LockError<I, C>>> + use<'a, I, C, D, K>
    where
        K: Ids<I>,
    {
        let claims = self.claims(ids);
        async move {
            let service = ServiceRef::Owned(self.service.inner().clone());
            Ok(LockGuard::new(take(service, self.effective(), claims).await?))
        }
    }

    /// Locks the set, for a caller that runs something under it on its own thread and then [finishes](run::finish) it.
    pub(crate) async fn hold(&self, ids: impl Ids<I>) -> Result<Hold<'a, I, C, D>, LockError<I, C>> {
        take(ServiceRef::Borrowed(self.service.inner()), self.effective(), self.claims(ids)).await
    }

    /// The one way in which a future runs under locks. All of it is one `async` block: each further one around or
    /// inside it would have a place of its own for what the callback captured.
    fn start<K, F, Fut, R>(
        self,
        ids: K,
        callback: F,
        conclude: impl FnOnce(Result<Ended<Fut::Output, I>, LockError<I, C>>) -> R,
    ) -> impl Future<Output = R>
    where
        K: Ids<I>,
        F: FnOnce(&Arc<HoldCore<I, C>>) -> Fut,
        Fut: Future,
    {
        let claims = self.claims(ids);
        async move {
            let (service, settings) = (self.service.inner(), self.effective());
            #[expect(
                clippy::blocks_in_conditions,
                reason = "what taking the set needs is gone, and has no place in the future, once it is held"
            )]
            let mut hold = match {
                let mut attempt = match Attempt::new(ServiceRef::Borrowed(service), claims, settings) {
                    Ok(attempt) => attempt,
                    Err(error) => return conclude(Err(error)),
                };
                acquire(&mut attempt, &settings.wait.0).await
            } {
                Ok(hold) => hold,
                Err(error) => return conclude(Err(error)),
            };
            let end = {
                let mut bounds = Bounds::new(settings.tell_when_lost, settings.max_hold);
                let mut make = Some(callback);
                // Dropped at the end of this block: nothing of the callback outlives the locks.
                let mut future = pin!(None);
                poll_fn(|cx| run::poll(&hold, &mut bounds, &mut make, future.as_mut(), cx)).await
            };
            conclude(run::finish(&mut hold, end).await)
        }
    }
}

/// Something that one of two sides takes; dropped with this side if that did not happen.
struct Shared<T>(Arc<Mutex<Option<T>>>);

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        drop(take_from(&self.0));
    }
}

fn take_from<T>(shared: &Mutex<Option<T>>) -> Option<T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Takes the set, for what is not a future that runs under locks.
async fn take<'s, I: Ident, C: ContextId, D: LockDao<I, C>>(
    service: ServiceRef<'s, I, C, D>,
    settings: &Settings<C>,
    claims: Result<ClaimSet<I>, BadRequest>,
) -> Result<Hold<'s, I, C, D>, LockError<I, C>> {
    let mut attempt = Attempt::new(service, claims, settings)?;
    acquire(&mut attempt, &settings.wait.0).await
}

fn into_result<I, C, R: CallbackResult>(
    ended: Result<Ended<R, I>, LockError<I, C>>,
) -> Result<R::Ok, LockingError<I, C, R::Error>> {
    let Ended { value, lost } = ended.map_err(LockError::widen)?;
    Ended { value: value.map(R::into_result), lost }.into_result()
}
