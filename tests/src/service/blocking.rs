//! The face for programs without an async runtime: section 3.11.

use std::{cell::RefCell, convert::Infallible, rc::Rc, sync::Arc, time::Duration};

use lockcore::{LockingError, Wait, blocking};
use tokio::runtime::{Builder, Handle};
use uuid::Uuid;

use super::{Oops, Rig};
use crate::{Backend, PATIENCE, Store, eventually, fault::Operation, judge::late, store::id};

/// 3.11: without a runtime, calls lock, run on the caller's thread what need not be `Send`, and release.
pub async fn calls_work_without_a_runtime<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let locks = blocking::LockingService::from(rig.locks.clone());
    let thread = std::thread::spawn(move || {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let value = locks.with_locks(["a", "b"], || {
            seen.borrow_mut().push(1);
            Ok::<_, Oops>(7)
        });
        assert_eq!(value.expect("it is free"), 7);
        let fence = locks.with_held_locks(["a"], |held| Ok::<_, Oops>(held.fence("a")));
        assert!(fence.expect("it is free") > 0);
        match locks.with_locks(["a"], || Err::<(), _>(Oops)) {
            Err(LockingError::Callback { error: Oops }) => {}
            other => panic!("not the callback's: {other:?}"),
        }
        let guard = locks.lock(["a"]).expect("it is free");
        let refused = locks.with_locks(["a"], || Ok::<_, Oops>(()));
        assert!(refused.expect_err("it is held").is_contention());
        let limit = Duration::from_millis(50);
        match locks.wait(Wait::up_to(limit)).with_locks(["a"], || Ok::<_, Oops>(())) {
            Err(LockingError::NotLocked { timed_out: Some(over), .. }) => assert!(over.after >= limit),
            other => panic!("not timed out: {other:?}"),
        }
        guard.release().expect("it is held");
        drop(locks.lock(["c"]).expect("it is free"));
        assert_eq!(seen.borrow().len(), 1);
    });
    tokio::task::spawn_blocking(move || thread.join()).await.expect("no panic").expect("no panic");
    store.becomes_free(&["a", "b", "c"]).await;
}

/// 3.11: a blocking callback runs in the runtime of its caller, if there is one, and never in the library's own: what it
/// spawned there would delay every renewal of the process.
pub async fn callbacks_run_outside_the_runtime_of_the_library<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let locks = blocking::LockingService::from(rig.locks.clone());
    let ours = Handle::current().id();
    let runtime = || Handle::try_current().ok().map(|runtime| runtime.id());
    let outside = locks.clone();
    let thread = std::thread::spawn(move || {
        let inside = outside.with_locks(["a"], || Ok::<_, Oops>(runtime()));
        assert_eq!(inside.expect("it is free"), None);
        let nested = outside
            .with_locks(["a"], || Ok::<_, Oops>(outside.with_locks(["b"], || Ok::<_, Oops>(runtime()))));
        assert_eq!(nested.expect("it is free").expect("it is free"), None);
    });
    tokio::task::spawn_blocking(move || thread.join()).await.expect("no panic").expect("no panic");
    let within = tokio::task::spawn_blocking(move || locks.with_locks(["a"], || Ok::<_, Oops>(runtime())));
    assert_eq!(within.await.expect("no panic").expect("it is free"), Some(ours));
    assert!(store.is_free(&["a", "b"]).await);
}

/// 3.9 and 3.11: what blocks for several leases is renewed meanwhile.
pub async fn long_calls_are_renewed<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let locks = blocking::LockingService::from(rig.locks.clone());
    let lease = store.lasting();
    let thread = std::thread::spawn(move || {
        let call = locks.lease(lease).with_held_locks(["a"], |held| {
            std::thread::sleep(lease * 2);
            held.check().expect("it is renewed");
            Ok::<_, Oops>(())
        });
        call.expect("nothing was lost");
    });
    tokio::task::spawn_blocking(move || thread.join()).await.expect("no panic").expect("no panic");
    assert!(store.is_free(&["a"]).await);
}

