//! Postgres, MariaDB and MySQL at the end of a line that fails, and killed: see `lockcore_conformance::line`.

use lockcore::BackendError;
use lockcore_conformance::{
    line::{self, Remote, Route},
    servers::{Kind, Trial},
};
use lockcore_sql::{MysqlLockDao, PostgresLockDao};
use uuid::Uuid;

pub(crate) fn trials() -> Vec<Trial> {
    let mysql = [Kind::MariaDb, Kind::MySql].into_iter().flat_map(line::trials::<Mysql>);
    line::trials::<Postgres>(Kind::Postgres).into_iter().chain(mysql).collect()
}

struct Postgres;

impl Remote for Postgres {
    type Dao = PostgresLockDao<String, Uuid>;

    async fn open(route: &Route) -> Result<Self::Dao, BackendError> {
        let builder = PostgresLockDao::builder().url(&*route.url).namespace(&*route.namespace);
        let builder = builder.timeout(route.timeout).max_connections(route.connections);
        builder.listen(route.listen).open().await
    }
}

struct Mysql;

impl Remote for Mysql {
    type Dao = MysqlLockDao<String, Uuid>;

    async fn open(route: &Route) -> Result<Self::Dao, BackendError> {
        let builder = MysqlLockDao::builder().url(&*route.url).namespace(&*route.namespace);
        let builder = builder.timeout(route.timeout).max_connections(route.connections);
        builder.listen(route.listen).open().await
    }
}
