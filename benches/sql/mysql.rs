//! MySQL and MariaDB without us: one upsert and one delete, locks of the session, `KILL QUERY`.

use std::time::{Duration, Instant};

use lockcore_sql::MysqlLockDao;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use uuid::Uuid;

use crate::bare::{Bare, Bell, Commits, Database};

const HOLDER: &[u8] = b"01234567-89ab-cdef-0123-456789abcdef";
const TABLE: &str = "CREATE TABLE IF NOT EXISTS bare \
                     (id VARBINARY(1024) PRIMARY KEY, holder VARBINARY(255) NOT NULL, ends DATETIME(6) NOT NULL)";

pub(crate) struct Mysql;

impl Database for Mysql {
    type Dao = MysqlLockDao<String, Uuid>;
    type Bare = Client;
    type Bell = Kill;
    const PEER: &'static str = "GET_LOCK, one by one";
    const WAKING: &'static str = "bare KILL QUERY -> error 1317";
    const WRITING: &'static str = "one-row UPDATE, then KILL QUERY -> error 1317 -> SELECT of the row";

    async fn open(url: &str, commits: Commits, prefix: &str) -> Self::Dao {
        connect(url, commits).await;
        let builder = MysqlLockDao::builder().url(url).table_prefix(prefix).max_connections(32);
        builder.connect().await.expect("the server answers")
    }

    async fn bare(url: &str, commits: Commits) -> Client {
        let mut conn = connect(url, commits).await;
        sqlx::raw_sql(TABLE).execute(&mut conn).await.expect("a table");
        Client { conn, ids: 0, take: String::new(), free: String::new() }
    }

    async fn bell(url: &str, commits: Commits) -> Kill {
        let [mut waiter, mut keeper, ringer] =
            [connect(url, commits).await, connect(url, commits).await, connect(url, commits).await];
        let kept =
            sqlx::query_scalar("SELECT CAST(GET_LOCK('bare', 0) AS SIGNED)").fetch_one(&mut keeper).await;
        assert_eq!(kept.ok(), Some(1_i64), "nobody else has it");
        let number = "SELECT CAST(CONNECTION_ID() AS SIGNED)";
        let number = sqlx::query_scalar(number).fetch_one(&mut waiter).await.expect("an answer");
        let table = "CREATE TABLE IF NOT EXISTS bell (rung BIGINT NOT NULL); INSERT INTO bell VALUES (0)";
        sqlx::raw_sql(table).execute(&mut keeper).await.expect("a table");
        Kill { number, waiter, ringer, _keeper: keeper }
    }

    /// Neither can do that without a binary log.
    async fn slow_commits(_url: &str, _slow: bool) -> Option<&'static str> {
        None
    }

    async fn settle(url: &str) {
        let mut conn = connect(url, Commits::Usual).await;
        let tables =
            "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = DATABASE()";
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut conn).await.expect("an answer");
        for table in tables {
            let analyze = AssertSqlSafe(format!("ANALYZE TABLE `{table}`"));
            sqlx::raw_sql(analyze).execute(&mut conn).await.expect("an answer");
        }
    }
}

/// A connection to a server that commits in that way from now on: neither lets a session choose.
async fn connect(url: &str, commits: Commits) -> MySqlConnection {
    let mut conn = MySqlConnection::connect(url).await.expect("the server answers");
    let set = match commits {
        Commits::Usual => "SET GLOBAL innodb_flush_log_at_trx_commit = 1, GLOBAL sync_binlog = DEFAULT",
        Commits::Async => "SET GLOBAL innodb_flush_log_at_trx_commit = 2, GLOBAL sync_binlog = 0",
    };
    sqlx::raw_sql(set).execute(&mut conn).await.expect("the user may do everything");
    sqlx::raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        .execute(&mut conn)
        .await
        .expect("an answer");
    conn
}

