//! A file that another connection keeps locked: no step waits for it in its caller's thread.

use std::{
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use lockcore::{
    ClaimSet, FreshContext, Grant, LockDao, Mode,
    backend::{AcquireRequest, Acquired, AttemptId, Withdraw, Withdrawn},
};
use lockcore_conformance::servers::Trial;
use lockcore_sql::SqliteLockDao;
use rusqlite::Connection;
use uuid::Uuid;

type Dao = SqliteLockDao<String, Uuid>;

pub(crate) fn trials() -> Vec<Trial> {
    tests!["sqlite_busy", a_busy_file_never_blocks_the_caller]
}

/// Without another thread, so that the file is never let go if a step waits for it here: after the busy timeout, which
/// is shorter than the test's patience, the step would fail.
async fn a_busy_file_never_blocks_the_caller() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let dao =
        Dao::builder().path(&file).busy_timeout(Duration::from_secs(10)).open().await.expect("it opens");
    let (held, wanted, undone) = (request("a"), request("b"), request("c"));
    let Ok(Acquired::Granted(granted)) = dao.acquire(&held).await else { panic!("it is free") };
    let grant = Grant::new(held.context, held.claims.clone(), granted, held.lease);

    let other = Connection::open(&file).expect("a connection");
    other.execute_batch("BEGIN IMMEDIATE").expect("the write lock is free");
    let mut acquired = pin!(dao.acquire(&wanted));
    let mut renewed = pin!(dao.renew(&grant));
    let mut withdrawn = pin!(dao.withdraw(&undone, Withdraw::Undo));
    let mut context = Context::from_waker(Waker::noop());
    assert!(acquired.as_mut().poll(&mut context).is_pending());
    // And while the thread waits for the file, with the connection in its hands.
    assert!(renewed.as_mut().poll(&mut context).is_pending());
    assert!(withdrawn.as_mut().poll(&mut context).is_pending());
    tokio::select! {
        biased;
        acquired = &mut acquired => panic!("the file is locked: {acquired:?}"),
        () = tokio::time::sleep(Duration::from_millis(20)) => {}
    }

    other.execute_batch("COMMIT").expect("it can end");
    assert!(matches!(acquired.await, Ok(Acquired::Granted(_))));
    assert_eq!(renewed.await.expect("an answer").lost, []);
    assert!(matches!(withdrawn.await, Ok(Withdrawn::Left)));
    assert_eq!(dao.release(&grant).await.expect("an answer").lost, []);
}

fn request(id: &str) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::fresh(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([id], Mode::Exclusive).expect("valid"),
        lease: Some(Duration::from_secs(60)),
        owner: "a test".into(),
        queue: false,
        nested: false,
        detached: false,
    }
}
