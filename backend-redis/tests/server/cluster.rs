//! The conformance suite on a cluster: each store in a namespace of its own, on whichever node that lies.

use std::{sync::Arc, time::Duration};

use lockcore_conformance::{
    Backend, Store, all,
    servers::{Kind, Trial, trial},
};
use tokio::sync::Mutex;

use crate::{
    place::{Dao, Failure, Place},
    topology::Cluster,
};

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

/// One cluster for all; the guard of its processes ends it shortly after this process.
async fn shared() -> Result<Arc<Cluster>, Failure> {
    static SHARED: Mutex<Option<Arc<Cluster>>> = Mutex::const_new(None);
    let mut shared = SHARED.lock().await;
    match &*shared {
        Some(cluster) => Ok(cluster.clone()),
        None => Ok(shared.insert(Arc::new(Cluster::start().await?)).clone()),
    }
}
