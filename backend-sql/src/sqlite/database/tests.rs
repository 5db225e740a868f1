//! The thread by itself, without a DAO.

use lockcore::{BackendErrorKind, Mode, Owner, backend::Wake};

use super::*;
use crate::{
    SqliteLockDao,
    sqlite::{
        acquire::Verdict,
        admin::{freeze, inspect},
        clock,
        release::{Hold, release},
        row::{Key, Request, Text, Wanted},
        table::OFFER,
    },
};

async fn database() -> Database {
    let settings = SqliteLockDao::<String>::builder().path(":memory:").settings;
    Database::open(settings).await.expect("a database in memory")
}

#[tokio::test]
async fn a_thread_that_has_ended_is_an_error_and_no_hang() {
    let database = database().await;
    database.commands.send(Command::End).expect("it runs");
    let error = database.send(Worker::migrate).await.expect_err("there is no answer");
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
}

#[tokio::test]
async fn a_panic_is_an_error_in_doubt_and_the_thread_goes_on() {
    let database = database().await;
    let panicking = |worker: &mut Worker, deadline| {
        worker.write_and_notify(deadline, |step| -> Result<(), StoreError> {
            freeze(step, &Key::from(&b"a"[..]), true)?;
            panic!("a test")
        })
    };
    let error = database.send(panicking).await.expect_err("it panics");
    assert!(error.in_doubt());
    let went_on =
        database.send(|worker, deadline| worker.write_and_notify(deadline, |step| step.next_number()));
    went_on.await.expect("the transaction of the one that panicked is closed");
    let look =
        |worker: &mut Worker, deadline| worker.read(deadline, |step| inspect(step, &Key::from(&b"a"[..])));
    assert!(!database.send(look).await.expect("an answer").frozen, "what it had done is undone");
}

#[tokio::test]
async fn an_operation_takes_place_though_its_future_is_dropped() {
    let database = database().await;
    let (done, seen) = oneshot::channel();
    let mut call = Box::pin(database.send(move |_, _| {
        let _ = done.send(());
        Ok(())
    }));
    let waker = std::task::Waker::noop();
    let _ = call.as_mut().poll(&mut std::task::Context::from_waker(waker));
    drop(call);
    seen.await.expect("it took place");
}

#[tokio::test]
async fn what_is_left_of_an_offer_counts_from_the_step_that_made_it() {
    const SLOW: Duration = Duration::from_millis(600);
    let database = database().await;
    let request = |context: &str| Request {
        context: Text(context.into()),
        attempt: 1,
        claims: [Wanted { id: Key::from(&b"a"[..]), mode: Mode::Exclusive }].into_iter().collect(),
        lease: clock::micros(Duration::from_secs(60)),
        owner: Owner::default(),
        queue: true,
        nested: false,
        detached: false,
    };
    let (holder, waiter) = (request("holder"), request("waiter"));
    let held =
        database.send(move |worker, deadline| worker.acquire(&holder, deadline)).await.expect("an answer");
    let Verdict::Granted(granted) = held.0 else { panic!("it is free: {held:?}") };
    let queued =
        database.send(move |worker, deadline| worker.acquire(&waiter, deadline)).await.expect("an answer");
    let mut wakeup = queued.1.expect("it has to wait");
    let hold = Hold {
        context: Text("holder".into()),
        locks: [(Key::from(&b"a"[..]), granted[0].fence)].into_iter().collect(),
        lease: 0,
    };
    // As if the process were stopped in the step, or the disk were slow.
    let slowly = database.send(move |worker, deadline| {
        worker.write_and_notify(deadline, |step| {
            let lost = release(step, &hold);
            thread::sleep(SLOW);
            lost
        })
    });
    assert_eq!(slowly.await.expect("an answer"), []);
    let Wake::Offer(offer) = wakeup.recv().await else { panic!("its turn has come") };
    let whole = clock::duration(OFFER);
    assert!(offer.remaining.is_some_and(|left| left <= whole - SLOW), "{:?} of {whole:?}", offer.remaining);
}

/// Returns whether a step runs in this thread, and not in the database's.
async fn runs_here(database: &Database, ids: usize) -> bool {
    let thread = database.step(ids, |_, _| Ok(thread::current().id()));
    thread.await.expect("an answer") == thread::current().id()
}

