//! SQLite, WAL and NORMAL: the whole way through `with_locks`, beside `rusqlite` running the same statements on its own
//! thread, one hop there and back for each of the two transactions, without a service or a decision; and two hops with
//! nothing to do.

use std::{path::Path, sync::mpsc, thread, time::Instant};

use lockcore::{LockingService, Wait};
use lockcore_benches::{Case, report};
use lockcore_sql::{SqliteLockDao, sqlite::schema_sql};
use rusqlite::{Connection, params};
use tokio::{runtime::Runtime, sync::oneshot};
use uuid::Uuid;

type Sqlite = LockingService<String, Uuid, SqliteLockDao<String>>;

fn main() {
    let runtime = Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let mut cases: Vec<_> =
        [1, 10, 100].into_iter().map(|ids| runtime.block_on(pair(folder.path(), ids))).collect();
    cases.push(runtime.block_on(hand_off(folder.path())));
    report(&cases);
}

/// Takes and releases a set, uncontended.
async fn pair(folder: &Path, ids: usize) -> Case {
    const ROUNDS: usize = 1000;
    let names = ["with_locks", "rusqlite, same statements, one hop each", "two hops with nothing to do"];
    let mut case = Case::new(format!("{ids} ids, take and release"), &names);
    let dao = SqliteLockDao::<String>::open(folder.join(format!("ours-{ids}.db"))).await.expect("a database");
    let locks: Sqlite = LockingService::new(dao);
    let names: Vec<String> = (0..ids).map(|number| format!("some/object/{number:03}")).collect();
    let bare = Bare::open(&folder.join(format!("bare-{ids}.db")), names.clone());
    for _ in 0..ROUNDS {
        case.batch_async(0, 3, async || locks.with_locks(&names, || async {}).await.expect("free")).await;
        case.batch_async(1, 3, async || {
            bare.run(Step::Take).await;
            bare.run(Step::Free).await;
        })
        .await;
        case.batch_async(2, 3, async || {
            bare.run(Step::Nothing).await;
            bare.run(Step::Nothing).await;
        })
        .await;
    }
    case
}

/// From when a holder's callback ends to when the callback of a waiter runs that came through another connection, as
/// another process would.
async fn hand_off(folder: &Path) -> Case {
    const ROUNDS: usize = 300;
    let mut case = Case::new("hand-off to another connection", &["release -> the waiter's callback"]);
    let path = folder.join("handoff.db");
    let mut services = Vec::new();
    for _ in 0..2 {
        let dao = SqliteLockDao::<String>::open(&path).await.expect("a database");
        services.push(LockingService::new(dao));
    }
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

/// A thread with a connection of its own, on which the statements of an acquire and a release run.
struct Bare(mpsc::Sender<(Step, oneshot::Sender<()>)>);

enum Step {
    Take,
    Free,
    Nothing,
}

impl Bare {
    fn open(path: &Path, ids: Vec<String>) -> Self {
        let path = path.to_owned();
        let (sender, inbox) = mpsc::channel::<(Step, oneshot::Sender<()>)>();
        thread::spawn(move || {
            let conn = Connection::open(path).expect("a database");
            conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).expect("WAL");
            conn.pragma_update(None, "synchronous", "NORMAL").expect("NORMAL");
            conn.set_prepared_statement_cache_capacity(128);
            conn.execute_batch(&schema_sql("")).expect("the schema");
            conn.execute("INSERT INTO namespaces (name) VALUES ('default')", []).expect("a namespace");
            // Numbers as long as ours, which are of the clock and of chance.
            let (mut clock, mut fence) = (1_700_000_000_000_000_i64, 0);
            for (step, done) in inbox {
                clock += 1000;
                match step {
                    Step::Take => fence = take(&conn, &ids, clock).expect("SQLite"),
                    Step::Free => free(&conn, &ids, fence, clock).expect("SQLite"),
                    Step::Nothing => {}
                }
                let _asker_is_gone = done.send(());
            }
        });
        Bare(sender)
    }

    async fn run(&self, step: Step) {
        let (done, finished) = oneshot::channel();
        self.0.send((step, done)).expect("the thread lives");
        finished.await.expect("the thread answers");
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
