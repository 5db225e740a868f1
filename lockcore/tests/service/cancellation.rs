//! Nothing stays locked and nothing stays counted, wherever a call is dropped and whatever panics.

use std::{
    cell::RefCell,
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use lockcore::{
    BackendErrorKind, BreakMode, LockDao, LockGuard, LockingService, Owner, Wait,
    backend::{AcquireRequest, AttemptId},
    blocking,
};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use super::rigged::{Fault, Rigged, Service, Step, eventually, poll_once, within_ten_seconds};

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Everything is free again, and the service counts nothing.
fn assert_clean(dao: &Arc<Rigged>, locks: &Service) {
    eventually("nothing is locked", || dao.memory.is_empty());
    let left = pollster::block_on(locks.shutdown(Duration::from_secs(10)));
    assert_eq!(left, 0, "holds still counted");
}

/// Makes a call, polls it `polls` times, and drops it; `true` if it ended by itself.
type PolledCall = fn(&Service, usize) -> bool;

fn polled<F: Future>(future: F, polls: usize) -> bool {
    let mut future = Box::pin(future);
    (0..polls).any(|_| poll_once(future.as_mut()).is_ready())
}

const CALLS: [(&str, PolledCall); 5] = [
    ("with_locks", |locks, polls| {
        polled(locks.with_locks(["a", "b"], async || tokio::task::yield_now().await), polls)
    }),
    ("with_locks_sync", |locks, polls| polled(locks.with_locks_sync(["a", "b"], || Ok::<_, ()>(())), polls)),
    ("lock and release", |locks, polls| {
        polled(async { locks.lock(["a"]).await.unwrap().release().await }, polls)
    }),
    ("a panic", |locks, polls| {
        let call = locks.run_locked(["a"], async || -> () { panic!("wanted") });
        catch_unwind(AssertUnwindSafe(|| polled(call, polls))).unwrap_or(true)
    }),
    ("nested", |locks, polls| {
        polled(locks.with_locks(["a"], async || locks.with_locks(["b"], async || {}).await), polls)
    }),
];

fn dropped_at_every_poll(call: PolledCall) {
    for polls in 0.. {
        let dao = Rigged::with(2, |_| {});
        let locks = dao.service();
        let ended = call(&locks, polls);
        assert_clean(&dao, &locks);
        if ended {
            assert!(polls > 4, "the steps did not lag");
            return;
        }
    }
}

#[test]
fn a_call_dropped_at_any_poll_leaves_nothing_without_a_runtime() {
    for (name, call) in CALLS {
        println!("{name}");
        dropped_at_every_poll(call);
    }
}

#[test]
fn a_call_dropped_at_any_poll_leaves_nothing_in_a_runtime() {
    let runtime = Runtime::new().unwrap();
    let _here = runtime.enter();
    for (name, call) in CALLS {
        println!("{name}");
        dropped_at_every_poll(call);
    }
}

/// A waiter is dropped at each of its polls, while the holder goes away at each of them.
#[test]
fn a_waiter_dropped_at_any_poll_leaves_nothing() {
    for wait in [Wait::forever(), Wait::up_to(Duration::from_secs(60))] {
        for fifo in [true, false] {
            for released_at in 0..8 {
                for polls in released_at..16 {
                    let dao = Rigged::with(1, |capabilities| capabilities.fifo = fifo);
                    let locks = dao.service();
                    let mut holder = Some(pollster::block_on(locks.lock(["a"])).unwrap());
                    let mut call = Box::pin(locks.wait(wait.clone()).with_locks(["a", "b"], async || {}));
                    for poll in 0..polls {
                        if poll == released_at {
                            pollster::block_on(holder.take().unwrap().release()).unwrap();
                        }
                        if poll_once(call.as_mut()).is_ready() {
                            break;
                        }
                    }
                    drop(call);
                    drop(holder);
                    assert_clean(&dao, &locks);
                }
            }
        }
    }
}

/// The clean-up of a call that a runtime drops moves to the library's thread, with timers of its own.
#[test]
fn clean_up_outlives_the_runtime_that_began_it() {
    let faults = [Fault::Fails(BackendErrorKind::Unavailable), Fault::Takes(Duration::from_millis(50))];
    for (fault, paused) in faults.iter().flat_map(|fault| [(*fault, false), (*fault, true)]) {
        let dao = Rigged::new();
        let locks = dao.service();
        dao.once(Step::Release, fault);
        let runtime = Builder::new_current_thread().enable_all().start_paused(paused).build().unwrap();
        runtime.block_on(async {
            let mut call = Box::pin(locks.with_locks(["a"], pending::<()>));
            assert!(poll_once(call.as_mut()).is_pending());
            drop(call);
        });
        drop(runtime);
        assert_clean(&dao, &locks);
    }
}

#[test]
fn a_runtime_that_shuts_down_leaves_nothing() {
    let dao = Rigged::with(2, |_| {});
    let locks = dao.service();
    let runtime = Runtime::new().unwrap();
    for n in 0..20 {
        let locks = locks.clone();
        runtime.spawn(async move { locks.with_locks([n.to_string()], pending::<()>).await });
    }
    eventually("some are locked", || !dao.memory.is_empty());
    runtime.shutdown_background();
    assert_clean(&dao, &locks);
}

#[test]
fn a_request_in_doubt_is_withdrawn_though_a_later_one_was_refused() {
    let dao = Rigged::new();
    let locks = dao.service();
    within_ten_seconds("the retries", move || {
        current_thread().block_on(async move {
            let holder = locks.lock(["a"]).await.unwrap();
            dao.once(Step::Acquire, Fault::Late);
            let wait = Wait::retries(1, |_: u32| Duration::ZERO);
            locks.wait(wait).with_locks(["a"], async || {}).await.unwrap_err();
            holder.release().await.unwrap();
            assert_eq!(locks.shutdown(Duration::from_secs(10)).await, 0);
            dao.deliver_late().await;
            assert!(dao.memory.is_empty(), "a request that arrived late was granted");
        });
    });
}

#[test]
fn a_request_in_doubt_is_withdrawn_though_a_later_one_was_granted() {
    let dao = Rigged::new();
    let locks = dao.service();
    for wait in [Wait::retries(1, |_: u32| Duration::ZERO), Wait::forever()] {
        let (dao, locks) = (dao.clone(), locks.clone());
        within_ten_seconds("the retries", move || {
            current_thread().block_on(async move {
                dao.once(Step::Acquire, Fault::Late);
                locks.wait(wait).with_locks(["a"], async || {}).await.unwrap();
                dao.deliver_late().await;
                assert!(dao.memory.is_empty(), "a request that arrived late was granted");
            });
        });
    }
    assert_clean(&dao, &locks);
}

/// Nothing could withdraw it in the end: then none may be there that has the set.
#[tokio::test(start_paused = true)]
async fn a_request_in_doubt_for_what_is_kept_is_withdrawn_before_the_next() {
    let second = Duration::from_secs(1);
    for wait in [Wait::retries(1, |_: u32| Duration::ZERO), Wait::forever(), Wait::up_to(60 * second)] {
        let dao = Rigged::new();
        let locks = dao.service();
        dao.once(Step::Acquire, Fault::Late);
        let guard = locks.wait(wait).keep_for(10 * second).lock(["a"]).await.unwrap();
        guard.release().await.unwrap();
        assert!(locks.lock(["a"]).await.unwrap_err().is_contention());
        tokio::time::sleep(15 * second).await;
        dao.deliver_late().await;
        locks.lock(["a"]).await.expect("a request that arrived late was granted").release().await.unwrap();
    }
}

/// The same for one that has a place already.
#[tokio::test(start_paused = true)]
async fn a_request_in_doubt_for_what_is_kept_costs_its_place() {
    let second = Duration::from_secs(1);
    let dao = Rigged::new();
    let locks = dao.service();
    let holder = locks.lease(10 * second).lock(["a"]).await.unwrap();
    let mut call = Box::pin(locks.wait(Wait::forever()).keep_for(10 * second).lock(["a"]));
    assert!(poll_once(call.as_mut()).is_pending());
    dao.once(Step::Acquire, Fault::Late);
    let ends = async {
        // The waiter looks when the lease would have ended.
        while dao.count(Step::Acquire) < 4 {
            tokio::time::sleep(second).await;
        }
        holder.release().await.unwrap();
    };
    let (guard, ()) = tokio::join!(call, ends);
    guard.unwrap().release().await.unwrap();
    assert!(locks.lock(["a"]).await.unwrap_err().is_contention());
    tokio::time::sleep(15 * second).await;
    dao.deliver_late().await;
    locks.lock(["a"]).await.expect("a request that arrived late was granted").release().await.unwrap();
}

/// The store has the set for the whole time for which it was to be kept, though its lease is over long before.
#[tokio::test(start_paused = true)]
async fn a_release_now_is_tried_while_the_store_may_keep_the_set() {
    let second = Duration::from_secs(1);
    let dao = Rigged::new();
    let locks = dao.service();
    let guard = locks.lease(2 * second).keep_for(600 * second).lock(["a"]).await.unwrap();
    dao.always(Step::Release, Fault::Fails(BackendErrorKind::Unavailable));
    guard.release_now().await.unwrap();
    tokio::time::sleep(60 * second).await;
    dao.heal();
    assert_eq!(locks.shutdown(10 * second).await, 0);
    assert!(dao.memory.is_empty());
}

/// A renewal that is under way arrives before the set is given back, and not after it: it would have it last for a lease again.
#[tokio::test(start_paused = true)]
async fn what_is_kept_is_given_back_after_the_renewal_that_is_under_way() {
    let second = Duration::from_secs(1);
    // The longer renewal takes most of the time that one may take.
    for (takes, dropped) in [(1, false), (1, true), (7, false), (7, true)] {
        let dao = Rigged::new();
        let locks = dao.service();
        let guard = locks.lease(30 * second).keep_for(25 * second).lock(["a"]).await.unwrap();
        dao.once(Step::Renew, Fault::Takes(takes * second));
        tokio::time::sleep(10 * second + second / 2).await;
        assert_eq!(dao.count(Step::Renew), 1);
        match dropped {
            true => drop(guard),
            false => guard.release().await.unwrap(),
        }
        tokio::time::sleep(16 * second).await;
        locks.lock(["a"]).await.expect("it was lengthened again").release().await.unwrap();
    }
}

/// What the waiter held of its set was broken meanwhile: it is refused, and its place must keep none behind it out.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_refused_leaves_its_place() {
    let second = Duration::from_secs(1);
    let dao = Rigged::new();
    let locks = dao.service();
    let holder = locks.lease(20 * second).lock(["b"]).await.unwrap();
    let context = Uuid::new_v4();
    let left = locks.context(context).lease(600 * second).lock(["a"]).await.unwrap().leave();
    let mut waits = Box::pin(locks.context(context).wait(Wait::forever()).lock(["a", "b"]));
    assert!(poll_once(waits.as_mut()).is_pending());
    let fence = left.locks[0].granted.fence;
    dao.memory.break_lock(&left.locks[0].target, fence, BreakMode::AfterLease, "me").await.unwrap();
    assert!(waits.await.is_err(), "what was broken is not extended");
    holder.release().await.unwrap();
    locks.lock(["b"]).await.expect("none waits for it").release().await.unwrap();
}

