//! The ways to run something under a set of locks.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::runtime::Handle;

use super::{
    Call, LockGuard,
    acquire::acquire,
    attempt::Attempt,
    call::take,
    callback::{CallbackResult, ErrOf, OkOf},
    held::Held,
    hold::ServiceRef,
    hold_core::HoldCore,
    nesting::Enclosing,
    run::{self, CallbackLimits, Ended},
};
use crate::{ContextId, Ident, Ids, LockDao, LockError, LockingError};

impl<'a, I: Ident, C: ContextId, D: LockDao<I, C>> Call<'a, I, C, D> {
    /// Locks the set, runs the callback, releases the set, and returns the callback's value.
    ///
    /// ```
    /// use lockcore::{LockingError, LockingService};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let written = locks
    ///     .with_locks(["report.csv"], async || std::fs::write("/dev/null", "total,42\n"))
    ///     .await;
    /// match written {
    ///     Ok(()) => println!("written"),
    ///     Err(LockingError::NotLocked { failures, .. }) => println!("not now: {}", failures[0]),
    ///     Err(LockingError::Callback { error }) => println!("the write failed: {error}"),
    ///     Err(LockingError::Lost { lost, .. }) => println!("another writer may have been active: {lost:?}"),
    ///     Err(other) => return Err(other.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The callback's future is polled only while the locks are certainly held. It is dropped when they are lost, unless
    /// [`tell_when_lost`](Self::tell_when_lost) is set.
    ///
    /// # Errors
    /// [`LockingError`], with one variant for each reaction a caller may want. The callback ran only if it is `Callback`,
    /// `Lost` or `HeldTooLong`.
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

    /// Does the same as [`with_locks`](Self::with_locks), and passes the callback a handle to what is held: fences, permits,
    /// losses.
    ///
    /// ```
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let fence = locks
    ///     .with_held_locks(["account/7"], |held| async move {
    ///         let fence = held.exclusive_fence("account/7").expect("held exclusively").number();
    ///         // UPDATE account SET balance = ?, fence = ? WHERE id = 7 AND fence <= ?
    ///         Ok::<_, std::io::Error>(fence)
    ///     })
    ///     .await?;
    /// assert!(fence > 0);
    /// # Ok(())
    /// # }
    /// ```
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

    /// Does the same as [`with_held_locks`](Self::with_held_locks), but returns a loss beside the callback's value instead
    /// of in its place: the outcome of the callback and of the locks, each by itself.
    ///
    /// ```
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let ended = locks.outcome(["import"], |_held| async { 582 }).await?;
    /// println!("{} objects", ended.value.expect("the callback was not stopped"));
    /// for lock in &ended.lost {
    ///     println!("check them: {} was lost, {}", lock.target, lock.reason);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails with any error that keeps the callback from running to its end, except the loss of locks.
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

    /// Does the same as [`with_locks`](Self::with_locks) for a callback that cannot fail, or whose `Result` is only a value: any value
    /// is a success.
    ///
    /// ```
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let sum = locks.run_locked(["counter"], async || 40 + 2).await?;
    /// assert_eq!(sum, 42);
    /// # Ok(())
    /// # }
    /// ```
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

    /// Does the same as [`with_locks`](Self::with_locks) for application errors, such as `anyhow::Error`, a boxed error, or
    /// your own enum: a [`LockError`] is converted into the callback's error type. It waits as any other call does; `try` is about
    /// the error, as in `Iterator::try_for_each`. Behind the calls that pass a [`Held`], [`LockingError::flatten`] does the same.
    ///
    /// ```
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// async fn upload() -> anyhow::Result<u64> {
    ///     Ok(42)
    /// }
    ///
    /// let size: anyhow::Result<u64> = locks.try_with_locks(["s3://archive/b1"], upload).await;
    /// assert_eq!(size?, 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The callback's own error, or a [`LockError`] converted into it.
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
            |ended| ended.map_err(E::from)?.into_result().map_err(LockingError::flatten),
        )
    }

    /// Locks the set, runs plain code on the caller's thread, releases the set, and returns the code's value.
    ///
    /// ```
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let mut lines = Vec::new();
    /// locks
    ///     .with_locks_sync(["report.csv"], || {
    ///         lines.push("total,42");
    ///         Ok::<_, std::io::Error>(())
    ///     })
    ///     .await?;
    /// assert_eq!(lines.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The code may borrow. It blocks the thread that polls the future; the locks are renewed meanwhile. It cannot be
    /// stopped: with [`with_held_locks_sync`](Self::with_held_locks_sync) it can check whether it still holds them.
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

    /// Does the same as [`with_locks_sync`](Self::with_locks_sync), and passes the code a handle to what is held.
    ///
    /// ```
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let done = locks
    ///     .with_held_locks_sync(["index"], |held| {
    ///         (0..100).try_for_each(|_part| held.check())
    ///     })
    ///     .await;
    /// assert!(done.is_ok());
    /// # Ok(())
    /// # }
    /// ```
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

    /// Does the same as [`with_held_locks_sync`](Self::with_held_locks_sync) on another thread
    /// ([`spawn_blocking`](tokio::task::spawn_blocking)), so that long blocking work does not keep other tasks from running.
    ///
    /// ```
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let bytes = locks
    ///     .with_locks_blocking(["archive.tar"], |_held| std::fs::read("/dev/null"))
    ///     .await?;
    /// assert!(bytes.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The callback runs on a thread that the runtime keeps for blocking code, without the caller's thread-locals.
    ///
    /// # Errors
    /// As [`with_locks`](Self::with_locks).
    ///
    /// # Cancel safety
    /// The callback cannot be stopped: if the future is dropped while it runs, it keeps the locks until it ends. If the
    /// future is dropped earlier, the callback does not run.
    ///
    /// # Panics
    /// Panics if no tokio runtime runs, before anything is locked; if the runtime shuts down before the callback
    /// begins; and if the callback does, after the release.
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
            let (mut hold, end) = ended.expect("taken back only by dropping this future");
            run::finish(&mut hold, end).await.map_err(LockError::widen)?.into_result()
        }
    }

    /// Locks the set and returns it as a guard, for control flow that does not fit into a callback.
    ///
    /// ```
    /// use lockcore::LockingService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let guard = locks.lock(["a", "b"]).await?;
    /// // Anything, also across functions; `guard.held()` shows fences and losses.
    /// guard.release().await?; // Ok only if nothing was lost until then
    /// # Ok(())
    /// # }
    /// ```
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

    /// Runs a future under locks; all async calls do it here. It is a single `async` block: a nested one would store what
    /// the callback captured a second time.
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
                let mut bounds = CallbackLimits::new(settings.tell_when_lost, settings.max_hold);
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

fn into_result<I, C, R: CallbackResult>(
    ended: Result<Ended<R, I>, LockError<I, C>>,
) -> Result<R::Ok, LockingError<I, C, R::Error>> {
    let Ended { value, lost } = ended.map_err(LockError::widen)?;
    Ended { value: value.map(R::into_result), lost }.into_result()
}
