//! The program, without its command line.

use std::error::Error;

use lockcore::{LockDao, LockingService};
use lockcore_sql::{MysqlLockDao, PostgresLockDao};
use sqlx::{MySqlPool, PgPool};
use uuid::Uuid;

use super::ledger::Ledger;

pub(crate) type Done = Result<(), Box<dyn Error + Send + Sync>>;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS ledger_account \
     (name varchar(100) PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)";

pub(crate) async fn run(url: &str, from: &str, to: &str, amount: i64) -> Done {
    if url.starts_with("postgres") {
        let pool = PgPool::connect(url).await?;
        sqlx::raw_sql(TABLE).execute(&pool).await?;
        let open =
            "INSERT INTO ledger_account (name, balance) VALUES ($1, 100), ($2, 100) ON CONFLICT DO NOTHING";
        sqlx::query(open).bind(from).bind(to).execute(&pool).await?;
        let locks = LockingService::new(PostgresLockDao::<String>::open(url).await?);
        transfer(&locks, &Ledger::Postgres(pool), from, to, amount).await
    } else {
        let pool = MySqlPool::connect(url).await?;
        sqlx::raw_sql(TABLE).execute(&pool).await?;
        let open = "INSERT IGNORE INTO ledger_account (name, balance) VALUES (?, 100), (?, 100)";
        sqlx::query(open).bind(from).bind(to).execute(&pool).await?;
        let locks = LockingService::new(MysqlLockDao::<String>::open(url).await?);
        transfer(&locks, &Ledger::Mysql(pool), from, to, amount).await
    }
}

async fn transfer<D: LockDao<String, Uuid>>(
    locks: &LockingService<String, Uuid, D>,
    ledger: &Ledger,
    from: &str,
    to: &str,
    amount: i64,
) -> Done {
    let guard = locks.lock([from, to]).await?;
    ledger.transfer(guard.held(), from, to, amount).await?;
    guard.release().await?;
    Ok(())
}