#[test]
fn what_could_not_be_freed_is_tried_again_and_counted() {
    let dao = Rigged::new();
    let locks = dao.service();
    dao.once(Step::Release, Fault::FreesNothing);
    dao.once(Step::Release, Fault::FreesNothing);
    pollster::block_on(locks.with_locks(["a", "b"], async || {})).unwrap();
    assert_clean(&dao, &locks);
    assert_eq!(dao.count(Step::Release), 3);
}

/// A store that is down gets the tries of one back-off, not of one for each hold.
#[tokio::test(start_paused = true)]
async fn the_clean_up_of_a_service_backs_off_as_one() {
    let dao = Rigged::new();
    let locks = dao.service();
    let mut guards = Vec::new();
    for n in 0..100 {
        guards.push(locks.lock([n.to_string()]).await.unwrap());
    }
    dao.always(Step::Release, Fault::Fails(BackendErrorKind::Unavailable));
    drop(guards);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let tries = dao.count(Step::Release);
    assert!((101..=140).contains(&tries), "{tries} tries for 100 holds in 20 s");
    dao.heal();
    assert_eq!(locks.shutdown(Duration::from_secs(5)).await, 0);
    assert!(dao.memory.is_empty());
}

/// Each try of a clean-up may get no answer: another one follows while the lease lasts.
#[tokio::test(start_paused = true)]
async fn a_clean_up_without_an_answer_is_tried_again() {
    let dao = Rigged::new();
    let locks = dao.service();
    let guard = locks.lock(["a"]).await.unwrap();
    dao.once(Step::Release, Fault::Hangs);
    dao.once(Step::Release, Fault::Hangs);
    drop(guard);
    assert_eq!(locks.shutdown(Duration::from_secs(20)).await, 0);
    assert_eq!(dao.count(Step::Release), 3);
    assert!(dao.memory.is_empty());
}

