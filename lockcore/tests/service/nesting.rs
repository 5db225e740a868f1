//! Calls inside callbacks: other ids are free to take, one's own are refused at once, and siblings are not confused.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use lockcore::{LockError, LockingError, LockingService, Target, Wait};
use tokio::time::sleep;
use uuid::Uuid;

use super::rigged::{Rigged, Service, poll_once, within_ten_seconds};

const SECOND: Duration = Duration::from_secs(1);

type Outcome<T = ()> = Result<T, LockError<String, Uuid>>;

fn assert_self_deadlock(outcome: &Outcome, id: &str) {
    match outcome {
        Err(LockingError::SelfDeadlock { target: Target::Id(refused) }) => assert_eq!(refused, id),
        other => panic!("{other:?}"),
    }
}

async fn nested(locks: &Service, id: &str) -> Outcome {
    locks.wait(Wait::forever()).run_locked([id], async || {}).await
}

#[tokio::test(start_paused = true)]
async fn an_enclosing_lock_is_refused_at_once_and_stays() {
    let dao = Rigged::new();
    let locks = dao.service();
    locks
        .with_held_locks(["a", "b"], async |held| {
            assert_self_deadlock(&nested(&locks, "b").await, "b");
            locks
                .run_locked(["c"], async || {
                    assert_self_deadlock(&nested(&locks, "a").await, "a");
                    assert_self_deadlock(&nested(&locks, "c").await, "c");
                    let set = locks.wait(Wait::forever()).run_locked(["d", "c", "e"], async || {}).await;
                    assert_self_deadlock(&set, "c");
                })
                .await
                .unwrap();
            held.check().unwrap();
            let others = locks.clone();
            let other_task = tokio::spawn(async move { others.run_locked(["a"], async || {}).await });
            assert!(other_task.await.unwrap().unwrap_err().is_contention(), "the outer lock is still held");
            let global = locks.with_global_lock(async || locks.with_global_lock(async || {}).await);
            let Err(LockingError::Callback { error }) = global.await else { panic!("not refused") };
            assert!(matches!(error, LockingError::SelfDeadlock { target: Target::Global }));
        })
        .await
        .unwrap();
    assert!(dao.memory.is_empty());
}