pub(crate) struct Client {
    conn: MySqlConnection,
    /// The statements for so many ids.
    ids: usize,
    take: String,
    free: String,
}

impl Client {
    fn prepare(&mut self, ids: usize) {
        if self.ids == ids {
            return;
        }
        let row = "(?, ?, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)";
        self.take = format!(
            "INSERT INTO bare (id, holder, ends) VALUES {} ON DUPLICATE KEY UPDATE \
             holder = IF(ends < UTC_TIMESTAMP(6), VALUES(holder), holder), \
             ends = IF(ends < UTC_TIMESTAMP(6), VALUES(ends), ends)",
            vec![row; ids].join(", ")
        );
        self.free = format!("DELETE FROM bare WHERE id IN ({}) AND holder = ?", vec!["?"; ids].join(", "));
        self.ids = ids;
    }
}

impl Bare for Client {
    async fn take(&mut self, names: &[String]) {
        self.prepare(names.len());
        let mut query = sqlx::query(AssertSqlSafe(self.take.clone()));
        for name in names {
            query = query.bind(name.as_bytes()).bind(HOLDER);
        }
        let done = query.execute(&mut self.conn).await.expect("an answer");
        assert_eq!(done.rows_affected(), names.len() as u64, "all of them are new");
    }

    async fn free(&mut self, names: &[String]) {
        self.prepare(names.len());
        let mut query = sqlx::query(AssertSqlSafe(self.free.clone()));
        for name in names {
            query = query.bind(name.as_bytes());
        }
        let done = query.bind(HOLDER).execute(&mut self.conn).await.expect("an answer");
        assert_eq!(done.rows_affected(), names.len() as u64, "all of them");
    }

    async fn peer(&mut self, name: &str) {
        for call in ["SELECT CAST(GET_LOCK(?, 0) AS SIGNED)", "SELECT CAST(RELEASE_LOCK(?) AS SIGNED)"] {
            let done = sqlx::query_scalar(call).bind(name).fetch_one(&mut self.conn).await;
            assert_eq!(done.ok(), Some(1_i64), "free, then held");
        }
    }
}

/// Waits as our listener does: for a name that another connection keeps.
pub(crate) struct Kill {
    number: i64,
    waiter: MySqlConnection,
    ringer: MySqlConnection,
    _keeper: MySqlConnection,
}

impl Bell for Kill {
    async fn ring(&mut self) -> Duration {
        self.interrupted("", None).await
    }

    // A `KILL QUERY` says nothing: whoever is to be told something has to look for it.
    async fn write_and_ring(&mut self) -> Duration {
        self.interrupted("UPDATE bell SET rung = rung + 1; ", Some("SELECT rung FROM bell")).await
    }
}

impl Kill {
    /// `before` goes in the same message, and commits by itself; `then` is asked by who was woken.
    async fn interrupted(&mut self, before: &str, then: Option<&'static str>) -> Duration {
        let wait = async {
            let wait = sqlx::query_scalar::<_, i64>("SELECT CAST(GET_LOCK('bare', 20) AS SIGNED)");
            let _interrupted = wait.fetch_one(&mut self.waiter).await;
            if let Some(look) = then {
                let _rung: i64 = sqlx::query_scalar(look).fetch_one(&mut self.waiter).await.expect("a row");
            }
            Instant::now()
        };
        let ring = async {
            let waits =
                "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND state = 'User lock'";
            let mut waiting = 0;
            while waiting == 0 {
                let look = sqlx::query_scalar(waits).bind(self.number).fetch_one(&mut self.ringer);
                waiting = look.await.expect("an answer");
            }
            let begun = Instant::now();
            let kill = AssertSqlSafe(format!("{before}KILL QUERY {}", self.number));
            sqlx::raw_sql(kill).execute(&mut self.ringer).await.expect("the user may do everything");
            begun
        };
        let (heard, begun) = tokio::join!(wait, ring);
        heard.duration_since(begun)
    }
}
