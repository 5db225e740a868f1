//! A disk that is full.

use lockcore_conformance::servers::{Kind, Server, TestResult, Trial};
use lockcore_sql::PostgresLockDao;
use sqlx::{Connection, PgConnection};

use super::{
    place::{Dao, Error, Sql},
    steps::disk,
    test,
};

/// What a new server writes, and some room to fill.
const DISK: u64 = 160 << 20;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "disk::a_full_store_is_reported_and_nothing_is_granted_twice",
        a_full_store_is_reported_and_nothing_is_granted_twice,
    )]
}

async fn a_full_store_is_reported_and_nothing_is_granted_twice() -> TestResult {
    let server = Server::start_small(Kind::Postgres, DISK).await?;
    let dao: Dao = PostgresLockDao::open(server.url()).await?;
    let other: Dao = PostgresLockDao::open(server.url()).await?;
    let mut filler = Sql(PgConnection::connect(&server.url()).await?);
    let mut clearer = Sql(PgConnection::connect(&server.url()).await?);
    let clear = async {
        clearer.run("DROP TABLE filler").await?;
        clearer.run("CHECKPOINT").await?;
        Ok(())
    };
    disk::a_full_store_is_reported_and_nothing_is_granted_twice([&dao, &other], fill(&mut filler), clear)
        .await
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