#[tokio::test]
async fn a_step_runs_in_its_callers_thread_unless_something_is_before_it() {
    let database = database().await;
    assert!(runs_here(&database, 1).await);
    database.shared.sent.fetch_add(1, Ordering::AcqRel);
    assert!(!runs_here(&database, 1).await, "it would overtake what was sent");
    database.shared.sent.fetch_sub(1, Ordering::AcqRel);
    assert!(!runs_here(&database, MOST_IDS_HERE + 1).await, "it would take long");
}

#[tokio::test]
async fn a_step_whose_commit_waits_for_the_disk_runs_in_the_thread() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (synchronous, here) in [(Synchronous::Normal, true), (Synchronous::Full, false)] {
        let file = folder.path().join(format!("{synchronous:?}.db"));
        let builder = SqliteLockDao::<String>::builder().path(file).synchronous(synchronous);
        let database = Database::open(builder.settings).await.expect("it can be opened");
        assert_eq!(runs_here(&database, 1).await, here, "{synchronous:?}");
    }
}

#[tokio::test]
async fn a_step_does_not_wait_for_the_connection() {
    let database = database().await;
    let shared = database.shared.clone();
    let in_use = shared.lock();
    let mut step = Box::pin(database.step(1, |_, _| Ok(())));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    // It would wait for ever.
    assert!(step.as_mut().poll(&mut context).is_pending());
    drop(in_use);
    step.await.expect("the thread does it");
}

/// One who takes steps without a pause would otherwise keep it from heartbeats and from what was sent.
#[tokio::test]
async fn callers_leave_the_connection_to_the_thread_once_it_wants_it() {
    let database = database().await;
    let in_use = database.shared.lock();
    database.commands.send(Command::Wake).expect("it runs");
    let begun = Instant::now();
    while database.shared.sent.load(Ordering::Acquire) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "callers do not see that it waits");
        thread::yield_now();
    }
    drop(in_use);
}

#[tokio::test]
async fn a_panic_in_the_callers_thread_is_an_error_in_doubt() {
    let database = database().await;
    let panicking = |worker: &mut Worker, deadline| {
        worker.write_and_notify(deadline, |step| -> Result<(), StoreError> {
            freeze(step, &Key::from(&b"a"[..]), true)?;
            panic!("a test")
        })
    };
    let error = database.step(1, panicking).await.expect_err("it panics");
    assert!(error.in_doubt());
    let look =
        |worker: &mut Worker, deadline| worker.read(deadline, |step| inspect(step, &Key::from(&b"a"[..])));
    assert!(!database.step(1, look).await.expect("an answer").frozen, "what it had done is undone");
}

/// A forked child has a copy of the connection, whose locks are the parent's, and not the thread.
#[tokio::test]
async fn a_forked_process_does_nothing() {
    let mut database = database().await;
    database.process += 1;
    let refused = database.step(1, |_, _| -> Result<(), StoreError> { panic!("it runs") });
    assert_eq!(refused.await.expect_err("it is refused").kind(), BackendErrorKind::Other);
    database.process -= 1;
    assert!(runs_here(&database, 1).await);
}

/// No commit of a caller copies the log into the file, since that waits for the disk; the thread does.
#[tokio::test]
async fn the_log_is_written_back_by_the_thread_and_stays_small() {
    const COMMITS: usize = 500;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let builder = SqliteLockDao::<String>::builder().path(&file);
    let database = Database::open(builder.settings).await.expect("it can be opened");
    let write = |worker: &mut Worker, deadline| {
        let opened = &worker.store().opened;
        let pages: i64 = opened.conn.query_row("PRAGMA wal_autocheckpoint", [], |row| row.get(0))?;
        assert_eq!(pages, 0, "a commit of a step writes no log back");
        worker.write_and_notify(deadline, |step| step.next_number())
    };
    let mut log = 0;
    // A log that is written back begins anew; else each commit makes it a page longer. The thread may come to its turn late.
    for _ in 0..60 {
        for _ in 0..COMMITS {
            database.step(1, write).await.expect("an answer");
        }
        let before = log;
        log = std::fs::metadata(folder.path().join("locks.db-wal")).expect("there is one").len();
        if log == before {
            return;
        }
    }
    panic!("it grows on: {log} bytes");
}

/// Steps that never wait let the other tasks of their runtime run all the same.
#[tokio::test]
async fn steps_in_a_row_let_other_tasks_run() {
    let database = database().await;
    let other = tokio::spawn(async {});
    let mut steps = 0;
    while !other.is_finished() {
        assert!(runs_here(&database, 1).await, "it need not wait");
        steps += 1;
        assert!(steps < 1000, "the other task never runs");
    }
}
