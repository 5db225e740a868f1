//! The calls that users write, as the contract words them: they must compile as written, in functions with the usual
//! kinds of errors, awaited directly and spawned.
#![allow(
    clippy::unwrap_used,
    clippy::needless_question_mark,
    reason = "a test may panic, and users write so"
)]

use std::{
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockcore::{AnyLockDao, Claim, LockError, LockingError, LockingService, Wait, blocking};
use lockcore_memory::MemoryLockDao;
use uuid::Uuid;

#[derive(Debug)]
enum MyError {
    Lock(Box<LockError<String, Uuid>>),
    Own,
}

impl From<LockError<String, Uuid>> for MyError {
    fn from(error: LockError<String, Uuid>) -> Self {
        MyError::Lock(Box::new(error))
    }
}

type Put = (String, Vec<u8>);

#[derive(Clone, Default)]
struct Store {
    puts: Arc<Mutex<Vec<Put>>>,
}

impl Store {
    async fn put(&self, name: &str, bytes: Vec<u8>) -> std::io::Result<String> {
        tokio::task::yield_now().await;
        self.puts.lock().unwrap().push((name.to_owned(), bytes));
        Ok(format!("etag-of-{name}"))
    }
}

async fn upload() -> std::io::Result<()> {
    Ok(())
}

async fn upload_again() -> Result<String, MyError> {
    Ok("again".to_owned())
}

async fn put_if_fence(fence: u64) -> std::io::Result<u64> {
    Ok(fence)
}

async fn query() -> std::io::Result<u32> {
    Ok(7)
}

async fn section_9() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (store, bytes) = (Store::default(), vec![1]);
    let locks = LockingService::new(MemoryLockDao::<String>::new());

    // a future-returning callback; its own error type comes back typed
    let etag = locks
        .with_locks(["s3://archive/b1", "s3://archive/b2"], || async { store.put("b1", bytes).await })
        .await?;
    assert_eq!(etag, "etag-of-b1");

    // plain sync code on the caller's thread; it may borrow
    let n = locks
        .with_locks_sync(["counter"], || Ok::<_, std::num::ParseIntError>("41".parse::<i32>()? + 1))
        .await?;
    assert_eq!(n, 42);

    // distinguished by type
    match locks.with_locks(["s3://archive/b1"], || async { upload().await }).await {
        Ok(()) => {}
        Err(LockingError::NotLocked { failures, .. }) => panic!("{failures:?}"),
        Err(LockingError::Callback { error, .. }) => panic!("{error}"),
        Err(LockingError::Lost { lost, .. }) => panic!("{lost:?}"),
        Err(other) => panic!("{other}"),
    }

    // for application errors: lock errors arrive as the callback's error type
    let again = locks
        .try_with_locks(["s3://archive/b1"], async || -> Result<String, MyError> {
            Ok(upload_again().await?)
        })
        .await
        .map_err(|error| format!("{error:?}"))?;
    assert_eq!(again, "again");

    // per-call options, and what is held inside the callback
    let fence = locks
        .wait(Wait::up_to(Duration::from_secs(5)))
        .lease(Duration::from_secs(20))
        .with_held_locks(["s3://archive/b1"], |held| async move {
            put_if_fence(held.fence("s3://archive/b1")).await
        })
        .await?;
    assert!(fence > 0);

    // slots: at most 3 at once, as this caller sees it; and a mixed set, all or nothing
    locks.slots(3).with_locks(["db"], || async { query().await }).await?;
    locks
        .with_locks(
            [Claim::exclusive("account/7"), Claim::shared("tariff"), Claim::slots("export", 10)],
            || async { query().await },
        )
        .await?;

    // a guard, for flows that no callback fits
    let guard = locks.lock(["s3://archive/b1"]).await?;
    guard.release().await?;

    // the backend comes from configuration
    let locks = LockingService::new(AnyLockDao::new(MemoryLockDao::<String>::new()));
    locks.with_locks(["a"], || async { query().await }).await?;
    Ok(())
}

#[tokio::test]
async fn the_calls_of_section_9_compile_and_work() {
    section_9().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_section_9_can_be_spawned() {
    tokio::spawn(section_9()).await.unwrap().unwrap();
}

#[test]
fn without_an_async_runtime() {
    let path = std::env::temp_dir().join(format!("lockcore-{}.csv", Uuid::new_v4()));
    let sync_locks = blocking::LockingService::new(MemoryLockDao::<String>::new());
    sync_locks.with_locks(["report.csv"], || std::fs::write(&path, "total,42\n")).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "total,42\n");
    std::fs::remove_file(&path).unwrap();
}

