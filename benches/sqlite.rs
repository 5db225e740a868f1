//! SQLite, WAL and NORMAL: the whole way through `with_locks`, in a task of a multi-thread runtime, beside `rusqlite` running
//! the same statements in that task, without a service or a decision; a plain row for each id, without what the promises
//! need; and two changes of threads with nothing to do. And how late a timer is beside it, while sixteen processes use the file.

use std::{
    path::Path,
    process::{Child, Command},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use lockcore::{LockingService, Wait};
use lockcore_benches::{Case, report};
use lockcore_sql::{SqliteLockDao, sqlite::schema_sql};
use rusqlite::{Connection, params};
use tokio::{runtime, sync::oneshot};
use uuid::Uuid;

type Sqlite = LockingService<String, Uuid, SqliteLockDao<String>>;

/// Tells a process that it is one of the sixteen, and which file they use.
const FILE: &str = "LOCKCORE_BENCH_SQLITE_FILE";

fn main() {
    let runtime = runtime::Runtime::new().expect("a runtime");
    if let Ok(file) = std::env::var(FILE) {
        return runtime.block_on(work(file.as_ref()));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut cases = Vec::new();
    for ids in [1, 10, 100] {
        for fresh in [true, false] {
            let folder = folder.path().to_owned();
            let measured = runtime.spawn(async move { pair(&folder, ids, fresh).await });
            cases.push(runtime.block_on(measured).expect("no panic"));
        }
    }
    cases.push(runtime.block_on(hand_off(folder.path())));
    cases.push(timer(folder.path()));
    report(&cases);
}

/// Takes and releases a set, uncontended: of ids that were never seen before, or the same again.
async fn pair(folder: &Path, ids: usize, fresh: bool) -> Case {
    const ROUNDS: usize = 1000;
    const TIMES: u32 = 3;
    let kind = if fresh { "never seen" } else { "repeated" };
    let candidates = [
        "with_locks",
        "rusqlite, same statements, same thread",
        "rusqlite, a plain row an id, same thread",
        "two changes of threads, nothing to do",
    ];
    let mut case = Case::new(format!("{ids} ids, {kind}: take and release"), &candidates);
    let ours = open(&folder.join(format!("ours-{ids}-{kind}.db"))).await;
    let mut bare = Bare::open(&folder.join(format!("bare-{ids}-{kind}.db")));
    let elsewhere = Elsewhere::start();
    let mut numbers = 0..;
    let mut next = || -> Vec<String> {
        let names = numbers.by_ref().take(ids);
        names.map(|number| format!("some/object/{number:08}")).collect()
    };
    let mut sets: Vec<_> = (0..TIMES).map(|_| next()).collect();
    for _ in 0..ROUNDS {
        if fresh {
            sets.fill_with(&mut next);
        }
        let begun = Instant::now();
        for names in &sets {
            locks(&ours, names).await;
        }
        case.times(0).add(begun.elapsed(), TIMES);
        let begun = Instant::now();
        for names in &sets {
            bare.pair(names);
        }
        case.times(1).add(begun.elapsed(), TIMES);
        let begun = Instant::now();
        for names in &sets {
            plain(&bare.conn, names).expect("SQLite");
        }
        case.times(2).add(begun.elapsed(), TIMES);
        let begun = Instant::now();
        for _ in 0..2 * TIMES {
            elsewhere.nothing().await;
        }
        case.times(3).add(begun.elapsed(), TIMES);
    }
    case
}

async fn open(file: &Path) -> Sqlite {
    LockingService::new(SqliteLockDao::<String>::open(file).await.expect("a database"))
}

async fn locks(service: &Sqlite, names: &[String]) {
    service.with_locks(names, || async {}).await.expect("free");
}

/// From when a holder's callback ends to when the callback of a waiter runs that came through another connection, as
/// another process would.
async fn hand_off(folder: &Path) -> Case {
    const ROUNDS: usize = 300;
    let mut case = Case::new("hand-off to another connection", &["release -> the waiter's callback"]);
    let path = folder.join("handoff.db");
    let services = [open(&path).await, open(&path).await];
    for round in 0..ROUNDS {
        let (holder, waiter) = (&services[round % 2], services[(round + 1) % 2].clone());
        let guard = holder.lock(["ball"]).await.expect("free");
        let waiting = tokio::spawn(async move {
            let granted = waiter.wait(Wait::forever()).lock(["ball"]).await.expect("for ever");
            let at = Instant::now();
            granted.release().await.expect("held");
            at
        });
        let target = lockcore::Target::Id("ball".to_owned());
        while holder.admin().inspect(&target).await.expect("sqlite").waiters.is_empty() {}
        let released = Instant::now();
        guard.release().await.expect("held");
        let granted = waiting.await.expect("no panic");
        case.times(0).add(granted - released, 1);
    }
    case
}

/// How late a timer of 1 ms is in a runtime of one thread while a task beside it takes and releases locks without a pause,
/// and sixteen processes do the same on the same file; beside it what the machine itself does to one that is as busy, and
/// to one that is not.
fn timer(folder: &Path) -> Case {
    const FOR: Duration = Duration::from_secs(5);
    let candidates = ["beside with_locks", "beside rusqlite on another file", "beside nothing"];
    let mut case = Case::new("how late a timer is, 16 processes", &candidates);
    let file = folder.join("timer.db");
    let runtime = runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let ours = runtime.block_on(open(&file));
    let this = std::env::current_exe().expect("this program");
    let start = |_| Command::new(&this).env(FILE, &file).spawn().expect("it can be started again");
    let mut others: Vec<Child> = (0..16).map(start).collect();
    let names = |number: u64| [format!("timer/{number}")];
    for _ in 0..3 {
        let taking = async {
            for number in 0.. {
                locks(&ours, &names(number)).await;
            }
        };
        runtime.block_on(ticking(&mut case, 0, FOR, taking));
        let mut bare = Bare::open(&folder.join("timer-bare.db"));
        let alone = async {
            for number in 0.. {
                bare.pair(&names(number));
                tokio::task::yield_now().await;
            }
        };
        runtime.block_on(ticking(&mut case, 1, FOR, alone));
        runtime.block_on(ticking(&mut case, 2, FOR, std::future::pending()));
    }
    for other in &mut others {
        other.kill().expect("it runs");
        other.wait().expect("it ends");
    }
    for (candidate, name) in candidates.iter().enumerate() {
        println!("a timer {name} was at most {:.1} ms late", case.quantile(candidate, 1.0) as f64 / 1e6);
    }
    case
}

/// Ticks every millisecond beside `busy`, and notes how late each tick is.
async fn ticking(case: &mut Case, candidate: usize, until: Duration, busy: impl Future<Output = ()>) {
    let ticks = async {
        let end = Instant::now() + until;
        while Instant::now() < end {
            let due = Instant::now() + Duration::from_millis(1);
            tokio::time::sleep_until(due.into()).await;
            case.times(candidate).add(due.elapsed(), 1);
        }
    };
    tokio::select! {
        () = ticks => {}
        () = busy => {}
    }
}

/// What each of the sixteen processes does: takes and releases locks of its own until it is killed.
async fn work(file: &Path) {
    let ours = open(file).await;
    for number in 0.. {
        locks(&ours, &[format!("{}/{number}", std::process::id())]).await;
    }
}

/// A thread that does nothing when it is asked to.
struct Elsewhere(mpsc::Sender<oneshot::Sender<()>>);

impl Elsewhere {
    fn start() -> Self {
        let (sender, inbox) = mpsc::channel::<oneshot::Sender<()>>();
        thread::spawn(move || {
            for done in inbox {
                let _asker_is_gone = done.send(());
            }
        });
        Elsewhere(sender)
    }

    async fn nothing(&self) {
        let (done, finished) = oneshot::channel();
        self.0.send(done).expect("the thread lives");
        finished.await.expect("the thread answers");
    }
}

/// A connection on which the statements of an acquire and a release run.
struct Bare {
    conn: Connection,
    /// Numbers as long as ours, which are of the clock and of chance.
    clock: i64,
}

impl Bare {
    fn open(path: &Path) -> Self {
        let conn = Connection::open(path).expect("a database");
        conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).expect("WAL");
        conn.pragma_update(None, "synchronous", "NORMAL").expect("NORMAL");
        conn.set_prepared_statement_cache_capacity(128);
        conn.execute_batch(&schema_sql("")).expect("the schema");
        let namespace = "INSERT INTO namespaces (name) VALUES ('default') ON CONFLICT DO NOTHING";
        conn.execute(namespace, []).expect("a namespace");
        let plain =
            "CREATE TABLE IF NOT EXISTS plain (id BLOB PRIMARY KEY, owner BLOB, fence INTEGER) WITHOUT ROWID";
        conn.execute(plain, []).expect("a table");
        Bare { conn, clock: 1_700_000_000_000_000 }
    }

    fn pair(&mut self, ids: &[String]) {
        self.clock += 1000;
        let fence = take(&self.conn, ids, self.clock).expect("SQLite");
        self.clock += 1000;
        free(&self.conn, ids, fence, self.clock).expect("SQLite");
    }
}

const CONTEXT: &[u8] = b"01234567-89ab-cdef-0123-456789abcdef";
const ATTEMPT: i64 = 0x0123_4567_89ab_cdef;
const BOOT: i64 = 0x0fed_cba9_8765_4321;

fn take(conn: &Connection, ids: &[String], clock: i64) -> rusqlite::Result<i64> {
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM withdrawn WHERE ns = ?1 AND context = ?2 AND attempt = ?3),
        EXISTS (SELECT 1 FROM frozen WHERE ns = ?1)",
    )?
    .query_row(params![1, CONTEXT, ATTEMPT], |row| row.get::<_, bool>(0))?;
    let mut holders = conn.prepare_cached(
        "SELECT state, number, context, attempt, mode, permits, cap, indexes, owner, lease, boot, renewed,
        since, session, detached, broken, replaces FROM claims WHERE ns = ?1 AND id = ?2 ORDER BY state, number",
    )?;
    for id in ids {
        holders.exists(params![1, id.as_bytes()])?;
    }
    let fence: i64 = conn
        .prepare_cached("UPDATE namespaces SET fence = max(fence + 1, ?2) WHERE ns = ?1 RETURNING fence")?
        .query_row([1, clock], |row| row.get(0))?;
    let mut hold = conn.prepare_cached(
        "INSERT INTO claims (ns, id, state, number, context, attempt, mode, permits, cap, indexes, in_use,
        owner, lease, boot, renewed, since, session, detached, replaces)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
    )?;
    for id in ids {
        hold.execute(params![
            1,
            id.as_bytes(),
            0,
            fence,
            CONTEXT,
            ATTEMPT,
            2,
            0,
            0,
            &[0_u8; 0],
            1,
            "",
            30_000_000,
            BOOT,
            clock,
            clock,
            1,
            false,
            0
        ])?;
    }
    conn.prepare_cached("COMMIT")?.execute([])?;
    Ok(fence)
}

