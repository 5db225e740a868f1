//! The conformance suite on a store within the process, under virtual time. `emulator.rs` runs it in real time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockcore_conformance::{
    Backend,
    servers::{Trial, checks},
};
use lockcore_object::{ObjectBuilder, ObjectLockDao, ObjectStore};
use object_store::memory::InMemory;
use uuid::Uuid;

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    checks("object", || async { Ok(Memory) })
}

/// A store of its own for each test. It goes by this machine's clock, so that leases can be short.
struct Memory;

/// The store, and how far its time was set forward.
type Place = (Arc<dyn ObjectStore>, Arc<AtomicU64>);

fn builder((store, ahead): &Place) -> ObjectBuilder<String, Uuid> {
    let builder = ObjectLockDao::builder().store(store.clone()).local_clock().ahead(ahead.clone());
    builder.min_lease(Duration::from_millis(500))
}

impl Backend for Memory {
    type Dao = ObjectLockDao;
    type Guard = Place;

    const VIRTUAL_TIME: bool = true;

    async fn build(&self) -> (Place, ObjectLockDao) {
        let place: Place = (Arc::new(InMemory::new()), Arc::default());
        let dao = builder(&place).open().await.expect("a store in memory can be opened");
        (place, dao)
    }

    async fn reopen(&self, place: &Place) -> Option<ObjectLockDao> {
        Some(builder(place).open().await.expect("a store in memory can be opened"))
    }

    async fn reopen_ahead(&self, (store, ahead): &Place, by: Duration) -> Option<ObjectLockDao> {
        let ahead = Arc::new(AtomicU64::new(ahead.load(Relaxed) + micros(by)));
        self.reopen(&(store.clone(), ahead)).await
    }

    async fn advance(&self, (_, ahead): &Place, by: Duration) -> bool {
        ahead.fetch_add(micros(by), Relaxed);
        true
    }
}

/// Returns a duration in microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("no test sets a clock so far")
}
