//! The conformance suite on the Postgres backend: one real server, a namespace for each store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore_conformance::{
    Backend,
    checks::contexts::odd_contexts_are_kept_apart,
    eventually,
    servers::{self, Kind, Server, Trial},
};
use lockcore_sql::PostgresLockDao;
use sqlx::{PgPool, postgres::PgPoolOptions};
use uuid::Uuid;

/// What lets time pass for a namespace: all that its rows say of time is so much older, as if the server's clock had been set
/// forward. Heartbeats are not, which the processes that are alive send by the clock.
const OLDER: [&str; 6] = [
    "UPDATE lockcore_lock SET expires = expires - $2, since = since - $2, lapses = lapses - $2,
        next_since = next_since - $2 WHERE ns = $1",
    "UPDATE lockcore_holder SET expires = expires - $2, since = since - $2 WHERE ns = $1",
    "UPDATE lockcore_place SET since = since - $2 WHERE ns = $1",
    "UPDATE lockcore_tombstone SET until = until - $2 WHERE ns = $1",
    "UPDATE lockcore_break SET at = at - $2 WHERE ns = $1",
    "UPDATE lockcore_namespace SET swept = swept - $2, reached = greatest(reached - $2, 0) WHERE ns = $1",
];

/// What no program of ours writes into the row of a holder; the last also stops the clock of those who add to it.
const UNREADABLE: [&str; 5] = [
    "since = -1",
    "lease = -1",
    "fence = NULL",
    "owner = NULL",
    "since = -1, busy = busy | 8, lapses = 1, expires = 9223372036854775807",
];

struct Postgres {
    server: Arc<Server>,
    /// Other tests, and other runs of this one, may use the same server.
    run: Uuid,
    stores: AtomicUsize,
    /// For the clock.
    pool: PgPool,
}

/// A namespace of the server.
struct Namespace {
    server: Arc<Server>,
    name: String,
}

impl Namespace {
    async fn open(&self) -> PostgresLockDao<String, Uuid> {
        let builder = PostgresLockDao::builder()
            .url(self.server.url())
            .timeout(servers::ANSWERS)
            .namespace(&*self.name);
        // The checks run at the same time, and open some DAOs each.
        builder.max_connections(4).open().await.expect("the server answers")
    }
}

impl Backend for Postgres {
    type Dao = PostgresLockDao<String, Uuid>;
    type Guard = Namespace;

    async fn build(&self) -> (Namespace, Self::Dao) {
        let number = self.stores.fetch_add(1, Ordering::Relaxed);
        let name = format!("{} store {number}", self.run);
        let namespace = Namespace { server: self.server.clone(), name };
        let dao = namespace.open().await;
        (namespace, dao)
    }

    async fn reopen(&self, namespace: &Namespace) -> Option<Self::Dao> {
        Some(namespace.open().await)
    }

    async fn advance(&self, namespace: &Namespace, by: Duration) -> bool {
        if by.is_zero() {
            return true;
        }
        let by = i64::try_from(by.as_micros()).expect("a check is not that long");
        let older = async || {
            let mut transaction = self.pool.begin().await?;
            for table in OLDER {
                sqlx::query(table)
                    .bind(namespace.name.as_bytes())
                    .bind(by)
                    .execute(&mut *transaction)
                    .await?;
            }
            transaction.commit().await
        };
        // It locks rows in another order than the steps do, so that the server may give it up.
        eventually("time passes", async || older().await.ok()).await;
        true
    }

    async fn spoil(&self, namespace: &Namespace, id: &str, way: usize) -> bool {
        let Some(values) = UNREADABLE.get(way) else { return false };
        let spoil = format!("UPDATE lockcore_lock SET {values} WHERE ns = $1 AND id = $2");
        let spoil =
            sqlx::query(sqlx::AssertSqlSafe(spoil)).bind(namespace.name.as_bytes()).bind(id.as_bytes());
        spoil.execute(&self.pool).await.expect("a table of ours").rows_affected() == 1
    }
}

pub(crate) fn checks() -> impl Iterator<Item = Trial> {
    servers::checks("postgres", || async {
        let server = servers::shared(Kind::Postgres).await?;
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy(&server.url())?;
        Ok(Postgres { server, run: Uuid::new_v4(), stores: AtomicUsize::new(0), pool })
    })
}

pub(crate) fn trials() -> Vec<Trial> {
    let contexts = servers::trial(Kind::Postgres, "own::odd_contexts", || async {
        let server = servers::shared(Kind::Postgres).await?;
        let builder =
            PostgresLockDao::<String, String>::builder().url(server.url()).timeout(servers::ANSWERS);
        let dao = builder.namespace(Uuid::new_v4().to_string()).open().await?;
        odd_contexts_are_kept_apart(&dao).await;
        Ok(())
    });
    vec![contexts]
}
