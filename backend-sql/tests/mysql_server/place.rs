//! A database of a test's own on a shared server, and what tests do there.

use std::{net::SocketAddr, sync::Arc, time::Duration};

pub(crate) use lockcore_conformance::PATIENCE;
use lockcore_conformance::servers::{self, Kind, Server};
use lockcore_sql::{MysqlBuilder, MysqlLockDao};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row, mysql::MySqlDatabaseError};
use uuid::Uuid;

pub(crate) use crate::steps::{
    Error, granted, handed, locks_are_kept_without_the_pool, queue, request, take, told_to_ask,
};

pub(crate) type Dao = MysqlLockDao<String, Uuid>;

/// A database that no other uses.
pub(crate) struct Place {
    pub(crate) server: Arc<Server>,
    pub(crate) database: String,
}

impl Place {
    pub(crate) async fn new(kind: Kind) -> Result<Self, Error> {
        let server = servers::shared(kind).await?;
        let database = format!("t{}", Uuid::new_v4().simple());
        let mut conn = MySqlConnection::connect(&server.url()).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {database}"))).execute(&mut conn).await?;
        Ok(Place { server, database })
    }

    /// The URL of the database.
    pub(crate) fn url(&self) -> String {
        self.of_database(&self.server.url())
    }

    /// The same by way of a proxy.
    pub(crate) fn url_through(&self, proxy: SocketAddr) -> String {
        self.of_database(&self.server.url_through(proxy))
    }

    fn of_database(&self, url: &str) -> String {
        let (place, _) = url.rsplit_once('/').expect("the URL names a database");
        format!("{place}/{}", self.database)
    }

    pub(crate) fn builder(&self) -> MysqlBuilder<String, Uuid> {
        MysqlLockDao::builder().url(self.url()).timeout(servers::ANSWERS)
    }

    pub(crate) async fn open(&self) -> Result<Dao, Error> {
        Ok(self.builder().open().await?)
    }

    /// A connection that knows nothing of locks.
    pub(crate) async fn sql(&self) -> Result<Sql, Error> {
        Ok(Sql(MySqlConnection::connect(&self.url()).await?))
    }
}

/// Plain SQL.
pub(crate) struct Sql(pub(crate) MySqlConnection);

impl Sql {
    pub(crate) async fn run(&mut self, sql: impl Into<String>) -> Result<u64, Error> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(&mut self.0).await?.rows_affected())
    }

    pub(crate) async fn number(&mut self, sql: impl Into<String>) -> Result<i64, Error> {
        let sql = format!("SELECT CAST(({}) AS SIGNED)", sql.into());
        let answered = async {
            loop {
                match sqlx::raw_sql(AssertSqlSafe(sql.clone())).fetch_one(&mut self.0).await {
                    Err(error) if is_not_shown(&error) => tokio::time::sleep(Duration::from_millis(20)).await,
                    answer => return Ok(answer?.try_get(0)?),
                }
            }
        };
        tokio::time::timeout(PATIENCE, answered).await?
    }

    /// Asks until the answer is `wanted`, and gives it.
    pub(crate) async fn until(&mut self, sql: &str, wanted: impl Fn(i64) -> bool) -> Result<i64, Error> {
        let until = async {
            loop {
                let answer = self.number(sql).await?;
                if wanted(answer) {
                    return Ok(answer);
                }
                // InnoDB's own views are made again only where no client has looked for 100 ms.
                tokio::time::sleep(Duration::from_millis(120)).await;
            }
        };
        tokio::time::timeout(PATIENCE, until).await?
    }
}

/// Returns whether a view of the server's sessions or transactions fails because of another test: MySQL shows each
/// statement in utf8mb3, and answers with an error while one runs that has a character outside of it.
fn is_not_shown(error: &sqlx::Error) -> bool {
    const CANNOT_CONVERT_STRING: u16 = 3854;
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    error.is_some_and(|error| error.number() == CANNOT_CONVERT_STRING)
}
