//! The DAO: the engine's, over the keys of a cluster.

use std::{fmt, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, Capabilities, ContextId, Ident, LockDao, backend::shared_runtime,
    forward_lock_dao, protocol,
};
use lockcore_cell::{CellLockDao, CellSettings};
use uuid::Uuid;

use crate::{
    config::{EtcdBuilder, Settings},
    error::reported,
    keys::{Keys, MOST},
};

/// Locks in etcd; see the [crate](crate).
pub struct EtcdLockDao<I = String, C = Uuid>(CellLockDao<Keys, I, C>);

/// The abilities of an [`EtcdLockDao`].
pub const CAPABILITIES: Capabilities = Capabilities {
    // The time is known to some seconds, by whole ones and the clocks of several members.
    min_lease: Duration::from_secs(10),
    default_lease: Some(protocol::DEFAULT_LEASE),
    // Each has a key of its own, and a step is a transaction of all.
    max_ids: MOST,
    ..Capabilities::shared_store("etcd")
};

impl<I: Ident, C: ContextId> EtcdLockDao<I, C> {
    /// Begins with default settings, to be changed before opening.
    pub fn builder() -> EtcdBuilder<I, C> {
        EtcdBuilder::new()
    }
}

impl<I: Ident, C: ContextId> EtcdBuilder<I, C> {
    /// Connects, and tries there that of two writers one wins. Nothing has to be created.
    ///
    /// # Errors
    /// [`BadSetting`](BackendErrorKind::BadSetting) names the setting and its value; [`Misconfigured`](BackendErrorKind::Misconfigured)
    /// says why the cluster cannot be used: there is no gateway, a certificate is not accepted; [`Denied`](BackendErrorKind::Denied) that
    /// user, password or role do not allow it; else the reason why there was no answer.
    pub async fn open(self) -> Result<EtcdLockDao<I, C>, BackendError> {
        let (timeout, capabilities) = (self.settings.timeout, self.settings.capabilities());
        let keys = opened(self.settings).await?;
        let place = keys.place.clone();
        let settings = CellSettings { way: place.clone(), place, timeout, capabilities };
        Ok(EtcdLockDao(CellLockDao::open(keys, settings).await?))
    }

    /// For tests: opens the adapter alone.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn keys(self) -> Result<Keys, BackendError> {
        opened(self.settings).await
    }
}

impl Settings {
    fn capabilities(&self) -> Capabilities {
        #[cfg(feature = "testing")]
        if let Some(min_lease) = self.min_lease {
            return Capabilities { min_lease, ..CAPABILITIES };
        }
        CAPABILITIES
    }
}

/// Makes the client, and looks at the cluster. On the library's runtime, as all requests are: a caller needs none.
async fn opened(settings: Settings) -> Result<Keys, BackendError> {
    let keys = Keys::new(&settings).map_err(|error| reported("etcd", error))?;
    let place = keys.place.clone();
    let look = async move { keys.look().await.map(|()| keys) };
    let looked = shared_runtime().spawn(look).await;
    let ended = |_| BackendError::new(BackendErrorKind::Unavailable, "the runtime of the library ended");
    looked.map_err(ended).flatten().map_err(|error| reported(&place, error))
}

impl<I, C> fmt::Debug for EtcdLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdLockDao").field(&self.0).finish()
    }
}

forward_lock_dao! {
    { impl<I: Ident, C: ContextId> LockDao<I, C> for EtcdLockDao<I, C> }
    self => self.0
}
