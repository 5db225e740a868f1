//! How long and in what manner a call waits: sections 3.6, 3.7 and 3.12.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendErrorKind, Failure, Interval, LockDao, LockingError, Phase, Wait};
use tokio::time::Instant;

use super::{Oops, Rig, never_runs};
use crate::{
    Backend, PATIENCE, Store, eventually,
    fault::{Fault, Operation},
    judge::in_time,
    store::id,
};

/// 3.6: without a wait a set that is held is refused at once.
pub async fn never_asks_once<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    store.caller().take(["a"]).await;
    for wait in [Wait::never(), Wait::up_to(Duration::ZERO), Wait::default()] {
        let before = rig.faults.calls(Operation::Acquire);
        let refused = rig.locks.wait(wait).with_locks(["a"], never_runs).await;
        assert!(matches!(refused, Err(LockingError::NotLocked { timed_out: None, .. })));
        assert_eq!(rig.faults.calls(Operation::Acquire), before + 1);
    }
}

/// 3.6: a call that waits gets the set when it is released.
pub async fn a_wait_ends_with_the_release<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    for wait in [Wait::up_to(Duration::from_secs(30)), Wait::forever()] {
        let holder = store.caller();
        let held = holder.take(["a"]).await;
        let call = rig.locks.wait(wait).with_locks(["a", "b"], || async { Ok::<_, Oops>(Instant::now()) });
        let releases = async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let released = Instant::now();
            holder.free(&held).await;
            released
        };
        let (granted, released) = tokio::join!(call, releases);
        assert!(granted.expect("its turn comes") >= released);
    }
}

/// 3.3 and 3.6: a wait that is over tells after how long, waiting for what, and who was in the way; no place stays.
pub async fn a_wait_that_is_over_tells_so<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let holder = store.caller();
    let held = holder.take(["a"]).await;
    let limit = Duration::from_secs(1);
    let asked = Instant::now();
    let call = rig.locks.wait(Wait::up_to(limit)).with_locks(["a", "b"], never_runs);
    let error = call.await.expect_err("it is not released");
    let took = asked.elapsed();
    assert!(took >= limit, "it took {took:?} instead of {limit:?}");
    in_time(took, limit + Duration::from_secs(2));
    let LockingError::NotLocked { failures, timed_out: Some(over) } = &error else { panic!("{error:?}") };
    let [Failure::Conflict(conflict), unanswered @ ..] = &failures[..] else { panic!("{failures:?}") };
    assert!(conflict.target == id("a") && over.after >= limit && error.is_retryable(), "{error:?}");
    // A store that took a second to let it go is named too.
    let is_silent = !unanswered.is_empty();
    assert!(!is_silent || took >= limit + Duration::from_secs(1), "{error:?}");
    assert_eq!((over.phase == Phase::Waiting, error.is_contention()), (!is_silent, !is_silent), "{error:?}");
    holder.free(&held).await;
    assert!(store.is_free(&["a", "b"]).await, "it left the queue");
}

/// 3.3 and 3.6: a store that does not answer counts against the wait, and the phase is reported.
pub async fn a_silent_store_is_distinguished<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Acquire, Fault::Hangs);
    let limit = Duration::from_millis(100);
    let call = rig.locks.wait(Wait::up_to(limit)).with_locks(["a"], never_runs);
    match call.await {
        Err(LockingError::NotLocked { timed_out: Some(over), .. }) => {
            assert!(over.after >= limit && over.phase == Phase::Asking, "{over:?}");
        }
        other => panic!("not timed out: {other:?}"),
    }
    rig.faults.lift();
    store.becomes_free(&["a"]).await;
}

/// 3.6: a failure that may pass is waited out while there is time; one that does not is reported at once.
pub async fn a_passing_failure_is_waited_out<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    for fault in [Fault::Fails(BackendErrorKind::Unavailable), Fault::LosesAnswer] {
        rig.faults.set_times(Operation::Acquire, fault, 2);
        let call = rig
            .locks
            .wait(Wait::up_to(Duration::from_secs(30)))
            .with_locks(["a"], || async { Ok::<_, Oops>(7) });
        assert_eq!(call.await.expect("the third try is answered"), 7);
        assert!(store.is_free(&["a"]).await);
    }
    rig.faults.set(Operation::Acquire, Fault::Fails(BackendErrorKind::Denied));
    let call = rig.locks.wait(Wait::forever()).with_locks(["a"], never_runs);
    assert!(!call.await.expect_err("it is denied").is_retryable());
}

/// 2.6 and 3.12: what was certainly not done is not withdrawn, so that a store that is down gets no more than the tries.
pub async fn what_was_not_done_is_not_withdrawn<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Acquire, Fault::Fails(BackendErrorKind::Unavailable));
    let call = rig.locks.wait(Wait::up_to(Duration::from_millis(100))).with_locks(["a"], never_runs);
    match call.await {
        Err(LockingError::NotLocked { timed_out: Some(over), .. }) => assert_eq!(over.phase, Phase::Asking),
        other => panic!("not timed out: {other:?}"),
    }
    let dropped = rig.locks.wait(Wait::forever()).with_locks(["a"], never_runs);
    let tries = rig.faults.calls(Operation::Acquire);
    let asked = eventually("it has asked", || async {
        (rig.faults.calls(Operation::Acquire) > tries + 1).then_some(())
    });
    tokio::select! {
        ended = dropped => panic!("it waits for ever: {ended:?}"),
        () = asked => {}
    }
    assert_eq!(rig.locks.shutdown(PATIENCE).await, 0);
    assert_eq!(rig.faults.calls(Operation::Withdraw), 0);
}

