//! Locks that stay locked after a release: `Call::keep_for`.

use std::{future, time::Duration};

use lockcore::{
    BackendErrorKind, BadRequest, BreakMode, LockingError, LossReason, Target, Wait, protocol::OFFER,
};
use tokio::time::Instant;

use uuid::Uuid;

use super::{Oops, Rig};
use crate::{
    Backend, Store, eventually,
    fault::{Fault, Operation},
};

/// Far longer than a check lasts.
const LONG: Duration = Duration::from_secs(600);

/// All of `ids` are locked until `keep_for` has passed since `began`, and then they become free.
async fn are_kept<B: Backend>(store: &Store<B>, ids: &[&str], began: Instant, keep_for: Duration) {
    let other = store.caller();
    loop {
        let granted = other.try_take(ids.iter().copied()).await;
        let after = began.elapsed();
        match granted {
            Ok(_) if after < keep_for => panic!("free after {after:?} of {keep_for:?}"),
            Ok(grant) => return other.free(&grant).await,
            Err(_) if after > keep_for + LONG / 2 => panic!("still locked after {after:?} of {keep_for:?}"),
            Err(_) => tokio::time::sleep(keep_for / 40).await,
        }
    }
}

/// A lease, and a longer time for which a set is kept though nothing renews it.
fn unrenewed<B: Backend>(store: &Store<B>) -> (Duration, Duration) {
    let lease = store.short();
    (lease, (lease * 2).max(Duration::from_secs(2)))
}

/// 3.2 and 3.11: a release before the time is over leaves the set locked, also for longer than its lease; then it is free.
pub async fn a_release_before_that_leaves_it_locked<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.lasting();
    for (keep_for, fails) in [(lease / 2, false), (lease * 3 / 2, false), (lease * 3 / 2, true)] {
        if fails {
            rig.faults.set_times(Operation::Release, Fault::Fails(BackendErrorKind::Unavailable), 1);
        }
        let began = Instant::now();
        let call =
            rig.locks.lease(lease).keep_for(keep_for).with_locks(["a", "b"], || async { Err::<(), _>(Oops) });
        assert!(matches!(call.await, Err(LockingError::Callback { error: Oops })));
        are_kept(&store, &["a", "b"], began, keep_for).await;
    }
}

/// 3.2: nor does a call free it that is dropped. No shutdown waits for it.
pub async fn a_dropped_call_leaves_it_locked<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.lasting();
    let began = Instant::now();
    let call = rig.locks.lease(lease).keep_for(lease * 3 / 2).run_locked(["a"], future::pending::<()>);
    assert!(tokio::time::timeout(lease / 4, call).await.is_err());
    assert_eq!(rig.locks.shutdown(lease / 2).await, 0, "nothing is left to be done");
    are_kept(&store, &["a"], began, lease * 3 / 2).await;
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

/// 3.11: the set of a job that did not take place is released at once.
pub async fn a_release_now_frees_it<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.keep_for(LONG).lock(["a", "b"]).await.expect("it is free");
    store.caller().refused(["a"]).await;
    guard.release_now().await.expect("nothing was lost");
    assert!(store.is_free(&["a", "b"]).await);
}

/// 3.11: the set is free when the time is over, however long its lease is, also if the first request for that fails.
pub async fn a_longer_lease_is_cut_short<B: Backend>(store: Store<B>) {
    if !store.capabilities().shortening {
        return;
    }
    let rig = Rig::new(&store);
    let keep_for = store.short();
    for fails in [false, true] {
        if fails {
            rig.faults.set_times(Operation::Release, Fault::Fails(BackendErrorKind::Unavailable), 1);
        }
        let guard = rig.locks.lease(LONG).keep_for(keep_for).lock(["a", "b"]).await.expect("it is free");
        let began = Instant::now();
        guard.release().await.expect("nothing was lost");
        store.becomes_free(&["a", "b"]).await;
        assert!(began.elapsed() >= keep_for.mul_f64(0.9), "{:?} of {keep_for:?}", began.elapsed());
    }
}