#[test]
fn a_hook_that_panics_disturbs_nothing() {
    let dao = Rigged::new();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = told.clone();
    let locks = LockingService::builder(dao.clone())
        .on_event(move |event| {
            tell.fetch_add(1, SeqCst);
            panic!("wanted, at {event:?}")
        })
        .build()
        .unwrap();
    dao.once(Step::Release, Fault::Fails(BackendErrorKind::Denied));
    dao.once(Step::Release, Fault::Fails(BackendErrorKind::Denied));
    assert_eq!(pollster::block_on(locks.run_locked(["a"], async || 7)).unwrap(), 7);
    assert_eq!(pollster::block_on(locks.shutdown(Duration::from_secs(10))), 0);
    assert_eq!(told.load(SeqCst), 2);
}

#[test]
fn a_backend_that_panics_at_the_release_does_not_abort_the_process() {
    let dao = Rigged::new();
    let locks = dao.service();
    dao.always(Step::Release, Fault::Panics);
    let call = || pollster::block_on(locks.with_locks(["a"], async || {}));
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    assert_eq!(pollster::block_on(locks.shutdown(Duration::from_secs(10))), 0);
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("wanted");
        }
    }
}

#[test]
fn values_that_panic_when_dropped_leave_nothing() {
    let (dao, loaded) = (Rigged::new(), PanicsWhenDropped);
    let locks = dao.service();
    let mut call = Box::pin(locks.with_locks(["a"], async move || {
        let _loaded = loaded;
        pending::<()>().await
    }));
    assert!(poll_once(call.as_mut()).is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(call))).is_err());
    assert!(dao.memory.is_empty());

    let panics_early = || -> std::future::Ready<()> { panic!("wanted") };
    let call = locks.with_locks(["a"], panics_early);
    assert!(catch_unwind(AssertUnwindSafe(|| pollster::block_on(call))).is_err());
    assert_clean(&dao, &locks);
}

