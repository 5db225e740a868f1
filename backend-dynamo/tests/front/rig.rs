//! What most tests of faults start with.

use std::{sync::Arc, time::Duration};

use lockcore::{Acquired, BackendError, LockDao};
use lockcore_conformance::{
    Caller, Store,
    servers::{Kind, shared},
};
use lockcore_dynamo::{DynamoBuilder, DynamoLockDao};
use uuid::Uuid;

use super::Front;
use crate::support::Table;

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Ids of a set.
pub const SET: [&str; 3] = ["a", "b", "c"];

/// A namespace of its own behind a front of its own.
pub struct Rig {
    pub front: Front,
    /// By way of the front.
    pub table: Table,
    /// Where the engine is.
    pub engine: String,
    /// Straight at the engine.
    pub store: Store<Table>,
    pub dao: Arc<DynamoLockDao>,
}

impl Rig {
    pub async fn new() -> Result<Self, Error> {
        Rig::with(|builder| builder).await
    }

    pub async fn with(
        configure: impl FnOnce(DynamoBuilder<String, Uuid>) -> DynamoBuilder<String, Uuid>,
    ) -> Result<Self, Error> {
        let server = shared(Kind::DynamoDb).await?;
        let namespace = Uuid::new_v4().simple().to_string();
        let store = Store::new(Arc::new(Table::at(server.url()).within(&namespace))).await;
        let front = Front::before(server.address()).await?;
        let table = Table::at(front.url()).within(&namespace);
        let dao = Arc::new(configure(table.builder().own_clock()).open().await?);
        front.counted();
        Ok(Rig { front, table, engine: server.url(), store, dao })
    }

    pub fn caller(&self) -> Caller<DynamoLockDao> {
        self.store.caller().through(&self.dao)
    }

    /// Another DAO for the same ids, which knows nothing of the first.
    pub async fn open(&self) -> DynamoLockDao {
        self.table.builder().own_clock().open().await.expect("the engine answers")
    }

    pub async fn other(&self) -> Caller<DynamoLockDao> {
        self.store.caller().through(&Arc::new(self.open().await))
    }

    pub async fn acquire(&self, ids: &[&str]) -> Result<Acquired<String, Uuid>, BackendError> {
        let request = self.caller().request(ids.iter().copied());
        self.dao.acquire(&request).await
    }
}

pub fn impatient(builder: DynamoBuilder<String, Uuid>) -> DynamoBuilder<String, Uuid> {
    builder.timeout(Duration::from_millis(1500)).attempt_timeout(Duration::from_millis(400))
}

/// What writes so many ids.
pub fn operation_of(count: usize) -> &'static str {
    if count == 1 { "UpdateItem" } else { "TransactWriteItems" }
}