fn free(conn: &Connection, ids: &[String], fence: i64, clock: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM claims INDEXED BY claims_by_attempt WHERE ns = ?1 AND state > 1)",
    )?
    .query_row([1], |row| row.get::<_, bool>(0))?;
    let mut free = conn.prepare_cached(
        "DELETE FROM claims WHERE ns = ?1 AND id = ?2 AND state = 0 AND number = ?3 AND context = ?4
        AND boot = ?5 AND renewed <= ?6 AND renewed + lease > ?6",
    )?;
    for id in ids {
        let freed = free.execute(params![1, id.as_bytes(), fence, CONTEXT, BOOT, clock])?;
        assert_eq!(freed, 1, "the statements are those of a release");
    }
    conn.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}

/// What a lock table without leases, modes, queues and fences of its own would do.
fn plain(conn: &Connection, ids: &[String]) -> rusqlite::Result<()> {
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let mut insert = conn.prepare_cached("INSERT INTO plain (id, owner, fence) VALUES (?1, ?2, ?3)")?;
    for id in ids {
        insert.execute(params![id.as_bytes(), CONTEXT, ATTEMPT])?;
    }
    conn.prepare_cached("COMMIT")?.execute([])?;
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let mut delete = conn.prepare_cached("DELETE FROM plain WHERE id = ?1 AND owner = ?2")?;
    for id in ids {
        delete.execute(params![id.as_bytes(), CONTEXT])?;
    }
    conn.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}
