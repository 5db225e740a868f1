//! A file that is removed or replaced while locks are held in it.

use std::{fs, path::Path, time::Duration};

use lockcore::{LockingService, LossReason};
use lockcore_conformance::servers::Trial;
use lockcore_sql::SqliteLockDao;
use uuid::Uuid;

/// So long that the renewal, after a third of it, comes too late for the test.
const LEASE: Duration = Duration::from_secs(120);

const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) fn trials() -> Vec<Trial> {
    tests!["replaced", holders_learn_of_it_long_before_the_renewal]
        .into_iter()
        .map(Trial::of_liveness)
        .collect()
}

async fn holders_learn_of_it_long_before_the_renewal() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let locks = service(&file).await;
    let guard = locks.lock(["a"]).await.expect("it is free");
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(folder.path().join(format!("locks.db{suffix}")));
    }
    let other = service(&file).await;
    let _other = other.lock(["a"]).await.expect("another file");
    let lost = tokio::time::timeout(PATIENCE, guard.held().lost()).await.expect("it is told in time");
    assert_eq!(lost[0].reason, LossReason::Vanished);
}

async fn service(file: &Path) -> LockingService<String, Uuid, SqliteLockDao> {
    let dao = SqliteLockDao::open(file).await.expect("the file can be opened");
    LockingService::builder(dao).lease(LEASE).build().expect("valid")
}
