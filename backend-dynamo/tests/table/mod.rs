//! A table of its own for every test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

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
    /// How far its time was set forward, in microseconds.
    ahead: Arc<AtomicU64>,
}

impl Table {
    /// A fresh table at this endpoint for this process.
    pub(crate) fn at(endpoint: impl Into<String>) -> Self {
        let table = format!("locks-{}", std::process::id());
        let endpoint = endpoint.into().trim_end_matches('/').into();
        Table { endpoint, table: table.into(), namespace: None, ahead: Arc::default() }
    }

    /// The same, where every store is in this namespace.
    pub(crate) fn within(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The same, with a time of its own that is so many microseconds ahead.
    fn ahead_by(mut self, micros: u64) -> Self {
        self.ahead = Arc::new(AtomicU64::new(micros));
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
            .service_ahead(self.ahead.clone())
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
            None => self.clone().within(&Uuid::new_v4().simple().to_string()).ahead_by(0),
        };
        let dao = table.open().await;
        (table, dao)
    }

    async fn reopen(&self, table: &Table) -> Option<DynamoLockDao> {
        // As another process, which has to learn the service's time by itself.
        Some(table.builder().own_clock().open().await.expect("the engine answers"))
    }

    async fn reopen_ahead(&self, table: &Table, by: Duration) -> Option<DynamoLockDao> {
        let ahead = table.ahead.load(Relaxed) + micros(by);
        self.reopen(&table.clone().ahead_by(ahead)).await
    }

    async fn advance(&self, table: &Table, by: Duration) -> bool {
        table.ahead.fetch_add(micros(by), Relaxed);
        true
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("no test sets a clock so far")
}
