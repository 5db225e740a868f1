//! Programs on one file with boot ids of their own, as containers have, and after a reboot.

use std::time::{Duration, Instant};

use lockcore::{
    ClaimSet, Grant, LockDao, Mode, Severity,
    backend::{AcquireRequest, Acquired, AttemptId, Wake},
};
use lockcore_conformance::{judge::in_time, servers::Trial};
use lockcore_sql::{SqliteBuilder, SqliteLockDao};
use tempfile::TempDir;
use uuid::Uuid;

type Dao = SqliteLockDao<String, Uuid>;

/// What can happen at all happens within this time.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    tests![
        "boots",
        another_boot_id_takes_nothing_that_is_held,
        a_waiter_with_another_boot_id_keeps_its_place_and_is_served,
        a_lease_ends_on_time_for_every_boot_id,
        a_reboot_voids_all_locks_and_fences_go_on,
        the_doctor_tells_of_other_boot_ids
    ]
}

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

async fn a_waiter_with_another_boot_id_keeps_its_place_and_is_served() {
    let folder = folder();
    let (here, there) = (with_boot(&folder, 1).await, with_boot(&folder, 2).await);
    let held = take(&here, &request("a")).await;
    let waiter = AcquireRequest { queue: true, ..request("a") };
    let Acquired::Queued { mut wakeup, .. } = there.acquire(&waiter).await.expect("an answer") else {
        panic!("it is held")
    };
    assert_eq!(here.sweep(100, None).await.expect("an answer").removed, 0);
    here.release(&held).await.expect("an answer");
    let acquired = here.acquire(&request("a")).await.expect("an answer");
    assert!(matches!(acquired, Acquired::Refused(_)), "{acquired:?}");
    let wake = tokio::time::timeout(PATIENCE, wakeup.recv()).await.expect("its turn has come");
    assert!(matches!(wake, Wake::Offer(_)), "{wake:?}");
}

/// It must not be counted from each process's own look.
async fn a_lease_ends_on_time_for_every_boot_id() {
    const LEASE: Duration = Duration::from_millis(500);
    let folder = folder();
    let mut others = Vec::new();
    for boot in 2..5 {
        others.push(with_boot(&folder, boot).await);
    }
    let here = with_boot(&folder, 1).await;
    let begun = Instant::now();
    take(&here, &AcquireRequest { lease: Some(LEASE), ..request("a") }).await;
    let granted = 'granted: loop {
        for dao in &others {
            if let Acquired::Granted(_) = dao.acquire(&request("a")).await.expect("an answer") {
                break 'granted begun.elapsed();
            }
        }
        in_time(begun.elapsed(), PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(granted >= LEASE, "{granted:?}");
}

async fn a_reboot_voids_all_locks_and_fences_go_on() {
    let folder = folder();
    let before = with_boot(&folder, 1).await;
    let old = take(&before, &request("a")).await;
    // Not because its process has ended: a detached lock has none.
    take(&before, &AcquireRequest { detached: true, ..request("b") }).await;
    let after = builder(&folder).pretend_reboot(2).open().await.expect("the same file");
    let new = take(&after, &request("a")).await;
    assert!(new.locks[0].granted.fence > old.locks[0].granted.fence);
    take(&after, &request("b")).await;
    assert_eq!(after.renew(&old).await.expect("an answer").lost.len(), 1);
}

async fn the_doctor_tells_of_other_boot_ids() {
    let folder = folder();
    let here = with_boot(&folder, 1).await;
    let boot_ids = async || {
        let findings = here.doctor().await.expect("it can be looked at");
        let finding = findings.into_iter().find(|finding| finding.check == "boot ids");
        finding.expect("it is looked at")
    };
    assert_eq!(boot_ids().await.severity, Severity::Ok);
    let there = with_boot(&folder, 2).await;
    take(&there, &request("a")).await;
    let finding = boot_ids().await;
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.detail.starts_with("1 sessions with another one"), "{finding:?}");
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
