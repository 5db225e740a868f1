//! Watchers of ids: the server pushes the name of a key that changed, see `CLIENT TRACKING` in its documentation.

use std::{sync::Arc, time::Duration};

use futures_util::stream::BoxStream;
use lockcore::{
    BackendError, BackendErrorKind, ContextId, Ident, Inspection, Target,
    backend::{self, NextChange},
};

use crate::{admin, inbox::Key, store::Store};

/// Watches an id by its keys.
pub(crate) fn watch<I: Ident, C: ContextId>(
    store: &Arc<Store>,
    target: &Target<I>,
    every: Duration,
) -> BoxStream<'static, Result<Inspection<I, C>, BackendError>> {
    let (store, id) = (store.clone(), target.stored().into_owned());
    let keys: Arc<[String]> = store.scripts.watched_keys(&id).into();
    let watched = keys.clone();
    let is_watched = move |key: &Key| watched.iter().any(|watched| watched.as_bytes() == &**key);
    backend::watch(every, is_watched, move || {
        let (store, id, keys) = (store.clone(), id.clone(), keys.clone());
        async move {
            match look(&store, &id, &keys).await {
                // The connection was lost while nothing was asked for.
                Err(error) if error.kind() == BackendErrorKind::Unavailable => look(&store, &id, &keys).await,
                seen => seen,
            }
        }
    })
}

async fn look<I: Ident, C: ContextId>(
    store: &Arc<Store>,
    id: &str,
    keys: &[String],
) -> Result<(Inspection<I, C>, NextChange<Key>), BackendError> {
    // From before the look: a change behind it is not missed.
    let change = store.session().await?.track(keys).await?;
    Ok((admin::inspect(store, id).await?, change))
}
