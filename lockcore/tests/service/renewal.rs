//! Leases are renewed as long as the callback runs, and their loss is noticed in time, whatever the reason.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use lockcore::{
    BackendErrorKind, BreakMode, Ended, LockDao, LockingError, LockingService, LossReason, Target, Wait,
};
use tokio::time::{Instant, sleep, timeout};

use super::rigged::{Fault, Rigged, Service, Step, eventually, poll_once, within_ten_seconds};

const SECOND: Duration = Duration::from_secs(1);
const UNAVAILABLE: Fault = Fault::Fails(BackendErrorKind::Unavailable);

async fn break_it(locks: &Service, id: &str) {
    let inspection =
        locks.dao().memory.current().into_iter().find(|it| it.target == Ok(Target::Id(id.to_owned())));
    let fence = inspection.expect("it is held").holders[0].fence;
    locks.admin().break_lock(&Target::Id(id.to_owned()), fence, BreakMode::Now).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_callback_keeps_its_locks_over_many_leases() {
    let dao = Rigged::new();
    let locks = dao.service();
    locks.run_locked(["a", "b"], async || sleep(3000 * SECOND).await).await.unwrap();
    let renewals = dao.count(Step::Renew);
    assert!((290..=310).contains(&renewals), "renewed {renewals} times in 300 thirds of the lease");
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_renewed_until_it_is_released_and_not_after() {
    let dao = Rigged::new();
    let locks = dao.service();
    let guard = locks.lock(["a"]).await.unwrap();
    sleep(300 * SECOND).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    let renewals = dao.count(Step::Renew);
    sleep(300 * SECOND).await;
    assert_eq!(dao.count(Step::Renew), renewals);

    let left = locks.lock(["a"]).await.unwrap().leave();
    assert!(locks.lock(["a"]).await.unwrap_err().is_contention());
    sleep(31 * SECOND).await;
    let again = locks.lock(["a"]).await.unwrap();
    assert!(again.fence("a") > left.locks[0].granted.fence);
}

/// The runtime has one thread and the callback blocks it: the library's own thread renews.
#[test]
fn a_sync_callback_is_renewed_by_a_thread_of_the_library() {
    let dao = Rigged::new();
    let locks = dao.service();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let call = locks.lease(3 * SECOND).with_held_locks_sync(["a"], |held| {
        eventually("three renewals", || dao.count(Step::Renew) >= 3);
        held.check()
    });
    runtime.block_on(call).unwrap();
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_are_tried_again_in_time() {
    for fault in [UNAVAILABLE, Fault::AnswerLost, Fault::Hangs] {
        let dao = Rigged::new();
        let locks = dao.service();
        locks
            .run_locked(["a"], async || {
                for _ in 0..5 {
                    dao.once(Step::Renew, fault);
                    sleep(40 * SECOND).await;
                }
            })
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_does_not_stop_the_renewal() {
    let dao = Rigged::new();
    let locks = LockingService::builder(dao.clone())
        .on_event(|event| panic!("wanted, at {event:?}"))
        .build()
        .unwrap();
    dao.once(Step::Renew, UNAVAILABLE);
    locks.run_locked(["a"], async || sleep(100 * SECOND).await).await.unwrap();
}

/// A renewal whose answer never comes must not use up the short lease of an offer.
#[tokio::test(start_paused = true)]
async fn an_offer_is_confirmed_though_one_renewal_gets_lost() {
    let dao = Rigged::new();
    let locks = dao.service();
    let holder = locks.lock(["a"]).await.unwrap();
    let call = locks.wait(Wait::forever()).run_locked(["a"], async || sleep(100 * SECOND).await);
    let releasing = async {
        sleep(SECOND).await;
        dao.once(Step::Renew, Fault::Hangs);
        holder.release().await.unwrap();
    };
    tokio::join!(call, releasing).0.unwrap();
}

/// Runs a callback that looks at the clock every 10 ms while no renewal gets through; gives when it was stopped.
async fn stopped_after(locks: &Service) -> (Duration, Vec<LossReason>) {
    let (started, last) = (Instant::now(), Mutex::new(Duration::ZERO));
    let result = locks
        .run_locked(["a", "b"], async || {
            loop {
                sleep(Duration::from_millis(10)).await;
                *last.lock().unwrap() = started.elapsed();
            }
        })
        .await
        .map(|never: std::convert::Infallible| never);
    let Err(LockingError::Lost { lost, callback: None }) = result else { panic!("{result:?}") };
    assert_eq!(lost.len(), 2);
    (last.into_inner().unwrap(), lost.into_iter().map(|lock| lock.reason).collect())
}

#[tokio::test(start_paused = true)]
async fn nothing_is_polled_past_the_deadline_less_the_margin() {
    for fault in [UNAVAILABLE, Fault::Hangs, Fault::DoneButHangs] {
        let dao = Rigged::new();
        dao.always(Step::Renew, fault);
        let (last, reasons) = stopped_after(&dao.service()).await;
        assert!((26 * SECOND..=27 * SECOND).contains(&last), "{last:?} with {fault:?}");
        assert_eq!(reasons, [LossReason::Unreachable; 2], "{fault:?}");

        let locks = LockingService::builder(dao).margin(0.4).build().unwrap();
        let (last, _) = stopped_after(&locks).await;
        assert!((17 * SECOND..=18 * SECOND).contains(&last), "{last:?} with {fault:?}");
    }
}

/// The deadline counts from before the request was sent, however late its answer comes.
#[tokio::test(start_paused = true)]
async fn slow_answers_do_not_lengthen_a_lease() {
    let dao = Rigged::new();
    dao.once(Step::Acquire, Fault::Takes(5 * SECOND));
    dao.always(Step::Renew, UNAVAILABLE);
    let (last, _) = stopped_after(&dao.service()).await;
    assert!((26 * SECOND..=27 * SECOND).contains(&last), "{last:?}");

    dao.once(Step::Renew, Fault::Takes(5 * SECOND));
    let (last, _) = stopped_after(&dao.service()).await;
    assert!((36 * SECOND..=37 * SECOND).contains(&last), "renewed at 10 s, ended at {last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_noticed_at_the_next_renewal() {
    let locks = Rigged::new().service();
    let started = Instant::now();
    let (result, ()) = tokio::join!(locks.run_locked(["a", "b"], std::future::pending::<()>), async {
        sleep(SECOND).await;
        break_it(&locks, "a").await;
    });
    let Err(LockingError::Lost { lost, callback: None }) = result else { panic!("{result:?}") };
    assert_eq!(
        lost.iter().map(|lock| (&lock.target, lock.reason)).collect::<Vec<_>>(),
        [(&Target::Id("a".to_owned()), LossReason::Broken)]
    );
    assert!(started.elapsed() <= 11 * SECOND);

    let (result, ()) = tokio::join!(locks.outcome(["a"], async |held| held.lost().await), async {
        sleep(SECOND).await;
        let context = locks.dao().memory.current()[0].holders[0].context.clone();
        let lockcore::StoredContext::Known(context) = context else { panic!("{context:?}") };
        locks.dao().memory.release_context(&context).await.unwrap();
    });
    assert!(matches!(&result.unwrap().lost[..], [lock] if lock.reason == LossReason::Vanished));
}

#[tokio::test(start_paused = true)]
async fn tell_when_lost_reports_and_does_not_stop() {
    let dao = Rigged::new();
    let locks = dao.service();
    dao.always(Step::Renew, UNAVAILABLE);
    let started = Instant::now();
    let ended = locks
        .tell_when_lost()
        .outcome(["a"], async |held| {
            let lost = held.lost().await;
            assert!(started.elapsed() <= 27 * SECOND + Duration::from_millis(10));
            assert_eq!(held.check().unwrap_err().lost, lost);
            assert_eq!(held.time_left(), Some(Duration::ZERO));
            sleep(60 * SECOND).await;
            lost[0].reason
        })
        .await
        .unwrap();
    assert_eq!(ended.value, Some(LossReason::Unreachable));
    assert_eq!(ended.lost.len(), 1);
}

/// The rest of a set of which a part was lost is renewed; if that fails, its end is reported too.
#[tokio::test(start_paused = true)]
async fn after_a_part_is_lost_the_rest_is_renewed_or_lost_with_its_lease() {
    let dao = Rigged::new();
    let locks = dao.service();
    let call = locks.tell_when_lost().outcome(["a", "b"], async |held| {
        assert_eq!(held.lost().await.len(), 1);
        sleep(100 * SECOND).await;
        assert_eq!(held.check().unwrap_err().lost.len(), 1);
        assert!(dao.service().lock(["b"]).await.unwrap_err().is_contention());
        dao.always(Step::Renew, UNAVAILABLE);
        sleep(40 * SECOND).await;
        held.check().unwrap_err().lost
    });
    let (ended, ()) = tokio::join!(call, async {
        sleep(SECOND).await;
        break_it(&locks, "a").await;
    });
    let ended = ended.unwrap();
    assert_eq!(ended.value.as_ref().map(Vec::len), Some(2));
    assert_eq!(ended.lost, ended.value.unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_stays_lost() {
    let dao = Rigged::new();
    let locks = dao.service();
    dao.once(Step::Renew, Fault::Takes(Duration::from_millis(100)));
    let half = Duration::from_millis(500);
    let call = locks.lease(2 * half).tell_when_lost().outcome(["a"], async |held| {
        // The process stands still twice. In between, a renewal is sent; its answer comes after the lease.
        std::thread::sleep(half);
        sleep(Duration::from_millis(400)).await;
        std::thread::sleep(half);
        held.check().unwrap_err();
        sleep(Duration::from_millis(50)).await;
        held.check().unwrap_err();
    });
    let Ended { value, lost } = call.await.unwrap();
    assert!(value.is_some() && lost.len() == 1);
}

#[tokio::test(start_paused = true)]
async fn max_hold_stops_a_callback_and_the_renewal_of_a_guard() {
    let dao = Rigged::new();
    let locks = dao.service();
    let started = Instant::now();
    let result = locks.max_hold(100 * SECOND).run_locked(["a"], std::future::pending::<()>).await;
    assert!(matches!(result, Err(LockingError::HeldTooLong { max_hold }) if max_hold == 100 * SECOND));
    assert_eq!(started.elapsed().as_secs(), 100);
    assert!(dao.memory.is_empty());

    let guard = locks.max_hold(100 * SECOND).lock(["a"]).await.unwrap();
    sleep(99 * SECOND).await;
    guard.check().unwrap();
    sleep(31 * SECOND).await;
    assert_eq!(guard.check().unwrap_err().lost[0].reason, LossReason::Expired);
    locks.run_locked(["a"], async || {}).await.expect("its lease ended");
}

/// A handle that outlives the locks knows that they are released.
#[tokio::test(start_paused = true)]
async fn a_handle_knows_that_the_locks_are_released() {
    let locks = Rigged::new().service();
    for permanent in [false, true] {
        let call = if permanent { locks.permanent() } else { locks.lease(30 * SECOND) };
        let guard = call.lock(["a"]).await.unwrap();
        let held = guard.held().clone();
        let mut lost = Box::pin(held.lost());
        assert!(poll_once(lost.as_mut()).is_pending());
        held.check().unwrap();
        guard.release().await.unwrap();
        assert_eq!(held.check().unwrap_err().lost.len(), 1, "permanent: {permanent}");
        assert_eq!(held.time_left(), Some(Duration::ZERO));
        assert!(poll_once(lost.as_mut()).is_ready());
    }
}

/// A renewal that is on its way when the locks are released changes nothing.
#[tokio::test(start_paused = true)]
async fn a_renewal_in_flight_does_not_disturb_the_release() {
    let dao = Rigged::new();
    let locks = dao.service();
    dao.always(Step::Renew, Fault::Takes(5 * SECOND));
    let result = locks.run_locked(["a"], async || sleep(12 * SECOND).await).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(dao.count(Step::Renew), 1);
    let next = locks.lock(["a"]).await.unwrap();
    sleep(SECOND).await;
    next.check().unwrap();
}

#[test]
fn many_services_and_threads_are_renewed_together() {
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(|| {
                let dao = Rigged::new();
                let locks = dao.service();
                let guards: Vec<_> = (0..50)
                    .map(|n: u32| {
                        let lease = 3 * SECOND;
                        pollster::block_on(locks.lease(lease).lock([n.to_string()])).unwrap()
                    })
                    .collect();
                eventually("all are renewed three times", || dao.count(Step::Renew) >= 3 * guards.len());
                assert!(guards.iter().all(|guard| guard.check().is_ok()));
                drop(guards);
                assert!(dao.memory.is_empty());
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Wakers run on the library's thread; one that panics does not end the renewal of everything else.
#[test]
fn renewal_outlives_wakers_that_panic() {
    #[derive(Default)]
    struct Panics(AtomicUsize);
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
            panic!("wanted");
        }
    }
    let dao = Rigged::new();
    let locks = dao.service();
    dao.always(Step::Renew, Fault::Hangs);
    let mut call =
        Box::pin(locks.lease(Duration::from_millis(300)).with_locks(["a"], std::future::pending::<()>));
    let panics = Arc::new(Panics::default());
    let waker = std::task::Waker::from(panics.clone());
    assert!(call.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    eventually("it is lost", || panics.0.load(SeqCst) > 0);
    dao.heal();
    // The keeper may print the backtrace of that panic for a while first.
    let guard = pollster::block_on(locks.lease(Duration::from_secs(3)).lock(["b"])).unwrap();
    let before = dao.count(Step::Renew);
    eventually("others are renewed", || dao.count(Step::Renew) > before);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_at_a_renewal_is_asked_again() {
    let dao = Rigged::new();
    let locks = dao.service();
    dao.once(Step::Renew, Fault::Panics);
    let guard = locks.lease(3 * SECOND).lock(["a"]).await.unwrap();
    sleep(5 * SECOND).await;
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handle_hears_of_the_end_of_a_lease_that_was_left() {
    let dao = Rigged::new();
    let locks = dao.service();
    let guard = locks.lock(["a"]).await.unwrap();
    let held = guard.held().clone();
    let _left = guard.leave();
    timeout(300 * SECOND, held.lost()).await.expect("it waits for ever");
}

#[test]
fn a_release_comes_to_its_end_though_a_waker_panicked() {
    struct Panics(AtomicUsize);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
            panic!("wanted");
        }
    }
    within_ten_seconds("the release", || {
        let dao = Rigged::new();
        let locks = dao.service();
        dao.always(Step::Renew, Fault::Hangs);
        let mut call =
            Box::pin(locks.lease(Duration::from_millis(300)).with_locks(["a"], std::future::pending::<()>));
        let panics = Arc::new(Panics(AtomicUsize::new(0)));
        let waker = Waker::from(panics.clone());
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        eventually("it is lost", || panics.0.load(SeqCst) > 0);
        dao.always(Step::Release, Fault::Hangs);
        let _lost = pollster::block_on(call).unwrap_err();
    });
}

#[test]
fn many_short_leases_do_not_keep_others_from_renewal() {
    const OTHERS: u32 = 3000;
    let [crowd, dao] = [Rigged::new(), Rigged::new()];
    let guard = pollster::block_on(dao.service().lease(3 * SECOND).lock(["a"])).unwrap();
    let locks = crowd.service();
    // So short that most are lost, and have to be looked at again and again.
    let short = |n: u32| locks.lease(Duration::from_millis(1)).lock([n.to_string()]);
    let short: Vec<_> = (0..OTHERS).map(|n| pollster::block_on(short(n)).unwrap()).collect();
    eventually("it is renewed", || dao.count(Step::Renew) > 3);
    guard.check().unwrap();
    drop(short);
}

#[test]
fn a_lease_of_a_nanosecond_stops_nothing_else() {
    let dao = Rigged::with(0, |capabilities| capabilities.min_lease = Duration::ZERO);
    let locks = dao.service();
    let _short = pollster::block_on(locks.lease(Duration::from_nanos(1)).lock(["a"]));
    let before = dao.count(Step::Renew);
    let other = pollster::block_on(locks.lease(3 * SECOND).lock(["b"])).unwrap();
    eventually("the other is renewed", || dao.count(Step::Renew) > before + 3);
    other.check().unwrap();
}