#[test]
fn makers_and_backoffs_that_panic_leave_nothing() {
    let dao = Rigged::new();
    let locks =
        LockingService::builder_with_contexts(dao.clone(), || -> Uuid { panic!("wanted") }).build().unwrap();
    let call = || pollster::block_on(locks.with_locks(["a"], async || {}));
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());

    let context = Uuid::new_v4();
    let holder = pollster::block_on(locks.context(Uuid::new_v4()).lock(["a"])).unwrap();
    let call = || {
        let wait = Wait::retries(3, |_: u32| -> Duration { panic!("wanted") });
        pollster::block_on(locks.context(context).wait(wait).lock(["a"]))
    };
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    drop(holder);
    pollster::block_on(locks.context(context).with_locks(["a"], async || {})).expect("the context is free");
    assert_clean(&dao, &locks);
}

#[test]
fn a_blocking_callback_keeps_its_locks_until_it_ends() {
    let (dao, began, may_end) =
        (Rigged::new(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let locks = dao.service();
    let (runtime, begin, end) = (current_thread(), began.clone(), may_end.clone());
    runtime.block_on(async {
        let mut call = Box::pin(locks.with_locks_blocking(["a"], move |_| {
            begin.store(true, SeqCst);
            eventually("it may end", || end.load(SeqCst));
            Ok::<_, ()>(())
        }));
        assert!(matches!(poll_once(call.as_mut()), Poll::Pending));
        eventually("it begins", || began.load(SeqCst));
    });
    assert!(!dao.memory.is_empty());
    assert!(pollster::block_on(locks.lock(["a"])).unwrap_err().is_contention());
    may_end.store(true, SeqCst);
    assert_clean(&dao, &locks);
}

#[test]
fn a_blocking_callback_without_a_runtime_panics_before_it_locks() {
    let dao = Rigged::new();
    let locks = dao.service();
    let call = || pollster::block_on(locks.with_locks_blocking(["a"], |_| Ok::<_, ()>(())));
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    assert_eq!(dao.count(Step::Acquire), 0);
    assert_clean(&dao, &locks);
}

#[test]
fn a_guard_dropped_by_a_thread_that_ends_is_released() {
    thread_local! {
        static KEPT: RefCell<Option<LockGuard<String, Uuid, Arc<Rigged>>>> = const { RefCell::new(None) };
    }
    // Once a test has paused its clock, tokio finds the clock of every thread through a thread local.
    drop(Builder::new_current_thread().enable_all().start_paused(true).build().unwrap());
    let dao = Rigged::with(1, |_| {});
    let locks = dao.service();
    let of_thread = locks.clone();
    std::thread::spawn(move || {
        KEPT.with_borrow(|kept| assert!(kept.is_none()));
        let guard = pollster::block_on(of_thread.lock(["a"])).unwrap();
        KEPT.set(Some(guard));
    })
    .join()
    .unwrap();
    assert_clean(&dao, &locks);
}

/// What the tests rely on: the rigged backend refuses a late request only if it was withdrawn.
#[test]
fn a_late_request_that_was_not_withdrawn_is_granted() {
    pollster::block_on(async {
        let dao = Rigged::new();
        let request = AcquireRequest {
            context: Uuid::new_v4(),
            attempt: AttemptId::fresh(),
            claims: lockcore::ClaimSet::new(["a"], lockcore::Mode::Exclusive).unwrap(),
            lease: None,
            owner: Owner::default(),
            queue: false,
            nested: false,
            detached: false,
        };
        dao.once(Step::Acquire, Fault::Late);
        dao.acquire(&request).await.unwrap_err();
        dao.deliver_late().await;
        assert!(!dao.memory.is_empty());
    });
}

#[test]
fn a_blocking_guard_dropped_on_the_only_thread_of_a_runtime_is_released() {
    for threads in [0, 1] {
        within_ten_seconds("a blocking call after a guard was dropped", move || {
            let runtime = match threads {
                0 => current_thread(),
                n => Builder::new_multi_thread().worker_threads(n).enable_all().build().unwrap(),
            };
            let dao = Rigged::with(2, |_| {});
            let locks = blocking::LockingService::from(dao.service());
            let task = runtime.spawn(async move {
                drop(locks.lock(["a"]).unwrap());
                locks.wait(Wait::forever()).lock(["a"]).unwrap().release().unwrap();
            });
            runtime.block_on(task).unwrap();
        });
    }
}

#[test]
fn a_blocking_call_dropped_before_its_callback_begins_does_not_run_it() {
    let runtime = Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    let (dao, ran, free) =
        (Rigged::new(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let locks = dao.service();
    let (run, freed) = (ran.clone(), free.clone());
    runtime.block_on(async {
        let busy = tokio::task::spawn_blocking(move || eventually("free", || freed.load(SeqCst)));
        let mut call = Box::pin(locks.with_locks_blocking(["a"], move |_| {
            run.store(true, SeqCst);
            Ok::<_, ()>(())
        }));
        assert!(poll_once(call.as_mut()).is_pending());
        drop(call);
        free.store(true, SeqCst);
        busy.await.unwrap();
    });
    eventually("nothing is locked", || dao.memory.is_empty());
    assert!(!ran.load(SeqCst));
}

#[test]
fn a_blocking_call_in_a_runtime_that_has_shut_down_leaves_nothing() {
    let runtime = current_thread();
    let dao = Rigged::new();
    let locks = dao.service();
    let handle = runtime.handle().clone();
    let _here = handle.enter();
    runtime.shutdown_background();
    let call = locks.with_locks_blocking(["a"], move |_| Ok::<_, ()>(()));
    assert!(catch_unwind(AssertUnwindSafe(|| pollster::block_on(call))).is_err());
    eventually("nothing is locked", || dao.memory.is_empty());
}
