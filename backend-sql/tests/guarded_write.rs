//! The example `guarded_transfer` on real servers: a former holder's transaction is refused by the database itself.

#[path = "../examples/guarded_transfer/ledger.rs"]
mod ledger;
#[path = "../examples/guarded_transfer/transfers.rs"]
mod transfers;

use std::time::Duration;

use lockcore::{BreakMode, LockDao, LockingService, Target};
use lockcore_conformance::servers::{self, Kind, Server, TestResult, Trial, trial};
use lockcore_sql::{MysqlLockDao, PostgresLockDao};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, Row};
use uuid::Uuid;

use ledger::{Ledger, TransferError};

const LEASE: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(Kind::Postgres, "guarded_write::a_former_holders_transaction_is_refused", postgres),
        trial(Kind::MariaDb, "guarded_write::a_former_holders_transaction_is_refused", || {
            mysql(Kind::MariaDb)
        }),
        trial(Kind::MySql, "guarded_write::a_former_holders_transaction_is_refused", || mysql(Kind::MySql)),
        trial(Kind::Postgres, "guarded_write::the_example_runs", || the_example_runs(Kind::Postgres)),
        trial(Kind::MariaDb, "guarded_write::the_example_runs", || the_example_runs(Kind::MariaDb)),
        trial(Kind::MySql, "guarded_write::the_example_runs", || the_example_runs(Kind::MySql)),
    ]
}

async fn postgres() -> TestResult {
    let server = servers::shared(Kind::Postgres).await?;
    let pool = PgPool::connect(&server.url()).await?;
    let names = accounts();
    sqlx::raw_sql(AssertSqlSafe(table("text"))).execute(&pool).await?;
    sqlx::raw_sql(AssertSqlSafe(opened(&names))).execute(&pool).await?;
    let dao = PostgresLockDao::<String, Uuid>::open(server.url()).await?;
    check(LockingService::builder(dao).lease(LEASE).build()?, &Ledger::Postgres(pool.clone()), &names)
        .await?;
    let balance = sqlx::query("SELECT balance FROM ledger_account WHERE name = $1");
    let balance: i64 = balance.bind(&names[0]).fetch_one(&pool).await?.try_get(0)?;
    assert_eq!(balance, 80, "two of four transfers were made");
    Ok(())
}

async fn mysql(kind: Kind) -> TestResult {
    let server = servers::shared(kind).await?;
    let pool = MySqlPool::connect(&server.url()).await?;
    let names = accounts();
    sqlx::raw_sql(AssertSqlSafe(table("varchar(100)"))).execute(&pool).await?;
    sqlx::raw_sql(AssertSqlSafe(opened(&names))).execute(&pool).await?;
    let dao = MysqlLockDao::<String, Uuid>::open(server.url()).await?;
    check(LockingService::builder(dao).lease(LEASE).build()?, &Ledger::Mysql(pool.clone()), &names).await?;
    let balance = sqlx::query("SELECT balance FROM ledger_account WHERE name = ?");
    let balance: i64 = balance.bind(&names[0]).fetch_one(&pool).await?.try_get(0)?;
    assert_eq!(balance, 80, "two of four transfers were made");
    Ok(())
}

/// As from the command line, on a server that knows nothing of it.
async fn the_example_runs(kind: Kind) -> TestResult {
    let server = Server::start(kind).await?;
    transfers::run(&server.url(), "a", "b", 30).await?;
    transfers::run(&server.url(), "b", "a", 10).await?;
    let refused = transfers::run(&server.url(), "a", "b", 1000).await.expect_err("it has too little");
    assert!(refused.to_string().contains("too little"), "{refused}");
    let balances = "SELECT balance FROM ledger_account ORDER BY name";
    let balances: Vec<i64> = match kind {
        Kind::Postgres => {
            sqlx::query_scalar(balances).fetch_all(&PgPool::connect(&server.url()).await?).await?
        }
        _ => sqlx::query_scalar(balances).fetch_all(&MySqlPool::connect(&server.url()).await?).await?,
    };
    assert_eq!(balances, [80, 120]);
    Ok(())
}

/// Two holders one after the other, of which the first does not know that it is not one any more.
async fn check<D: LockDao<String, Uuid>>(
    locks: LockingService<String, Uuid, D>,
    ledger: &Ledger,
    names: &[String; 2],
) -> TestResult {
    let [from, to] = names;
    let former = locks.tell_when_lost().lock([from, to]).await?;
    ledger.transfer(former.held(), from, to, 10).await?;
    for name in names {
        let fence = former.held().fence(name.as_str());
        let target = Target::Id(name.clone());
        locks.admin().break_lock(&target, fence, BreakMode::Now).await?;
    }
    let holder = locks.lock([from, to]).await?;
    // No client has written since: to the database the former holder is as good as the last one. Once the new one has ...
    ledger.transfer(holder.held(), from, to, 10).await?;
    // ... the former one is refused, whatever it believes, and nothing of its transaction stays.
    let refused = ledger.transfer(former.held(), from, to, 10).await;
    assert!(matches!(&refused, Err(TransferError::Refused { account }) if account == from), "{refused:?}");
    let other_way = ledger.transfer(former.held(), to, from, 10).await;
    assert!(matches!(&other_way, Err(TransferError::Refused { account }) if account == to), "{other_way:?}");
    holder.release().await?;
    let third = locks.lock([from]).await?;
    let unheld = ledger.transfer(third.held(), from, to, 10).await;
    assert!(matches!(&unheld, Err(TransferError::NotHeld { account }) if account == to), "{unheld:?}");
    third.release().await?;
    assert!(former.release().await.is_err(), "it was not the holder any more");
    Ok(())
}

/// Of this run alone.
fn accounts() -> [String; 2] {
    let run = Uuid::new_v4();
    [format!("{run}/a"), format!("{run}/b")]
}

fn table(name: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS ledger_account \
         (name {name} PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)"
    )
}

fn opened(names: &[String; 2]) -> String {
    format!("INSERT INTO ledger_account (name, balance) VALUES ('{}', 100), ('{}', 0)", names[0], names[1])
}
