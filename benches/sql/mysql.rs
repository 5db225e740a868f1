//! MySQL and MariaDB without us: one upsert and one delete, locks of the session, `KILL QUERY`.

use std::time::{Duration, Instant};

use lockcore_sql::{MysqlLockDao, mysql::MysqlStatementsLockDao};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, mysql::MySqlArguments};
use uuid::Uuid;

use crate::bare::{Bare, Commits, Database, Notifier};

const HOLDER: &[u8] = b"01234567-89ab-cdef-0123-456789abcdef";
const TABLE: &str = "CREATE TABLE IF NOT EXISTS bare \
                     (id VARBINARY(1024) PRIMARY KEY, holder VARBINARY(255) NOT NULL, ends DATETIME(6) NOT NULL); \
                     CREATE TABLE IF NOT EXISTS kept (id VARBINARY(1024) PRIMARY KEY, \
                     holder VARBINARY(255) NOT NULL DEFAULT '', ends DATETIME(6) NOT NULL DEFAULT '2000-01-01', \
                     taken BIGINT NOT NULL DEFAULT 0)";

pub(crate) struct Mysql;

impl Database for Mysql {
    type Dao = MysqlLockDao<String, Uuid>;
    type Statements = MysqlStatementsLockDao<String, Uuid>;
    type Bare = Client;
    type Notifier = Kill;
    const PEER: &'static str = "GET_LOCK, one by one";
    const WAKING: &'static str = "bare KILL QUERY -> error 1317";
    const WRITING: &'static str = "one-row UPDATE, then KILL QUERY -> error 1317 -> SELECT of the row";

    async fn open(url: &str, commits: Commits, prefix: &str) -> Self::Dao {
        connect(url, commits).await;
        let builder = MysqlLockDao::builder().url(url).table_prefix(prefix).max_connections(32);
        builder.open().await.expect("the server answers")
    }

    async fn open_without_routines(url: &str, commits: Commits, prefix: &str) -> Self::Statements {
        connect(url, commits).await;
        let builder = MysqlLockDao::builder().url(url).table_prefix(prefix).max_connections(32);
        builder.open_without_routines().await.expect("the server answers")
    }

    async fn bare(url: &str, commits: Commits) -> Client {
        let mut conn = connect(url, commits).await;
        sqlx::raw_sql(TABLE).execute(&mut conn).await.expect("a table");
        Client { conn, ids: 0, statements: Statements::default() }
    }

    async fn notifier(url: &str, commits: Commits) -> Kill {
        let [mut waiter, mut keeper, notifier] =
            [connect(url, commits).await, connect(url, commits).await, connect(url, commits).await];
        let kept =
            sqlx::query_scalar("SELECT CAST(GET_LOCK('bare', 0) AS SIGNED)").fetch_one(&mut keeper).await;
        assert_eq!(kept.ok(), Some(1_i64), "no other has it");
        let number = "SELECT CAST(CONNECTION_ID() AS SIGNED)";
        let number = sqlx::query_scalar(number).fetch_one(&mut waiter).await.expect("an answer");
        let table =
            "CREATE TABLE IF NOT EXISTS written (times BIGINT NOT NULL); INSERT INTO written VALUES (0)";
        sqlx::raw_sql(table).execute(&mut keeper).await.expect("a table");
        Kill { number, waiter, notifier, _keeper: keeper }
    }

    /// Only with a binary log, whose commits wait for others.
    async fn slow_commits(url: &str, slow: bool) -> Option<&'static str> {
        let mut conn = connect(url, Commits::Usual).await;
        let ask = "SELECT CAST(@@log_bin AS SIGNED), VERSION() LIKE '%MariaDB%'";
        let (has_log, is_mariadb): (i64, bool) =
            sqlx::query_as(ask).fetch_one(&mut conn).await.expect("an answer");
        let (set, name) = match (is_mariadb, slow) {
            _ if has_log == 0 => return None,
            (true, true) => {
                let set = "SET GLOBAL binlog_commit_wait_count = 1000, GLOBAL binlog_commit_wait_usec = 5000";
                (set, "binlog_commit_wait_usec = 5000")
            }
            (true, false) => ("SET GLOBAL binlog_commit_wait_count = 0", ""),
            (false, true) => {
                ("SET GLOBAL binlog_group_commit_sync_delay = 5000", "binlog_group_commit_sync_delay = 5000")
            }
            (false, false) => ("SET GLOBAL binlog_group_commit_sync_delay = 0", ""),
        };
        sqlx::raw_sql(set).execute(&mut conn).await.expect("the user may do everything");
        Some(name)
    }

    async fn make_room(url: &str) {
        let set = "SET GLOBAL innodb_buffer_pool_size = 4 * 1024 * 1024 * 1024";
        sqlx::raw_sql(set)
            .execute(&mut connect(url, Commits::Usual).await)
            .await
            .expect("the user may do everything");
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
    /// Of so many ids are
    ids: usize,
    statements: Statements,
}

#[derive(Default)]
struct Statements {
    take: String,
    free: String,
    take_kept: String,
    free_kept: String,
}

