//! The DAO: turns requests into calls of the scripts, and their replies back.

use std::{fmt, marker::PhantomData};

use lockcore::{
    AcquireRequest, Acquired, BackendError, Capabilities, ContextId, Grant, Ident, LockDao, Released, Renewed,
    Withdraw, Withdrawn,
};
use uuid::Uuid;

use crate::{
    config::{RedisBuilder, Settings},
    target::Target,
};

/// Locks in a Redis database; see the [crate](crate) for how.
pub struct RedisLockDao<I = String, C = Uuid> {
    types: PhantomData<fn() -> (I, C)>,
}

impl<I: Ident, C: ContextId> RedisLockDao<I, C> {
    /// Connects to the server that `url` names, with the usual settings.
    ///
    /// # Errors
    /// As [`RedisBuilder::open`].
    pub async fn open(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).open().await
    }

    /// Settings to choose before connecting.
    pub fn builder() -> RedisBuilder<I, C> {
        RedisBuilder::new()
    }

    pub(crate) async fn start(_settings: Settings, _target: Target) -> Result<Self, BackendError> {
        Ok(RedisLockDao { types: PhantomData })
    }
}

impl<I, C> fmt::Debug for RedisLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLockDao").finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId> LockDao<I, C> for RedisLockDao<I, C> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal("redis")
    }

    async fn acquire(&self, _request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        Err(BackendError::unsupported("acquire"))
    }

    async fn withdraw(
        &self,
        _request: &AcquireRequest<I, C>,
        _how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        Err(BackendError::unsupported("withdraw"))
    }

    async fn release(&self, _grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        Err(BackendError::unsupported("release"))
    }

    async fn renew(&self, _grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        Err(BackendError::unsupported("renew"))
    }
}
