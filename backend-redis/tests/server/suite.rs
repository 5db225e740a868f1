//! The conformance suite on other servers than a plain node of the usual release: a cluster, where each store's namespace may
//! lie on another node, and the oldest release that is supported.

use std::{sync::Arc, time::Duration};

use lockcore_conformance::{
    Backend, Store, all,
    servers::{Cluster, Kind, Server, Trial, trial},
};
use tokio::sync::Mutex;

use crate::{
    place::{Dao, Failure, Place},
    topology::old_server,
};

/// No check takes longer, however slow the servers.
const PATIENCE: Duration = Duration::from_secs(180);

/// A namespace of its own for each store.
struct Namespaces(String);

impl Backend for Namespaces {
    type Dao = Dao;
    type Guard = Place;

    async fn build(&self) -> (Place, Dao) {
        let place = Place::at(&*self.0);
        let dao = place.open().await.expect("the server answers");
        (place, dao)
    }

    async fn reopen(&self, place: &Place) -> Option<Dao> {
        Some(place.open().await.expect("the server answers"))
    }
}

/// Every check of the suite on a cluster: the one in the environment, else one that this process starts.
pub(crate) fn on_a_cluster() -> Vec<Trial> {
    static CLUSTER: Mutex<Option<Cluster>> = Mutex::const_new(None);
    trials("cluster", || async {
        let mut shared = CLUSTER.lock().await;
        let cluster = match &*shared {
            Some(cluster) => cluster,
            None => shared.insert(match Cluster::from_environment() {
                Some(running) => running,
                None => Cluster::start().await?,
            }),
        };
        Ok(format!("redis+cluster://{}", cluster.addresses()))
    })
}

/// Every check of the suite on the oldest release that is supported.
pub(crate) fn on_the_oldest_release() -> Vec<Trial> {
    static OLD: Mutex<Option<Server>> = Mutex::const_new(None);
    trials("oldest", || async {
        let mut shared = OLD.lock().await;
        let server = match &*shared {
            Some(server) => server,
            None => shared.insert(old_server("").await?),
        };
        Ok(server.url())
    })
}

/// One trial for each check, on the servers at `url`, which all share; the guard of their processes ends them shortly after
/// this process.
fn trials<F>(name: &str, url: impl Fn() -> F + Copy + Send + 'static) -> Vec<Trial>
where
    F: Future<Output = Result<String, Failure>>,
{
    let checks = all::<Namespaces>().into_iter().map(|check| {
        trial(Kind::Redis, &format!("{name}::{}", check.name), move || async move {
            let store = Store::new(Arc::new(Namespaces(url().await?))).await;
            tokio::time::timeout(PATIENCE, (check.run)(store)).await?;
            Ok(())
        })
    });
    checks.collect()
}
