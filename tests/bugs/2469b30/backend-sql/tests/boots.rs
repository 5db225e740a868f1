//! Programs on one file with boot ids of their own, as containers have, and after a reboot.

use std::time::Duration;

use lockcore::{AcquireRequest, Acquired, AttemptId, ClaimSet, Grant, LockDao, Mode};
use lockcore_sql::{SqliteBuilder, SqliteLockDao};
use tempfile::TempDir;
use uuid::Uuid;

type Dao = SqliteLockDao<String, Uuid>;

#[tokio::test]
async fn another_boot_id_takes_nothing_that_is_held() {
    let folder = folder();
    let (here, there) = (with_boot(&folder, 1).await, with_boot(&folder, 2).await);
    let attached = take(&here, &request("a")).await;
    let detached = take(&here, &AcquireRequest { detached: true, ..request("b") }).await;
    for round in 0..3 {
        for id in ["a", "b"] {
            let acquired = there.acquire(&request(id)).await.expect("an answer");
            assert!(matches!(acquired, Acquired::Refused(_)), "{id}, round {round}: {acquired:?}");
        }
        assert_eq!(there.sweep(100, None).await.expect("an answer").removed, 0);
        for grant in [&attached, &detached] {
            assert_eq!(here.renew(grant).await.expect("an answer").lost, []);
        }
    }
    for grant in [&attached, &detached] {
        assert_eq!(here.release(grant).await.expect("an answer").lost, []);
    }
    take(&there, &request("a")).await;
    take(&there, &request("b")).await;
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn builder(folder: &TempDir) -> SqliteBuilder<String, Uuid> {
    Dao::builder().path(folder.path().join("locks.db"))
}

async fn with_boot(folder: &TempDir, boot: i64) -> Dao {
    builder(folder).pretend_boot(boot).open().await.expect("the file can be opened")
}

fn request(id: &str) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([id], Mode::Exclusive).expect("valid"),
        lease: Some(Duration::from_secs(60)),
        owner: "".into(),
        queue: false,
        nested: false,
        detached: false,
    }
}

async fn take(dao: &Dao, request: &AcquireRequest<String, Uuid>) -> Grant<String, Uuid> {
    match dao.acquire(request).await.expect("an answer") {
        Acquired::Granted(granted) => {
            Grant::new(request.context, request.claims.clone(), granted, request.lease)
        }
        other => panic!("not granted: {other:?}"),
    }
}
