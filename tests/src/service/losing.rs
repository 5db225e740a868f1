//! Locks that are lost while a callback runs: sections 3.3, 3.9 and 3.10.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use lockcore::{
    BackendErrorKind, BreakMode, Ended, FenceGuard, Grant, Held, LockDao, LockingError, LossReason, LostLock,
};
use tokio::{sync::oneshot, time::Instant};
use uuid::Uuid;

use super::{Oops, Rig};
use crate::{
    Backend, PATIENCE, Store, eventually,
    fault::{Fault, Operation},
    judge::broken,
    store::{id, shared, slot},
};

/// 3.9: a callback whose lease cannot be renewed is stopped before the lease ends, is not polled afterwards, and its
/// locks are reported as lost because the store could not be reached.
pub async fn nothing_runs_past_the_deadline<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.short() * 2;
    for fault in [Fault::Fails(BackendErrorKind::Unavailable), Fault::Hangs] {
        rig.faults.set(Operation::Renew, fault);
        let last_poll = Arc::new(Mutex::new(None));
        let polled = last_poll.clone();
        let asked = Instant::now();
        let call = rig.locks.lease(lease).with_locks(["a", "b"], || async move {
            loop {
                polled.lock().expect("no panic").replace(Instant::now());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            #[allow(unreachable_code, reason = "it gives the type")]
            Ok::<(), Oops>(())
        });
        let lost = stopped(call.await);
        assert_eq!(lost.len(), 2);
        assert!(lost.iter().all(|lost| lost.reason == LossReason::Unreachable), "{lost:?}");
        let last_poll = last_poll.lock().expect("no panic").expect("it ran");
        assert!(last_poll > asked + lease / 2, "stopped much too early");
        // The lease began after `asked`, so that it ends after this by the store's clock.
        assert!(last_poll < asked + lease, "polled {:?} after the request", last_poll - asked);
        rig.faults.lift();
        store.becomes_free(&["a", "b"]).await;
    }
    assert!(rig.events().contains(&"lost"));
}

/// 3.9: a callback that blocks past the deadline is not polled again, though its future is ready to go on.
pub async fn a_late_callback_is_not_polled_again<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.short();
    rig.faults.set(Operation::Renew, Fault::Hangs);
    let went_on = AtomicBool::new(false);
    let call = rig.locks.lease(lease).with_locks(["a"], || async {
        // As if the process had been stopped in the middle of a poll.
        std::thread::sleep(lease);
        tokio::task::yield_now().await;
        went_on.store(true, Ordering::SeqCst);
        Ok::<_, Oops>(())
    });
    stopped(call.await);
    if went_on.load(Ordering::SeqCst) {
        broken("it was polled again");
    }
    rig.faults.lift();
    store.becomes_free(&["a"]).await;
}

/// 3.9: a set whose lease is over by the time that the grant is known is lost: nothing is run under it.
pub async fn a_grant_that_comes_too_late_runs_nothing<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.short() * 2;
    for plain in [false, true] {
        rig.faults.set(Operation::Acquire, Fault::Late);
        let call = async {
            match plain {
                false => rig.locks.lease(lease).with_locks(["a"], super::never_runs).await,
                true => rig.locks.lease(lease).with_locks_sync(["a"], || panic!("it does not run")).await,
            }
        };
        let answers = async {
            tokio::time::sleep(lease).await;
            rig.faults.lift();
        };
        let (outcome, ()) = tokio::join!(call, answers);
        assert_eq!(stopped::<()>(outcome).len(), 1);
        store.becomes_free(&["a"]).await;
    }
}

/// 3.9: a holder that is stopped past its lease - the process, or all of its threads - is taken over, and when
/// it goes on it does nothing more: it is not polled again, and releases nothing of the other's.
pub async fn a_stopped_holder_is_taken_over_and_does_nothing_more<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Renew, Fault::Hangs);
    let went_on = AtomicBool::new(false);
    let call = rig.locks.lease(store.short()).with_held_locks(["a"], |held| {
        let (next, went_on) = (store.caller(), &went_on);
        async move {
            let (taken_over, wakes) = mpsc::channel();
            tokio::spawn(async move {
                let grant = next.take_soon(["a"]).await;
                taken_over.send(grant.locks[0].granted.fence).expect("it waits to go on");
            });
            // The thread stands still until another holds the lock.
            let fence = wakes.recv_timeout(PATIENCE).expect("it is taken over");
            if fence <= held.fence("a") {
                broken(format_args!("fence {fence} after {}", held.fence("a")));
            }
            held.check().expect_err("its lease is over");
            tokio::task::yield_now().await;
            went_on.store(true, Ordering::SeqCst);
            Ok::<_, Oops>(())
        }
    });
    stopped(call.await);
    if went_on.load(Ordering::SeqCst) {
        broken("it was polled again");
    }
    if store.is_free(&["a"]).await {
        broken("it released what another holds");
    }
    rig.faults.lift();
}

