//! A table of its own for every test.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use lockcore::LockDao;
use lockcore_conformance::{
    Backend,
    servers::{self, Kind, ServerError},
};
use lockcore_dynamo::{DynamoBuilder, DynamoLockDao};
use uuid::Uuid;

/// A backend whose every store is a namespace of one table of an engine.
#[derive(Clone, Debug)]
pub struct Table {
    endpoint: Arc<str>,
    table: Arc<str>,
    /// Where every store is the same one.
    namespace: Option<Arc<str>>,
}

impl Table {
    /// A fresh table at this endpoint for this process.
    pub fn at(endpoint: impl Into<String>) -> Self {
        let table = format!("locks-{}", std::process::id());
        Table { endpoint: endpoint.into().trim_end_matches('/').into(), table: table.into(), namespace: None }
    }

    /// The same, where every store is in this namespace.
    pub fn within(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The table's name, and what the keys of this namespace begin with.
    pub fn keys(&self) -> (String, String) {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        (self.table.to_string(), format!("lockcore#{namespace}#"))
    }

    /// How to open it.
    pub fn builder(&self) -> DynamoBuilder<String, Uuid> {
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
    pub async fn open(&self) -> DynamoLockDao {
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
pub fn blocking<F: Future>(future: F) -> F::Output {
    tokio::runtime::Runtime::new().expect("a runtime can be made").block_on(future)
}

/// The Python that `tests/servers/ensure.sh` makes, with other clients of DynamoDB.
pub fn python() -> Result<PathBuf, ServerError> {
    let python = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/servers/bin/python");
    if python.is_file() {
        return Ok(python);
    }
    let reason = format!("no {}: tests/servers/ensure.sh makes it", python.display());
    Err(ServerError::Unavailable { kind: Kind::DynamoDb, reason })
}

/// Runs a program of the other clients' language, and gives what it prints.
pub async fn run_python(
    program: &str,
    arguments: impl IntoIterator<Item = String>,
) -> Result<String, ServerError> {
    let mut command = Command::new(python()?);
    command.args(["-c", program]).args(arguments).stderr(Stdio::inherit());
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("it does not panic").expect("Python runs");
    assert!(output.status.success(), "the other client failed");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
