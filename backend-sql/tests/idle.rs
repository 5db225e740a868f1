//! A server that closes connections while they are idle, as an administrator or a fail-over has it do: the next call, which does not
//! wait, does not notice. What a router on the way does is in `line`.

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
    for listen in [true, false] {
        let dao = PostgresLockDao::builder().url(server.url()).listen(listen).open().await?;
        calls_succeed(dao, async || {
            // Waits until they are gone.
            let end = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity \
                       WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
            sqlx::raw_sql(end).execute(&mut *sql.lock().await).await?;
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn mysql(kind: Kind) -> TestResult {
    let server = Server::start(kind).await?;
    let sql = Mutex::new(MySqlConnection::connect(&server.url()).await?);
    let find = "SELECT CAST(ID AS SIGNED) FROM information_schema.PROCESSLIST \
                WHERE COMMAND IN ('Sleep', 'Query') AND USER = SUBSTRING_INDEX(USER(), '@', 1) AND ID <> CONNECTION_ID()";
    for listen in [true, false] {
        let dao = MysqlLockDao::builder().url(server.url()).listen(listen).open().await?;
        calls_succeed(dao, async || {
            let found: Vec<i64> = sqlx::query_scalar(find).fetch_all(&mut *sql.lock().await).await?;
            for session in &found {
                // It may have ended by itself.
                let kill = AssertSqlSafe(format!("KILL {session}"));
                let _ = sqlx::raw_sql(kill).execute(&mut *sql.lock().await).await;
            }
            eventually("they are gone", || async {
                let left: Vec<i64> = sqlx::query_scalar(find).fetch_all(&mut *sql.lock().await).await.ok()?;
                (!left.iter().any(|session| found.contains(session))).then_some(())
            })
            .await;
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// `end_sessions` has the server close all connections.
async fn calls_succeed<D: LockDao<String, Uuid>>(
    dao: D,
    end_sessions: impl AsyncFn() -> Result<(), Error>,
) -> TestResult {
    let locks = LockingService::builder(dao).lease(Duration::from_secs(600)).build()?;
    for round in 0..5 {
        let done = locks.with_locks(["a"], async || ()).await;
        done.map_err(|error| format!("round {round}: {error}"))?;
        end_sessions().await?;
    }
    Ok(())
}
