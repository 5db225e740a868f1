//! A schema of a test's own on the shared server, and what tests do there.

use std::{sync::Arc, time::Duration};

pub(crate) use lockcore_conformance::PATIENCE;
use lockcore_conformance::servers::{self, Kind, Server};
use lockcore_sql::{PostgresBuilder, PostgresLockDao};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use uuid::Uuid;

pub(crate) use crate::steps::{
    Error, granted, handed, locks_are_kept_without_the_pool, queue, request, take, told_to_ask,
};

pub(crate) type Dao = PostgresLockDao<String, Uuid>;

/// A schema that no other uses.
pub(crate) struct Place {
    pub(crate) server: Arc<Server>,
    pub(crate) schema: String,
}

impl Place {
    pub(crate) async fn new() -> Result<Self, Error> {
        let server = servers::shared(Kind::Postgres).await?;
        Ok(Place { server, schema: format!("t{}", Uuid::new_v4().simple()) })
    }

    pub(crate) fn builder(&self) -> PostgresBuilder<String, Uuid> {
        PostgresLockDao::builder().url(self.server.url()).timeout(servers::ANSWERS).schema(&*self.schema)
    }

    pub(crate) async fn open(&self) -> Result<Dao, Error> {
        Ok(self.builder().open().await?)
    }

    /// A connection that knows nothing of locks; the schema's tables can be named without it.
    pub(crate) async fn sql(&self) -> Result<Sql, Error> {
        let mut conn = PgConnection::connect(&self.server.url()).await?;
        let path = format!("SET search_path TO \"{}\"", self.schema.replace('"', "\"\""));
        sqlx::raw_sql(AssertSqlSafe(path)).execute(&mut conn).await?;
        Ok(Sql(conn))
    }
}

/// Plain SQL.
pub(crate) struct Sql(pub(crate) PgConnection);

impl Sql {
    pub(crate) async fn run(&mut self, sql: impl Into<String>) -> Result<u64, Error> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(&mut self.0).await?.rows_affected())
    }

    pub(crate) async fn number(&mut self, sql: impl Into<String>) -> Result<i64, Error> {
        let sql = format!("SELECT ({})::int8", sql.into());
        Ok(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut self.0).await?.try_get(0)?)
    }

    /// Asks until the answer is `wanted`.
    pub(crate) async fn until(&mut self, sql: &str, wanted: i64) -> Result<(), Error> {
        let until = async {
            while self.number(sql).await? != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, until).await?
    }
}
