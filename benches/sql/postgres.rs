//! Postgres without us: one upsert and one delete, advisory locks, NOTIFY.

use std::time::{Duration, Instant};

use lockcore_sql::{PostgresLockDao, postgres::Commit};
use sqlx::{
    Connection, PgConnection,
    postgres::{PgAdvisoryLock, PgListener},
};
use uuid::Uuid;

use crate::bare::{Bare, Bell, Commits, Database};

const HOLDER: &[u8] = b"01234567-89ab-cdef-0123-456789abcdef";
const TABLE: &str = "CREATE TABLE IF NOT EXISTS bare (id bytea PRIMARY KEY, holder bytea NOT NULL, over timestamptz NOT NULL)";
const TAKE_ONE: &str = "INSERT INTO bare AS b (id, holder, over) VALUES ($1, $2, now() + interval '30 s') \
                        ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, over = excluded.over \
                        WHERE b.over < now()";
const TAKE: &str = "INSERT INTO bare AS b (id, holder, over) SELECT id, $2, now() + interval '30 s' \
                    FROM unnest($1) AS u (id) ON CONFLICT (id) \
                    DO UPDATE SET holder = excluded.holder, over = excluded.over WHERE b.over < now()";
const FREE_ONE: &str = "DELETE FROM bare WHERE id = $1 AND holder = $2";
const FREE: &str = "DELETE FROM bare WHERE id = ANY ($1) AND holder = $2";

pub(crate) struct Postgres;

impl Database for Postgres {
    type Dao = PostgresLockDao<String, Uuid>;
    type Bare = Client;
    type Bell = Notify;
    const PEER: &'static str = "sqlx PgAdvisoryLock, one by one";
    const WAKING: &'static str = "bare NOTIFY -> message";

    async fn open(url: &str, commits: Commits, prefix: &str) -> Self::Dao {
        let commit = if commits == Commits::Async { Commit::Async } else { Commit::default() };
        let builder = PostgresLockDao::builder().url(url).table_prefix(prefix).max_connections(32);
        builder.commit(commit).connect().await.expect("the server answers")
    }

    async fn bare(url: &str, commits: Commits) -> Client {
        let mut client =
            Client { taking: connect(url, commits).await, freeing: connect(url, Commits::Async).await };
        // Clients that begin at once would make it twice.
        let table = format!("SELECT pg_advisory_lock(7); {TABLE}; SELECT pg_advisory_unlock(7)");
        sqlx::raw_sql(sqlx::AssertSqlSafe(table)).execute(&mut client.taking).await.expect("a table");
        client
    }

    async fn bell(url: &str, commits: Commits) -> Notify {
        let mut listener = PgListener::connect(url).await.expect("the server answers");
        listener.listen("bare").await.expect("an answer");
        Notify { sender: connect(url, commits).await, listener }
    }
}

async fn connect(url: &str, commits: Commits) -> PgConnection {
    let mut conn = PgConnection::connect(url).await.expect("the server answers");
    if commits == Commits::Async {
        sqlx::raw_sql("SET synchronous_commit = off").execute(&mut conn).await.expect("an answer");
    }
    conn
}

/// Nobody need wait for the disk when something is freed, so that this has a connection of its own.
pub(crate) struct Client {
    taking: PgConnection,
    freeing: PgConnection,
}

impl Bare for Client {
    async fn take(&mut self, names: &[String]) {
        execute(&mut self.taking, TAKE_ONE, TAKE, names).await;
    }

    async fn free(&mut self, names: &[String]) {
        execute(&mut self.freeing, FREE_ONE, FREE, names).await;
    }

    async fn peer(&mut self, name: &str) {
        let lock = PgAdvisoryLock::new(name);
        let guard = lock.acquire(&mut self.taking).await.expect("free");
        guard.release_now().await.expect("held");
    }
}

async fn execute(conn: &mut PgConnection, one: &'static str, many: &'static str, names: &[String]) {
    let query = match names {
        [name] => sqlx::query(one).bind(name.as_bytes()),
        _ => sqlx::query(many).bind(names.iter().map(String::as_bytes).collect::<Vec<_>>()),
    };
    let done = query.bind(HOLDER).execute(conn).await.expect("an answer");
    assert_eq!(done.rows_affected(), names.len() as u64, "all of them");
}

pub(crate) struct Notify {
    sender: PgConnection,
    listener: PgListener,
}

impl Bell for Notify {
    async fn ring(&mut self) -> Duration {
        let begun = Instant::now();
        let send = sqlx::query("SELECT pg_notify('bare', 'message')").execute(&mut self.sender);
        let hear = async {
            self.listener.recv().await.expect("the connection is kept");
            begun.elapsed()
        };
        let (sent, heard) = tokio::join!(send, hear);
        sent.expect("an answer");
        heard
    }
}
