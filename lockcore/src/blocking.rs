//! The service for programs without an async runtime.
//!
//! Callbacks run on the caller's thread, and so do steps; timers and renewals run on the library's own. It works inside a runtime
//! too, of either kind, where it blocks the thread: there each step, with the hooks that it calls, runs on a thread that is made for it,
//! because what it wakes might otherwise wait for the thread that is blocked. A backend whose connections belong to a runtime is opened with
//! [`LockingService::open`].

use std::{
    fmt,
    future::Future,
    panic::resume_unwind,
    thread::{self, Builder},
    time::Duration,
};

use tokio::runtime::Handle;
use uuid::Uuid;

use crate::{
    AnyLockDao, ContextId, FreshContext, Held, Ident, Ids, LockDao, LockError, LockingError, Once, Owner,
    Ran, Wait, background,
    service::{self, Call as AsyncCall, nesting::Enclosing, once, run},
};

/// [`LockingService`](crate::LockingService) for programs without an async runtime.
///
/// Every call can be given options first: `locks.wait(..).lease(..).with_locks(..)`.
pub struct LockingService<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    service: crate::LockingService<I, C, D>,
}

impl<I: Ident, C: FreshContext, D: LockDao<I, C>> LockingService<I, C, D> {
    /// Creates a service with the defaults: it never waits, and takes the backend's default lease.
    pub fn new(dao: D) -> Self {
        crate::LockingService::new(dao).into()
    }

