//! A server that closes connections while they are idle, as it is set up to or as a router on the way does: the next call, which
//! does not wait, does not notice.

use std::time::Duration;

use lockcore::{LockDao, LockingService};
use lockcore_conformance::{
    eventually,
    servers::{Kind, Server, TestResult, Trial, trial},
};
use lockcore_sql::{MysqlLockDao, PostgresLockDao};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tokio::sync::Mutex;
use uuid::Uuid;

type Error = Box<dyn std::error::Error + Send + Sync>;

pub(crate) fn trials() -> Vec<Trial> {
    let name = "idle::a_connection_that_the_server_closed_costs_no_call";
    vec![
        trial(Kind::Postgres, name, postgres),
        trial(Kind::MySql, name, || mysql(Kind::MySql)),
        trial(Kind::MariaDb, name, || mysql(Kind::MariaDb)),
    ]
}

async fn postgres() -> TestResult {
    let server = Server::start(Kind::Postgres).await?;
    let sql = Mutex::new(PgConnection::connect(&server.url()).await?);
    for set in [
        "SET idle_session_timeout = 0",
        "ALTER SYSTEM SET idle_session_timeout = '500ms'",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::raw_sql(set).execute(&mut *sql.lock().await).await?;
    }
    for listen in [true, false] {
        let dao = PostgresLockDao::builder().url(server.url()).listen(listen).open().await?;
        calls_succeed(dao, async |which| {
            let found = format!(
                "SELECT coalesce(string_agg(pid::text, ','), '') FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND {}",
                which.map_or("true".to_owned(), |pids| format!("pid IN ({pids})"))
            );
            Ok(sqlx::query_scalar(AssertSqlSafe(found)).fetch_one(&mut *sql.lock().await).await?)
        })
        .await?;
    }
    Ok(())
}

async fn mysql(kind: Kind) -> TestResult {
    let server = Server::start(kind).await?;
    let sql = Mutex::new(MySqlConnection::connect(&server.url()).await?);
    // In whole seconds, for sessions that begin later; which of the two counts, the driver says when it connects.
    let set = "SET GLOBAL wait_timeout = 1, GLOBAL interactive_timeout = 1";
    sqlx::raw_sql(set).execute(&mut *sql.lock().await).await?;
    for listen in [true, false] {
        let dao = MysqlLockDao::builder().url(server.url()).listen(listen).open().await?;
        calls_succeed(dao, async |which| {
            let found = format!(
                "SELECT coalesce(group_concat(ID), '') FROM information_schema.PROCESSLIST \
                 WHERE COMMAND = 'Sleep' AND ID <> CONNECTION_ID() AND {}",
                which.map_or("true".to_owned(), |ids| format!("ID IN ({ids})"))
            );
            Ok(sqlx::query_scalar(AssertSqlSafe(found)).fetch_one(&mut *sql.lock().await).await?)
        })
        .await?;
    }
    Ok(())
}

/// `idle` finds the sessions that the server may close, or which of those that are given are left.
async fn calls_succeed<D: LockDao<String, Uuid>>(
    dao: D,
    idle: impl AsyncFn(Option<&str>) -> Result<String, Error>,
) -> TestResult {
    let locks = LockingService::builder(dao).lease(Duration::from_secs(600)).build()?;
    for round in 0..5 {
        let done = locks.with_locks(["a"], async || ()).await;
        done.map_err(|error| format!("round {round}: {error}"))?;
        let sessions = idle(None).await?;
        if sessions.is_empty() {
            continue;
        }
        eventually("the server has closed them", || async {
            idle(Some(&sessions)).await.ok()?.is_empty().then_some(())
        })
        .await;
    }
    Ok(())
}
