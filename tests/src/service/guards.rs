//! The guard that underlies every call: section 3.11.

use std::time::Duration;

use lockcore::{LockingError, Wait};

use super::{Oops, Rig};
use crate::{Backend, Store, fault::Operation, polls::dropped_after};

/// 3.11: a guard holds the set until it is released, which is over when the call returns.
pub async fn a_guard_holds_until_released<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.lock(["a", "b"]).await.expect("it is free");
    assert_eq!(store.caller().refused(["a", "b"]).await.len(), 2);
    guard.check().expect("it is held");
    assert_eq!(guard.held().locks().len(), 2);
    guard.release().await.expect("it is held");
    assert!(store.is_free(&["a", "b"]).await);
    let refused = rig.locks.lock(["a"]).await.expect("it is free");
    assert!(rig.locks.lock(["a"]).await.expect_err("it is held").is_contention());
    refused.release().await.expect("it is held");
}

/// 3.11: dropping a guard releases it, also in the middle of its release.
pub async fn a_dropped_guard_releases<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    drop(rig.locks.lock(["a"]).await.expect("it is free"));
    store.becomes_free(&["a"]).await;
    for polls in 0.. {
        let guard = rig.locks.lock(["a"]).await.expect("it is free");
        let done = dropped_after(polls, guard.release()).await.is_some();
        store.becomes_free(&["a"]).await;
        if done {
            break;
        }
    }
    for polls in 0.. {
        let guard = dropped_after(polls, rig.locks.lock(["a"])).await;
        let done = guard.is_some();
        drop(guard);
        store.becomes_free(&["a"]).await;
        if done {
            break;
        }
    }
}

/// 3.9 and 3.11: a guard is renewed while it lives.
pub async fn a_guard_is_renewed<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.lasting();
    let guard = rig.locks.lease(lease).lock(["a"]).await.expect("it is free");
    let began = std::time::Instant::now();
    while began.elapsed() < lease * 2 {
        store.caller().refused(["a"]).await;
        tokio::time::sleep(lease / 10).await;
    }
    guard.check().expect("it is renewed");
    guard.release().await.expect("nothing was lost");
    let renewals = rig.faults.calls(Operation::Renew);
    tokio::time::sleep(lease).await;
    assert_eq!(rig.faults.calls(Operation::Renew), renewals, "what is released is not renewed");
}

/// 3.11 and 6: a guard that is left stays locked without renewal; its grant releases it, here or elsewhere.
pub async fn a_guard_that_is_left_stays_locked<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let grant = rig.locks.detached().lock(["a"]).await.expect("it is free").leave();
    store.caller().refused(["a"]).await;
    assert_eq!(rig.locks.shutdown(Duration::from_secs(5)).await, 0, "it is nobody's any more");
    let elsewhere = Rig::new(&store);
    let released = elsewhere.locks.admin().release(&grant).await.expect("the store answers");
    assert!(released.lost.is_empty());
    assert!(store.is_free(&["a"]).await);
}

/// 3.5 and 3.11: what a guard holds is no matter of calls in a callback: it is contention, and can be waited for.
pub async fn a_guard_is_like_any_holder<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.lock(["a"]).await.expect("it is free");
    let call = rig
        .locks
        .wait(Wait::up_to(Duration::from_millis(60)))
        .with_locks(["a"], || async { Ok::<_, Oops>(()) });
    match call.await {
        Err(LockingError::NotLocked { timed_out: Some(_), .. }) => {}
        other => panic!("not refused: {other:?}"),
    }
    let call = rig.locks.wait(Wait::forever()).with_locks(["a"], || async { Ok::<_, Oops>(7) });
    let (value, released) = tokio::join!(call, guard.release());
    released.expect("it is held");
    assert_eq!(value.expect("its turn comes"), 7);
}
