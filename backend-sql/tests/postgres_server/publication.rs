//! Logical replication of all tables, as change data capture and upgrades set it up.

use std::time::Duration;

use lockcore::{
    BreakMode, Broken, Claim, LockDao, Target,
    backend::{AcquireRequest, Withdraw},
};
use lockcore_conformance::servers::{Kind, Server, TestResult, Trial};
use lockcore_sql::PostgresLockDao;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::{
    place::{Sql, granted, handed, queue, request, take},
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("publication::every_step_works_while_all_tables_are_published", every_step_works)]
}

/// Published tables refuse `UPDATE` and `DELETE` unless a key identifies their rows.
async fn every_step_works() -> TestResult {
    let logical = |_: &std::path::Path| Ok(vec!["-c".to_owned(), "wal_level=logical".to_owned()]);
    let server = Server::start_with(Kind::Postgres, logical).await?;
    let mut sql = Sql(PgConnection::connect(&server.url()).await?);
    sql.run("CREATE PUBLICATION everything FOR ALL TABLES").await?;
    sql.run("SELECT pg_create_logical_replication_slot('everything', 'pgoutput')").await?;
    let dao = PostgresLockDao::<String, Uuid>::builder().url(server.url()).open().await?;
    let keyless = "SELECT count(*) FROM pg_class c WHERE relkind = 'r' AND relname LIKE 'lockcore%' \
                   AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)";
    assert_eq!(sql.number(keyless).await?, 0, "tables without a primary key");

    for ids in [&["a"][..], &["a", "b"]] {
        for _ in 0..3 {
            let held = take(&dao, ids.iter().map(ToString::to_string).collect::<Vec<_>>()).await?;
            assert_eq!(dao.renew(&held).await?.lost, []);
            assert_eq!(dao.release(&held).await?.lost, []);
        }
    }
    let shared = granted(&dao, &request([Claim::shared("s".to_owned())])).await?;
    dao.release(&shared).await?;
    let held = take(&dao, ["a", "b"]).await?;
    let (waits, wakeup) = queue(&dao, ["b"]).await?;
    dao.release(&held).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    let asked = request(["w"]);
    granted(&dao, &asked).await?;
    dao.withdraw(&asked, Withdraw::Undo).await?;

    let target = Target::Id("b".to_owned());
    let fence = held.locks[0].granted.fence;
    assert!(matches!(dao.break_lock(&target, fence, BreakMode::AfterLease, "me").await?, Broken::Within(_)));
    // The oldest breaks of an id go with each new one.
    for _ in 0..20 {
        let held = take(&dao, ["broken"]).await?;
        let target = Target::Id("broken".to_owned());
        let broken = dao.break_lock(&target, held.locks[0].granted.fence, BreakMode::Now, "me").await?;
        assert_eq!(broken, Broken::Freed);
    }
    let short = AcquireRequest { lease: Some(Duration::from_millis(100)), ..request(["short"]) };
    granted(&dao, &short).await?;
    sql.run("UPDATE lockcore_lock SET lapses = 1; UPDATE lockcore_break SET at = 1").await?;
    sql.run("INSERT INTO lockcore_session VALUES (4711, 1)").await?;
    while dao.sweep(100, None).await?.more {}
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_break").await?, 0);
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_session WHERE session = 4711").await?, 0);
    dao.migrate().await?;
    Ok(())
}
