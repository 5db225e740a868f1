//! What most tests of faults start with.

use std::{sync::Arc, time::Duration};

use lockcore::{BackendError, LockDao, backend::Acquired};
use lockcore_conformance::{
    Caller, Store,
    servers::{Kind, shared},
};
use lockcore_dynamo::{DynamoBuilder, DynamoLockDao};
use uuid::Uuid;

use super::Front;
use crate::table::Table;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// Ids of a set.
pub(crate) const SET: [&str; 3] = ["a", "b", "c"];

/// A namespace of its own behind a front of its own.
pub(crate) struct Rig {
    pub(crate) front: Front,
    namespace: String,
    /// By way of the front.
    pub(crate) table: Table,
    /// Where the engine is.
    pub(crate) engine: String,
    /// Straight at the engine.
    pub(crate) store: Store<Table>,
    pub(crate) dao: Arc<DynamoLockDao>,
}

impl Rig {
    pub(crate) async fn new() -> Result<Self, Error> {
        Rig::with(|builder| builder).await
    }

    pub(crate) async fn with(
        configure: impl FnOnce(DynamoBuilder<String, Uuid>) -> DynamoBuilder<String, Uuid>,
    ) -> Result<Self, Error> {
        let server = shared(Kind::DynamoDb).await?;
        let namespace = Uuid::new_v4().simple().to_string();
        let store = Store::new(Arc::new(Table::at(server.url()).within(&namespace))).await;
        let front = Front::before(server.address()).await?;
        let table = Table::at(front.url()).within(&namespace);
        let dao = Arc::new(configure(table.builder().own_clock()).open().await?);
        front.counted();
        Ok(Rig { front, namespace, table, engine: server.url(), store, dao })
    }

    /// The table's name, and what the keys of this namespace begin with.
    pub(crate) fn keys(&self) -> (String, String) {
        (self.table.table.to_string(), format!("lockcore#{}#", self.namespace))
    }

    pub(crate) fn caller(&self) -> Caller<DynamoLockDao> {
        self.store.caller().through(&self.dao)
    }

    /// Another DAO for the same ids, which knows nothing of the first.
    pub(crate) async fn open(&self) -> DynamoLockDao {
        self.table.builder().own_clock().open().await.expect("the engine answers")
    }

    pub(crate) async fn other(&self) -> Caller<DynamoLockDao> {
        self.store.caller().through(&Arc::new(self.open().await))
    }

    pub(crate) async fn acquire(&self, ids: &[&str]) -> Result<Acquired<String, Uuid>, BackendError> {
        let request = self.caller().request(ids.iter().copied());
        self.dao.acquire(&request).await
    }
}

pub(crate) fn impatient(builder: DynamoBuilder<String, Uuid>) -> DynamoBuilder<String, Uuid> {
    // Tombstones last ten times as long as both together, and a test waits for that.
    builder.timeout(Duration::from_millis(2400)).attempt_timeout(Duration::from_secs(1))
}

/// What writes so many ids.
pub(crate) fn operation_of(count: usize) -> &'static str {
    if count == 1 { "UpdateItem" } else { "TransactWriteItems" }
}