    /// Creates a service over the backend that `open` opens, on the library's own runtime.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open<E: Send>(open: impl Future<Output = Result<D, E>> + Send) -> Result<Self, E> {
        wait_for(open).map(Self::new)
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockingService<I, C, D> {
    /// Creates the service that `build` opens and builds, on the library's own runtime: for a [`Builder`](crate::Builder)
    /// with its defaults, or a service made from configuration.
    ///
    /// ```
    /// use lockcore::{LockingService, blocking};
    /// use lockcore_memory::MemoryLockDao;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = blocking::LockingService::build(async {
    ///     LockingService::builder(MemoryLockDao::<String>::new()).owner("nightly").build()
    /// })?;
    /// locks.with_locks(["report.csv"], || std::fs::write("/dev/null", "total,42\n"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `build`.
    pub fn build<E: Send>(
        build: impl Future<Output = Result<crate::LockingService<I, C, D>, E>> + Send,
    ) -> Result<Self, E> {
        wait_for(build).map(Self::from)
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> From<crate::LockingService<I, C, D>>
    for LockingService<I, C, D>
{
    fn from(service: crate::LockingService<I, C, D>) -> Self {
        LockingService { service }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Clone for LockingService<I, C, D> {
    fn clone(&self) -> Self {
        self.service.clone().into()
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> fmt::Debug for LockingService<I, C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.service.fmt(f)
    }
}

/// One call with options of its own, as [`Call`](crate::Call).
#[must_use = "a call does nothing until it is given ids"]
pub struct Call<'a, I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>>(
    AsyncCall<'a, I, C, D>,
);

/// A held set, as [`LockGuard`](crate::LockGuard). Release it with [`release`](Self::release); dropping it releases in
/// the background, on the library's own thread. What it has not - leaving a set locked, elections, administration - is behind
/// [`LockingService::as_async`].
#[must_use = "dropping the guard releases the locks"]
pub struct LockGuard<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>>(
    Option<service::LockGuard<I, C, D>>,
);

impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockGuard<I, C, D> {
    /// Releases the set, as [`LockGuard::release`](crate::LockGuard::release).
    ///
    /// # Errors
    /// [`LockingError::Lost`] if locks were lost while they were held.
    pub fn release(mut self) -> Result<(), LockError<I, C>> {
        let guard = self.0.take().expect("taken only here and by the drop");
        wait_for(guard.release())
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> fmt::Debug for LockGuard<I, C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&**self).finish()
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Drop for LockGuard<I, C, D> {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            // Not in the runtime of the caller: the next blocking call may block its only thread.
            outside(|| {
                let _own = background::enter();
                drop(guard);
            });
        }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> std::ops::Deref for LockGuard<I, C, D> {
    type Target = Held<I, C>;

    fn deref(&self) -> &Held<I, C> {
        self.0.as_ref().expect("taken only at its end")
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Call<'_, I, C, D> {
    /// Locks the set, runs the callback on this thread, releases the set, and returns the callback's value; as
    /// [`Call::with_locks_sync`](crate::Call::with_locks_sync). The callback may borrow and need not be `Send`.
    ///
    /// # Errors
    /// As [`Call::with_locks`](crate::Call::with_locks).
    ///
    /// # Panics
    /// If the callback does, after the release.
    pub fn with_locks<K: Ids<I>, T, E>(
        self,
        ids: K,
        callback: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, LockingError<I, C, E>> {
        self.with_held_locks(ids, |_| callback())
    }

    /// Does the same as [`with_locks`](Self::with_locks); the callback gets a handle to what is held.
    ///
    /// # Errors
    /// As [`with_locks`](Self::with_locks).
    pub fn with_held_locks<K: Ids<I>, T, E>(
        self,
        ids: K,
        callback: impl FnOnce(&Held<I, C>) -> Result<T, E>,
    ) -> Result<T, LockingError<I, C, E>> {
        let mut hold = wait_for(self.0.hold(ids)).map_err(LockError::widen)?;
        // Outside of the library's runtime: what the callback spawned there would delay every renewal of the process.
        let end = run::call_sync(&hold, |core| callback(&Held(core.clone())));
        // The hold is dropped there too: the runtime of the caller may have no other thread than this.
        let lost = wait_for(async move { hold.release().await });
        run::conclude(end, lost).map_err(LockError::widen)?.into_result()
    }

    /// Locks the set and gives it as a guard.
    ///
    /// # Errors
    /// As [`with_locks`](Self::with_locks), without the callback's own.
    pub fn lock<K: Ids<I>>(self, ids: K) -> Result<LockGuard<I, C, D>, LockError<I, C>> {
        wait_for(self.0.lock(ids)).map(|guard| LockGuard(Some(guard)))
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockingService<I, C, D> {
    /// [`Call::with_locks`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::with_locks`].
    pub fn with_locks<K: Ids<I>, T, E>(
        &self,
        ids: K,
        callback: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, LockingError<I, C, E>> {
        self.call().with_locks(ids, callback)
    }

    /// [`Call::with_held_locks`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::with_locks`].
    pub fn with_held_locks<K: Ids<I>, T, E>(
        &self,
        ids: K,
        callback: impl FnOnce(&Held<I, C>) -> Result<T, E>,
    ) -> Result<T, LockingError<I, C, E>> {
        self.call().with_held_locks(ids, callback)
    }

    /// [`Call::lock`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::lock`].
    pub fn lock<K: Ids<I>>(&self, ids: K) -> Result<LockGuard<I, C, D>, LockError<I, C>> {
        self.call().lock(ids)
    }

    /// Creates a call with the service's defaults.
    pub fn call(&self) -> Call<'_, I, C, D> {
        Call(self.service.call())
    }

    /// Refuses new calls and waits until every lock is released, at most for `grace`; gives the number of holds still
    /// open then, as [`LockingService::shutdown`](crate::LockingService::shutdown).
    pub fn shutdown(&self, grace: Duration) -> usize {
        wait_for(self.service.shutdown(grace))
    }

    /// Returns the service underneath.
    pub fn as_async(&self) -> &crate::LockingService<I, C, D> {
        &self.service
    }
}

/// A job that is to run once among many hosts, as [`OnceCall`](crate::OnceCall).
#[must_use = "it does nothing until it is given a job"]
pub struct OnceCall<'a, C: ContextId = Uuid, D: LockDao<String, C> = AnyLockDao<String, C>>(
    service::OnceCall<'a, C, D>,
);

impl<'a, C: ContextId, D: LockDao<String, C>> Call<'a, String, C, D> {
    /// As [`Call::once`](crate::Call::once).
    pub fn once(self, name: impl Into<String>, fire: impl Into<String>) -> OnceCall<'a, C, D> {
        OnceCall(self.0.once(name, fire))
    }

    /// As [`Call::once_per`](crate::Call::once_per).
    pub fn once_per(self, name: impl Into<String>, period: Duration) -> OnceCall<'a, C, D> {
        OnceCall(self.0.once_per(name, period))
    }
}

impl<C: ContextId, D: LockDao<String, C>> LockingService<String, C, D> {
    /// [`Call::once`] with the service's defaults.
    pub fn once(&self, name: impl Into<String>, fire: impl Into<String>) -> OnceCall<'_, C, D> {
        self.call().once(name, fire)
    }

    /// [`Call::once_per`] with the service's defaults.
    pub fn once_per(&self, name: impl Into<String>, period: Duration) -> OnceCall<'_, C, D> {
        self.call().once_per(name, period)
    }
}

impl<C: ContextId, D: LockDao<String, C>> OnceCall<'_, C, D> {
    /// As [`OnceCall::keep`](crate::OnceCall::keep).
    pub fn keep(self, keep: Duration) -> Self {
        OnceCall(self.0.keep(keep))
    }

    /// Runs the job on this thread, unless it runs or ran elsewhere; as [`OnceCall::run`](crate::OnceCall::run).
    ///
    /// # Errors
    /// As [`Call::with_locks`]; but that the job runs or ran elsewhere is no error.
    ///
    /// # Panics
    /// If the job does, after the release.
    pub fn run<T, E>(
        self,
        job: impl FnOnce() -> Result<T, E>,
    ) -> Result<Once<Ran<T>, C>, LockingError<String, C, E>> {
        let mut hold = match wait_for(self.0.hold()).map_err(LockError::widen)? {
            Once::Here(hold) => hold,
            Once::Running(by) => return Ok(Once::Running(by)),
            Once::RanBefore(by) => return Ok(Once::RanBefore(by)),
        };
        let end = run::call_sync(&hold, |_| job());
        let succeeded = end.is_success();
        let settled = wait_for(async move { self.0.settle(&mut hold, succeeded).await });
        once::conclude(end, settled).map(Once::Here)
    }
}

macro_rules! options {
    ($($option:ident($($arg:ident: $arg_type:ty),*);)*) => {
        impl<I: Ident, C: ContextId, D: LockDao<I, C>> Call<'_, I, C, D> {
            $(
                #[doc = concat!("As [`Call::", stringify!($option), "`](crate::Call::", stringify!($option), ").")]
                pub fn $option(self $(, $arg: $arg_type)*) -> Self {
                    Call(self.0.$option($($arg),*))
                }
            )*
        }

        impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockingService<I, C, D> {
            $(
                #[doc = concat!("A call with [`Call::", stringify!($option), "`](crate::Call::", stringify!($option), ").")]
                pub fn $option(&self $(, $arg: $arg_type)*) -> Call<'_, I, C, D> {
                    self.call().$option($($arg),*)
                }
            )*
        }
    };
}

options! {
    wait(wait: Wait);
    lease(lease: Duration);
    permanent();
    slots(limit: u32);
    shared();
    owner(owner: impl Into<Owner>);
    max_hold(max_hold: Duration);
    keep_for(keep_for: Duration);
    nested();
    detached();
    context(context: C);
}

/// Polls a future to its end. The library's own runtime drives its timers and connections: another one may have no other
/// thread than this, which is blocked.
fn wait_for<F: Future<Output: Send> + Send>(future: F) -> F::Output {
    outside(|| {
        let _own = background::handle().enter();
        pollster::block_on(future)
    })
}

/// Runs code outside of any runtime: on a thread of its own if this one is inside one.
///
/// To enter another runtime is not enough: what a task of a runtime wakes while it runs - itself, after it yielded; another task
/// that it hands a lock to - that runtime keeps for when the task is done, on the same thread, which is blocked here.
fn outside<T: Send>(code: impl FnOnce() -> T + Send) -> T {
    if Handle::try_current().is_err() {
        return code();
    }
    let (mut code, enclosing) = (Some(code), Enclosing::here());
    let taken = &mut code;
    let done = thread::scope(|scope| {
        let run = move || enclosing.around(|| taken.take().map(|code| code()));
        let thread = Builder::new().name("lockcore-blocking".to_owned()).spawn_scoped(scope, run);
        thread.ok().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    // Without another thread it mostly works on this one.
    done.flatten().unwrap_or_else(|| code.take().expect("no thread took it")())
}
