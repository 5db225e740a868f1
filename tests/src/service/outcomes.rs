//! What a call gives: sections 3.1, 3.3 and 3.4.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lockcore::{BackendErrorKind, Claim, Failure, LockingError, Wait};

use super::{Oops, Rig, never_runs};
use crate::{
    Backend, Store,
    fault::{Fault, Operation},
    judge::broken,
    race,
    store::{exclusive, id, shared, slot},
};

/// 3.1, seed case: inside the callback exactly the wanted ids are locked; afterwards none.
pub async fn exactly_the_set_is_locked_inside<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let inside = rig.locks.with_locks(["b", "a", "b"], || async {
        let conflicts = store.caller().refused(["a", "b", "c"]).await;
        assert_eq!(conflicts.len(), 2);
        assert!(store.is_free(&["c"]).await);
        Ok::<_, Oops>("the value")
    });
    assert_eq!(inside.await.expect("it is free"), "the value");
    assert!(store.is_free(&["a", "b", "c"]).await, "free as soon as the call has returned");
    assert_eq!(rig.faults.calls(Operation::Acquire), 1, "the set is one request");
    assert_eq!(rig.faults.calls(Operation::Release), 1, "and so is its release");
    assert!(rig.events().is_empty());
}

/// 3.1: sets may mix exclusive ids, shared ones and slots.
pub async fn mixed_sets_are_locked<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.shared && declared.slots) {
        return;
    }
    let rig = Rig::new(&store);
    let set = [exclusive("account/7"), shared("tariff"), slot("export", 2)];
    let run = rig.locks.run_locked(set, || async {
        let other = store.caller();
        assert_eq!(
            other.refused([exclusive("account/7"), exclusive("tariff"), slot("export", 1)]).await.len(),
            3
        );
        let beside = other.take([shared("tariff"), slot("export", 2)]).await;
        other.free(&beside).await;
    });
    run.await.expect("it is free");
    assert!(store.is_free(&["account/7", "tariff", "export"]).await);
}

/// 3.3: the callback's own error comes back typed, and the set is released.
pub async fn the_callbacks_error_comes_back<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    match rig.locks.with_locks(["a"], || async { Err::<(), _>(Oops) }).await {
        Err(LockingError::Callback { error }) => assert_eq!(error, Oops),
        other => panic!("not the callback's: {other:?}"),
    }
    assert!(store.is_free(&["a"]).await);
    match rig.locks.with_locks_sync(["a"], || Err::<(), _>(Oops)).await {
        Err(LockingError::Callback { error }) => assert_eq!(error, Oops),
        other => panic!("not the callback's: {other:?}"),
    }
    assert!(store.is_free(&["a"]).await);
}

/// 3.3 and 2.2: contention is reported per id, with its holder, and is neither an outage nor a bad request.
pub async fn contention_is_reported_per_id<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let holder = store.caller();
    let held = holder.take(["a", "c"]).await;
    let refused = rig.locks.with_locks(["a", "b", "c"], never_runs).await;
    let error = refused.expect_err("two ids are held");
    assert!(error.is_contention() && error.is_retryable());
    let LockingError::NotLocked { failures, timed_out: None } = error else {
        panic!("not refused: {error:?}")
    };
    let targets = failures.iter().map(|failure| match failure {
        Failure::Conflict(conflict) => conflict.target.clone(),
        other => panic!("not a conflict: {other:?}"),
    });
    assert_eq!(targets.collect::<Vec<_>>(), [id("a"), id("c")]);
    assert!(store.is_free(&["b"]).await);
    assert_eq!(rig.events(), ["refused"]);
    holder.free(&held).await;
}

/// 3.3 and 2.2: a failure of the backend is reported as such, and whether trying again may help.
pub async fn an_outage_is_not_contention<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let kinds = [
        (BackendErrorKind::Unavailable, true),
        (BackendErrorKind::Busy, true),
        (BackendErrorKind::Denied, false),
    ];
    for (kind, may_help) in kinds {
        rig.faults.set(Operation::Acquire, Fault::Fails(kind));
        let refused = rig.locks.with_locks(["a", "b"], never_runs).await;
        let error = refused.expect_err("the backend fails");
        assert!(!error.is_contention());
        assert_eq!(error.is_retryable(), may_help);
        match &error {
            LockingError::NotLocked { failures, timed_out: None } => {
                assert!(
                    matches!(&failures[..], [Failure::Backend(error)] if error.kind() == kind),
                    "{failures:?}"
                );
            }
            other => panic!("not refused: {other:?}"),
        }
    }
    rig.faults.lift();
    assert!(store.is_free(&["a", "b"]).await);
}

