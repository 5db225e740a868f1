//! The DAO: the engine's, over the objects of a bucket.

use std::fmt;

use lockcore::{
    BackendError, Capabilities, ContextId, Ident, LockDao, backend::shared_runtime, forward_lock_dao,
};
use lockcore_cell::{CellLockDao, CellSettings};
use uuid::Uuid;

use crate::{bucket::Bucket, config::ObjectBuilder};

/// Locks in a bucket; see the [crate](crate).
pub struct ObjectLockDao<I = String, C = Uuid>(CellLockDao<Bucket, I, C>);

/// The abilities of an [`ObjectLockDao`] on S3.
pub const CAPABILITIES: Capabilities = CellSettings::capabilities("s3");

impl<I: Ident, C: ContextId> ObjectLockDao<I, C> {
    /// Begins with default settings, to be changed before opening.
    pub fn builder() -> ObjectBuilder<I, C> {
        ObjectBuilder::new()
    }

    /// Returns how many objects were read and written so far.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn requests(&self) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        let counts = &self.0.cell().counts;
        (counts.reads.load(Relaxed), counts.writes.load(Relaxed))
    }
}

impl<I: Ident, C: ContextId> ObjectBuilder<I, C> {
    /// Opens the store: asks for the service's time, and refuses a store that ignores the conditions of writes. Nothing has to
    /// be created but the bucket.
    ///
    /// # Errors
    /// [`BadSetting`](lockcore::BackendErrorKind::BadSetting) names the setting and its value;
    /// [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) says why the store cannot be used; else the reason why it
    /// gave no answer.
    pub async fn open(self) -> Result<ObjectLockDao<I, C>, BackendError> {
        let settings = &self.settings;
        let place = settings.place();
        let capabilities = Capabilities {
            backend: settings.scheme(),
            min_lease: settings.min_lease(),
            default_lease: Some(settings.default_lease()),
            ..CAPABILITIES
        };
        let timeout = settings.timeout;
        let bucket = self.bucket().await?;
        let way = format!("{:016x} {place}", bucket.address);
        let opened = CellLockDao::open(bucket, CellSettings { place, way, timeout, capabilities }).await?;
        Ok(ObjectLockDao(opened))
    }

    /// For tests: opens the adapter alone.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn cell(self) -> Result<Bucket, BackendError> {
        self.bucket().await
    }

    /// Makes the client.
    async fn bucket(self) -> Result<Bucket, BackendError> {
        let settings = self.settings;
        let place = settings.place();
        let report = |error: BackendError| error.at(&place);
        settings.check().map_err(report)?;
        // On the library's runtime, as all requests are: a caller needs none.
        let made = shared_runtime().spawn(async move { settings.bucket().await }).await;
        let ended = |_| {
            BackendError::new(lockcore::BackendErrorKind::Unavailable, "the runtime of the library ended")
        };
        made.map_err(ended).flatten().map_err(report)
    }
}

impl<I, C> fmt::Debug for ObjectLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectLockDao").field(&self.0).finish()
    }
}

forward_lock_dao! {
    { impl<I: Ident, C: ContextId> LockDao<I, C> for ObjectLockDao<I, C> }
    self => self.0
}
