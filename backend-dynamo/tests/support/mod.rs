//! A table of its own for every test.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use std::sync::Arc;

use lockcore::LockDao;
use lockcore_conformance::Backend;
use lockcore_dynamo::{DynamoBuilder, DynamoLockDao};
use uuid::Uuid;

/// A backend whose every store is a namespace of one table of an engine.
#[derive(Clone, Debug)]
pub struct Table {
    endpoint: Arc<str>,
    table: Arc<str>,
}

impl Table {
    /// A fresh table at this endpoint for this process.
    pub fn at(endpoint: impl Into<String>) -> Self {
        let table = format!("locks-{}", std::process::id());
        Table { endpoint: endpoint.into().trim_end_matches('/').into(), table: table.into() }
    }

    /// How to open a namespace of it.
    pub fn builder(&self, namespace: &str) -> DynamoBuilder<String, Uuid> {
        DynamoLockDao::builder()
            .endpoint(&*self.endpoint)
            .region("eu-central-1")
            .credentials("test", "test", None)
            .table(&*self.table)
            .namespace(namespace)
    }

    /// A namespace of it, made if need be.
    pub async fn open(&self, namespace: &str) -> DynamoLockDao {
        let dao = self.builder(namespace).open().await.expect("the engine answers");
        dao.migrate().await.expect("the table can be made");
        dao
    }
}

impl Backend for Table {
    type Dao = DynamoLockDao;
    type Guard = String;

    async fn build(&self) -> (String, DynamoLockDao) {
        let namespace = Uuid::new_v4().simple().to_string();
        let dao = self.open(&namespace).await;
        (namespace, dao)
    }

    async fn reopen(&self, namespace: &String) -> Option<DynamoLockDao> {
        // As another process, which has to learn the service's time by itself.
        Some(self.builder(namespace).own_clock().open().await.expect("the engine answers"))
    }
}

/// Waits for `future` on a runtime of its own.
pub fn blocking<F: Future>(future: F) -> F::Output {
    tokio::runtime::Runtime::new().expect("a runtime can be made").block_on(future)
}
