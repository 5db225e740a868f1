//! Nothing stays behind, wherever a call ends: sections 2.6 and 3.2.

use std::time::Duration;

use lockcore::{LockingError, Wait};
use tokio::time::timeout;

use super::{Oops, Rig, never_runs};
use crate::{
    Backend, PATIENCE, Store, eventually,
    fault::{Fault, Operation},
    polls::dropped_after,
};

/// More polls than any call takes.
const MANY: usize = 1000;

/// 3.2: a call whose future is dropped at any poll - acquiring, running, releasing - leaves nothing locked.
pub async fn a_call_dropped_at_any_poll_leaves_nothing<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    for polls in 0..MANY {
        let call = rig.locks.with_locks(["a", "b"], || async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            Ok::<_, Oops>(())
        });
        let done = dropped_after(polls, call).await;
        store.becomes_free(&["a", "b"]).await;
        if done.is_some() {
            return;
        }
    }
    panic!("it never ended");
}

/// 3.2: nor does one that is dropped while it waits, at the moment of its turn, or later.
pub async fn a_waiting_call_dropped_at_any_poll_leaves_nothing<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    for polls in 0..12 {
        for frees_first in [false, true] {
            let holder = store.caller();
            let held = holder.take(["a"]).await;
            let mut call = Box::pin(rig.locks.wait(Wait::forever()).run_locked(["a", "b"], || async {}));
            // It may wait without ever asking to be polled again.
            let waited = timeout(Duration::from_millis(20), dropped_after(polls, &mut call)).await;
            assert!(!matches!(waited, Ok(Some(_))), "it is not its turn");
            if frees_first {
                holder.free(&held).await;
                let _ = timeout(Duration::from_millis(20), dropped_after(polls, &mut call)).await;
                drop(call);
            } else {
                drop(call);
                holder.free(&held).await;
            }
            store.becomes_free(&["a", "b"]).await;
        }
    }
}

/// 2.6: a request that arrives after its call was dropped is refused by the store.
pub async fn a_late_request_takes_nothing<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Acquire, Fault::Late);
    let call = rig.locks.with_locks(["a", "b"], never_runs);
    let waited = timeout(Duration::from_millis(50), call).await;
    assert!(waited.is_err(), "its request does not arrive");
    eventually("the request is withdrawn", || async {
        (rig.faults.calls(Operation::Withdraw) > 0).then_some(())
    })
    .await;
    let settled = rig.locks.shutdown(Duration::from_secs(10)).await;
    assert_eq!(settled, 0, "the withdrawal is over");
    rig.faults.lift();
    // Each later caller finds it free: the late request never takes it.
    for _ in 0..20 {
        assert!(store.is_free(&["a", "b"]).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// 3.2: a call that is dropped while its release hangs is released all the same once the store answers.
pub async fn a_call_dropped_in_its_release_is_released<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    for fault in [Fault::Hangs, Fault::Late, Fault::LosesAnswer] {
        rig.faults.set(Operation::Release, fault);
        let call = rig.locks.with_locks(["a"], || async { Ok::<_, Oops>(()) });
        // Only what hangs needs a limit; a store in the network may take long for the rest.
        let limit = if fault == Fault::LosesAnswer { PATIENCE } else { Duration::from_millis(50) };
        let waited = timeout(limit, call).await;
        assert_eq!(waited.is_err(), fault != Fault::LosesAnswer);
        rig.faults.lift();
        store.becomes_free(&["a"]).await;
    }
}

/// 3.2: a store that fails for a while frees everything once it answers again.
pub async fn an_outage_is_cleaned_up_after<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.lock(["a"]).await.expect("it is free");
    for operation in [Operation::Acquire, Operation::Withdraw, Operation::Release] {
        rig.faults.set(operation, Fault::LosesAnswer);
    }
    drop(guard);
    rig.locks.with_locks(["b"], never_runs).await.expect_err("no answer comes");
    for operation in [Operation::Withdraw, Operation::Release] {
        rig.faults.set(operation, Fault::Fails(lockcore::BackendErrorKind::Unavailable));
    }
    rig.faults.lift();
    store.becomes_free(&["a", "b"]).await;
    assert_eq!(rig.locks.shutdown(Duration::from_secs(10)).await, 0);
}

/// 3.2: clean-up works from `Drop` without a runtime, and after the runtime of the call is gone.
pub async fn clean_up_works_without_a_runtime<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.lock(["a"]).await.expect("it is free");
    let other = rig.locks.lock(["b"]).await.expect("it is free");
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    store.becomes_free(&["a"]).await;
    let dropped = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        runtime.spawn(async move {
            let _held = other;
            std::future::pending::<()>().await;
        });
        runtime.block_on(tokio::task::yield_now());
    });
    dropped.join().expect("no panic");
    store.becomes_free(&["b"]).await;
}

/// 3.2 and 3.11: a lock whose clean-up began on a runtime that then rests is freed, and no longer counted; one that is kept is
/// given back.
pub async fn a_resting_runtime_keeps_no_lock<B: Backend>(store: Store<B>) {
    for (fault, keeps) in [(None, false), (Some(Fault::Late), false), (Some(Fault::Late), true)] {
        let rig = Rig::new(&store);
        if let Some(fault) = fault {
            // As if the answer had to be read by that runtime.
            rig.faults.set_times(Operation::Release, fault, 1);
        }
        let locks = rig.locks.clone();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (rest, rests) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime can be made");
            runtime.block_on(async {
                let guard = match keeps {
                    true => locks.keep_for(Duration::from_secs(600)).lock(["a"]).await,
                    false => locks.lock(["a"]).await,
                };
                drop(guard.expect("it is free"));
            });
            rest.send(()).expect("the check waits for it");
            // Nothing polls its tasks until the check is over.
            let _ = ends.recv();
        });
        rests.await.expect("it rests");
        if !keeps {
            store.becomes_free(&["a"]).await;
        }
        assert_eq!(rig.locks.shutdown(PATIENCE).await, 0, "{fault:?} {keeps}");
        drop(end);
        tokio::task::spawn_blocking(move || thread.join()).await.expect("no panic").expect("no panic");
    }
}

/// 3.11: a shutdown refuses new calls, and returns once every lock is released.
pub async fn a_shutdown_waits_for_all_locks<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.lock(["a"]).await.expect("it is free");
    let locks = rig.locks.clone();
    let closing = tokio::spawn(async move { locks.shutdown(Duration::from_secs(30)).await });
    let refused = eventually("new calls are refused", || async {
        rig.locks.with_locks(["b"], || async { Ok::<_, Oops>(()) }).await.err()
    })
    .await;
    assert!(matches!(refused, LockingError::ShutDown), "{refused:?}");
    assert!(!closing.is_finished(), "a lock is still held");
    guard.release().await.expect("it is held");
    assert_eq!(closing.await.expect("no panic"), 0);
    assert!(store.is_free(&["a", "b"]).await);
}

/// 3.11: a shutdown does not wait longer than it was given, and tells how many are left.
pub async fn a_shutdown_ends_after_its_grace<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let one = rig.locks.lock(["a"]).await.expect("it is free");
    let two = rig.locks.lock(["b"]).await.expect("it is free");
    assert_eq!(rig.locks.shutdown(Duration::from_millis(50)).await, 2);
    one.release().await.expect("it is held");
    assert_eq!(rig.locks.shutdown(Duration::from_millis(50)).await, 1);
    drop(two);
    assert_eq!(rig.locks.shutdown(Duration::from_secs(30)).await, 0);
    assert!(store.is_free(&["a", "b"]).await);
}
