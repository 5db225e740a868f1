//! What `keep_for` leaves locked in a store that fails, under tokio's paused time.

use std::{sync::Arc, time::Duration};

use lockcore::{BackendErrorKind, LockingError, LockingService, Target};
use lockcore_memory::{Fault, SimulatedLockDao, Step};
use tokio::time::sleep;
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);
const KEPT: Duration = Duration::from_secs(600);

type Store = Arc<SimulatedLockDao<String>>;
type Locks = LockingService<String, Uuid, Store>;

fn simulated() -> (Store, Locks) {
    let store = Store::default();
    (store.clone(), LockingService::new(store))
}

/// From now on no renewal and no release works.
fn fails(store: &Store) {
    for step in [Step::Renew, Step::Release] {
        store.script(step, [Fault::Fails(BackendErrorKind::Unavailable); 10_000]);
    }
}

/// It is locked for so much longer, to the second.
async fn is_locked_for(locks: &Locks, id: &str, left: Duration) {
    sleep(left - SECOND).await;
    assert!(locks.lock([id]).await.unwrap_err().is_contention());
    sleep(2 * SECOND).await;
    drop(locks.lock([id]).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_at_the_release_changes_nothing() {
    let (store, locks) = simulated();
    locks.keep_for(KEPT).run_locked(["nightly"], async || fails(&store)).await.unwrap();
    is_locked_for(&locks, "nightly", KEPT).await;
}

#[tokio::test(start_paused = true)]
async fn nor_does_a_process_that_dies() {
    let (store, locks) = simulated();
    let guard = locks.keep_for(KEPT).lock(["nightly"]).await.unwrap();
    fails(&store);
    std::mem::forget(guard);
    is_locked_for(&locks, "nightly", KEPT).await;
}

#[tokio::test(start_paused = true)]
async fn a_longer_lease_is_cut_short_though_the_first_request_for_that_fails() {
    let (store, locks) = simulated();
    let guard = locks.lease(KEPT).keep_for(10 * SECOND).lock(["nightly"]).await.unwrap();
    store.script(Step::Release, [Fault::Fails(BackendErrorKind::Unavailable)]);
    guard.release().await.unwrap();
    is_locked_for(&locks, "nightly", 10 * SECOND).await;
    assert_eq!(locks.shutdown(SECOND).await, 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_long_callback_it_is_locked_until_then_and_no_longer() {
    let (store, locks) = simulated();
    // The last renewal was a lease of 30 s ago at most.
    locks.keep_for(50 * SECOND).run_locked(["nightly"], async || sleep(45 * SECOND).await).await.unwrap();
    is_locked_for(&locks, "nightly", 5 * SECOND).await;
    assert!(store.steps(Step::Renew) >= 3);
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_set_that_is_lost_in_part_stays_locked() {
    let (store, locks) = simulated();
    let guard = locks.keep_for(KEPT).lock(["a", "b"]).await.unwrap();
    store.lose(&Target::Id("a".to_owned()));
    match guard.release().await {
        Err(LockingError::Lost { lost, .. }) => assert_eq!(lost.len(), 1),
        other => panic!("not lost: {other:?}"),
    }
    locks.lock(["a"]).await.unwrap().release().await.unwrap();
    is_locked_for(&locks, "b", KEPT).await;
}
