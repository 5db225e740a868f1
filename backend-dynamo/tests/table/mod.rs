//! A table of its own for every test.

use std::{sync::Arc, time::Duration};

use lockcore::LockDao;
use lockcore_conformance::{Backend, servers};
use lockcore_dynamo::{DynamoBuilder, DynamoLockDao};
use uuid::Uuid;

/// A backend whose every store is a namespace of one table of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    endpoint: Arc<str>,
    pub(crate) table: Arc<str>,
    /// Where every store is the same one.
    namespace: Option<Arc<str>>,
}

impl Table {
    /// A fresh table at this endpoint for this process.
    pub(crate) fn at(endpoint: impl Into<String>) -> Self {
        let table = format!("locks-{}", std::process::id());
        Table { endpoint: endpoint.into().trim_end_matches('/').into(), table: table.into(), namespace: None }
    }

    /// The same, where every store is in this namespace.
    pub(crate) fn within(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// How to open it.
    pub(crate) fn builder(&self) -> DynamoBuilder<String, Uuid> {
        DynamoLockDao::builder()
            .endpoint(&*self.endpoint)
            .region("eu-central-1")
            .credentials("test", "test", None)
            .table(&*self.table)
            // Many tests share a slow engine, and race on purpose.
            .timeout(servers::ANSWERS)
            .attempt_timeout(Duration::from_secs(10))
            .namespace(self.namespace.as_deref().unwrap_or_default())
    }

    /// Opens it, and makes it if need be. Its TTL goes by an attribute that no item has: an engine collects within a
    /// minute what the service leaves for hours, and with it what a check wants remembered. What TTL does is checked by
    /// tests that do it themselves.
    pub(crate) async fn open(&self) -> DynamoLockDao {
        let maker = self.builder().expires_attribute("collected").open().await.expect("the engine answers");
        maker.migrate().await.expect("the table can be made");
        self.builder().open().await.expect("the engine answers")
    }
}

impl Backend for Table {
    type Dao = DynamoLockDao;
    type Guard = Table;

    async fn build(&self) -> (Table, DynamoLockDao) {
        let table = match self.namespace {
            Some(_) => self.clone(),
            None => self.clone().within(&Uuid::new_v4().simple().to_string()),
        };
        let dao = table.open().await;
        (table, dao)
    }

    async fn reopen(&self, table: &Table) -> Option<DynamoLockDao> {
        // As another process, which has to learn the service's time by itself.
        Some(table.builder().own_clock().open().await.expect("the engine answers"))
    }
}

/// Waits for `future` on a runtime of its own.
pub(crate) fn blocking<F: Future>(future: F) -> F::Output {
    tokio::runtime::Runtime::new().expect("a runtime can be made").block_on(future)
}
