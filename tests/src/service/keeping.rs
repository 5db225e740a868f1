//! Leases are kept while the callback runs, and not for ever: section 3.9, and the handle of 3.10.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use lockcore::{Event, LockingError, Mode};
use tokio::time::Instant;

use super::{Oops, Rig};
use crate::{
    Backend, Store, eventually,
    fault::{Fault, Operation},
    store::{exclusive, id, slot},
};

/// 3.9: a callback that runs for several leases keeps its locks: renewed, and not granted to another meanwhile.
pub async fn locks_outlive_their_lease<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.lasting();
    let call = rig.locks.lease(lease).with_held_locks(["a", "b"], |held| {
        let store = &store;
        async move {
            let began = Instant::now();
            while began.elapsed() < lease * 3 {
                held.check().expect("it is renewed");
                assert!(held.time_left().is_some_and(|left| left <= lease));
                store.is_held(&["a"], || held.check().is_ok()).await;
                tokio::time::sleep(lease / 10).await;
            }
            Ok::<_, Oops>(())
        }
    });
    call.await.expect("nothing was lost");
    assert!(rig.faults.calls(Operation::Renew) >= 6, "renewed {} times", rig.faults.calls(Operation::Renew));
    assert!(store.is_free(&["a", "b"]).await);
}

/// 3.9: the local deadline counts from before the request was sent, however long its answer took.
pub async fn the_deadline_counts_from_the_request<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    // Longer than the margin, which comes off as well.
    let (lease, delay) = (store.short() * 5, store.short() * 2);
    rig.faults.set(Operation::Acquire, Fault::Late);
    let call =
        rig.locks.lease(lease).with_held_locks(["a"], |held| async move { Ok::<_, Oops>(held.time_left()) });
    let answers = async {
        tokio::time::sleep(delay).await;
        rig.faults.lift();
        // It is due for a renewal as soon as it is held: without one the deadline is that of the request.
        rig.faults.set(Operation::Renew, Fault::Hangs);
    };
    let (left, ()) = tokio::join!(call, answers);
    let left = left.expect("it is free").expect("the lease is finite");
    assert!(left <= lease - delay, "{left:?} are left of {lease:?} after {delay:?}");
}

/// 3.9: renewal does not depend on the caller's thread being idle: plain code that blocks keeps its locks.
pub async fn blocking_code_is_renewed<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.lasting();
    let call = rig.locks.lease(lease).with_held_locks_sync(["a"], |held| {
        std::thread::sleep(lease * 2);
        held.check().expect("it is renewed");
        Ok::<_, Oops>(())
    });
    call.await.expect("nothing was lost");
    let blocking = rig.locks.lease(lease).with_locks_blocking(["a"], move |held| {
        std::thread::sleep(lease * 2);
        held.check().expect("it is renewed");
        Ok::<_, Oops>(())
    });
    blocking.await.expect("nothing was lost");
    assert!(store.is_free(&["a"]).await);
}

/// 3.9: a runtime with one thread, which the callback blocks, keeps its locks as well.
pub async fn a_blocked_runtime_is_renewed<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let (locks, lease) = (rig.locks.clone(), store.lasting());
    let on_its_own = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(async move {
            let call = locks.lease(lease).with_held_locks(["a"], |held| async move {
                std::thread::sleep(lease * 2);
                held.check().expect("it is renewed");
                Ok::<_, Oops>(())
            });
            call.await.expect("nothing was lost");
        });
    });
    on_its_own.await.expect("no panic");
    assert!(store.is_free(&["a"]).await);
}

/// 3.9: renewals that fail for a moment cost nothing.
pub async fn a_failing_renewal_is_tried_again<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.lasting();
    rig.faults.set_times(Operation::Renew, Fault::Fails(lockcore::BackendErrorKind::Unavailable), 2);
    let call = rig.locks.lease(lease).with_held_locks(["a"], |held| {
        let faults = &rig.faults;
        async move {
            eventually("it is renewed", || async { (faults.calls(Operation::Renew) > 3).then_some(()) })
                .await;
            held.check().expect("nothing was lost");
            Ok::<_, Oops>(())
        }
    });
    call.await.expect("nothing was lost");
    // The hook runs on a thread of its own.
    rig.observed("renewal failed").await;
    assert!(!rig.events().contains(&"lost"));
}

