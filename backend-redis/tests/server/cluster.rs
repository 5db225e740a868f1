//! The conformance suite on a cluster: each store in a namespace of its own, on whichever node that lies.

use std::{sync::Arc, time::Duration};

use lockcore_conformance::{
    Backend, Store, all,
    servers::{Cluster, Kind, ServerError, Trial, trial},
};
use tokio::sync::Mutex;

use crate::place::{Dao, Place};

/// No check takes longer, however slow the nodes.
const PATIENCE: Duration = Duration::from_secs(180);

/// A namespace of its own for each store.
struct Nodes(Arc<Cluster>);

impl Backend for Nodes {
    type Dao = Dao;
    type Guard = Place;

    async fn build(&self) -> (Place, Dao) {
        let place = Place::at(format!("redis+cluster://{}", self.0.addresses()));
        let dao = place.open().await.expect("the cluster answers");
        (place, dao)
    }

    async fn reopen(&self, place: &Place) -> Option<Dao> {
        Some(place.open().await.expect("the cluster answers"))
    }
}

/// Every check of the suite.
pub(crate) fn trials() -> Vec<Trial> {
    let checks = all::<Nodes>().into_iter().map(|check| {
        trial(Kind::Redis, &format!("cluster::{}", check.name), move || async move {
            let store = Store::new(Arc::new(Nodes(shared().await?))).await;
            tokio::time::timeout(PATIENCE, (check.run)(store)).await?;
            Ok(())
        })
    });
    checks.collect()
}

/// Returns one cluster for all checks: the one in the environment, else one that this process starts at the first call and
/// that its guard removes.
async fn shared() -> Result<Arc<Cluster>, ServerError> {
    static SHARED: Mutex<Option<Arc<Cluster>>> = Mutex::const_new(None);
    let mut shared = SHARED.lock().await;
    if let Some(cluster) = &*shared {
        return Ok(cluster.clone());
    }
    let cluster = match Cluster::from_environment() {
        Some(cluster) => cluster,
        None => Cluster::start().await?,
    };
    Ok(shared.insert(Arc::new(cluster)).clone())
}