/// 3.3 and 6: a callback whose lock an admin breaks is stopped at its next renewal and learns why.
pub async fn a_broken_lock_is_reported<B: Backend>(store: Store<B>) {
    if !store.capabilities().breaking {
        return;
    }
    for how in [BreakMode::AfterLease, BreakMode::Now] {
        let rig = Rig::new(&store);
        let call = rig.locks.lease(store.lasting()).with_held_locks(["a", "b"], |held| {
            let dao = store.dao();
            async move {
                dao.break_lock(&id("a"), held.fence("a"), how, "an admin").await.expect("the store answers");
                std::future::pending::<Result<(), Oops>>().await
            }
        });
        let lost = stopped(call.await);
        assert_eq!(lost.len(), 1);
        assert_eq!((&lost[0].target, lost[0].reason), (&id("a"), LossReason::Broken));
        store.becomes_free(&["a", "b"]).await;
    }
}

/// 3.3: a callback whose lock vanishes from the store is stopped at its next renewal and learns it.
pub async fn a_vanished_lock_is_reported<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let call = rig.locks.lease(store.lasting()).with_held_locks(["a", "b"], |held| {
        let dao = store.dao();
        async move {
            let mut grant = grant_of(&held);
            grant.locks.truncate(1);
            dao.release(&grant).await.expect("the store answers");
            std::future::pending::<Result<(), Oops>>().await
        }
    });
    let lost = stopped(call.await);
    assert_eq!(lost.len(), 1);
    assert_eq!((&lost[0].target, lost[0].reason), (&id("a"), LossReason::Vanished));
    assert!(store.is_free(&["a", "b"]).await);
}

/// 3.3: "not yours" at the release, though the lease had not ended when the callback did, is a loss, reported with the
/// callback's result.
pub async fn a_loss_found_at_the_release_is_reported<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let steals = |held: Held<String, Uuid>| {
        let dao = store.dao();
        async move { dao.release(&grant_of(&held)).await.expect("the store answers") }
    };
    let call = rig.locks.with_held_locks(["a"], |held| async {
        steals(held).await;
        Ok::<_, Oops>(7)
    });
    match call.await {
        Err(LockingError::Lost { lost, callback: Some(Ok(())) }) => assert_eq!(lost[0].target, id("a")),
        other => panic!("not lost: {other:?}"),
    }
    let call = rig.locks.with_held_locks(["a"], |held| async {
        steals(held).await;
        Err::<(), _>(Oops)
    });
    match call.await {
        Err(LockingError::Lost { callback: Some(Err(Oops)), .. }) => {}
        other => panic!("not lost: {other:?}"),
    }
    let call = rig.locks.outcome(["a"], |held| async {
        steals(held).await;
        7
    });
    let Ended { value, lost } = call.await.expect("it ran");
    assert_eq!((value, lost.len()), (Some(7), 1));
    assert_eq!(rig.events(), ["lost", "lost", "lost"]);
}

/// 3.3: what ended within its lease is no loss because its release was answered after it, when another had the lock.
pub async fn a_release_that_is_answered_late_is_no_loss<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Release, Fault::Late);
    let (inside, is_inside) = oneshot::channel();
    let call = rig.locks.lease(store.short()).with_locks(["a"], || async move {
        inside.send(()).expect("the other waits for it");
        Ok::<_, Oops>(7)
    });
    let next = store.caller();
    let taken_over = async {
        is_inside.await.expect("it runs");
        let grant = next.take_soon(["a"]).await;
        rig.faults.lift();
        grant
    };
    let (outcome, grant) = tokio::join!(call, taken_over);
    assert_eq!(outcome.expect("done in time"), 7);
    next.free(&grant).await;
    assert_eq!(rig.locks.shutdown(PATIENCE).await, 0);
    assert!(!rig.events().contains(&"lost"), "{:?}", rig.events());
}

/// 3.9: a callback that chose to be notified goes on, and learns of the loss from the handle.
pub async fn the_callback_may_go_on_after_a_loss<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Renew, Fault::Fails(BackendErrorKind::Unavailable));
    let call = rig.locks.lease(store.short()).tell_when_lost().outcome(["a"], |held| async move {
        held.check().expect("not lost yet");
        let lost = held.lost().await;
        assert_eq!((lost.len(), lost[0].reason), (1, LossReason::Unreachable));
        assert_eq!(held.check().expect_err("lost by now").lost, lost);
        assert_eq!(held.time_left(), Some(Duration::ZERO));
        "cleaned up"
    });
    let Ended { value, lost } = call.await.expect("it ran to its end");
    assert_eq!((value, lost.len()), (Some("cleaned up"), 1));
    rig.faults.lift();
    store.becomes_free(&["a"]).await;
}

/// 3.9: plain code cannot be stopped; it sees the loss in its handle, and its caller gets it.
pub async fn plain_code_sees_the_loss<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Renew, Fault::Fails(BackendErrorKind::Unavailable));
    let lease = store.short();
    let call = rig.locks.lease(lease).with_held_locks_sync(["a"], |held| {
        held.check().expect("not lost yet");
        std::thread::sleep(lease * 2);
        held.check().expect_err("lost by now");
        Ok::<_, Oops>(())
    });
    match call.await {
        Err(LockingError::Lost { callback: Some(Ok(())), .. }) => {}
        other => panic!("not lost: {other:?}"),
    }
    rig.faults.lift();
    store.becomes_free(&["a"]).await;
}