/// A field's type is plain `LockingService`, and a generic one derives nothing from its backend.
#[derive(Clone)]
struct Worker {
    locks: LockingService,
}

impl Worker {
    async fn application_error(&self) -> anyhow::Result<u32> {
        let seven = self.locks.try_with_locks(["a"], async || anyhow::Ok(query().await?)).await?;
        self.locks.with_locks(["a"], || async { anyhow::Ok(1) }).await.map_err(LockingError::flatten)?;
        Ok(seven)
    }

    async fn own_error(&self) -> Result<String, MyError> {
        self.locks.try_with_locks(["a"], || async { Err::<String, _>(MyError::Own) }).await
    }

    async fn io_error(&self) -> std::io::Result<u32> {
        let locked = self.locks.run_locked(["a"], || async { 3 }).await?;
        Ok(locked)
    }
}

#[tokio::test]
async fn application_errors_of_every_kind() {
    let worker = Worker { locks: LockingService::new(AnyLockDao::new(MemoryLockDao::<String>::new())) };
    assert_eq!(worker.clone().application_error().await.unwrap(), 7);
    assert!(matches!(worker.own_error().await, Err(MyError::Own)));
    assert_eq!(worker.io_error().await.unwrap(), 3);
    let _held = worker.locks.lock(["a"]).await.unwrap();
    assert!(matches!(worker.own_error().await, Err(MyError::Lock(error)) if error.is_contention()));
    assert_eq!(worker.io_error().await.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let error = worker.application_error().await.unwrap_err();
    assert!(error.to_string().starts_with("not locked: \"a\" is held by "), "{error}");
}

#[tokio::test]
async fn ids_and_callbacks_of_every_form() {
    let locks = LockingService::new(MemoryLockDao::<String>::new());
    let owned = String::from("b");
    let mut seen = Vec::new();
    locks.with_locks(["a"], || async { seen.push(1) }).await.unwrap();
    locks.with_locks(&["a", "b"], || async { seen.push(2) }).await.unwrap();
    locks.with_locks([&owned], || async { seen.push(3) }).await.unwrap();
    locks.with_locks(vec![owned.clone()], async || seen.push(4)).await.unwrap();
    locks.with_locks(["a", "b"].iter(), async || seen.push(5)).await.unwrap();
    locks.with_locks([&Claim::shared(owned.clone())], async || seen.push(6)).await.unwrap();
    locks.with_locks::<[&str; 0], _, _>([], async || seen.push(7)).await.unwrap();
    let stored = locks.wait(Wait::never()).with_locks(["a"], || async { Ok::<_, MyError>(8) });
    seen.push(stored.await.unwrap());
    locks.with_global_lock(async || seen.push(9)).await.unwrap();
    locks.with_locks_blocking(["a"], |held| Ok::<_, MyError>(held.fence("a"))).await.unwrap();
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7, 8, 9]);

    let numbers = LockingService::new(MemoryLockDao::<u64>::new());
    numbers.with_locks([1, 2], || async {}).await.unwrap();
    numbers.with_locks([Claim::exclusive(1), Claim::slots(2, 3)], || async {}).await.unwrap();
    let key: u64 = 3;
    numbers.with_locks([&key], || async {}).await.unwrap();
}

#[tokio::test]
async fn what_is_captured_does_not_blow_the_future_up() {
    let locks = LockingService::new(MemoryLockDao::<String>::new());
    let large = [0_u8; 4096];
    let empty = locks.with_locks(["a"], || async {});
    let loaded = locks.with_locks(["a"], move || async move {
        tokio::task::yield_now().await;
        std::hint::black_box(&large);
    });
    let (empty, loaded) = (size_of_val(&empty), size_of_val(&loaded));
    println!("future without captures: {empty} bytes, with 4096 captured: {loaded}");
    assert!(loaded < empty + 4 * 4096, "{empty} and {loaded}");
}

#[tokio::test]
async fn a_grant_that_names_an_id_twice_breaks_nothing() {
    let locks = LockingService::new(MemoryLockDao::<String>::new());
    let mut grant = locks.permanent().lock(["a", "b"]).await.unwrap().leave();
    let first = grant.locks[0].clone();
    grant.locks.push(first);
    locks.admin().release(&grant).await.unwrap();
    let ids: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let mut held = Vec::new();
    for id in &ids {
        held.push(locks.permanent().lock([id]).await.unwrap());
    }
    for id in &ids {
        locks.permanent().lock([id]).await.expect_err("it is held");
    }
    for guard in held {
        guard.release().await.unwrap();
    }
}
