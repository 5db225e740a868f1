//! Applies what is new in `migrations` to the database of `DATABASE_URL`, in one process at a time. Each instance of a service can start with it.

use std::{env, path::Path, time::Duration};

use lockcore::{LockingService, Wait};
use lockcore_any::Config;
use sqlx::{PgPool, migrate::Migrator, postgres::PgConnectOptions};

// ANCHOR: recipe
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options: PgConnectOptions = env::var("DATABASE_URL")?.parse()?;
    // PgBouncer refuses a connection with this parameter, which sqlx sets for servers before Postgres 12.
    let database = PgPool::connect_with(options.extra_float_digits(None)).await?;
    let locks = Config::load(None, Config::default())?.service().await?;
    migrate(&database, &locks).await
}

async fn migrate(database: &PgPool, locks: &LockingService) -> anyhow::Result<()> {
    let mut migrator = Migrator::new(Path::new("migrations")).await?; // or sqlx::migrate!()
    migrator.set_locking(false); // no pg_advisory_lock
    locks
        .wait(Wait::up_to(Duration::from_secs(600)))
        .try_with_locks(["migrations/app"], async || Ok(migrator.run(database).await?))
        .await
}
// ANCHOR_END: recipe
