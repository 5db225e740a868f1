//! Postgres without us: one upsert and one delete, advisory locks, NOTIFY.

use std::time::{Duration, Instant};

use lockcore_sql::{
    PostgresLockDao,
    postgres::{Commit, PostgresStatementsLockDao},
};
use sqlx::{
    Connection, PgConnection,
    postgres::{PgAdvisoryLock, PgConnectOptions, PgListener},
};
use uuid::Uuid;

use crate::bare::{Bare, Commits, Database, Notifier};

const HOLDER: &[u8] = b"01234567-89ab-cdef-0123-456789abcdef";
const TABLE: &str = "CREATE TABLE IF NOT EXISTS bare (id bytea PRIMARY KEY, holder bytea NOT NULL, over timestamptz NOT NULL); \
                     CREATE TABLE IF NOT EXISTS kept (id bytea PRIMARY KEY, holder bytea NOT NULL, \
                     over timestamptz NOT NULL, taken int8 NOT NULL) WITH (fillfactor = 60)";
const KEEP: &str =
    "INSERT INTO kept SELECT id, '', '-infinity', 0 FROM unnest($1) AS u (id) ON CONFLICT DO NOTHING";
const TAKE_KEPT_ONE: &str = "UPDATE kept SET holder = $2, over = now() + interval '30 s', taken = taken + 1 \
                             WHERE id = $1 AND over < now()";
const TAKE_KEPT: &str = "UPDATE kept SET holder = $2, over = now() + interval '30 s', taken = taken + 1 \
                         WHERE id = ANY ($1) AND over < now()";
const FREE_KEPT_ONE: &str = "UPDATE kept SET over = '-infinity' WHERE id = $1 AND holder = $2";
const FREE_KEPT: &str = "UPDATE kept SET over = '-infinity' WHERE id = ANY ($1) AND holder = $2";
const TAKE_ONE: &str = "INSERT INTO bare AS b (id, holder, over) VALUES ($1, $2, now() + interval '30 s') \
                        ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, over = excluded.over \
                        WHERE b.over < now()";
const TAKE: &str = "INSERT INTO bare AS b (id, holder, over) SELECT id, $2, now() + interval '30 s' \
                    FROM unnest($1) AS u (id) ON CONFLICT (id) \
                    DO UPDATE SET holder = excluded.holder, over = excluded.over WHERE b.over < now()";
const FREE_ONE: &str = "DELETE FROM bare WHERE id = $1 AND holder = $2";
const FREE: &str = "DELETE FROM bare WHERE id = ANY ($1) AND holder = $2";
/// What a hand-over cannot do without, in one call: a row that is on the disk before any client is notified, and then a message.
const NOTIFYING: &str = "CREATE TABLE IF NOT EXISTS written (id int PRIMARY KEY, times int NOT NULL); \
    INSERT INTO written VALUES (7, 0) ON CONFLICT DO NOTHING; \
    CREATE OR REPLACE PROCEDURE write_and_notify() LANGUAGE plpgsql AS $$ \
    BEGIN \
      UPDATE written SET times = times + 1 WHERE id = 7; \
      COMMIT; \
      PERFORM set_config('synchronous_commit', 'off', true); \
      PERFORM pg_notify('bare', 'message'); \
    END $$";

pub(crate) struct Postgres;

impl Database for Postgres {
    type Dao = PostgresLockDao<String, Uuid>;
    type Statements = PostgresStatementsLockDao<String, Uuid>;
    type Bare = Client;
    type Notifier = Notify;
    const PEER: &'static str = "sqlx PgAdvisoryLock, one by one";
    const WAKING: &'static str = "bare NOTIFY -> message";
    const WRITING: &'static str = "one-row UPDATE, COMMIT, NOTIFY -> message";

    async fn open(url: &str, commits: Commits, prefix: &str) -> Self::Dao {
        let commit = if commits == Commits::Async { Commit::Async } else { Commit::default() };
        let builder = PostgresLockDao::builder().url(url).table_prefix(prefix).max_connections(32);
        builder.commit(commit).open().await.expect("the server answers")
    }

