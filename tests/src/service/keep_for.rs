//! Locks that stay locked after a release: `Call::keep_for`.

use std::{future, time::Duration};

use lockcore::{BackendErrorKind, BadRequest, BreakMode, LockingError, LossReason, Target};
use tokio::time::Instant;

use uuid::Uuid;

use super::{Oops, Rig};
use crate::{
    Backend, Store, eventually,
    fault::{Fault, Operation},
};

/// 3.2 and 3.11: a release before the time is over leaves the set locked, also for longer than its lease; then it is free.
pub async fn a_release_before_that_leaves_it_locked<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.lasting();
    for (keep_for, fails) in [(lease / 2, false), (lease * 3 / 2, false), (lease * 3 / 2, true)] {
        if fails {
            // As if the process had ended: the lease frees it.
            rig.faults.set_times(Operation::Release, Fault::Fails(BackendErrorKind::Unavailable), 1);
        }
        let began = Instant::now();
        let call =
            rig.locks.lease(lease).keep_for(keep_for).with_locks(["a", "b"], || async { Err::<(), _>(Oops) });
        assert!(matches!(call.await, Err(LockingError::Callback { error: Oops })));
        store.becomes_free(&["a", "b"]).await;
        assert!(began.elapsed() >= keep_for, "{:?} of {keep_for:?}", began.elapsed());
    }
}

/// 3.2: nor does a call free it that is dropped, or that panics.
pub async fn a_dropped_call_leaves_it_locked<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.lasting();
    let began = Instant::now();
    let call = rig.locks.lease(lease).keep_for(lease * 3 / 2).run_locked(["a"], future::pending::<()>);
    assert!(tokio::time::timeout(lease / 4, call).await.is_err());
    assert_eq!(rig.locks.shutdown(lease / 4).await, 0, "no shutdown waits for that");
    store.becomes_free(&["a"]).await;
    assert!(began.elapsed() >= lease * 3 / 2, "{:?}", began.elapsed());
}

/// 3.11 and 7: a release after that time frees the set at once; a time that is not possible is refused.
pub async fn a_later_release_frees_it<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let keep_for = Duration::from_millis(50);
    let guard = rig.locks.keep_for(keep_for).lock(["a"]).await.expect("it is free");
    tokio::time::sleep(keep_for).await;
    guard.release().await.expect("nothing was lost");
    assert!(store.is_free(&["a"]).await);
    for (keep_for, expected) in
        [(Duration::ZERO, "it must be more than zero"), (Duration::MAX, "it must be at most 365 days")]
    {
        let refused = rig.locks.keep_for(keep_for).lock(["a"]).await.map(drop);
        let (field, value) = ("keep_for", format!("{keep_for:?}"));
        let bad = BadRequest::OutOfBounds { field, value, expected };
        assert!(matches!(refused, Err(LockingError::BadRequest(refused)) if refused == bad));
    }
}

/// 3.5: a context is in use as long as its set is kept: used again, it would be granted what it still holds.
pub async fn a_kept_context_is_in_use<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let (lease, context) = (store.lasting(), Uuid::new_v4());
    let call = || rig.locks.context(context).lease(lease).keep_for(lease / 2);
    call().lock(["a"]).await.expect("it is free").release().await.expect("nothing was lost");
    let refused = call().lock(["a"]).await.map(drop).expect_err("it is kept");
    assert!(matches!(refused, LockingError::ContextInUse { .. }), "{refused}");
    store.becomes_free(&["a"]).await;
    drop(eventually("the context is free", || async { call().lock(["a"]).await.ok() }).await);
}

/// 3.9: what was lost is not kept.
pub async fn what_is_lost_is_not_kept<B: Backend>(store: Store<B>) {
    if !store.capabilities().breaking {
        return;
    }
    let rig = Rig::new(&store);
    let guard = rig.locks.lease(store.lasting()).keep_for(Duration::from_secs(600)).lock(["a", "b"]).await;
    let guard = guard.expect("it is free");
    let target = Target::Id("a".to_owned());
    let admin = rig.locks.admin();
    admin.break_lock(&target, guard.fence("a"), BreakMode::Now).await.expect("the store answers");
    eventually("the loss is known", || async { guard.check().err() }).await;
    match guard.release().await {
        Err(LockingError::Lost { lost, .. }) => assert_eq!(lost[0].reason, LossReason::Broken),
        other => panic!("not lost: {other:?}"),
    }
    assert!(store.is_free(&["a", "b"]).await, "nor is what is left of the set");
}
