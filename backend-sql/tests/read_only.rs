//! A server that stops taking writes, as one that became a replica: every step fails with a kind, and nothing is forgotten.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, ClaimSet, Grant, LockDao, Mode, Severity,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use lockcore_conformance::{
    eventually,
    refusing::a_store_that_refuses_for_a_while_ends_no_wait,
    servers::{Kind, Server, TestResult, Trial, trial},
};
use lockcore_sql::{MysqlLockDao, PostgresLockDao};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use uuid::Uuid;

pub(crate) fn trials() -> Vec<Trial> {
    let steps = "read_only::every_step_is_refused_and_nothing_forgotten";
    let waits = "read_only::what_waits_goes_on";
    vec![
        trial(Kind::Postgres, steps, || postgres(false)),
        trial(Kind::MySql, steps, || mysql(Kind::MySql, false)),
        trial(Kind::MariaDb, steps, || mysql(Kind::MariaDb, false)),
        trial(Kind::Postgres, waits, || postgres(true)).of_liveness(),
        trial(Kind::MySql, waits, || mysql(Kind::MySql, true)).of_liveness(),
        trial(Kind::MariaDb, waits, || mysql(Kind::MariaDb, true)).of_liveness(),
        trial(Kind::MySql, "read_only::a_privileged_definer_writes_for_everybody", || definer(Kind::MySql)),
        trial(Kind::MariaDb, "read_only::a_privileged_definer_writes_for_everybody", || {
            definer(Kind::MariaDb)
        }),
    ]
}

async fn postgres(waits: bool) -> TestResult {
    let server = Server::start(Kind::Postgres).await?;
    let dao = PostgresLockDao::<String, Uuid>::open(server.url()).await?;
    let mut sql = PgConnection::connect(&server.url()).await?;
    let refuse = async |read_only| {
        // Both can be done in a read-only session.
        let set = match read_only {
            true => "ALTER SYSTEM SET default_transaction_read_only = on",
            false => "ALTER SYSTEM RESET default_transaction_read_only",
        };
        sqlx::raw_sql(set).execute(&mut sql).await?;
        sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut sql).await?;
        Ok(())
    };
    match waits {
        false => check(&dao, refuse).await,
        true => a_store_that_refuses_for_a_while_ends_no_wait(dao, refuse).await,
    }
}

async fn mysql(kind: Kind, waits: bool) -> TestResult {
    let server = Server::start(kind).await?;
    let mut sql = MySqlConnection::connect(&server.url()).await?;
    // An application's user, who makes the schema: to a privileged one read-only is no bar, nor to the routines it made.
    let database: String = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut sql).await?;
    for statement in [
        "CREATE USER app@'%' IDENTIFIED BY 'no secret'".to_owned(),
        format!("GRANT ALL ON {database}.* TO app@'%'"),
    ] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut sql).await?;
    }
    let url = format!("mysql://app:no%20secret@{}/{database}", server.address());
    let dao = MysqlLockDao::<String, Uuid>::open(url).await?;
    let refuse = async |read_only| {
        let set = match read_only {
            true => "SET GLOBAL read_only = ON",
            false => "SET GLOBAL read_only = OFF",
        };
        sqlx::raw_sql(set).execute(&mut sql).await?;
        Ok(())
    };
    match waits {
        false => check(&dao, refuse).await,
        true => a_store_that_refuses_for_a_while_ends_no_wait(dao, refuse).await,
    }
}

/// Routines that a privileged user made write for all clients who may call them, though the server is read-only; it is told.
/// MySQL has a way to be read-only for all clients.
async fn definer(kind: Kind) -> TestResult {
    let server = Server::start(kind).await?;
    MysqlLockDao::<String, Uuid>::open(server.url()).await?;
    let mut sql = MySqlConnection::connect(&server.url()).await?;
    let database: String = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut sql).await?;
    for statement in [
        "CREATE USER app@'%' IDENTIFIED BY 'no secret'".to_owned(),
        format!("GRANT EXECUTE ON {database}.* TO app@'%'"),
    ] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut sql).await?;
    }
    let url = format!("mysql://app:no%20secret@{}/{database}", server.address());
    let dao = MysqlLockDao::<String, Uuid>::open(url).await?;
    sqlx::raw_sql("SET GLOBAL read_only = ON").execute(&mut sql).await?;
    let held = request("a");
    let Acquired::Granted(granted) = dao.acquire(&held).await? else { return Err("it is free".into()) };
    let grant = Grant::new(held.context, held.claims.clone(), granted, held.lease);
    assert!(matches!(dao.acquire(&request("a")).await?, Acquired::Refused(_)), "it is held");
    assert!(dao.doctor().await?.iter().any(|finding| finding.severity == Severity::Error));
    if kind == Kind::MySql {
        sqlx::raw_sql("SET GLOBAL super_read_only = ON").execute(&mut sql).await?;
        for error in [
            dao.acquire(&request("b")).await.expect_err("no write"),
            dao.renew(&grant).await.expect_err("no write"),
            dao.release(&grant).await.expect_err("no write"),
        ] {
            assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error:?}");
            assert!(!error.in_doubt(), "{error:?}");
        }
        sqlx::raw_sql("SET GLOBAL super_read_only = OFF").execute(&mut sql).await?;
    }
    assert_eq!(dao.renew(&grant).await?.lost, []);
    assert_eq!(dao.release(&grant).await?.lost, []);
    Ok(())
}

async fn check(dao: &impl LockDao<String, Uuid>, mut set: impl AsyncFnMut(bool) -> TestResult) -> TestResult {
    let (held, other) = (request("a"), request("b"));
    let Acquired::Granted(granted) = dao.acquire(&held).await? else { return Err("it is free".into()) };
    let grant = Grant::new(held.context, held.claims.clone(), granted, held.lease);
    set(true).await?;
    // A session learns of it a moment later.
    let error = eventually("writes are refused", || async {
        let refused = dao.acquire(&other).await;
        if let Ok(Acquired::Granted(granted)) = refused {
            let grant = Grant::new(other.context, other.claims.clone(), granted, other.lease);
            let _ = dao.release(&grant).await;
            return None;
        }
        refused.err()
    })
    .await;
    let errors = [
        error,
        dao.renew(&grant).await.expect_err("no write"),
        dao.release(&grant).await.expect_err("no write"),
    ];
    for error in errors {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error:?}");
        assert!(!error.in_doubt(), "{error:?}");
    }
    assert!(dao.doctor().await?.iter().any(|finding| finding.severity == Severity::Error));
    set(false).await?;
    // What was granted before is still held.
    let renewed = eventually("writes are taken again", || async { dao.renew(&grant).await.ok() }).await;
    assert_eq!(renewed.lost, []);
    assert_eq!(dao.release(&grant).await?.lost, []);
    Ok(())
}

fn request(id: &str) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([id], Mode::Exclusive).expect("a valid claim"),
        lease: Some(Duration::from_secs(600)),
        owner: "".into(),
        queue: false,
        nested: false,
        detached: false,
    }
}
