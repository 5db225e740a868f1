//! A server whose disk is full: what cannot be written is told, nothing is granted twice, and it goes on when there is room.

use lockcore::{Acquired, BackendErrorKind, LockDao};
use lockcore_conformance::servers::{Kind, Server, TestResult, Trial};
use lockcore_sql::PostgresLockDao;
use sqlx::{Connection, PgConnection};

use crate::{
    place::{Dao, Error, Sql, granted, queue, request, take},
    test,
};

/// What a new server writes, and some room to fill.
const DISK: u64 = 160 << 20;

/// So many ids that their rows and index entries do not fit on the pages that are there.
const MANY: usize = 5000;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "disk::a_full_one_is_told_and_nothing_is_granted_twice",
        a_full_one_is_told_and_nothing_is_granted_twice,
    )]
}

async fn a_full_one_is_told_and_nothing_is_granted_twice() -> TestResult {
    let server = Server::start_small(Kind::Postgres, DISK).await?;
    let dao: Dao = PostgresLockDao::connect(server.url()).await?;
    let other: Dao = PostgresLockDao::connect(server.url()).await?;
    let mut sql = Sql(PgConnection::connect(&server.url()).await?);
    let (held, kept) = (take(&dao, ["held"]).await?, take(&dao, ["kept 1", "kept 2"]).await?);
    fill(&mut sql).await?;

    // New ids are granted as long as there are pages for them; then the first fails, and so do all others.
    let mut granted_by_then = Vec::new();
    let mut refused = None;
    for number in 0..MANY {
        let asked = request([format!("new {number}")]);
        match granted(&dao, &asked).await {
            Ok(grant) => granted_by_then.push(grant),
            Err(error) => {
                told(&*error)?;
                refused = Some(asked);
                break;
            }
        }
    }
    let refused = refused.ok_or("there was room for all")?;
    for number in 0..20 {
        let ids = [format!("set {number}"), format!("set {number} too")];
        if let Err(error) = granted(&dao, &request(ids)).await {
            told(&*error)?;
        }
        if let Err(error) = queue(&other, ["held"]).await {
            told(&*error)?;
        }
    }
    // Nothing of what is held is granted to others.
    for grant in granted_by_then.iter().chain([&held, &kept]) {
        let ids: Vec<String> = grant.locks.iter().map(|lock| lock.target.stored().into_owned()).collect();
        match other.acquire(&request(ids)).await {
            Ok(Acquired::Refused(_)) => {}
            Ok(other) => return Err(format!("it is held: {other:?}").into()),
            Err(error) => told(&error)?,
        }
    }
    // A renewal either lasts or fails, and what could not be released is still held.
    match dao.renew(&held).await {
        Ok(renewed) => assert_eq!(renewed.lost, []),
        Err(error) => told(&error)?,
    }
    let released = match dao.release(&kept).await {
        Ok(released) => {
            assert_eq!(released.lost, []);
            true
        }
        Err(error) => {
            told(&error)?;
            false
        }
    };

    sql.run("DROP TABLE filler").await?;
    sql.run("CHECKPOINT").await?;
    assert_eq!(dao.renew(&held).await?.lost, []);
    assert_eq!(dao.release(&kept).await?.lost.is_empty(), !released, "once");
    for grant in &granted_by_then {
        assert_eq!(dao.release(grant).await?.lost, []);
    }
    let now = granted(&dao, &refused).await?;
    assert_eq!(dao.release(&now).await?.lost, []);
    take(&other, ["kept 1", "kept 2"]).await?;
    Ok(())
}

/// Leaves no page free. Not logged, so that no room is wanted for the log, which the server could not go on without; and not
/// vacuumed, so that what a failed statement took stays taken.
async fn fill(sql: &mut Sql) -> Result<(), Error> {
    sql.run("CREATE UNLOGGED TABLE filler (bytes text) WITH (autovacuum_enabled = off)").await?;
    sql.run("ALTER TABLE filler ALTER bytes SET STORAGE PLAIN").await?;
    for rows in [1000, 100, 10, 1, 1] {
        let row = format!("INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, {rows})");
        while sql.run(&*row).await.is_ok() {}
    }
    Ok(())
}

/// That it is clear what the error is about, and that nothing was done.
fn told(error: &(dyn std::error::Error + 'static)) -> TestResult {
    let Some(error) = error.downcast_ref::<lockcore::BackendError>() else {
        return Err(format!("not a failure of the store: {error}").into());
    };
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error:?}");
    assert!(!error.in_doubt(), "{error:?}");
    Ok(())
}
