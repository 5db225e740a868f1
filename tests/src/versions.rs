//! Programs of several versions on one store, as while a release is rolled out or rolled back.

use std::time::Duration;

use lockcore::{
    BackendError, BackendErrorKind, ClaimSet, Grant, LockDao, Mode,
    backend::{AcquireRequest, Acquired, AttemptId, StoreVersion},
};
use uuid::Uuid;

/// The version of today's programs.
const TODAY: StoreVersion = StoreVersion { version: 1, oldest_program: 1 };

/// A later one, with which today's programs can share a store.
const NEXT: StoreVersion = StoreVersion { version: 2, oldest_program: 1 };

/// One with which none of the others can.
const INCOMPATIBLE: StoreVersion = StoreVersion { version: 3, oldest_program: 3 };

/// How often each takes its turn while the store is migrated.
const TURNS: usize = 40;

/// Migrates a store of one's own while programs of the old version use it, goes on with both, and goes back; then migrates it
/// to a version that refuses the others. `open` opens the store as a program of a version would, and migrates it if it is
/// older. Returns the DAOs of today's version that were opened before the last migration.
///
/// # Panics
/// If a promise is broken.
pub async fn forward_and_back<D: LockDao<String, Uuid>>(
    open: impl AsyncFn(StoreVersion) -> Result<D, BackendError>,
) -> Vec<D> {
    let old = open(TODAY).await.expect("a new store");
    let held = take(&old, "held").await.expect("it is free");

    // The old program goes on while the store is migrated.
    let goes_on = async {
        for _ in 0..TURNS {
            let turn = take(&old, "old").await.expect("it is free");
            old.renew(&turn).await.expect("it is held");
            old.release(&turn).await.expect("it is held");
        }
    };
    let (new, ()) = tokio::join!(open(NEXT), goes_on);
    let new = new.expect("it may migrate");

    // Both exclude each other, and free for each other.
    assert!(take(&new, "held").await.is_none(), "the old program holds it");
    assert_eq!(old.renew(&held).await.expect("it answers").lost, []);
    assert_eq!(old.release(&held).await.expect("it answers").lost, []);
    let held = take(&new, "held").await.expect("the old program released it");
    assert!(take(&old, "held").await.is_none(), "the new program holds it");

    // Back: another program of the old version starts, and its migration changes nothing.
    let again = open(TODAY).await.expect("the store is for programs of version 1 or later");
    again.migrate().await.expect("there is nothing to do");
    assert!(take(&again, "held").await.is_none(), "the new program holds it");
    assert_eq!(new.release(&held).await.expect("it answers").lost, []);
    let held = take(&again, "held").await.expect("the new program released it");
    assert_eq!(again.release(&held).await.expect("it answers").lost, []);
    let findings = again.doctor().await.expect("it answers");
    let version = findings.iter().find(|finding| finding.check == "schema version");
    assert!(version.is_some_and(|finding| finding.detail.contains('2')), "{findings:?}");

    // Onward, to where neither can follow.
    let last = open(INCOMPATIBLE).await.expect("it may migrate");
    for program in [TODAY, NEXT] {
        let Err(refused) = open(program).await else { panic!("the store is for newer programs") };
        assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
        let said = refused.to_string();
        let parts = ["version 3", &format!("has version {}", program.version), "newer program"];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(!refused.in_doubt());
    }
    let held = take(&last, "held").await.expect("it is free");
    assert_eq!(last.release(&held).await.expect("it answers").lost, []);
    vec![old, again]
}

async fn take<D: LockDao<String, Uuid>>(dao: &D, id: &str) -> Option<Grant<String, Uuid>> {
    let request = AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([id], Mode::Exclusive).expect("valid claims"),
        lease: Some(Duration::from_secs(60)),
        owner: "".into(),
        queue: false,
        nested: false,
        detached: false,
    };
    match dao.acquire(&request).await.expect("it answers") {
        Acquired::Granted(granted) => {
            Some(Grant::new(request.context, request.claims.clone(), granted, request.lease))
        }
        Acquired::Queued { .. } | Acquired::Refused(_) => None,
    }
}
