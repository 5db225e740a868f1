//! SQLite, WAL and NORMAL: the whole way through `with_locks`, beside `rusqlite` running the same statements on its own
//! thread without a service, a hop or a decision; and the hop alone.

use std::{path::Path, sync::mpsc, thread};

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
    for (case, ids) in cases.iter().zip([1, 10, 100]) {
        let [ours, bare, hop] = [0, 1, 2].map(|candidate| case.quantile(candidate, 0.5) as f64 / 1e3);
        let bound = bare + 2.0 * hop;
        println!(
            "{ids} ids: {ours:.1} us; bare statements and a hop for each of two operations: {bound:.1} us"
        );
    }
}

/// Takes and releases a set, uncontended.
async fn pair(folder: &Path, ids: usize) -> Case {
    const ROUNDS: usize = 3000;
    let names = ["with_locks", "rusqlite, same statements", "one hop to a thread and back"];
    let mut case = Case::new(format!("{ids} ids, take and release"), &names);
    let dao = SqliteLockDao::<String>::open(folder.join(format!("ours-{ids}.db"))).await.expect("a database");
    let locks: Sqlite = LockingService::new(dao);
    let names: Vec<String> = (0..ids).map(|number| format!("some/object/{number:03}")).collect();
    let mut bare = Bare::open(&folder.join(format!("bare-{ids}.db")));
    let hop = Hop::start();
    for _ in 0..ROUNDS / ids.max(3) {
        case.batch_async(0, 3, async || locks.with_locks(&names, || async {}).await.expect("free")).await;
        case = bare.measure(case, names.clone());
        case.batch_async(2, 3, async || hop.there_and_back().await).await;
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
            let at = std::time::Instant::now();
            granted.release().await.expect("held");
            at
        });
        let target = lockcore::Target::Id("ball".to_owned());
        while holder.admin().inspect(&target).await.expect("sqlite").waiters.is_empty() {}
        let released = std::time::Instant::now();
        guard.release().await.expect("held");
        let granted = waiting.await.expect("no panic");
        case.times(0).add(granted - released, 1);
    }
    case
}

/// A thread that answers.
struct Hop(mpsc::Sender<oneshot::Sender<()>>);

impl Hop {
    fn start() -> Self {
        let (sender, inbox) = mpsc::channel::<oneshot::Sender<()>>();
        thread::spawn(move || {
            for answer in inbox {
                let _asker_is_gone = answer.send(());
            }
        });
        Hop(sender)
    }

    async fn there_and_back(&self) {
        let (answer, answered) = oneshot::channel();
        self.0.send(answer).expect("the thread lives");
        answered.await.expect("the thread answers");
    }
}

/// A thread with a connection of its own, on which the statements of an acquire and a release run.
struct Bare(mpsc::Sender<(Case, Vec<String>)>, mpsc::Receiver<Case>);

impl Bare {
    fn open(path: &Path) -> Self {
        let path = path.to_owned();
        let (sender, inbox) = mpsc::channel();
        let (outbox, receiver) = mpsc::channel();
        thread::spawn(move || {
            let conn = Connection::open(path).expect("a database");
            conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).expect("WAL");
            conn.pragma_update(None, "synchronous", "NORMAL").expect("NORMAL");
            conn.set_prepared_statement_cache_capacity(128);
            conn.execute_batch(&schema_sql("")).expect("the schema");
            conn.execute("INSERT INTO namespaces (name) VALUES ('default')", []).expect("a namespace");
            let mut clock = 0_i64;
            for (mut case, names) in inbox {
                let (case_ref, names): (&mut Case, &Vec<String>) = (&mut case, &names);
                case_ref.batch(1, 3, || {
                    clock += 1000;
                    take_and_release(&conn, names, clock).expect("SQLite");
                });
                if outbox.send(case).is_err() {
                    return;
                }
            }
        });
        Bare(sender, receiver)
    }

    fn measure(&mut self, case: Case, names: Vec<String>) -> Case {
        self.0.send((case, names)).expect("the thread lives");
        self.1.recv().expect("the thread answers")
    }
}

fn take_and_release(conn: &Connection, ids: &[String], clock: i64) -> rusqlite::Result<()> {
    let context = b"01234567-89ab-cdef-0123-456789abcdef";
    let run = |sql| conn.prepare_cached(sql)?.execute([]);
    run("BEGIN IMMEDIATE")?;
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM withdrawn WHERE ns = ?1 AND context = ?2 AND attempt = ?3),
        EXISTS (SELECT 1 FROM frozen WHERE ns = ?1)",
    )?
    .query_row(params![1, context, 7], |row| row.get::<_, bool>(0))?;
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
            context,
            7,
            2,
            0,
            0,
            &[0_u8; 0],
            1,
            "",
            30_000_000,
            5,
            clock,
            clock,
            1,
            false,
            0
        ])?;
    }
    run("COMMIT")?;
    run("BEGIN IMMEDIATE")?;
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM claims INDEXED BY claims_by_attempt WHERE ns = ?1 AND state > 1)",
    )?
    .query_row([1], |row| row.get::<_, bool>(0))?;
    let mut free = conn.prepare_cached(
        "DELETE FROM claims WHERE ns = ?1 AND id = ?2 AND state = 0 AND number = ?3 AND context = ?4
        AND boot = ?5 AND renewed <= ?6 AND renewed + lease > ?6",
    )?;
    for id in ids {
        let freed = free.execute(params![1, id.as_bytes(), fence, context, 5, clock])?;
        assert_eq!(freed, 1, "the statements are those of a release");
    }
    run("COMMIT")?;
    Ok(())
}