/// 3.5 and 3.11: blocking calls nest, inside a runtime too, and see each other.
pub async fn blocking_calls_nest<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let locks = blocking::LockingService::from(rig.locks.clone());
    let inside_a_runtime = tokio::task::spawn_blocking(move || {
        let outer = locks.with_locks(["a"], || {
            let inner = locks.with_locks(["b"], || Ok::<_, Oops>(1));
            match locks.with_locks(["c", "a"], || Ok::<_, Oops>(2)) {
                Err(LockingError::SelfDeadlock { target }) => assert_eq!(target, id("a")),
                other => panic!("not refused: {other:?}"),
            }
            Ok::<_, Oops>(inner.expect("it is free"))
        });
        assert_eq!(outer.expect("it is free"), 1);
        assert_eq!(locks.shutdown(Duration::from_secs(5)), 0);
        let refused = locks.with_locks(["a"], || Ok::<_, Oops>(()));
        assert!(matches!(refused, Err(LockingError::ShutDown)));
    });
    inside_a_runtime.await.expect("no panic");
    assert!(store.is_free(&["a", "b", "c"]).await);
}

/// 11.4: a task of a runtime may block it by each call, from the one that opens the store on.
pub async fn calls_work_inside_a_runtime<B: Backend>(store: Store<B>) {
    let store = Arc::new(store);
    for workers in [None, Some(2)] {
        let inside = store.clone();
        let calls = async move {
            let open = async {
                let reopened = inside.reopen().await;
                Ok::<_, Infallible>(reopened.as_ref().unwrap_or(&inside).dao().clone())
            };
            let Ok(locks) = blocking::LockingService::<String, Uuid, _>::open(open);
            for value in 0..3 {
                assert_eq!(locks.with_locks(["a", "b"], || Ok::<_, Oops>(value)).expect("it is free"), value);
            }
            let guard = locks.lock(["a"]).expect("it is free");
            let refused = locks.wait(Wait::never()).lock(["a"]);
            assert!(refused.expect_err("it is held").is_contention());
            guard.release().expect("it is held");
            drop(locks.lock(["a"]).expect("it is free"));
            assert_eq!(locks.shutdown(PATIENCE), 0);
        };
        on_a_runtime(workers, calls).await;
    }
    assert!(store.is_free(&["a", "b"]).await);
}

/// 11.4: a task to which a blocking call hands a lock goes on, though that call and the next one block the thread of its runtime
/// that would otherwise run it.
pub async fn what_a_blocked_thread_wakes_goes_on<B: Backend>(store: Store<B>) {
    let Rig { locks, faults, .. } = Rig::new(&store);
    let sync = blocking::LockingService::from(locks.clone());
    let calls = async move {
        let guard = sync.lock(["a"]).expect("it is free");
        let waits = tokio::spawn(async move {
            let b = locks.lock(["b"]).await.expect("it is free");
            let a = locks.nested().wait(Wait::forever()).lock(["a"]).await.expect("it is handed over");
            a.release().await.expect("it is held");
            b.release().await.expect("it is held");
        });
        let asked = || async { (faults.calls(Operation::Acquire) >= 3).then_some(()) };
        eventually("the other task waits", asked).await;
        guard.release().expect("it is held");
        let b =
            sync.wait(Wait::up_to(PATIENCE)).lock(["b"]).unwrap_or_else(|_| late("the other task goes on"));
        b.release().expect("it is held");
        waits.await.expect("no panic");
    };
    on_a_runtime(Some(2), calls).await;
    assert!(store.is_free(&["a", "b"]).await);
}

/// Runs a task on a runtime of its own: with so many workers, or none but the thread that waits for it.
async fn on_a_runtime(workers: Option<usize>, task: impl Future<Output = ()> + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let builder = workers.map(|workers| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(workers);
            builder
        });
        let runtime = builder.unwrap_or_else(Builder::new_current_thread).enable_all().build();
        runtime.expect("a runtime can be made").block_on(async { tokio::spawn(task).await })
    });
    let joined = tokio::task::spawn_blocking(move || thread.join()).await.expect("no panic");
    joined.expect("no panic").expect("no panic");
}

/// 3.2 and 3.11: a panic in a blocking call goes on after the release.
pub async fn panics_go_on<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let locks = blocking::LockingService::from(rig.locks.clone());
    let panics =
        std::thread::spawn(move || locks.with_locks(["a"], || -> Result<(), Oops> { panic!("on purpose") }));
    let panicked = tokio::task::spawn_blocking(move || panics.join()).await.expect("it is caught");
    assert_eq!(panicked.expect_err("the panic goes on").downcast_ref(), Some(&"on purpose"));
    assert!(store.is_free(&["a"]).await);
}
