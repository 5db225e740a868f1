//! Writes that reach the engine twice: the suite's checks of locking pass as ever.

use std::time::Duration;

use lockcore_conformance::{
    Backend,
    servers::{Copies, Duplicator, Kind, Trial, checks_of, shared},
};
use lockcore_dynamo::DynamoLockDao;

use crate::table::Table;

/// The groups of checks that run.
const GROUPS: [&str; 5] = ["exclusion", "fences", "release", "renewal", "withdrawal"];

/// Two release one id while others ask for it: the copy of a release may find the next holder, which looks as if the lock had
/// been lost before, and is reported as that. The other compares two stores, of which each has a proxy here, and so a clock of
/// its own.
const EXCEPT: [&str; 3] = [
    "exclusion::a_counter_under_contention_loses_nothing",
    "fences::fences_grow_under_contention",
    "fences::fences_grow_across_loss_of_data",
];

pub(super) fn tests() -> impl Iterator<Item = Trial> {
    let is_one = |check: &str| check.split("::").next().is_some_and(|group| GROUPS.contains(&group));
    let runs = move |check: &str| is_one(check) && !EXCEPT.contains(&check);
    let doubled = || async { Ok(Doubled { engine: shared(Kind::DynamoDb).await?.address() }) };
    checks_of("dynamodb::faults::doubled", runs, doubled)
}

/// Each store is behind a proxy of its own.
struct Doubled {
    engine: String,
}

impl Backend for Doubled {
    type Dao = DynamoLockDao;
    type Guard = (Duplicator, <Table as Backend>::Guard);

    async fn build(&self) -> (Self::Guard, DynamoLockDao) {
        let proxy = Duplicator::start(self.engine.clone()).await.expect("a port is free");
        proxy.set(Copies::AtOnce);
        let (table, dao) = Table::at(format!("http://{}", proxy.address())).build().await;
        ((proxy, table), dao)
    }

    async fn reopen(&self, (_, table): &Self::Guard) -> Option<DynamoLockDao> {
        table.reopen(table).await
    }

    async fn advance(&self, (_, table): &Self::Guard, by: Duration) -> bool {
        table.advance(table, by).await
    }
}