/// 3.9 and 3.11: the set is locked for the whole time though its process does nothing more once it has it: as if it had died, or the
/// store were away for it. A release has nothing that must succeed.
pub async fn no_renewal_has_to_succeed<B: Backend>(store: Store<B>) {
    let (lease, keep_for) = unrenewed(&store);
    for released in [false, true] {
        let rig = Rig::new(&store);
        let began = Instant::now();
        let guard = rig.locks.lease(lease).keep_for(keep_for).lock(["a", "b"]).await.expect("it is free");
        for operation in [Operation::Renew, Operation::Release] {
            rig.faults.set(operation, Fault::Fails(BackendErrorKind::Unavailable));
        }
        if released {
            guard.release().await.expect("nothing was lost");
        } else {
            std::mem::forget(guard);
        }
        are_kept(&store, &["a", "b"], began, keep_for).await;
    }
}

/// 3.8 and 3.11: that goes for a set that was handed over, too, from the moment in which it is known to be held.
pub async fn what_was_waited_for_is_kept_from_the_start<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let (lease, keep_for) = unrenewed(&store);
    // An offer that nothing confirms ends before.
    let keep_for = keep_for.max(OFFER * 2);
    let first = rig.locks.lock(["a"]).await.expect("it is free");
    let call = rig.locks.lease(lease).keep_for(keep_for).wait(Wait::forever()).lock(["a"]);
    let second = async {
        let guard = call.await.expect("its turn comes");
        for operation in [Operation::Renew, Operation::Release] {
            rig.faults.set(operation, Fault::Fails(BackendErrorKind::Unavailable));
        }
        guard
    };
    let release = async {
        let waits = || async { (rig.faults.calls(Operation::Acquire) >= 2).then_some(()) };
        eventually("the second one asks", waits).await;
        first.release().await.expect("nothing was lost");
    };
    let began = Instant::now();
    let (guard, ()) = tokio::join!(second, release);
    guard.release().await.expect("nothing was lost");
    are_kept(&store, &["a"], began, keep_for).await;
}

/// 3.5 and 7: a context is not given to a call whose set is kept: used again, it would be granted what it still holds.
pub async fn a_context_cannot_be_given<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let refused = rig.locks.context(Uuid::new_v4()).keep_for(LONG).lock(["a"]).await.map(drop);
    let expected = "it needs a fresh context, and one is given";
    let bad = BadRequest::OutOfBounds { field: "keep_for", value: "600s".to_owned(), expected };
    assert!(matches!(refused, Err(LockingError::BadRequest(refused)) if refused == bad));
}

/// 3.9: what was lost is not kept, and the rest of its set is.
pub async fn what_is_lost_is_not_kept<B: Backend>(store: Store<B>) {
    if !store.capabilities().breaking {
        return;
    }
    for how in [BreakMode::Now, BreakMode::AfterLease] {
        let rig = Rig::new(&store);
        let guard = rig.locks.lease(store.lasting()).keep_for(LONG).lock(["a", "b"]).await;
        let guard = guard.expect("it is free");
        let admin = rig.locks.admin();
        let target = Target::Id("a".to_owned());
        admin.break_lock(&target, guard.fence("a"), how).await.expect("the store answers");
        eventually("the loss is known", || async { guard.check().err() }).await;
        let grant = guard.grant().clone();
        match guard.release().await {
            Err(LockingError::Lost { lost, .. }) => {
                assert_eq!((lost.len(), &lost[0].target, lost[0].reason), (1, &target, LossReason::Broken));
            }
            other => panic!("not lost: {other:?}"),
        }
        assert!(store.is_free(&["a"]).await, "{how:?}");
        store.caller().refused(["b"]).await;
        admin.release(&grant).await.expect("the store answers");
    }
}
