//! The connections of this process: one for each runtime, opened at its first request and again after a loss.

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

use crate::{config::Settings, scripts::Scripts, server::Server, session::Session, version};

/// One session for each runtime: one that is blocked or gone then delays no other, least of all the library's own, which renews.
pub(crate) struct Store {
    pub(crate) settings: Settings,
    pub(crate) server: Server,
    pub(crate) scripts: Arc<Scripts>,
    sessions: Mutex<HashMap<Id, Slot>>,
}

enum Slot {
    Open(Arc<Session>),
    /// All callers wait for the same attempt, and get the same error if it fails.
    Opening(Shared<BoxFuture<'static, Result<Arc<Session>, BackendError>>>),
}

impl Store {
    pub(crate) fn new(settings: Settings, server: Server) -> Arc<Self> {
        let scripts = Arc::new(settings.scripts());
        Arc::new(Store { settings, server, scripts, sessions: Mutex::default() })
    }

    /// Returns the session of the current runtime, or of the library's own where there is none.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>, BackendError> {
        let here = Handle::try_current().ok();
        let runtime = here.as_ref().unwrap_or_else(|| lockcore::backend::library_runtime());
        let opening = {
            let mut sessions = self.sessions();
            match sessions.get(&runtime.id()) {
                Some(Slot::Open(session)) if !session.is_closed() => return Ok(session.clone()),
                Some(Slot::Opening(opening)) => opening.clone(),
                _ => {
                    // Also removes what runtimes left that are gone.
                    sessions.retain(|_, slot| !matches!(slot, Slot::Open(session) if session.is_closed()));
                    let opening = self.open_on(runtime);
                    sessions.insert(runtime.id(), Slot::Opening(opening.clone()));
                    opening
                }
            }
        };
        opening.await
    }

    /// Opens a session in a task of its own, so that a dropped caller does not cancel the attempt of the others.
    fn open_on(
        self: &Arc<Self>,
        runtime: &Handle,
    ) -> Shared<BoxFuture<'static, Result<Arc<Session>, BackendError>>> {
        let (store, id) = (self.clone(), runtime.id());
        let task = runtime.spawn(async move {
            let opened = async {
                let session = Session::open(&store.server, &store.settings, store.scripts.clone()).await?;
                version::admit(&session, &store.scripts, store.settings.program).await?;
                Ok(session)
            };
            let opened: Result<_, BackendError> = opened.await;
            let opened = match opened {
                Err(error) => Err(store.server.explain(error).await),
                opened => opened,
            };
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

/// Reports that a runtime shut down during a request.
fn gone() -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, "redis: the runtime of the connection shut down")
        .possibly_done()
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("server", &self.server)
            .field("namespace", &self.settings.namespace)
            .finish_non_exhaustive()
    }
}
