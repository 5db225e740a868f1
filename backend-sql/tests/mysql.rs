//! The conformance suite on MySQL and on MariaDB: a real server of each, a namespace for each store.

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
use lockcore_sql::MysqlLockDao;
use sqlx::{MySqlPool, mysql::MySqlPoolOptions};
use uuid::Uuid;

/// What lets time pass for a namespace: all that its rows say of time is so much older, as if the server's clock had been set
/// forward. Heartbeats are not, which the processes that are alive send by the clock; nor are zeros, which are no times.
const OLDER: [&str; 5] = [
    "UPDATE lockcore_ids SET until = IF(until = 0, 0, until - @by), tombstone = IF(tombstone = 0, 0, tombstone - @by),
        since = since - @by, born = born - @by WHERE ns = @ns",
    "UPDATE lockcore_claims SET until = IF(until = 0, 0, until - @by), since = since - @by WHERE ns = @ns",
    "UPDATE lockcore_tombstones SET until = until - @by WHERE ns = @ns",
    "UPDATE lockcore_breaks SET at = at - @by WHERE ns = @ns",
    "UPDATE lockcore_namespaces SET swept = IF(swept = 0, 0, swept - @by) WHERE ns = @ns",
];

/// What no program of ours writes into the row of a holder; the last also stops the clock of those who add to it.
const UNREADABLE: [&str; 4] =
    ["since = -1", "lease = -1", "fence = -1", "since = -1, until = 9223372036854775807"];

struct Mysql {
    server: Arc<Server>,
    /// Other tests, and other runs of this one, may use the same server.
    run: Uuid,
    stores: AtomicUsize,
    /// For the clock.
    pool: MySqlPool,
}

/// A namespace of the server.
struct Namespace {
    server: Arc<Server>,
    name: String,
}

impl Namespace {
    async fn open(&self) -> MysqlLockDao<String, Uuid> {
        let builder = MysqlLockDao::builder().url(self.server.url()).timeout(servers::ANSWERS);
        builder.namespace(&*self.name).open().await.expect("the server answers")
    }
}

impl Backend for Mysql {
    type Dao = MysqlLockDao<String, Uuid>;
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
            let find = "SELECT ns, ? INTO @ns, @by FROM lockcore_namespaces WHERE name = ?";
            sqlx::query(find).bind(by).bind(namespace.name.as_bytes()).execute(&mut *transaction).await?;
            for table in OLDER {
                sqlx::raw_sql(table).execute(&mut *transaction).await?;
            }
            transaction.commit().await
        };
        // It locks rows in another order than the steps do, so that the server may give it up.
        eventually("time passes", async || older().await.ok()).await;
        true
    }

    async fn spoil(&self, namespace: &Namespace, id: &str, way: usize) -> bool {
        let Some(values) = UNREADABLE.get(way) else { return false };
        let of_id = "ns = (SELECT ns FROM lockcore_namespaces WHERE name = ?) AND id = ?";
        let spoil = format!("UPDATE lockcore_ids SET {values} WHERE {of_id}");
        let spoil =
            sqlx::query(sqlx::AssertSqlSafe(spoil)).bind(namespace.name.as_bytes()).bind(id.as_bytes());
        spoil.execute(&self.pool).await.expect("a table of ours").rows_affected() == 1
    }
}

pub(crate) fn checks(kind: Kind) -> impl Iterator<Item = Trial> {
    let instance = if kind == Kind::MySql { "mysql" } else { "mariadb" };
    servers::checks(instance, move || async move {
        let server = servers::shared(kind).await?;
        let pool = MySqlPoolOptions::new().max_connections(1).connect_lazy(&server.url())?;
        Ok(Mysql { server, run: Uuid::new_v4(), stores: AtomicUsize::new(0), pool })
    })
}

pub(crate) fn trials(kind: Kind) -> Vec<Trial> {
    let contexts = servers::trial(kind, "own::odd_contexts", move || async move {
        let server = servers::shared(kind).await?;
        let builder = MysqlLockDao::<String, String>::builder().url(server.url()).timeout(servers::ANSWERS);
        let dao = builder.namespace(Uuid::new_v4().to_string()).open().await?;
        odd_contexts_are_kept_apart(&dao).await;
        Ok(())
    });
    vec![contexts]
}
