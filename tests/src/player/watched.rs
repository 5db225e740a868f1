//! Watchers of the ids of a history.

use std::sync::Arc;

use futures_util::{StreamExt, pin_mut};
use lockcore::{Inspection, LockDao, StoredContext, Target};
use tokio::{sync::watch, task::JoinSet};
use uuid::Uuid;

use crate::NEVER;

/// Who holds an id under which fences.
pub(super) type Holders = Vec<(StoredContext<Uuid>, u64)>;

/// Watches ids until it is dropped.
pub(super) struct Watched {
    /// What was last seen of each.
    pub(super) seen: Vec<watch::Receiver<Option<Holders>>>,
    _watching: JoinSet<()>,
}

impl Watched {
    pub(super) fn new<D: LockDao<String, Uuid>>(dao: &Arc<D>, ids: Vec<Target<String>>) -> Self {
        let mut watching = JoinSet::new();
        let seen = ids.into_iter().map(|id| {
            let (seen, last) = watch::channel(None);
            let dao = dao.clone();
            watching.spawn(async move {
                let looks = dao.watch(&id, NEVER);
                pin_mut!(looks);
                while let Some(Ok(found)) = looks.next().await {
                    seen.send_replace(Some(holders(&found)));
                }
            });
            last
        });
        Watched { seen: seen.collect(), _watching: watching }
    }
}

pub(super) fn holders(found: &Inspection<String, Uuid>) -> Holders {
    found.holders.iter().map(|held| (held.context.clone(), held.fence)).collect()
}
