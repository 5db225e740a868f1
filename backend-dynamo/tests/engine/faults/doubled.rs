//! Writes that reach the engine twice: the suite's checks of locking pass as ever.

use lockcore_conformance::{
    Backend,
    servers::{self, Completion, Copies, Duplicator, Kind, Server, Trial},
};
use lockcore_dynamo::DynamoLockDao;

use crate::table::{Table, blocking};

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
}

pub(super) fn tests() -> impl Iterator<Item = Trial> {
    let checks = lockcore_conformance::all::<Doubled>().into_iter();
    let chosen = checks.filter(|check| {
        let group = check.name.split("::").next().unwrap_or_default();
        GROUPS.contains(&group) && !EXCEPT.contains(&check.name)
    });
    chosen.map(|check| {
        Trial::ignorable_test(format!("dynamodb::faults::doubled::{}", check.name), move || {
            match blocking(servers::shared(Kind::DynamoDb)) {
                Ok(server) => {
                    lockcore_conformance::run(Doubled { engine: Server::address(&server) }, check.run);
                    Ok(Completion::Completed)
                }
                Err(missing) => servers::outcome(Err(missing.into())),
            }
        })
    })
}