/// What runs this process waits for its end, so that a wait for what it holds would have none.
#[tokio::test(start_paused = true)]
async fn what_runs_this_process_is_not_waited_for() {
    for dao in [Rigged::new(), Rigged::without_queue()] {
        let outside = dao.service();
        let outer = outside.shared().lock(["a"]).await.unwrap();
        let _other = outside.lock(["b"]).await.unwrap();
        let locks = LockingService::builder(dao.clone()).enclosed_by([*outer.context()]).build().unwrap();
        for wait in [Wait::never(), Wait::forever(), Wait::retries(3, |_: u32| SECOND)] {
            let refused = locks.wait(wait).run_locked(["free", "a"], async || {}).await;
            assert_self_deadlock(&refused, "a");
        }
        locks.shared().run_locked(["a"], async || {}).await.unwrap();
        let other = locks.wait(Wait::up_to(SECOND)).run_locked(["b"], async || {}).await.unwrap_err();
        assert!(other.is_contention(), "{other}");
        outer.release().await.unwrap();
        locks.run_locked(["a"], async || {}).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn joined_selected_and_unordered_calls_are_inside_too() {
    let locks = Rigged::new().service();
    locks
        .run_locked(["a"], async || {
            let (first, second) = tokio::join!(nested(&locks, "a"), nested(&locks, "b"));
            assert_self_deadlock(&first, "a");
            second.unwrap();
            tokio::select! {
                biased;
                () = sleep(Duration::ZERO) => {}
                outcome = async { sleep(SECOND).await; nested(&locks, "a").await } => panic!("{outcome:?}"),
            }
            let unordered: FuturesUnordered<_> =
                ["a", "b", "a"].map(|id| nested(&locks, id)).into_iter().collect();
            let outcomes: Vec<_> = unordered.collect().await;
            assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 2);
        })
        .await
        .unwrap();
}

/// Calls beside each other in one task are not inside each other, though one runs while the other holds.
#[tokio::test(start_paused = true)]
async fn siblings_wait_for_each_other() {
    let locks = Rigged::new().service();
    let calls = (0..5).map(|_| locks.wait(Wait::forever()).run_locked(["a"], async || sleep(SECOND).await));
    assert!(join_all(calls).await.iter().all(Result::is_ok));
    let (first, second) = tokio::join!(locks.run_locked(["a"], async || sleep(SECOND).await), async {
        sleep(Duration::from_millis(1)).await;
        locks.run_locked(["a"], async || {}).await
    });
    first.unwrap();
    assert!(second.unwrap_err().is_contention());
}

#[tokio::test(start_paused = true)]
async fn a_panic_inside_leaves_no_trace_of_the_callback() {
    let locks = Rigged::new().service();
    let panics = locks.run_locked(["a"], async || {
        let inner = locks.run_locked(["b"], async || -> () { panic!("wanted") });
        assert!(AssertUnwindSafe(inner).catch_unwind().await.is_err());
        assert_self_deadlock(&nested(&locks, "a").await, "a");
        nested(&locks, "b").await.unwrap();
        panic!("wanted");
    });
    assert!(AssertUnwindSafe(panics).catch_unwind().await.is_err());
    nested(&locks, "a").await.unwrap();
    nested(&locks, "b").await.unwrap();
}

#[test]
fn sync_callbacks_nest_as_well() {
    let locks = Rigged::new().service();
    let block_on = pollster::block_on::<std::pin::Pin<Box<dyn Future<Output = Outcome>>>>;
    let outer = locks.with_locks_sync(["a"], || {
        assert_self_deadlock(&block_on(Box::pin(nested(&locks, "a"))), "a");
        block_on(Box::pin(nested(&locks, "b")))
    });
    pollster::block_on(outer).unwrap();
    let panics =
        || pollster::block_on(locks.with_locks_sync(["a"], || -> Result<(), ()> { panic!("wanted") }));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    block_on(Box::pin(nested(&locks, "a"))).unwrap();
}

/// Another service over the same backend is another holder: its locks are in the way, but unknown to the first.
#[tokio::test(start_paused = true)]
async fn services_do_not_know_of_each_other() {
    let dao = Rigged::new();
    let (one, other) = (dao.service(), dao.service());
    let refused = one.run_locked(["a"], async || other.run_locked(["a"], async || {}).await).await.unwrap();
    assert!(refused.unwrap_err().is_contention());
}

#[tokio::test(start_paused = true)]
async fn a_fresh_context_that_is_given_again_while_in_use_is_refused() {
    let locks = Rigged::new().service();
    let guard = locks.lock(["a"]).await.unwrap();
    let fresh = *guard.context();
    // From another thread too: contexts are remembered by thread.
    let other = locks.clone();
    let again =
        std::thread::spawn(move || pollster::block_on(other.context(fresh).run_locked(["a"], async || {})));
    assert!(matches!(again.join().unwrap(), Err(LockingError::ContextInUse { context }) if context == fresh));
    assert!(
        locks.run_locked(["a"], async || {}).await.unwrap_err().is_contention(),
        "the guard still holds it"
    );
    guard.release().await.unwrap();
    locks.context(fresh).run_locked(["a"], async || {}).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_context_in_use_is_refused_and_free_again_afterwards() {
    let dao = Rigged::new();
    let locks = dao.service();
    let context = Uuid::new_v4();
    let guard = locks.context(context).lock(["a"]).await.unwrap();
    let again = locks.context(context).run_locked(["b"], async || {}).await;
    assert!(matches!(again, Err(LockingError::ContextInUse { context: refused }) if refused == context));
    guard.release().await.unwrap();
    locks
        .context(context)
        .run_locked(["a"], async || {
            let again = locks.context(context).run_locked(["b"], async || {}).await;
            assert!(matches!(again, Err(LockingError::ContextInUse { .. })));
        })
        .await
        .unwrap();
    locks.context(context).run_locked(["a"], async || {}).await.unwrap();

    let locks = LockingService::builder_with_contexts(dao, move || context).build().unwrap();
    let dropped = locks.run_locked(["a"], std::future::pending::<()>).now_or_never();
    assert!(dropped.is_none());
    let guard = locks.lock(["a"]).await.unwrap();
    assert!(matches!(locks.lock(["b"]).await, Err(LockingError::ContextInUse { .. })));
    drop(guard);
    locks.run_locked(["b"], async || {}).await.unwrap();
}

/// A nested call obeys holders, not the queue: else it and the waiter before it would wait for each other.
#[tokio::test(start_paused = true)]
async fn a_nested_call_passes_waiters() {
    let locks = Rigged::new().service();
    let other = locks.lock(["b"]).await.unwrap();
    let outer = locks.run_locked(["a"], async || {
        sleep(2 * SECOND).await;
        nested(&locks, "b").await.unwrap();
    });
    let waiter = async {
        sleep(SECOND).await;
        locks.wait(Wait::forever()).run_locked(["a", "b"], async || {}).await.unwrap();
    };
    let releasing = async {
        sleep(3 * SECOND).await;
        other.release().await.unwrap();
    };
    let all = async { tokio::join!(outer, waiter, releasing) };
    tokio::time::timeout(60 * SECOND, all).await.expect("a deadlock").0.unwrap();
}

/// Different contexts are distinguished though their hashes are the same, as a user's type may have it.
#[tokio::test(start_paused = true)]
async fn contexts_with_the_same_hash_are_different_contexts() {
    #[derive(Clone, PartialEq, Eq, Debug)]
    struct Job {
        worker: u16,
        number: u64,
    }

    impl std::hash::Hash for Job {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.worker.hash(state);
        }
    }

    impl lockcore::ContextId for Job {
        fn stored(&self) -> std::borrow::Cow<'_, str> {
            format!("{}/{}", self.worker, self.number).into()
        }

        fn from_stored(stored: &str) -> Option<Self> {
            let (worker, number) = stored.split_once('/')?;
            Some(Job { worker: worker.parse().ok()?, number: number.parse().ok()? })
        }
    }

    let dao = lockcore_memory::MemoryLockDao::<String, Job>::new();
    let locks = LockingService::builder_with_contexts(dao, || unreachable!("each is given")).build().unwrap();
    let job = |number| Job { worker: 1, number };
    let first = locks.context(job(1)).lock(["a"]).await.unwrap();
    let second = locks.context(job(2)).lock(["b"]).await.unwrap();
    assert!(matches!(locks.context(job(1)).lock(["c"]).await, Err(LockingError::ContextInUse { .. })));
    first.release().await.unwrap();
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_empty_set_around_a_call_gives_it_no_right_to_pass_waiters() {
    let dao = Rigged::new();
    let locks = dao.service();
    let holder = locks.lock(["b"]).await.unwrap();
    let mut waiter = Box::pin(locks.wait(Wait::forever()).run_locked(["a", "b"], async || {}));
    assert!(poll_once(waiter.as_mut()).is_pending());
    locks.run_locked(["a"], async || {}).await.expect_err("it is queued for");
    let none: [&str; 0] = [];
    locks
        .run_locked(none, async || {
            locks.run_locked(["a"], async || {}).await.expect_err("it is queued for");
        })
        .await
        .unwrap();
    holder.release().await.unwrap();
    waiter.await.unwrap();
}

#[test]
fn a_blocking_callback_knows_the_enclosing_calls() {
    within_ten_seconds("a self-deadlock", || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dao = Rigged::new();
        let locks = dao.service();
        let inner = locks.clone();
        let outcome = runtime.block_on(locks.run_locked(["a"], async || {
            locks
                .with_locks_blocking(["b"], move |_| {
                    pollster::block_on(inner.wait(Wait::up_to(SECOND)).run_locked(["a"], async || {}))
                })
                .await
        }));
        let outcome = outcome.unwrap();
        match outcome {
            Err(LockingError::Callback { error: LockingError::SelfDeadlock { .. } }) => {}
            other => panic!("{other:?}"),
        }
    });
}
