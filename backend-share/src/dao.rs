//! The DAO: the engine's, over the files of a folder.

use std::fmt;

use lockcore::{
    BackendError, Capabilities, ContextId, Ident, LockDao, backend::unique_name, forward_lock_dao,
};
use lockcore_cell::{CellLockDao, CellSettings};
use uuid::Uuid;

use crate::{
    cells::{Files, on_a_thread},
    config::{Settings, ShareBuilder},
    error::failed,
    folder::Folder,
};

/// Locks in a folder of a file share; see the [crate](crate).
pub struct ShareLockDao<I = String, C = Uuid>(CellLockDao<Files, I, C>);

/// The abilities of a [`ShareLockDao`].
///
/// The leases of [`CellSettings`] suit a share: the server's time is known to a second or so, and caches of clients are seconds old.
pub const CAPABILITIES: Capabilities = CellSettings::capabilities("share");

impl<I: Ident, C: ContextId> ShareLockDao<I, C> {
    /// Begins with default settings, to be changed before opening.
    pub fn builder() -> ShareBuilder<I, C> {
        ShareBuilder::new()
    }
}

impl<I: Ident, C: ContextId> ShareBuilder<I, C> {
    /// Opens the folder, and tries there that of two writers one wins. What it needs below the folder is made.
    ///
    /// # Errors
    /// [`BadSetting`](lockcore::BackendErrorKind::BadSetting) names the setting and its value;
    /// [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) says why the folder cannot be used: it is not there, or its file system
    /// has no hard links; [`Denied`](lockcore::BackendErrorKind::Denied) that it may not be written; else the reason why there was no answer.
    pub async fn open(self) -> Result<ShareLockDao<I, C>, BackendError> {
        let (place, timeout) = (self.settings.place(), self.settings.timeout);
        let capabilities = self.settings.capabilities();
        let files = opened(self.settings).await.map_err(|error| error.at(&place))?;
        // Another for each: who mounts the folder by another way, or read-only, is to know it when it is opened.
        let way = unique_name();
        let settings = CellSettings { place, way, timeout, capabilities };
        Ok(ShareLockDao(CellLockDao::open(files, settings).await?))
    }

    /// For tests: opens the adapter alone.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn cells(self) -> Result<Files, BackendError> {
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

/// Opens the folder; returns its cells.
async fn opened(settings: Settings) -> Result<Files, BackendError> {
    settings.check()?;
    let limit = settings.request_timeout;
    let (folder, namespace) = (settings.folder.clone(), settings.namespace_folder());
    let open = move || {
        let folder = std::path::absolute(&folder).map_err(|error| failed("opening", &folder, error))?;
        Folder::open(&folder, &namespace)
    };
    let files = Files::new(on_a_thread(limit, open).await?, limit);
    #[cfg(feature = "testing")]
    let files = files.ahead_by(settings.ahead);
    Ok(files)
}

impl<I, C> fmt::Debug for ShareLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShareLockDao").field(&self.0).finish()
    }
}

forward_lock_dao! {
    { impl<I: Ident, C: ContextId> LockDao<I, C> for ShareLockDao<I, C> }
    self => self.0
}
