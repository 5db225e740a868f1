//! The checks of adapters and of DAOs on one member, which all share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockcore_conformance::{
    Backend,
    cell::{self, Adapter},
    servers::{self, ANSWERS, Kind, Server, Trial, cell_checks, checks, shared},
};
use lockcore_etcd::{EtcdBuilder, EtcdLockDao, Keys};
use uuid::Uuid;

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let cells = cell_checks("etcd", async || Ok(Shared(shared(Kind::Etcd).await?)));
    cells.chain(checks("etcd", async || Ok(Shared(shared(Kind::Etcd).await?))))
}

pub(crate) fn costs() -> Trial {
    servers::trial(Kind::Etcd, "costs::a_pair_is_two_writes", async || {
        cell::costs(cell::Cells::new(Shared(shared(Kind::Etcd).await?)).await).await;
        Ok(())
    })
    .of_liveness()
}

/// The shortest lease of the tests. The time is known to a second: a lease that is to be renewed has to be longer.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// A namespace of its own for each test.
struct Shared(Arc<Server>);

/// A namespace.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) namespace: String,
    /// The time by which its clock was set forward, in microseconds.
    ahead: Arc<AtomicU64>,
}

impl Place {
    pub(crate) fn at(url: impl Into<String>) -> Self {
        Place { url: url.into(), namespace: Uuid::new_v4().to_string(), ahead: Arc::default() }
    }

    /// The same namespace at another URL.
    pub(crate) fn by(&self, url: impl Into<String>) -> Self {
        Place { url: url.into(), namespace: self.namespace.clone(), ahead: self.ahead.clone() }
    }

    pub(crate) fn builder(&self) -> EtcdBuilder<String, Uuid> {
        EtcdLockDao::builder()
            .url(&*self.url)
            .namespace(&*self.namespace)
            .ahead(self.ahead.clone())
            .min_lease(LEASE)
            .timeout(2 * ANSWERS)
            .request_timeout(ANSWERS)
            // There is one clock.
            .clock_difference(Duration::ZERO)
    }
}

impl Adapter for Shared {
    type Cell = Keys;
    type Place = Place;

    const MANY: usize = 110;

    async fn place(&self) -> Place {
        Place::at(self.0.url())
    }

    async fn open(&self, place: &Place) -> Keys {
        place.builder().keys().await.expect("the member answers")
    }
}

impl Backend for Shared {
    type Dao = EtcdLockDao;
    type Guard = Place;

    async fn build(&self) -> (Place, EtcdLockDao) {
        let place = Place::at(self.0.url());
        let dao = place.builder().open().await.expect("the member answers");
        (place, dao)
    }

    async fn reopen(&self, place: &Place) -> Option<EtcdLockDao> {
        Some(place.builder().open().await.expect("the member answers"))
    }

    async fn reopen_ahead(&self, place: &Place, by: Duration) -> Option<EtcdLockDao> {
        let ahead = Arc::new(AtomicU64::new(place.ahead.load(Relaxed) + micros(by)));
        Some(place.builder().ahead(ahead).open().await.expect("the member answers"))
    }

    async fn advance(&self, place: &Place, by: Duration) -> bool {
        place.ahead.fetch_add(micros(by), Relaxed);
        true
    }
}

/// Returns a duration in microseconds.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("no test sets a clock so far")
}
