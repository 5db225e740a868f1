//! How long and in what manner calls wait, with a queue in the backend and without one.

use std::{
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use futures_util::future::join_all;
use lockcore::{
    BackendErrorKind, ConflictReason, Failure, LockError, LockingError, LockingService, Phase, Severity,
    TimedOut, Wait, blocking,
};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::rigged::{Fault, Rigged, Step, poll_once, within_ten_seconds};

const SECOND: Duration = Duration::from_secs(1);

fn both_kinds() -> [Arc<Rigged>; 2] {
    [Rigged::new(), Rigged::without_queue()]
}

fn timed_out<T: std::fmt::Debug>(
    result: Result<T, LockError<String, Uuid>>,
) -> (TimedOut, Vec<Failure<String, Uuid>>) {
    match result {
        Err(LockingError::NotLocked { failures, timed_out: Some(timed_out) }) => (timed_out, failures),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn never_asks_once_and_does_not_wait() {
    for dao in both_kinds() {
        let locks = dao.service();
        let _holder = locks.lock(["a"]).await.unwrap();
        let started = Instant::now();
        for wait in [Wait::never(), Wait::default(), Wait::up_to(Duration::ZERO)] {
            let refused = locks.wait(wait).lock(["a"]).await.unwrap_err();
            assert!(matches!(refused, LockingError::NotLocked { timed_out: None, .. }), "{refused:?}");
            assert!(refused.is_contention());
        }
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert_eq!(dao.count(Step::Acquire), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn up_to_waits_no_longer_and_names_the_holder() {
    for dao in both_kinds() {
        let locks = dao.service();
        let holder = locks.owner("night shift").lock(["a"]).await.unwrap();
        let (TimedOut { after, phase, .. }, failures) =
            timed_out(locks.wait(Wait::up_to(5 * SECOND)).run_locked(["a"], async || {}).await);
        assert_eq!(phase, Phase::Waiting);
        assert!((5 * SECOND..6 * SECOND).contains(&after), "{after:?}");
        let [Failure::Conflict(conflict)] = &failures[..] else { panic!("{failures:?}") };
        let ConflictReason::Held { holders, .. } = &conflict.reason else { panic!("{conflict:?}") };
        assert_eq!(&*holders[0].owner, "night shift");
        holder.release().await.unwrap();
        assert_eq!(locks.shutdown(SECOND).await, 0);
        assert!(dao.memory.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_get_the_locks_when_they_are_free() {
    for dao in both_kinds() {
        for wait in [Wait::forever(), Wait::up_to(60 * SECOND), Wait::retries_forever(|_: u32| SECOND)] {
            let locks = dao.service();
            let holder = locks.lock(["a"]).await.unwrap();
            let waiting = async { locks.wait(wait).run_locked(["a"], async || Instant::now()).await };
            let releasing = async {
                sleep(10 * SECOND).await;
                holder.release().await.unwrap();
                Instant::now()
            };
            let (locked, released) = tokio::join!(waiting, releasing);
            let late = locked.unwrap() - released;
            assert!(late <= SECOND, "{late:?}");
            assert!(dao.memory.is_empty());
        }
    }
}

/// The connection may have ended while it was idle: the request is sent again, once, and at once.
#[tokio::test(start_paused = true)]
async fn a_request_whose_connection_ended_is_sent_again() {
    for dao in both_kinds() {
        let locks = dao.service();
        let waits =
            || [Wait::never(), Wait::retries(0, |_: u32| SECOND), Wait::up_to(SECOND), Wait::forever()];
        for wait in waits() {
            let (before, started) = (dao.count(Step::Acquire), Instant::now());
            dao.once(Step::Acquire, Fault::Cut);
            locks.wait(wait).run_locked(["a"], async || {}).await.unwrap();
            assert_eq!((dao.count(Step::Acquire) - before, started.elapsed()), (2, Duration::ZERO));
        }
        dao.always(Step::Acquire, Fault::Cut);
        let before = dao.count(Step::Acquire);
        assert!(locks.wait(Wait::never()).lock(["a"]).await.unwrap_err().is_retryable());
        assert_eq!(dao.count(Step::Acquire) - before, 2);
        assert_eq!(locks.shutdown(SECOND).await, 0);
        assert!(dao.memory.is_empty());
    }
}

/// Whether the store fails to answer the first request or another one, that is no contention.
#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_not_contention() {
    for dao in both_kinds() {
        let locks = dao.service();
        dao.once(Step::Acquire, Fault::Hangs);
        let error = locks.wait(Wait::up_to(SECOND)).run_locked(["a"], async || {}).await.unwrap_err();
        assert!(!error.is_contention(), "{error}");
        assert!(error.is_retryable(), "{error}");
        let (timed_out, failures) = timed_out(Err::<(), _>(error));
        assert_eq!(timed_out.phase, Phase::Asking);
        assert!(
            matches!(&failures[..], [Failure::Backend(error)] if error.kind() == BackendErrorKind::Timeout)
        );
    }
}

/// What was in the way is known, and that the store has not answered since.
fn assert_silent(result: Result<(), LockError<String, Uuid>>) {
    let error = result.unwrap_err();
    assert!(error.is_retryable() && !error.is_contention(), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("waiting for the store to answer") && text.ends_with("no answer in time"),
        "{text}"
    );
    let (timed_out, failures) = timed_out(Err::<(), _>(error));
    assert_eq!(timed_out.phase, Phase::Asking);
    assert!(matches!(&failures[..], [Failure::Conflict(_), Failure::Backend(_)]), "{failures:?}");
}

/// A wait of 20 s for a lease of 30 s that is not renewed: when the wait is over, a third of the lease is left.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_lease_is_told_as_of_the_end_of_the_wait() {
    for dao in both_kinds() {
        let locks = dao.service();
        let _holder = locks.lock(["a"]).await.unwrap();
        dao.always(Step::Renew, Fault::Hangs);
        let waited = locks.wait(Wait::up_to(20 * SECOND)).run_locked(["a"], async || {}).await;
        let (_, failures) = timed_out(waited);
        let [Failure::Conflict(conflict)] = &failures[..] else { panic!("{failures:?}") };
        let ConflictReason::Held { holders, .. } = &conflict.reason else { panic!("{conflict:?}") };
        let left = holders[0].remaining.unwrap();
        assert!((9 * SECOND..11 * SECOND).contains(&left), "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_no_crash_is_outlasted_by_says_so() {
    const HINT: &str =
        "; a wait that is shorter than the lease of 30s does not outlast a holder that crashed";
    for (dead_holders, wait, hints) in [(false, 20, true), (true, 20, false), (false, 40, false)] {
        let dao = Rigged::with(0, |it| (it.shared_store, it.dead_holders) = (true, dead_holders));
        let locks = dao.service();
        let _holder = locks.lock(["a"]).await.unwrap();
        let waited = locks.wait(Wait::up_to(wait * SECOND)).run_locked(["a"], async || {}).await;
        let text = waited.unwrap_err().to_string();
        assert_eq!(text.ends_with(HINT), hints, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_doctor_warns_of_a_wait_that_no_crash_is_outlasted_by() {
    for (dead_holders, wait, expected) in [
        (false, Wait::up_to(20 * SECOND), Some(Severity::Warning)),
        (false, Wait::up_to(40 * SECOND), Some(Severity::Ok)),
        (false, Wait::never(), Some(Severity::Ok)),
        (true, Wait::up_to(20 * SECOND), None),
    ] {
        let dao = Rigged::with(0, |it| (it.shared_store, it.dead_holders) = (true, dead_holders));
        let locks = LockingService::<String, Uuid, _>::builder(dao).wait(wait).build().unwrap();
        let findings = locks.admin().doctor().await.unwrap();
        let found = findings.into_iter().find(|finding| finding.check == "crashes");
        assert_eq!(found.as_ref().map(|found| found.severity), expected, "{found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_request_without_an_answer_leaves_what_was_known() {
    let dao = Rigged::without_queue();
    let locks = dao.service();
    let _holder = locks.lock(["a"]).await.unwrap();
    let mut call = Box::pin(locks.wait(Wait::up_to(5 * SECOND)).run_locked(["a"], async || {}));
    assert!(poll_once(call.as_mut()).is_pending());
    dao.always(Step::Acquire, Fault::Hangs);
    assert_silent(call.await);
}

/// An answer that the end of the wait cut off says nothing of the store.
#[tokio::test(start_paused = true)]
async fn a_store_that_had_no_time_to_answer_is_not_blamed() {
    let dao = Rigged::without_queue();
    let locks = dao.service();
    let _holder = locks.lock(["a"]).await.unwrap();
    let mut call = Box::pin(locks.wait(Wait::up_to(SECOND / 2)).run_locked(["a"], async || {}));
    assert!(poll_once(call.as_mut()).is_pending());
    dao.always(Step::Acquire, Fault::Hangs);
    let (timed_out, failures) = timed_out(call.await);
    assert_eq!(timed_out.phase, Phase::Waiting);
    assert!(matches!(&failures[..], [Failure::Conflict(_)]), "{failures:?}");
}

/// The store stops answering after the waiter got its place: the caller gets an answer all the same.
#[tokio::test(start_paused = true)]
async fn giving_up_does_not_wait_for_a_store_that_hangs() {
    let dao = Rigged::new();
    let locks = dao.service();
    let _holder = locks.lock(["a"]).await.unwrap();
    dao.always(Step::Withdraw, Fault::Hangs);
    let call = locks.wait(Wait::up_to(5 * SECOND)).run_locked(["a"], async || {});
    assert_silent(tokio::time::timeout(10 * SECOND, call).await.expect("the call hangs"));
}

/// Where many write, a store takes more than a second for a withdrawal: that is no outage if it was slow before.
#[tokio::test(start_paused = true)]
async fn a_slow_store_is_not_blamed_for_one_step() {
    // One with short leases is fast, and one that was fast is not slow suddenly.
    for (lease, takes, is_blamed) in
        [(10 * SECOND, SECOND / 5, false), (10 * SECOND, SECOND / 20, true), (SECOND, SECOND / 5, true)]
    {
        let dao = Rigged::with(0, |it| it.min_lease = lease);
        let locks = dao.service();
        let _holder = locks.lock(["a"]).await.unwrap();
        dao.always(Step::Acquire, Fault::Takes(takes));
        dao.always(Step::Withdraw, Fault::Hangs);
        let call = locks.wait(Wait::up_to(5 * SECOND)).run_locked(["a"], async || {}).await;
        if is_blamed {
            assert_silent(call);
            continue;
        }
        let (timed_out, failures) = timed_out(call);
        assert_eq!(timed_out.phase, Phase::Waiting);
        assert!(matches!(&failures[..], [Failure::Conflict(_)]), "{failures:?}");
    }
}

/// What is handed over is an offer, which lasts for a moment until a renewal confirms it.
#[tokio::test(start_paused = true)]
async fn a_hand_over_is_confirmed_by_a_renewal() {
    let dao = Rigged::new();
    let locks = dao.service();
    let holder = locks.lock(["a"]).await.unwrap();
    dao.once(Step::Acquire, Fault::OffersLate { lasts: 3 * SECOND, by: Duration::ZERO });
    let waiting = locks.wait(Wait::up_to(5 * SECOND));
    let waiting = waiting.lock(["a"]);
    let releasing = async {
        tokio::time::sleep(SECOND).await;
        holder.release().await.unwrap();
    };
    let (guard, ()) = tokio::join!(waiting, releasing);
    let guard = guard.unwrap();
    assert_eq!(dao.count(Step::Renew), 0);
    guard.held().confirmed().await.unwrap();
    assert_eq!(dao.count(Step::Renew), 1);
}

#[tokio::test(start_paused = true)]
async fn retries_are_counted_and_the_backoff_knows_which_it_is() {
    for dao in both_kinds() {
        let locks = dao.service();
        let _holder = locks.lock(["a"]).await.unwrap();
        for (retries, asked) in [(0, vec![]), (1, vec![0]), (3, vec![0, 1, 2])] {
            let (before, started) = (dao.count(Step::Acquire), Instant::now());
            let seen = Arc::new(Mutex::new(Vec::new()));
            let see = seen.clone();
            let wait = Wait::retries(retries, move |attempt: u32| {
                see.lock().unwrap().push(attempt);
                SECOND
            });
            assert!(locks.wait(wait).lock(["a"]).await.unwrap_err().is_contention());
            assert_eq!(*seen.lock().unwrap(), asked);
            assert_eq!(dao.count(Step::Acquire) - before, retries as usize + 1);
            assert!(started.elapsed() >= SECOND * retries && started.elapsed() < SECOND * (retries + 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failures_that_may_pass_are_waited_out_and_others_are_not() {
    for dao in both_kinds() {
        let locks = dao.service();
        for wait in [Wait::forever(), Wait::up_to(60 * SECOND), Wait::retries(3, |_: u32| SECOND)] {
            dao.once(Step::Acquire, Fault::Fails(BackendErrorKind::Unavailable));
            dao.once(Step::Acquire, Fault::Fails(BackendErrorKind::Busy));
            locks.wait(wait.clone()).run_locked(["a"], async || {}).await.unwrap();
            dao.once(Step::Acquire, Fault::Fails(BackendErrorKind::Denied));
            let error = locks.wait(wait).run_locked(["a"], async || {}).await.unwrap_err();
            assert!(!error.is_retryable() && !error.is_contention(), "{error}");
        }
        dao.once(Step::Acquire, Fault::Fails(BackendErrorKind::Unavailable));
        let error = locks.run_locked(["a"], async || {}).await.unwrap_err();
        assert!(error.is_retryable() && !error.is_contention(), "{error}");
        assert_eq!(locks.shutdown(SECOND).await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_queue_the_order_is_that_of_arrival() {
    let locks = Rigged::new().service();
    let holder = locks.lock(["a"]).await.unwrap();
    let order = Mutex::new(Vec::new());
    let waiters = (0..20).map(|n| {
        let (locks, order) = (&locks, &order);
        async move {
            sleep(Duration::from_millis(n)).await;
            locks
                .wait(Wait::forever())
                .run_locked(["a"], async || order.lock().unwrap().push(n))
                .await
                .unwrap();
        }
    });
    let releasing = async {
        sleep(SECOND).await;
        holder.release().await.unwrap();
    };
    tokio::join!(join_all(waiters), releasing);
    assert_eq!(order.into_inner().unwrap(), (0..20).collect::<Vec<_>>());
}

/// Of many waiters in one process only one asks a store that has no queue.
#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_do_not_stampede_the_store() {
    let dao = Rigged::without_queue();
    let locks = dao.service();
    let holder = locks.lock(["a"]).await.unwrap();
    let waiters = (0..100).map(|_| locks.wait(Wait::forever()).run_locked(["a"], async || {}));
    let asked = async {
        sleep(100 * SECOND).await;
        let asked = dao.count(Step::Acquire);
        holder.release().await.unwrap();
        asked
    };
    let (results, asked) = tokio::join!(join_all(waiters), asked);
    assert!(results.iter().all(Result::is_ok));
    assert!(asked <= 1 + 100 + 250, "one waiter asks about twice a second, but {asked} requests were sent");
}

/// A waiter that has its turn for `b` waits for `a`; who holds `a` must not wait for that turn.
#[tokio::test(start_paused = true)]
async fn a_nested_waiter_does_not_wait_for_its_turn() {
    for dao in both_kinds() {
        let locks = dao.service();
        let waits = || locks.wait(Wait::forever());
        let other = locks.lock(["b"]).await.unwrap();
        let nested = waits().run_locked(["a"], async || {
            sleep(5 * SECOND).await;
            waits().run_locked(["b"], async || {}).await.unwrap();
        });
        let waiter = async {
            sleep(SECOND).await;
            waits().run_locked(["a", "b"], async || {}).await.unwrap();
        };
        let releasing = async {
            sleep(10 * SECOND).await;
            other.release().await.unwrap();
        };
        let all = async { tokio::join!(nested, waiter, releasing) };
        tokio::time::timeout(60 * SECOND, all).await.expect("a deadlock").0.unwrap();
    }
}

/// Turns are given back by waiters that go away before and after they have them.
#[tokio::test(start_paused = true)]
async fn waiters_that_go_away_do_not_keep_their_turn() {
    let dao = Rigged::without_queue();
    let locks = dao.service();
    let holder = locks.lock(["a", "b"]).await.unwrap();
    let mut waiters: Vec<_> =
        (0..3).map(|_| Box::pin(locks.wait(Wait::forever()).run_locked(["a", "b"], async || {}))).collect();
    for waiter in &mut waiters {
        assert!(matches!(poll_once(waiter.as_mut()), Poll::Pending));
    }
    let last = waiters.pop().unwrap();
    drop(waiters);
    holder.release().await.unwrap();
    tokio::time::timeout(60 * SECOND, last).await.expect("its turn never comes").unwrap();
}

/// The library's thread drives the timers of the blocking face and of the backend under it: the runtime's is blocked.
#[test]
fn the_blocking_face_times_out_on_the_only_thread_of_a_runtime() {
    within_ten_seconds("a blocking call on a current-thread runtime", || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for dao in both_kinds() {
                let locks = blocking::LockingService::from(dao.service());
                dao.once(Step::Acquire, Fault::Takes(Duration::from_millis(5)));
                let _holder = locks.lock(["a"]).unwrap();
                let wait = Wait::up_to(Duration::from_millis(20));
                timed_out(locks.wait(wait).lock(["a"]));
            }
        });
    });
}

/// The code of a blocking call sees the runtime that the caller is in.
#[test]
fn blocking_callbacks_are_in_the_runtime_of_their_caller() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let locks = blocking::LockingService::from(Rigged::new().service());
    let id = || tokio::runtime::Handle::current().id();
    let _here = runtime.enter();
    assert_eq!(locks.with_locks(["a"], || Ok::<_, ()>(id())).unwrap(), runtime.handle().id());
}

#[tokio::test(start_paused = true)]
async fn an_outage_for_the_whole_wait_is_no_waiting_for_others() {
    for dao in both_kinds() {
        let locks = dao.service();
        dao.always(Step::Acquire, Fault::Fails(BackendErrorKind::Unavailable));
        let outcome = locks.wait(Wait::up_to(5 * SECOND)).run_locked(["a"], async || {}).await;
        assert_eq!(timed_out(outcome).0.phase, Phase::Asking);
    }
}

#[tokio::test]
async fn the_longest_durations_are_waited() {
    let locks = Rigged::new().service();
    locks
        .wait(Wait::up_to(Duration::MAX))
        .max_hold(Duration::MAX)
        .run_locked(["a"], async || {})
        .await
        .unwrap();
    let held = locks.lock(["a"]).await.unwrap();
    for max in [Duration::MAX, Duration::from_secs(1 << 62), Duration::from_secs(1 << 50)] {
        let mut call = Box::pin(locks.wait(Wait::up_to(max)).max_hold(max).run_locked(["a"], async || {}));
        assert!(poll_once(call.as_mut()).is_pending());
        let mut call = Box::pin(
            locks
                .wait(Wait::retries_forever(lockcore::Interval { every: max, jitter: max }))
                .run_locked(["a"], async || {}),
        );
        assert!(poll_once(call.as_mut()).is_pending());
        let mut call = Box::pin(
            locks
                .wait(Wait::retries_forever(lockcore::Exponential { base: max, max }))
                .run_locked(["a"], async || {}),
        );
        assert!(poll_once(call.as_mut()).is_pending());
    }
    drop(held);
    assert_eq!(locks.shutdown(Duration::MAX).await, 0);
}

/// What is left of an offer counts from when it was made, however late it arrives; one that is over is not relied on.
#[tokio::test(start_paused = true)]
async fn an_offer_lasts_from_when_it_was_made() {
    let lasts = 4 * SECOND;
    for (by, whole) in [(Duration::ZERO, false), (2 * SECOND, false), (5 * SECOND, true)] {
        let dao = Rigged::new();
        let locks = dao.service();
        let holder = locks.lock(["a"]).await.unwrap();
        dao.once(Step::Acquire, Fault::OffersLate { lasts, by });
        dao.always(Step::Renew, Fault::Hangs);
        let waiting = locks.wait(Wait::forever()).lock(["a"]);
        let (guard, released) = tokio::join!(waiting, holder.release());
        released.unwrap();
        let guard = guard.unwrap();
        let left = guard.time_left().unwrap();
        assert_eq!(dao.count(Step::Acquire), 2 + usize::from(whole), "{by:?}");
        assert!(
            !left.is_zero() && (whole || left <= lasts - by),
            "{left:?} left of an offer that is {by:?} late"
        );
    }
}

/// A waiter whose notification does not arrive in time learns that it holds the set when it gives up.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_gives_up_gets_what_it_holds_by_now() {
    let dao = Rigged::new();
    let locks = dao.service();
    let holder = locks.lock(["a"]).await.unwrap();
    dao.once(Step::Acquire, Fault::OffersLate { lasts: SECOND, by: 3600 * SECOND });
    let waiting = locks.wait(Wait::up_to(10 * SECOND)).lock(["a"]);
    let (guard, released) = tokio::join!(waiting, holder.release());
    released.unwrap();
    guard.unwrap().release().await.unwrap();
}