    async fn open_without_routines(url: &str, commits: Commits, prefix: &str) -> Self::Statements {
        let options: PgConnectOptions = url.parse().expect("a good URL");
        let options = match commits {
            Commits::Usual => options,
            Commits::Async => options.options([("synchronous_commit", "off")]),
        };
        let builder =
            PostgresLockDao::builder().connect_options(options).table_prefix(prefix).max_connections(32);
        builder.open_without_routines().await.expect("the server answers")
    }

    async fn bare(url: &str, commits: Commits) -> Client {
        let mut client = Client {
            taking: connect(url, commits).await,
            freeing: connect(url, Commits::Async).await,
            kept: 0,
        };
        // Clients that begin at once would make it twice; one message is one transaction.
        let table = format!("SELECT pg_advisory_xact_lock(7); {TABLE}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(table)).execute(&mut client.taking).await.expect("a table");
        client
    }

    async fn notifier(url: &str, commits: Commits) -> Notify {
        let mut listener = PgListener::connect(url).await.expect("the server answers");
        listener.listen("bare").await.expect("an answer");
        let mut sender = connect(url, commits).await;
        sqlx::raw_sql(NOTIFYING).execute(&mut sender).await.expect("a table and a routine");
        Notify { sender, listener }
    }

    async fn slow_commits(url: &str, slow: bool) -> Option<&'static str> {
        let mut conn = connect(url, Commits::Usual).await;
        let settings: &[&'static str] = match slow {
            true => &["ALTER SYSTEM SET commit_delay = 5000", "ALTER SYSTEM SET commit_siblings = 0"],
            false => &["ALTER SYSTEM RESET commit_delay", "ALTER SYSTEM RESET commit_siblings"],
        };
        for &setting in settings.iter().chain(&["SELECT pg_reload_conf()"]) {
            sqlx::raw_sql(setting).execute(&mut conn).await.expect("an answer");
        }
        Some("commit_delay = 5 ms")
    }

    async fn make_room(_url: &str) {}

    async fn settle(url: &str) {
        let mut conn = connect(url, Commits::Usual).await;
        for statement in ["VACUUM ANALYZE", "CHECKPOINT"] {
            sqlx::raw_sql(statement).execute(&mut conn).await.expect("an answer");
        }
    }
}

async fn connect(url: &str, commits: Commits) -> PgConnection {
    let mut conn = PgConnection::connect(url).await.expect("the server answers");
    if commits == Commits::Async {
        sqlx::raw_sql("SET synchronous_commit = off").execute(&mut conn).await.expect("an answer");
    }
    conn
}

/// No client need wait for the disk when something is freed, so that this has a connection of its own.
pub(crate) struct Client {
    taking: PgConnection,
    freeing: PgConnection,
    /// So many ids have rows that are kept.
    kept: usize,
}

impl Bare for Client {
    async fn take(&mut self, names: &[String]) {
        execute(&mut self.taking, TAKE_ONE, TAKE, names).await;
    }

    async fn free(&mut self, names: &[String]) {
        execute(&mut self.freeing, FREE_ONE, FREE, names).await;
    }

    async fn take_kept(&mut self, names: &[String]) {
        if self.kept < names.len() {
            let ids = names.iter().map(String::as_bytes).collect::<Vec<_>>();
            sqlx::query(KEEP).bind(ids).execute(&mut self.taking).await.expect("an answer");
            self.kept = names.len();
        }
        execute(&mut self.taking, TAKE_KEPT_ONE, TAKE_KEPT, names).await;
    }

    async fn free_kept(&mut self, names: &[String]) {
        execute(&mut self.freeing, FREE_KEPT_ONE, FREE_KEPT, names).await;
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

impl Notify {
    async fn notified_by(&mut self, statement: &'static str) -> Duration {
        let begun = Instant::now();
        let send = sqlx::query(statement).execute(&mut self.sender);
        let receive = async {
            self.listener.recv().await.expect("the connection is kept");
            begun.elapsed()
        };
        let (sent, received) = tokio::join!(send, receive);
        sent.expect("an answer");
        received
    }
}

impl Notifier for Notify {
    async fn notify(&mut self) -> Duration {
        self.notified_by("SELECT pg_notify('bare', 'message')").await
    }

    async fn write_and_notify(&mut self) -> Duration {
        self.notified_by("CALL write_and_notify()").await
    }
}
