//! A disk that is full.

use lockcore_conformance::servers::{self, Kind, Server, TestResult, Trial};
use lockcore_sql::MysqlLockDao;
use sqlx::{Connection, MySqlConnection};

use super::{
    place::{Dao, Error, Sql},
    steps::disk,
    test,
};

/// What a new server writes, and some room to fill.
const DISK: u64 = 320 << 20;

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![test(
        kind,
        "disk::a_full_store_is_reported_and_nothing_is_granted_twice",
        a_full_store_is_reported_and_nothing_is_granted_twice,
    )]
}

async fn a_full_store_is_reported_and_nothing_is_granted_twice(kind: Kind) -> TestResult {
    for _ in 0..3 {
        let server = Server::start_small(kind, DISK).await?;
        let outcome = on_a_full_disk(&server).await;
        // MariaDB ends itself once its purge has found no page for five seconds (row0purge.cc: `ut_a(--n_tries)`). What was
        // under way then is in doubt.
        if outcome.is_ok() || kind == Kind::MySql || MySqlConnection::connect(&server.url()).await.is_ok() {
            return outcome;
        }
    }
    Err("the server ended itself three times".into())
}

async fn on_a_full_disk(server: &Server) -> TestResult {
    let open = async || MysqlLockDao::builder().url(server.url()).timeout(servers::ANSWERS).open().await;
    let (dao, other): (Dao, Dao) = (open().await?, open().await?);
    let mut filler = Sql(MySqlConnection::connect(&server.url()).await?);
    let mut clearer = Sql(MySqlConnection::connect(&server.url()).await?);
    let clear = async { clearer.run("DROP TABLE filler").await.map(drop) };
    disk::a_full_store_is_reported_and_nothing_is_granted_twice([&dao, &other], fill(&mut filler), clear)
        .await
}

/// Leaves no page free.
async fn fill(sql: &mut Sql) -> Result<(), Error> {
    sql.run("CREATE TABLE filler (bytes VARCHAR(8000) CHARACTER SET ascii)").await?;
    for rows in [1000, 100, 10, 1, 1] {
        let row = format!(
            "INSERT INTO filler WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
             SELECT REPEAT('x', 7000) FROM n"
        );
        while sql.run(&*row).await.is_ok() {}
    }
    Ok(())
}
