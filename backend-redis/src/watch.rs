//! Watchers of ids: the server pushes the name of a key that changed, see `CLIENT TRACKING` in its documentation.

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use lockcore::{BackendError, ContextId, Ident, Inspection, Target};
use redis::Value;
use tokio::{
    sync::broadcast::{self, Receiver, Sender},
    time::timeout,
};

use crate::{admin, store::Store};

/// How many changes a watcher may be behind; a slower one looks again, whatever changed.
const BEHIND: usize = 64;

/// A key that has changed; `None` if any may have.
pub(crate) type Change = Option<Arc<[u8]>>;

/// The changes that the server pushes to one connection, for its watchers.
#[derive(Debug)]
pub(crate) struct Changes(Sender<Change>);

impl Default for Changes {
    fn default() -> Self {
        Changes(broadcast::channel(BEHIND).0)
    }
}

impl Changes {
    /// Has all watchers look again.
    pub(crate) fn any(&self) {
        self.send(None);
    }

    /// Reads the server's message, which names keys, or none if it lost all.
    pub(crate) fn receive(&self, message: &[Value]) {
        let Some(Value::Array(keys)) = message.first() else { return self.any() };
        for key in keys {
            match key {
                Value::BulkString(key) => self.send(Some(key.as_slice().into())),
                _ => self.any(),
            }
        }
    }

    fn send(&self, change: Change) {
        let _no_watchers = self.0.send(change);
    }

    /// Returns what changes from here on.
    pub(crate) fn subscribe(&self) -> Receiver<Change> {
        self.0.subscribe()
    }
}

/// Watches an id: looks again when one of its keys changes, after `every` at the latest.
pub(crate) fn watch<I: Ident, C: ContextId>(
    store: &Arc<Store>,
    target: &Target<I>,
    every: Duration,
) -> BoxStream<'static, Result<Inspection<I, C>, BackendError>> {
    let (store, id) = (store.clone(), target.stored().into_owned());
    let keys = store.scripts.watched_keys(&id);
    let looks = stream::try_unfold((store, id, keys, None), move |(store, id, keys, changes)| async move {
        if let Some(changes) = changes {
            let _elapsed = timeout(every, change_of(&keys, changes)).await;
        }
        // From before the look: a change behind it is not missed.
        let changes = store.session().await?.track(&keys).await?;
        let seen = admin::inspect(&store, &id).await?;
        Ok(Some((seen, (store, id, keys, Some(changes)))))
    });
    looks.boxed()
}

async fn change_of(keys: &[String], mut changes: Receiver<Change>) {
    while let Ok(Some(key)) = changes.recv().await {
        if keys.iter().any(|watched| watched.as_bytes() == &*key) {
            return;
        }
    }
}