/// 3.2: a panic goes on once the set is released, wherever it happens: before the callback's future exists, in
/// it, or in plain code.
pub async fn panics_go_on_after_the_release<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let locks = &rig.locks;
    let early = locks.with_locks(["a"], || -> std::future::Ready<Result<(), Oops>> { panic!("on purpose") });
    assert_panics(early).await;
    assert!(store.is_free(&["a"]).await, "released before the panic went on");
    let late = locks.with_locks(["a"], || async {
        tokio::task::yield_now().await;
        if store.is_free(&["b"]).await {
            panic!("on purpose");
        }
        Ok::<_, Oops>(())
    });
    assert_panics(late).await;
    assert!(store.is_free(&["a"]).await);
    assert_panics(locks.with_locks_sync(["a"], || -> Result<(), Oops> { panic!("on purpose") })).await;
    assert!(store.is_free(&["a"]).await);
    let blocking = locks.with_locks_blocking(["a"], |_| -> Result<(), Oops> { panic!("on purpose") });
    assert_panics(blocking).await;
    assert!(store.is_free(&["a"]).await);
    // It waits for the release, as the value does.
    rig.faults.set(Operation::Release, Fault::Hangs);
    let panicked = AtomicBool::new(false);
    let call = async {
        assert_panics(locks.with_locks_sync(["a"], || -> Result<(), Oops> { panic!("on purpose") })).await;
        panicked.store(true, Ordering::SeqCst);
    };
    let lifts = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!panicked.load(Ordering::SeqCst), "the store has not answered yet");
        rig.faults.lift();
    };
    tokio::join!(call, lifts);
    assert!(store.is_free(&["a"]).await);
}

/// 3.3, seed case: with a store whose every release fails the caller still gets the value; the failure is reported
/// to the hook, and the set is freed once the store answers.
pub async fn a_failed_release_still_gives_the_value<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Release, Fault::Fails(BackendErrorKind::Unavailable));
    assert_eq!(rig.locks.with_locks(["a"], || async { Ok::<_, Oops>(7) }).await.expect("the value"), 7);
    assert_eq!(rig.locks.with_locks_sync(["b"], || Ok::<_, Oops>(8)).await.expect("the value"), 8);
    match rig.locks.with_locks(["c"], || async { Err::<(), _>(Oops) }).await {
        Err(LockingError::Callback { error: Oops }) => {}
        other => panic!("not the callback's: {other:?}"),
    }
    rig.observed("release failed").await;
    store.caller().refused(["a"]).await;
    rig.faults.lift();
    store.becomes_free(&["a", "b", "c"]).await;
}

/// 3.3: a release whose answer is lost is a success, and is settled.
pub async fn a_lost_release_answer_is_a_success<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set_times(Operation::Release, Fault::LosesAnswer, 1);
    assert_eq!(rig.locks.with_locks(["a"], || async { Ok::<_, Oops>(7) }).await.expect("the value"), 7);
    assert!(!rig.events().contains(&"lost"));
    store.becomes_free(&["a"]).await;
}

/// 2.6: an acquire whose answer is lost is not locked, its callback does not run, and nothing stays behind.
pub async fn a_lost_acquire_answer_leaves_nothing<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set_times(Operation::Acquire, Fault::LosesAnswer, 1);
    let refused = rig.locks.with_locks(["a", "b"], never_runs).await;
    assert!(!refused.expect_err("it is unknown").is_contention());
    store.becomes_free(&["a", "b"]).await;
}

/// 3.4: an empty set runs the callback and locks nothing; it needs no store.
pub async fn an_empty_set_locks_nothing<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    rig.faults.set(Operation::Acquire, Fault::Fails(BackendErrorKind::Unavailable));
    rig.faults.set(Operation::Release, Fault::Fails(BackendErrorKind::Unavailable));
    let none: [&str; 0] = [];
    assert_eq!(
        rig.locks.with_locks(none, || async { Ok::<_, Oops>(7) }).await.expect("no lock is needed"),
        7
    );
    assert_eq!(rig.faults.calls(Operation::Acquire) + rig.faults.calls(Operation::Release), 0);
    rig.locks.lock(none).await.expect("no lock is needed").release().await.expect("nothing to release");
}

