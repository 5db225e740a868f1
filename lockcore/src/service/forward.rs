//! The calls of a service with its defaults: each makes a [`Call`] and forwards to it.

use std::time::Duration;

use super::{Call, CallbackResult, Ended, ErrOf, Held, LockGuard, LockingService, OkOf};
use crate::{ContextId, Ident, Ids, LockDao, LockError, LockingError, Owner, Wait};

impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockingService<I, C, D> {
    /// Runs [`Call::with_locks`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::with_locks`].
    pub fn with_locks<K, F, Fut>(
        &self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<OkOf<Fut>, LockingError<I, C, ErrOf<Fut>>>> + use<'_, I, C, D, K, F, Fut>
    where
        K: Ids<I>,
        F: FnOnce() -> Fut,
        Fut: Future<Output: CallbackResult>,
    {
        self.call().with_locks(ids, callback)
    }

    /// Runs [`Call::with_held_locks`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::with_locks`].
    pub fn with_held_locks<K, F, Fut>(
        &self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<OkOf<Fut>, LockingError<I, C, ErrOf<Fut>>>> + use<'_, I, C, D, K, F, Fut>
    where
        K: Ids<I>,
        F: FnOnce(Held<I, C>) -> Fut,
        Fut: Future<Output: CallbackResult>,
    {
        self.call().with_held_locks(ids, callback)
    }

    /// Runs [`Call::outcome`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::outcome`].
    pub fn outcome<K, F, Fut>(
        &self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<Ended<Fut::Output, I>, LockError<I, C>>> + use<'_, I, C, D, K, F, Fut>
    where
        K: Ids<I>,
        F: FnOnce(Held<I, C>) -> Fut,
        Fut: Future,
    {
        self.call().outcome(ids, callback)
    }

    /// Runs [`Call::run_locked`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::run_locked`].
    pub fn run_locked<K, F, Fut>(
        &self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<Fut::Output, LockError<I, C>>> + use<'_, I, C, D, K, F, Fut>
    where
        K: Ids<I>,
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        self.call().run_locked(ids, callback)
    }

    /// Runs [`Call::try_with_locks`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::try_with_locks`].
    pub fn try_with_locks<K, F, Fut, T, E>(
        &self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<T, E>> + use<'_, I, C, D, K, F, Fut, T, E>
    where
        K: Ids<I>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<LockError<I, C>>,
    {
        self.call().try_with_locks(ids, callback)
    }

    /// Runs [`Call::with_locks_sync`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::with_locks_sync`].
    pub fn with_locks_sync<K, F, T, E>(
        &self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<T, LockingError<I, C, E>>> + use<'_, I, C, D, K, F, T, E>
    where
        K: Ids<I>,
        F: FnOnce() -> Result<T, E>,
    {
        self.call().with_locks_sync(ids, callback)
    }

    /// Runs [`Call::with_held_locks_sync`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::with_locks_sync`].
    pub fn with_held_locks_sync<K, F, T, E>(
        &self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<T, LockingError<I, C, E>>> + use<'_, I, C, D, K, F, T, E>
    where
        K: Ids<I>,
        F: FnOnce(&Held<I, C>) -> Result<T, E>,
    {
        self.call().with_held_locks_sync(ids, callback)
    }

    /// Runs [`Call::with_locks_blocking`] with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::with_locks_blocking`].
    pub fn with_locks_blocking<K, F, T, E>(
        &self,
        ids: K,
        callback: F,
    ) -> impl Future<Output = Result<T, LockingError<I, C, E>>> + use<'_, I, C, D, K, F, T, E>
    where
        K: Ids<I>,
        F: FnOnce(&Held<I, C>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        self.call().with_locks_blocking(ids, callback)
    }

    /// Locks a set as [`Call::lock`] does, with the service's defaults.
    ///
    /// # Errors
    /// As [`Call::lock`].
    pub fn lock<K>(
        &self,
        ids: K,
    ) -> impl Future<Output = Result<LockGuard<I, C, D>, LockError<I, C>>> + use<'_, I, C, D, K>
    where
        K: Ids<I>,
    {
        self.call().lock(ids)
    }

    /// Creates a call with the service's defaults, to set options one by one.
    pub fn call(&self) -> Call<'_, I, C, D> {
        Call::new(self)
    }
}

/// Writes the options of [`LockingService`], each of which makes a call with the defaults and that option.
macro_rules! options {
    ($($option:ident($($arg:ident: $arg_type:ty),*);)*) => {
        impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockingService<I, C, D> {
            $(
                #[doc = concat!("Creates a call with the option [`Call::", stringify!($option), "`].")]
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
    tell_when_lost();
    nested();
    detached();
    context(context: C);
}
