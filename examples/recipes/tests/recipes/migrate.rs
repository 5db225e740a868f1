//! Migrations, with their lock behind a pooler of transactions.

use std::process::{Command, Stdio};

use lockcore::{LockingService, Target};
use lockcore_conformance::{
    eventually,
    servers::{self, Kind, Pooler, TestResult, Trial, trial},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, PgPool, Row,
    postgres::PgConnectOptions,
};
use url::Url;
use uuid::Uuid;

const INSTANCES: usize = 4;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial(Kind::Postgres, "migrate::one_of_many_instances_migrates", one_of_many_instances_migrates),
        trial(
            Kind::Postgres,
            "migrate::the_lock_of_a_session_excludes_none_behind_a_pooler",
            the_lock_of_a_session_excludes_none_behind_a_pooler,
        ),
    ]
}

/// All instances start at once. The tests' pooler is too old for the statements that sqlx prepares: it has the locks, not the data.
async fn one_of_many_instances_migrates() -> TestResult {
    let server = servers::shared(Kind::Postgres).await?;
    let database = format!("recipe_{}", Uuid::new_v4().simple());
    let within = |url: String| -> Result<Url, url::ParseError> {
        let mut url = Url::parse(&url)?;
        url.set_path(&database);
        Ok(url)
    };
    let mut sql = PgConnection::connect(&server.url()).await?;
    sql.execute(AssertSqlSafe(format!("CREATE DATABASE {database}"))).await?;
    let data = within(server.url())?;
    let pooler = Pooler::start(&server, 3).await?;
    let mut locks = within(server.url_through(pooler.address()))?;
    locks.query_pairs_mut().append_pair("prepared", "false").append_pair("listen_url", data.as_str());

    // The first to migrate meets this, and the others wait for it.
    let mut migrated = PgConnection::connect(data.as_str()).await?;
    migrated.execute("BEGIN").await?;
    migrated.execute("CREATE TABLE account ()").await?;
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_recipe-migrate"));
        command.env("DATABASE_URL", data.as_str()).env("LOCKCORE_URL", locks.as_str());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let instances = (0..INSTANCES).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
    let seen = LockingService::new(lockcore_any::connect(data.as_str()).await?);
    let watch = PgPool::connect(data.as_str()).await?;
    eventually("all but one wait", || async {
        const MIGRATE: &str = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'CREATE TABLE account%'";
        let migrate: i64 = sqlx::query_scalar(MIGRATE).fetch_one(&watch).await.ok()?;
        assert!(migrate <= 1, "{migrate} migrate at once");
        let seen = seen.admin().inspect(&Target::Id("migrations/app".to_owned())).await.ok()?;
        (seen.holders.len() == 1 && seen.waiters.len() == INSTANCES - 1).then_some(())
    })
    .await;
    migrated.execute("ROLLBACK").await?;
    for instance in instances {
        let ended = instance.wait_with_output()?;
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    let applied = sqlx::query("SELECT version FROM _sqlx_migrations").fetch_all(&mut migrated).await?;
    let applied: Vec<i64> = applied.iter().map(|row| row.get(0)).collect();
    assert_eq!(applied, [1, 2]);
    migrated.execute("UPDATE account SET fence = 1").await?;
    migrated.close().await?;
    watch.close().await;
    drop((pooler, seen));
    sql.execute(AssertSqlSafe(format!("DROP DATABASE {database} WITH (FORCE)"))).await?;
    Ok(())
}

/// The outage that the recipe prevents: two clients have it, and the one that goes does not give it back.
async fn the_lock_of_a_session_excludes_none_behind_a_pooler() -> TestResult {
    const LOCK: &str = "SELECT pg_try_advisory_lock(46)";
    const UNLOCK: &str = "SELECT pg_advisory_unlock(46)";
    let server = servers::shared(Kind::Postgres).await?;
    let client = async |pooler: &Pooler| {
        let options: PgConnectOptions = server.url_through(pooler.address()).parse()?;
        options.extra_float_digits(None).connect().await
    };
    async fn ask(client: &mut PgConnection, sql: &'static str) -> Result<bool, sqlx::Error> {
        // As text: this pooler passes no prepared statements on.
        sqlx::raw_sql(sql).fetch_one(client).await?.try_get_unchecked(0)
    }
    let shared = Pooler::start(&server, 1).await?;
    let (mut one, mut other) = (client(&shared).await?, client(&shared).await?);
    assert!(ask(&mut one, LOCK).await? && ask(&mut other, LOCK).await?, "the session excludes itself");
    drop((one, other, shared));

    let many = Pooler::start(&server, 3).await?;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(client(&many).await?);
    }
    // Three at once: the pooler opens a session for each.
    for client in &mut clients {
        client.execute("BEGIN").await?;
    }
    for client in &mut clients {
        client.execute("COMMIT").await?;
    }
    // The next session in turn does not have what the one before it locked.
    assert!(ask(&mut clients[0], LOCK).await?);
    assert!(!ask(&mut clients[0], UNLOCK).await?);
    Ok(())
}
