//! The conformance suite on a store within the process.

use std::{sync::Arc, time::Duration};

use lockcore_conformance::{Backend, conformance};
use lockcore_object::{ObjectBuilder, ObjectLockDao, ObjectStore};
use object_store::memory::InMemory;
use uuid::Uuid;

/// A store of its own for each test. It goes by this machine's clock, so that leases can be short.
struct Memory;

fn builder(store: &Arc<dyn ObjectStore>) -> ObjectBuilder<String, Uuid> {
    ObjectLockDao::builder().store(store.clone()).local_clock().min_lease(Duration::from_millis(500))
}

impl Backend for Memory {
    type Dao = ObjectLockDao;
    type Guard = Arc<dyn ObjectStore>;

    async fn build(&self) -> (Arc<dyn ObjectStore>, ObjectLockDao) {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let dao = builder(&store).open().await.expect("a store in memory can be opened");
        (store, dao)
    }

    async fn reopen(&self, store: &Arc<dyn ObjectStore>) -> Option<ObjectLockDao> {
        Some(builder(store).open().await.expect("a store in memory can be opened"))
    }
}

conformance!(object, Memory);