/// 3.10: what a former holder writes too late, a guarded resource refuses.
pub async fn a_guarded_write_stops_a_former_holder<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Renew, Fault::Fails(BackendErrorKind::Unavailable));
    let mut resource = FenceGuard::new();
    let former = rig.locks.lease(store.short()).lock(["a"]).await.expect("it is free");
    let fence = former.exclusive_fence("a").expect("it is exclusive");
    resource.admit_exclusive(fence).expect("the only one so far");
    let later = crate::eventually("the lease ends", || async {
        rig.locks
            .with_held_locks(["a"], |held| async move { Ok::<_, Oops>(held.exclusive_fence("a")) })
            .await
            .ok()
    })
    .await;
    resource.admit_exclusive(later.expect("it is exclusive")).expect("the later one");
    let Err(refused) = resource.admit_exclusive(fence) else { broken("a former holder wrote") };
    assert_eq!(refused.fence, fence.number());
    former.check().expect_err("lost by now");
    match former.release().await {
        Err(LockingError::Lost { lost, .. }) => assert_eq!(lost[0].target, id("a")),
        other => panic!("not lost: {other:?}"),
    }
}

/// 3.10 and 10.1: the write of a former exclusive holder is refused after a later shared or slot holder wrote, and
/// theirs after a later exclusive one.
pub async fn a_guarded_write_is_refused_after_any_later_holder<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Renew, Fault::Fails(BackendErrorKind::Unavailable));
    let declared = store.capabilities();
    let claims = [declared.shared.then(|| shared("a")), declared.slots.then(|| slot("a", 3))];
    for claim in claims.into_iter().flatten() {
        let mut resource = FenceGuard::new();
        let former = rig.locks.lease(store.short()).lock(["a"]).await.expect("it is free");
        let former_fence = former.exclusive_fence("a").expect("it is exclusive");
        resource.admit_exclusive(former_fence).expect("the only one so far");

        let take = || async { rig.locks.lock([claim.clone()]).await.ok() };
        let later = eventually("the lease ends", take).await;
        let later_fence = later.shared_fence("a").expect("it is not exclusive");
        resource.admit_shared(later_fence).expect("the later one");
        let beside = rig.locks.lock([claim.clone()]).await.expect("it is shared");
        resource
            .admit_shared(beside.shared_fence("a").expect("it is not exclusive"))
            .expect("the latest one");
        resource.admit_shared(later_fence).expect("holders at the same time write in any order");
        beside.release().await.expect("it is held");
        let Err(refused) = resource.admit_exclusive(former_fence) else { broken("a former holder wrote") };
        assert_eq!(refused.fence, former_fence.number());
        assert!(refused.highest > later_fence.number());
        drop(former);
        later.release().await.expect("it is held");

        let last = rig.locks.lock(["a"]).await.expect("it is free");
        let last_fence = last.exclusive_fence("a").expect("it is exclusive");
        resource.admit_exclusive(last_fence).expect("the latest one");
        if resource.admit_shared(later_fence).is_ok() {
            broken("a former shared holder wrote");
        }
        last.release().await.expect("it is held");
    }
}

/// 3.9: after a part of a set is lost, the rest goes on being renewed for a holder that is not stopped.
pub async fn after_a_partial_loss_the_rest_is_renewed<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.lease(store.lasting()).lock(["a", "b"]).await.expect("it is free");
    let mut part = grant_of(&guard);
    part.locks.truncate(1);
    store.dao().release(&part).await.expect("the store answers");
    assert_eq!(guard.lost().await.len(), 1);
    let renewals = rig.faults.calls(Operation::Renew);
    // More than a whole lease of thirds.
    let renewed = || async { (rig.faults.calls(Operation::Renew) >= renewals + 4).then_some(()) };
    eventually("the rest is renewed", renewed).await;
    store.caller().refused(["b"]).await;
    assert_eq!(guard.check().expect_err("a part is lost").lost.len(), 1);
    match guard.release().await {
        Err(LockingError::Lost { lost, .. }) => assert_eq!((lost.len(), &lost[0].target), (1, &id("a"))),
        other => panic!("not lost: {other:?}"),
    }
    assert!(store.is_free(&["a", "b"]).await);
}

fn stopped<T: std::fmt::Debug>(
    outcome: Result<T, LockingError<String, Uuid, Oops>>,
) -> Vec<LostLock<String>> {
    match outcome {
        Err(LockingError::Lost { lost, callback: None }) => lost,
        other => panic!("not stopped: {other:?}"),
    }
}

fn grant_of(held: &Held<String, Uuid>) -> Grant<String, Uuid> {
    Grant { context: *held.context(), locks: held.locks().to_vec(), lease: None }
}