impl Statements {
    fn new(ids: usize) -> Self {
        let row = "(?, ?, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)";
        let (rows, list) = (vec![row; ids].join(", "), vec!["?"; ids].join(", "));
        Statements {
            take: format!(
                "INSERT INTO bare (id, holder, ends) VALUES {rows} ON DUPLICATE KEY UPDATE \
                 holder = IF(ends < UTC_TIMESTAMP(6), VALUES(holder), holder), \
                 ends = IF(ends < UTC_TIMESTAMP(6), VALUES(ends), ends)"
            ),
            free: format!("DELETE FROM bare WHERE id IN ({list}) AND holder = ?"),
            take_kept: format!(
                "UPDATE kept SET holder = ?, ends = UTC_TIMESTAMP(6) + INTERVAL 30 SECOND, taken = taken + 1 \
                 WHERE id IN ({list}) AND ends < UTC_TIMESTAMP(6)"
            ),
            free_kept: format!("UPDATE kept SET ends = '2000-01-01' WHERE id IN ({list}) AND holder = ?"),
        }
    }
}

impl Client {
    async fn prepare(&mut self, names: &[String]) {
        if self.ids == names.len() {
            return;
        }
        self.ids = names.len();
        self.statements = Statements::new(self.ids);
        for name in names {
            let keep = sqlx::query("INSERT IGNORE INTO kept (id) VALUES (?)").bind(name.as_bytes());
            keep.execute(&mut self.conn).await.expect("an answer");
        }
    }
}

impl Bare for Client {
    async fn take(&mut self, names: &[String]) {
        self.prepare(names).await;
        let mut query = sqlx::query(AssertSqlSafe(self.statements.take.clone()));
        for name in names {
            query = query.bind(name.as_bytes()).bind(HOLDER);
        }
        done(query, &mut self.conn, names).await;
    }

    async fn free(&mut self, names: &[String]) {
        let query = sqlx::query(AssertSqlSafe(self.statements.free.clone()));
        done(bind(query, names).bind(HOLDER), &mut self.conn, names).await;
    }

    async fn take_kept(&mut self, names: &[String]) {
        self.prepare(names).await;
        let query = sqlx::query(AssertSqlSafe(self.statements.take_kept.clone()));
        done(bind(query.bind(HOLDER), names), &mut self.conn, names).await;
    }

    async fn free_kept(&mut self, names: &[String]) {
        let query = sqlx::query(AssertSqlSafe(self.statements.free_kept.clone()));
        done(bind(query, names).bind(HOLDER), &mut self.conn, names).await;
    }

    async fn peer(&mut self, name: &str) {
        for call in ["SELECT CAST(GET_LOCK(?, 0) AS SIGNED)", "SELECT CAST(RELEASE_LOCK(?) AS SIGNED)"] {
            let done = sqlx::query_scalar(call).bind(name).fetch_one(&mut self.conn).await;
            assert_eq!(done.ok(), Some(1_i64), "free, then held");
        }
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::MySql, MySqlArguments>;

fn bind<'q>(query: Query<'q>, names: &'q [String]) -> Query<'q> {
    names.iter().fold(query, |query, name| query.bind(name.as_bytes()))
}

async fn done(query: Query<'_>, conn: &mut MySqlConnection, names: &[String]) {
    let done = query.execute(conn).await.expect("an answer");
    assert_eq!(done.rows_affected(), names.len() as u64, "all of them");
}

/// Waits as our listener does: for a name that another connection keeps.
pub(crate) struct Kill {
    number: i64,
    waiter: MySqlConnection,
    notifier: MySqlConnection,
    _keeper: MySqlConnection,
}

impl Notifier for Kill {
    async fn notify(&mut self) -> Duration {
        self.interrupted("", None).await
    }

    // A `KILL QUERY` says nothing: a client has to look for what it means.
    async fn write_and_notify(&mut self) -> Duration {
        self.interrupted("UPDATE written SET times = times + 1; ", Some("SELECT times FROM written")).await
    }
}

impl Kill {
    /// `before` goes in the same message, and commits by itself; `then` is asked by who was woken.
    async fn interrupted(&mut self, before: &str, then: Option<&'static str>) -> Duration {
        let wait = async {
            let wait = sqlx::query_scalar::<_, i64>("SELECT CAST(GET_LOCK('bare', 20) AS SIGNED)");
            let _interrupted = wait.fetch_one(&mut self.waiter).await;
            if let Some(look) = then {
                let _times: i64 = sqlx::query_scalar(look).fetch_one(&mut self.waiter).await.expect("a row");
            }
            Instant::now()
        };
        let notify = async {
            let waits =
                "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND state = 'User lock'";
            let mut waiting = 0;
            while waiting == 0 {
                let look = sqlx::query_scalar(waits).bind(self.number).fetch_one(&mut self.notifier);
                waiting = look.await.expect("an answer");
            }
            let begun = Instant::now();
            let kill = AssertSqlSafe(format!("{before}KILL QUERY {}", self.number));
            sqlx::raw_sql(kill).execute(&mut self.notifier).await.expect("the user may do everything");
            begun
        };
        let (received, begun) = tokio::join!(wait, notify);
        received.duration_since(begun)
    }
}
