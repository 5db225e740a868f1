//! Postgres, MariaDB and MySQL at the end of a line that fails, and killed: see `lockcore_conformance::line`.

use std::process::ExitCode;

use lockcore::BackendError;
use lockcore_conformance::{
    line::{Remote, Route, trials},
    servers::{self, Kind},
};
use lockcore_sql::{MysqlLockDao, PostgresLockDao};
use uuid::Uuid;

fn main() -> ExitCode {
    let mysql = [Kind::MariaDb, Kind::MySql].into_iter().flat_map(trials::<Mysql>);
    let all = trials::<Postgres>(Kind::Postgres).into_iter().chain(mysql);
    // They mostly wait for what does not come.
    servers::run_many(6, all)
}

struct Postgres;

impl Remote for Postgres {
    type Dao = PostgresLockDao<String, Uuid>;

    async fn open(route: &Route) -> Result<Self::Dao, BackendError> {
        let builder = PostgresLockDao::builder().url(&*route.url).namespace(&*route.namespace);
        builder.timeout(route.timeout).max_connections(route.connections).open().await
    }
}

struct Mysql;

impl Remote for Mysql {
    type Dao = MysqlLockDao<String, Uuid>;

    async fn open(route: &Route) -> Result<Self::Dao, BackendError> {
        let builder = MysqlLockDao::builder().url(&*route.url).namespace(&*route.namespace);
        builder.timeout(route.timeout).max_connections(route.connections).open().await
    }
}
