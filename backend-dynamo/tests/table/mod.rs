//! A table of its own for every test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
    types::AttributeValue,
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

    /// A client that has nothing to do with ours.
    pub(crate) fn client(&self) -> Client {
        let config = Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .region(Region::new("eu-central-1"))
            .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
            .endpoint_url(&*self.endpoint);
        Client::from_conf(config.build())
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

    async fn spoil(&self, table: &Table, id: &str, way: usize) -> bool {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let (name, value) = match way {
            0 => ("contextId", AttributeValue::N("7".to_owned())),
            1 => ("expires", text("tomorrow")),
            2 => ("expires", AttributeValue::Null(true)),
            3 => ("fence", text("high")),
            _ => return false,
        };
        let namespace = table.namespace.as_deref().unwrap_or_default();
        let update = table.client().update_item().table_name(&*table.table);
        let update = update.key("id", text(&format!("lockcore#{namespace}#{id}")));
        let update = update.update_expression("SET #name=:value").expression_attribute_names("#name", name);
        update.expression_attribute_values(":value", value).send().await.expect("the engine answers");
        true
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("no test sets a clock so far")
}
