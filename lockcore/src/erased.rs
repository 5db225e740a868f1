//! Any backend behind one type: the object-safe mirror of [`LockDao`] and the forwarding implementations.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use uuid::Uuid;

use crate::{
    AcquireRequest, Acquired, BackendError, BreakMode, Broken, Capabilities, ContextId, Finding, Grant,
    Ident, Inspection, Listing, LockDao, Page, Released, Renewed, Swept, Target, Withdraw, Withdrawn,
};

/// Writes an implementation of [`LockDao`](crate::LockDao) whose every method forwards to another one.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_lock_dao {
    ({ $($head:tt)* } $self:ident => $to:expr) => { $($head)* {
        fn capabilities(&$self) -> $crate::Capabilities {
            ($to).capabilities()
        }

        async fn acquire(
            &$self,
            request: &$crate::backend::AcquireRequest<I, C>,
        ) -> Result<$crate::backend::Acquired<I, C>, $crate::BackendError> {
            ($to).acquire(request).await
        }

        async fn withdraw(
            &$self,
            request: &$crate::backend::AcquireRequest<I, C>,
            how: $crate::backend::Withdraw,
        ) -> Result<$crate::backend::Withdrawn, $crate::BackendError> {
            ($to).withdraw(request, how).await
        }

        async fn release(&$self, grant: &$crate::Grant<I, C>) -> Result<$crate::Released<I>, $crate::BackendError> {
            ($to).release(grant).await
        }

        async fn renew(&$self, grant: &$crate::Grant<I, C>) -> Result<$crate::Renewed<I>, $crate::BackendError> {
            ($to).renew(grant).await
        }

        async fn shorten(&$self, grant: &$crate::Grant<I, C>) -> Result<$crate::Renewed<I>, $crate::BackendError> {
            ($to).shorten(grant).await
        }

        async fn release_context(&$self, context: &C) -> Result<Vec<$crate::Target<I>>, $crate::BackendError> {
            ($to).release_context(context).await
        }

        async fn list(&$self, page: &$crate::Page) -> Result<$crate::Listing<I, C>, $crate::BackendError> {
            ($to).list(page).await
        }

        async fn inspect(&$self, target: &$crate::Target<I>) -> Result<$crate::Inspection<I, C>, $crate::BackendError> {
            ($to).inspect(target).await
        }

        async fn break_lock(
            &$self,
            target: &$crate::Target<I>,
            fence: u64,
            how: $crate::BreakMode,
            by: &str,
        ) -> Result<$crate::Broken, $crate::BackendError> {
            ($to).break_lock(target, fence, how, by).await
        }

        async fn freeze(&$self, target: &$crate::Target<I>, frozen: bool) -> Result<(), $crate::BackendError> {
            ($to).freeze(target, frozen).await
        }

        async fn sweep(
            &$self,
            batch: usize,
            unless_within: Option<std::time::Duration>,
        ) -> Result<$crate::Swept, $crate::BackendError> {
            ($to).sweep(batch, unless_within).await
        }

        async fn migrate(&$self) -> Result<(), $crate::BackendError> {
            ($to).migrate().await
        }

        async fn doctor(&$self) -> Result<Vec<$crate::Finding>, $crate::BackendError> {
            ($to).doctor().await
        }

        async fn verify(&$self, time: std::time::Duration) -> Result<Vec<$crate::Finding>, $crate::BackendError> {
            ($to).verify(time).await
        }
    }};
}

/// The object-safe mirror of [`LockDao`], implemented for each of them and nothing else.
#[async_trait]
trait DynLockDao<I: Ident, C: ContextId>: fmt::Debug + Send + Sync + 'static {
    fn capabilities(&self) -> Capabilities;
    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError>;
    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError>;
    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError>;
    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError>;
    async fn shorten(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError>;
    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError>;
    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError>;
    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError>;
    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError>;
    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError>;
    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError>;
    async fn migrate(&self) -> Result<(), BackendError>;
    async fn doctor(&self) -> Result<Vec<Finding>, BackendError>;
    async fn verify(&self, time: Duration) -> Result<Vec<Finding>, BackendError>;
}

/// A [`DynLockDao`] that forwards to a [`LockDao`]: a type of its own, so that no call is ambiguous.
#[derive(Debug)]
struct Erased<D>(D);

forward_lock_dao! {
    { #[async_trait] impl<I: Ident, C: ContextId, D: LockDao<I, C>> DynLockDao<I, C> for Erased<D> }
    self => self.0
}

/// A backend of any kind, chosen at run time. Cheap to clone; clones share the backend.
///
/// Costs one allocation per step over the backend itself.
pub struct AnyLockDao<I = String, C = Uuid>(Arc<dyn DynLockDao<I, C>>);

impl<I: Ident, C: ContextId> AnyLockDao<I, C> {
    /// Hides the type of a backend.
    pub fn new(dao: impl LockDao<I, C>) -> Self {
        AnyLockDao(Arc::new(Erased(dao)))
    }
}

impl<I, C> Clone for AnyLockDao<I, C> {
    fn clone(&self) -> Self {
        AnyLockDao(self.0.clone())
    }
}

impl<I: Ident, C: ContextId> fmt::Debug for AnyLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

forward_lock_dao! {
    { #[deny(clippy::missing_trait_methods)] impl<I: Ident, C: ContextId> LockDao<I, C> for AnyLockDao<I, C> }
    self => self.0
}

forward_lock_dao! {
    { #[deny(clippy::missing_trait_methods)] impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockDao<I, C> for Arc<D> }
    self => **self
}
