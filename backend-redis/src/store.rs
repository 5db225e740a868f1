//! The connections of this process: one for each runtime, made when it is first needed and again when it is lost.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use lockcore::{BackendError, BackendErrorKind};
use tokio::runtime::{Handle, Id};

use crate::{config::Settings, scripts::Scripts, session::Session, target::Target, version};

/// A connection belongs to the runtime that made it: a runtime that is blocked or gone then keeps no other from its work,
/// the library's own - which renews - least of all.
pub(crate) struct Store {
    pub(crate) settings: Settings,
    pub(crate) target: Target,
    pub(crate) scripts: Arc<Scripts>,
    sessions: Mutex<HashMap<Id, Slot>>,
}

enum Slot {
    Open(Arc<Session>),
    /// Everybody waits for the same one, and hears the same if it fails.
    Opening(Shared<BoxFuture<'static, Result<Arc<Session>, BackendError>>>),
}

impl Store {
    pub(crate) fn new(settings: Settings, target: Target) -> Arc<Self> {
        let scripts = Arc::new(Scripts::new(&settings.namespace));
        Arc::new(Store { settings, target, scripts, sessions: Mutex::default() })
    }

    /// The connection of the current runtime, or of the library's own where there is none.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>, BackendError> {
        let here = Handle::try_current().ok();
        let runtime = here.as_ref().unwrap_or_else(|| lockcore::library_runtime());
        let opening = {
            let mut sessions = self.sessions();
            match sessions.get(&runtime.id()) {
                Some(Slot::Open(session)) if !session.is_closed() => return Ok(session.clone()),
                Some(Slot::Opening(opening)) => opening.clone(),
                _ => {
                    // Of runtimes that are gone nothing must stay.
                    sessions.retain(|_, slot| !matches!(slot, Slot::Open(session) if session.is_closed()));
                    let opening = self.open_on(runtime);
                    sessions.insert(runtime.id(), Slot::Opening(opening.clone()));
                    opening
                }
            }
        };
        opening.await
    }

    /// A task of its own, so that no caller who goes away keeps the others from their connection.
    fn open_on(
        self: &Arc<Self>,
        runtime: &Handle,
    ) -> Shared<BoxFuture<'static, Result<Arc<Session>, BackendError>>> {
        let (store, id) = (self.clone(), runtime.id());
        let task = runtime.spawn(async move {
            let opened = async {
                let session = Session::open(&store.target, &store.settings, store.scripts.clone()).await?;
                version::admit(&session, &store.scripts, store.settings.program).await?;
                Ok(session)
            };
            let opened: Result<_, BackendError> = opened.await;
            let mut sessions = store.sessions();
            match &opened {
                Ok(session) => sessions.insert(id, Slot::Open(session.clone())),
                Err(_) => sessions.remove(&id),
            };
            opened
        });
        let store = Arc::downgrade(self);
        async move {
            task.await.unwrap_or_else(|_ended| {
                // The runtime shut down meanwhile.
                if let Some(store) = store.upgrade() {
                    store.sessions().remove(&id);
                }
                Err(gone())
            })
        }
        .boxed()
        .shared()
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Id, Slot>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That a runtime shut down under a request.
fn gone() -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, "redis: the runtime of the connection shut down")
        .possibly_done()
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("target", &self.target)
            .field("namespace", &self.settings.namespace)
            .finish_non_exhaustive()
    }
}