/// 3.6, seed case: retries are counted, and zero retries tries once.
pub async fn retries_are_counted<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    store.caller().take(["a"]).await;
    for retries in [0, 1, 3] {
        let before = rig.faults.calls(Operation::Acquire);
        let wait = Wait::retries(retries, |_| Duration::from_millis(1));
        let refused = rig.locks.wait(wait).with_locks(["a"], never_runs).await;
        assert!(refused.expect_err("it is held").is_contention());
        assert_eq!(rig.faults.calls(Operation::Acquire) - before, retries as usize + 1);
    }
    let wait = Wait::retries(0, |_| Duration::ZERO);
    rig.locks.wait(wait).with_locks(["b"], || async { Ok::<_, Oops>(()) }).await.expect("tried, and free");
}

/// 3.6, seed case: the pauses of an interval stay within its bounds.
pub async fn pauses_stay_within_their_bounds<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    store.caller().take(["a"]).await;
    let (every, jitter) = (Duration::from_millis(40), Duration::from_millis(20));
    let asked = Instant::now();
    let wait = Wait::retries(4, Interval { every, jitter });
    rig.locks.wait(wait).with_locks(["a"], never_runs).await.expect_err("it is held");
    assert!(asked.elapsed() >= every * 4, "four pauses took {:?}", asked.elapsed());
}

/// 3.6, seed case: a function of one's own is asked for the attempts 0, 1, 2 ...
pub async fn a_custom_pause_gets_the_attempt<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let holder = store.caller();
    let held = holder.take(["a"]).await;
    let attempts: Arc<Mutex<Vec<u32>>> = Arc::default();
    let seen = attempts.clone();
    let wait = Wait::retries_forever(move |attempt| {
        seen.lock().expect("no panic").push(attempt);
        Duration::from_millis(1)
    });
    let call = rig.locks.wait(wait).with_locks(["a"], || async { Ok::<_, Oops>(()) });
    let releases = async {
        eventually("some tries", || async { (rig.faults.calls(Operation::Acquire) > 5).then_some(()) }).await;
        holder.free(&held).await;
    };
    let (granted, ()) = tokio::join!(call, releases);
    granted.expect("it was released");
    let attempts = attempts.lock().expect("no panic").clone();
    let expected: Vec<u32> = (0..attempts.len() as u32).collect();
    assert!(attempts.len() >= 5);
    assert_eq!(attempts, expected);
}

/// 3.6: retries take no place in a queue, and hold no waiter up.
pub async fn retries_take_no_place<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let holder = store.caller();
    let held = holder.take(["a"]).await;
    let polite = Wait::retries(u32::MAX, |_| Duration::from_millis(200));
    let call = rig.locks.wait(polite).with_locks(["a", "b"], || async { Ok::<_, Oops>(()) });
    let others = async {
        eventually("a try", || async { (rig.faults.calls(Operation::Acquire) > 0).then_some(()) }).await;
        assert!(store.is_free(&["b"]).await, "what it waits for is not queued for");
        if store.capabilities().listing {
            let found = store.dao().inspect(&id("a")).await.expect("the store answers");
            assert!(found.waiters.is_empty());
        }
        holder.free(&held).await;
    };
    let (granted, ()) = tokio::join!(call, others);
    granted.expect("it was released");
}

/// 3.7: where a queue is declared, calls that wait are served in the order in which they came.
pub async fn waiting_calls_are_served_in_order<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let rig = Rig::new(&store);
    let guard = rig.locks.lock(["a"]).await.expect("it is free");
    let served: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mut calls = Vec::new();
    for number in 0..30 {
        let (locks, served) = (rig.locks.clone(), served.clone());
        calls.push(tokio::spawn(async move {
            let call = locks.wait(Wait::forever()).with_locks(["a"], || async {
                served.lock().expect("no panic").push(number);
            });
            call.await.expect("its turn comes");
        }));
        let waiting = number + 2;
        eventually("it waits", || async { (rig.faults.calls(Operation::Acquire) >= waiting).then_some(()) })
            .await;
        // Its request was sent; once another caller sees it, it has arrived.
        eventually("it has its place", || async { waits(&store, number + 1).await.then_some(()) }).await;
    }
    guard.release().await.expect("it is held");
    for call in calls {
        call.await.expect("no panic");
    }
    assert_eq!(*served.lock().expect("no panic"), (0..30).collect::<Vec<_>>());
}

/// 3.12: a process does not stampede the store with its own waiters.
pub async fn own_waiters_do_not_stampede<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.lock(["a"]).await.expect("it is free");
    let served = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..30)
        .map(|_| {
            let (locks, served) = (rig.locks.clone(), served.clone());
            tokio::spawn(async move {
                let call = locks.wait(Wait::forever()).with_locks(["a"], || async {
                    served.fetch_add(1, Ordering::SeqCst);
                });
                call.await.expect("its turn comes");
            })
        })
        .collect();
    // Long enough that thirty who all ask again and again would ask some two hundred times.
    let waited = Instant::now();
    while waited.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let asked = rig.faults.calls(Operation::Acquire);
    assert!(asked <= 31 + 40, "the store was asked {asked} times");
    guard.release().await.expect("it is held");
    for call in calls {
        call.await.expect("no panic");
    }
    assert_eq!(served.load(Ordering::SeqCst), 30);
}

/// Whether `count` waiters have a place for "a".
async fn waits<B: Backend>(store: &Store<B>, count: usize) -> bool {
    if !store.capabilities().listing {
        return true;
    }
    store.dao().inspect(&id("a")).await.expect("the store answers").waiters.len() == count
}