/// 3.4: the global lock excludes all that ask for it, and no others.
pub async fn the_global_lock_excludes_its_callers<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let inside = rig.locks.with_global_lock(|| async {
        store.caller().refused([Claim::<String>::global()]).await;
        assert!(store.is_free(&["a"]).await);
        Ok::<_, Oops>(())
    });
    inside.await.expect("it is free");
    store.caller().take([Claim::<String>::global()]).await;
    let refused = rig.locks.with_global_lock(never_runs).await;
    assert!(refused.expect_err("it is held").is_contention());
}

/// 3.1: callbacks may borrow from their surroundings, change what they borrow, and return nothing at all.
pub async fn callbacks_may_borrow<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let mut seen = Vec::new();
    rig.locks.with_locks(["a"], || async { seen.push(1) }).await.expect("it is free");
    rig.locks
        .with_locks_sync(["a"], || {
            seen.push(2);
            Ok::<_, Oops>(())
        })
        .await
        .expect("it is free");
    let text = String::from("borrowed");
    let length = rig.locks.with_locks(["a"], async || -> Result<usize, Oops> { Ok(text.len()) }).await;
    assert_eq!((seen, length.expect("it is free")), (vec![1, 2], 8));
}

/// 3.3: with an application's own error type both kinds of errors arrive as that type.
pub async fn application_errors_take_both_kinds<B: Backend>(store: Store<B>) {
    type Boxed = Box<dyn std::error::Error + Send + Sync>;
    let rig = Rig::new(&store);
    let value = rig.locks.try_with_locks(["a"], async || -> Result<i32, Boxed> { Ok("7".parse()?) }).await;
    assert_eq!(value.expect("it is free"), 7);
    let own = rig.locks.try_with_locks(["a"], async || -> Result<i32, Boxed> { Ok("x".parse()?) }).await;
    assert!(own.expect_err("not a number").is::<std::num::ParseIntError>());
    store.caller().take(["a"]).await;
    let lock = rig.locks.try_with_locks(["a"], async || -> Result<i32, Boxed> { Ok(0) }).await;
    let error = lock.expect_err("it is held");
    assert!(error.to_string().contains("held by"), "{error}");
}

/// Seed case: of five messages for one destination at once one gets through, four have to come again.
pub async fn one_of_five_calls_gets_through<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let inside = Arc::new(AtomicUsize::new(0));
    let sent = race(5, |_| {
        let (locks, inside) = (rig.locks.clone(), inside.clone());
        async move {
            let send = locks.with_locks(["the destination"], || async {
                inside.fetch_add(1, Ordering::SeqCst);
                // None is done before all have their answers.
                tokio::time::sleep(Duration::from_millis(1)).await;
                while inside.load(Ordering::SeqCst) < 5 {
                    tokio::task::yield_now().await;
                }
                Ok::<_, Oops>(())
            });
            match send.await {
                Ok(()) => true,
                Err(error) => {
                    assert!(error.is_contention(), "{error:?}");
                    inside.fetch_add(1, Ordering::SeqCst);
                    false
                }
            }
        }
    })
    .await;
    assert_eq!(sent.iter().filter(|&&sent| sent).count(), 1, "{sent:?}");
}

/// Seed case: ten workers on three slots never exceed three, and each has its turn.
pub async fn ten_callers_share_three_slots<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let rig = Rig::new(&store);
    let inside = Arc::new(AtomicUsize::new(0));
    race(10, |_| {
        let (locks, inside) = (rig.locks.clone(), inside.clone());
        async move {
            for _ in 0..4 {
                let query = locks.slots(3).wait(Wait::forever()).with_locks(["db"], || async {
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    if others >= 3 {
                        broken(format_args!("{others} others hold three slots"));
                    }
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, Oops>(())
                });
                query.await.expect("its turn comes");
            }
        }
    })
    .await;
    assert!(store.is_free(&["db"]).await);
}

async fn assert_panics<T: std::fmt::Debug>(call: impl Future<Output = T>) {
    let panic = AssertUnwindSafe(call).catch_unwind().await.expect_err("the panic goes on");
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
}