/// 3.9: a hook that blocks delays no renewal, neither of its own service nor of another one.
pub async fn a_slow_hook_costs_no_lock<B: Backend>(store: Store<B>) {
    let (unblock, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let slow = Rig::with(&store, |builder| {
        builder.on_event(move |event| {
            if matches!(event, Event::RenewalFailed { .. }) {
                // Until the sender is dropped.
                let _ = blocked.lock().expect("no panic").recv();
            }
        })
    });
    let rig = Rig::new(&store);
    let lease = store.lasting();
    slow.faults.set_times(Operation::Renew, Fault::Fails(lockcore::BackendErrorKind::Unavailable), 1);
    let own = slow.locks.lease(lease).lock(["a"]).await.expect("it is free");
    let renewed = async |rig: &Rig<B>, times| {
        let calls = || async { (rig.faults.calls(Operation::Renew) >= times).then_some(()) };
        eventually("it is renewed", calls).await;
    };
    renewed(&slow, 1).await;
    let other = rig.locks.lease(lease).lock(["b"]).await.expect("it is free");
    renewed(&rig, 2).await;
    renewed(&slow, 3).await;
    own.check().expect("it is renewed");
    other.check().expect("it is renewed");
    drop(unblock);
    own.release().await.expect("it is held");
    other.release().await.expect("it is held");
}

/// 3.9: `max_hold` stops a callback that hangs under renewal, and frees its locks.
pub async fn a_callback_that_hangs_is_stopped<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let max_hold = Duration::from_millis(200);
    let dropped = Arc::new(());
    let inside = dropped.clone();
    let began = Instant::now();
    let call = rig.locks.max_hold(max_hold).with_locks(["a"], || async move {
        let _inside = inside;
        std::future::pending::<()>().await;
        Ok::<_, Oops>(())
    });
    match call.await {
        Err(LockingError::HeldTooLong { max_hold: told }) => assert_eq!(told, max_hold),
        other => panic!("not stopped: {other:?}"),
    }
    assert!(began.elapsed() >= max_hold);
    assert_eq!(Arc::strong_count(&dropped), 1, "nothing of the callback outlives its locks");
    assert!(store.is_free(&["a"]).await);
}

/// 3.10: the callback gets its context, fences, permit indexes and the time left.
pub async fn the_handle_tells_what_is_held<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let before = store.caller();
    let earlier = before.take(["a"]).await;
    before.free(&earlier).await;
    let slots = store.capabilities().slots;
    let mut set = vec![exclusive("a")];
    set.extend(slots.then(|| slot("b", 3).permits(2)));
    let call = rig.locks.owner("the owner").with_held_locks(set, |held| {
        let store = &store;
        async move {
            assert!(held.fence("a") > earlier.locks[0].granted.fence);
            assert_eq!(held.exclusive_fence("a").map(|fence| fence.number()), Some(held.fence("a")));
            assert!(held.shared_fence("a").is_none() && held.permits("a").is_empty());
            assert!(held.lock("not held").is_none());
            assert!(held.time_left().is_some_and(|left| left > Duration::from_secs(300)));
            if slots {
                assert_eq!(held.permits("b"), [0, 1]);
                assert!(held.exclusive_fence("b").is_none());
                assert_eq!(held.shared_fence("b").map(|fence| fence.number()), Some(held.fence("b")));
            }
            let locks = held.locks();
            assert_eq!((locks.len(), &locks[0].target), (1 + usize::from(slots), &id("a")));
            assert_eq!(locks[0].granted.mode, Mode::Exclusive);
            let told = &store.caller().refused(["a"]).await[0].reason.clone();
            let lockcore::ConflictReason::Held { holders, .. } = told else { panic!("not held: {told:?}") };
            assert_eq!(holders[0].context, lockcore::StoredContext::Known(*held.context()));
            assert_eq!((&*holders[0].owner, holders[0].fence), ("the owner", held.fence("a")));
            Ok::<_, Oops>(())
        }
    });
    call.await.expect("it is free");
}

/// 3.9 and 7: the default lease is the backend's own, and what it declares to be the default works.
pub async fn the_default_lease_works<B: Backend>(store: Store<B>) {
    let (dao, _) = crate::fault::FaultyDao::new(store.dao().clone());
    let locks = lockcore::LockingService::<String, uuid::Uuid, _>::new(dao);
    let call = locks.with_held_locks(["a"], |held| {
        let default = store.capabilities().default_lease;
        async move {
            assert_eq!(held.time_left().is_some(), default.is_some());
            assert!(held.time_left().is_none_or(|left| Some(left) <= default));
            Ok::<_, Oops>(())
        }
    });
    call.await.expect("it is free");
}

/// 2.9: a service sweeps its namespace by itself.
pub async fn a_service_sweeps<B: Backend>(store: Store<B>) {
    let rig = Rig::with(&store, |builder| builder.sweep(Some(Duration::from_millis(50)), 10));
    rig.locks.with_locks(["live"], || async { Ok::<_, Oops>(()) }).await.expect("it is free");
    if !store.capabilities().sweeping {
        assert_eq!(rig.faults.calls(Operation::Sweep), 0, "what is not declared is not asked for");
        return;
    }
    let dead = store.caller().with_lease(store.ending());
    dead.take(["a", "b"]).await;
    store.end_leases().await;
    let swept = rig.faults.calls(Operation::Sweep);
    eventually("it sweeps", || async { (rig.faults.calls(Operation::Sweep) > swept + 2).then_some(()) })
        .await;
    let left = lockcore::LockDao::sweep(&**store.dao(), 100, None).await.expect("the store answers");
    assert_eq!(left.removed, 0, "what expired is gone");
}
