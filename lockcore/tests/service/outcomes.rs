//! Every outcome is reported as what it is: to the caller, by `Held`, and to the hook.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockcore::{
    BackendErrorKind, BadRequest, BreakMode, Ended, Event, Failure, LockDao, LockError, LockingError,
    LockingService, LossReason, StoredContext, Target, Wait,
};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::rigged::{Fault, Rigged, Service, Step, poll_once};

const SECOND: Duration = Duration::from_secs(1);
const UNAVAILABLE: Fault = Fault::Fails(BackendErrorKind::Unavailable);

/// A service, and the names of the events that its hook received.
fn observed(dao: &Arc<Rigged>) -> (Service, Arc<Mutex<Vec<&'static str>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let locks = LockingService::builder(dao.clone()).on_event(move |event| {
        tell.lock().unwrap().push(match event {
            Event::Refused { .. } => "refused",
            Event::Lost { .. } => "lost",
            Event::ReleasedLate { .. } => "released late",
            Event::ReleaseFailed { .. } => "release failed",
            Event::RenewalFailed { .. } => "renewal failed",
            Event::WithdrawFailed { .. } => "withdraw failed",
            other => panic!("{other:?}"),
        });
    });
    (locks.build().unwrap(), told)
}

fn take(told: &Mutex<Vec<&'static str>>) -> Vec<&'static str> {
    std::mem::take(&mut told.lock().unwrap())
}

/// Another program removes what is locked.
fn steal_all(dao: &Rigged) {
    for lock in dao.memory.current() {
        for holder in lock.holders {
            let StoredContext::Known(context) = holder.context else { panic!("{holder:?}") };
            pollster::block_on(dao.memory.release_context(&context)).unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_callbacks_value_and_its_error_come_back_typed() {
    let (locks, told) = observed(&Rigged::new());
    assert_eq!(locks.with_locks(["a"], async || Ok::<_, io::Error>(7)).await.unwrap(), 7);
    match locks.with_locks(["a"], async || "x".parse::<u8>()).await {
        Err(LockingError::Callback { error }) => {
            assert_eq!(error.to_string(), "invalid digit found in string")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(locks.try_with_locks(["a"], async || Ok::<_, io::Error>(7)).await.unwrap(), 7);
    let error =
        locks.try_with_locks(["a"], async || Err::<(), _>(io::Error::other("mine"))).await.unwrap_err();
    assert_eq!(error.to_string(), "mine");
    assert_eq!(take(&told), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn not_locked_says_whether_it_is_contention_or_an_outage() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    let holder = locks.lock(["b", "c"]).await.unwrap();
    let error = locks.run_locked(["a", "b", "c"], async || {}).await.unwrap_err();
    let LockingError::NotLocked { failures, timed_out: None } = &error else { panic!("{error:?}") };
    assert_eq!(failures.len(), 2, "every id in the way, and no other");
    assert!(error.is_contention() && error.is_retryable());
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::WouldBlock);
    holder.release().await.unwrap();

    for (kind, retryable, io_kind) in [
        (BackendErrorKind::Unavailable, true, io::ErrorKind::NotConnected),
        (BackendErrorKind::Timeout, true, io::ErrorKind::TimedOut),
        (BackendErrorKind::Busy, true, io::ErrorKind::ResourceBusy),
        (BackendErrorKind::Denied, false, io::ErrorKind::PermissionDenied),
        (BackendErrorKind::Misconfigured, false, io::ErrorKind::Other),
        (BackendErrorKind::BadSetting, false, io::ErrorKind::InvalidInput),
    ] {
        dao.once(Step::Acquire, Fault::Fails(kind));
        let error = locks.run_locked(["a"], async || {}).await.unwrap_err();
        let LockingError::NotLocked { failures, timed_out: None } = &error else { panic!("{error:?}") };
        assert!(matches!(&failures[..], [Failure::Backend(error)] if error.kind() == kind));
        assert!(!error.is_contention());
        assert_eq!(error.is_retryable(), retryable);
        assert_eq!(io::Error::from(error).kind(), io_kind, "{kind:?}");
    }
    assert_eq!(take(&told), ["refused"; 7]);
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_a_success_and_reported() {
    for fault in [UNAVAILABLE, Fault::Hangs, Fault::DoneButHangs, Fault::AnswerLost, Fault::FreesNothing] {
        let dao = Rigged::new();
        let (locks, told) = observed(&dao);
        dao.once(Step::Release, fault);
        let started = Instant::now();
        assert_eq!(locks.run_locked(["a"], async || 7).await.unwrap(), 7, "{fault:?}");
        assert!(started.elapsed() <= 10 * SECOND, "{fault:?} took {:?}", started.elapsed());
        assert_eq!(take(&told), ["release failed"], "{fault:?}");
        assert_eq!(locks.shutdown(SECOND).await, 0);
        assert!(dao.memory.is_empty());
    }
}

/// A release waits for a third of the lease, whatever became of the renewal, and nothing is renewed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_release_waits_as_long_in_any_state_of_the_lease() {
    let renewals = [None, Some(Fault::Hangs), Some(UNAVAILABLE)];
    // Before the first renewal is due, just after, while it is tried again, and when the lease is lost.
    for (renewal, held) in
        renewals.iter().flat_map(|renewal| [9_900, 10_100, 25_000, 31_000].map(|held| (*renewal, held)))
    {
        for max_hold in [None, Some(5 * SECOND)] {
            let dao = Rigged::new();
            let (locks, told) = observed(&dao);
            if let Some(fault) = renewal {
                dao.always(Step::Renew, fault);
            }
            let call = locks.call().tell_when_lost();
            let call = if let Some(max_hold) = max_hold { call.max_hold(max_hold) } else { call };
            let guard = call.lock(["a"]).await.unwrap();
            sleep(Duration::from_millis(held)).await;
            dao.once(Step::Release, Fault::Hangs);
            let (started, renewed) = (Instant::now(), dao.count(Step::Renew));
            let _outcome = timeout(60 * SECOND, guard.release()).await.expect("it comes to its end");
            let case = format!("renewals {renewal:?}, held {held} ms, at most {max_hold:?}");
            let took = started.elapsed();
            assert!(took >= 10 * SECOND && took < 10 * SECOND + SECOND / 100, "{case}: {took:?}");
            assert!(take(&told).contains(&"release failed"), "{case}");
            assert_eq!(dao.count(Step::Renew), renewed, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn not_yours_before_the_lease_ended_is_a_loss_with_the_value() {
    for permanent in [false, true] {
        let dao = Rigged::new();
        let (locks, told) = observed(&dao);
        let call = || if permanent { locks.permanent() } else { locks.lease(30 * SECOND) };
        let Ended { value, lost } = call().outcome(["a"], async |_| steal_all(&dao)).await.unwrap();
        assert_eq!((value, lost.len(), lost[0].reason), (Some(()), 1, LossReason::Vanished));
        let result = call().with_locks(["a"], async || {
            steal_all(&dao);
            Err::<(), _>(io::Error::other("mine"))
        });
        match result.await {
            Err(LockingError::Lost { callback: Some(Err(error)), .. }) => {
                assert_eq!(error.to_string(), "mine")
            }
            other => panic!("{other:?}"),
        }
        let guard = call().lock(["a"]).await.unwrap();
        steal_all(&dao);
        assert!(matches!(guard.release().await, Err(LockingError::Lost { callback: Some(Ok(())), .. })));
        assert_eq!(take(&told), ["lost"; 3]);
    }
}

/// The callback blocks the only thread past its lease, so that the loss is not noticed: "not yours" is then no news.
#[tokio::test(start_paused = true)]
async fn not_yours_after_the_lease_ended_is_a_success_and_reported() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    let value = locks
        .lease(Duration::from_millis(200))
        .with_locks_sync(["a"], || {
            std::thread::sleep(Duration::from_millis(400));
            steal_all(&dao);
            Ok::<_, io::Error>(7)
        })
        .await;
    assert_eq!(value.unwrap(), 7);
    assert_eq!(take(&told), ["released late"]);
}

/// What was done under the lock had ended in time: no loss, though the release is answered after the lease. A break that it
/// tells of is one.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_answered_late_is_no_loss() {
    for (dropped, broken) in [(false, false), (true, false), (false, true)] {
        let dao = Rigged::new();
        let (locks, told) = observed(&dao);
        dao.always(Step::Renew, UNAVAILABLE);
        let guard = locks.lease(SECOND).lock(["a"]).await.unwrap();
        let fence = guard.held().fence("a");
        sleep(8 * SECOND / 10).await;
        dao.once(Step::Release, Fault::Takes(3 * SECOND / 10));
        if broken {
            locks.admin().break_lock(&Target::Id("a".to_owned()), fence, BreakMode::Now).await.unwrap();
        }
        take(&told);
        let released = match dropped {
            true => {
                drop(guard);
                Ok(())
            }
            false => guard.release().await,
        };
        assert_eq!(locks.shutdown(10 * SECOND).await, 0);
        match broken {
            false => released.unwrap(),
            true => drop(released.unwrap_err()),
        }
        assert_eq!(take(&told), [if broken { "lost" } else { "released late" }]);
    }
}

/// A guard that is dropped is released by several tries, of which one may find what another has freed.
#[tokio::test(start_paused = true)]
async fn what_another_try_has_freed_is_not_lost() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    dao.once(Step::Release, Fault::Takes(2 * SECOND));
    drop(locks.lock(["a"]).await.unwrap());
    sleep(5 * SECOND).await;
    assert_eq!((take(&told), dao.count(Step::Release)), (vec![], 2));
}

/// But to a callback that looked, and saw the loss, nothing else is reported later.
#[tokio::test(start_paused = true)]
async fn what_the_callback_saw_is_the_outcome() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    let call = locks.lease(Duration::from_millis(200)).with_held_locks_sync(["a"], |held| {
        std::thread::sleep(Duration::from_millis(400));
        held.check().map_err(|lost| io::Error::from(lost).to_string())
    });
    match call.await {
        Err(LockingError::Lost { lost, callback: Some(Err(message)) }) => {
            assert_eq!(lost[0].reason, LossReason::Expired);
            assert_eq!(message, "locks were lost: \"a\": its lease ended");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(take(&told), ["lost"]);
}

/// A callback that is stopped is a loss to the hook too, whichever side noticed first.
#[tokio::test(start_paused = true)]
async fn a_stopped_callback_is_reported_as_lost() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    dao.always(Step::Renew, Fault::Hangs);
    let busy = async || {
        loop {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let result: Result<(), _> = locks.lease(SECOND).run_locked(["a"], busy).await;
    match result {
        Err(LockingError::Lost { lost, callback: None }) => {
            assert_eq!(lost[0].reason, LossReason::Unreachable)
        }
        other => panic!("{other:?}"),
    }
    let told = take(&told);
    assert_eq!(told.last(), Some(&"lost"));
    assert!(told[..told.len() - 1].iter().all(|event| *event == "renewal failed"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn held_too_long_does_not_hide_a_loss() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    let hang = || locks.max_hold(5 * SECOND).run_locked(["a"], std::future::pending::<()>);
    assert!(matches!(hang().await, Err(LockingError::HeldTooLong { .. })));
    assert_eq!(take(&told), [""; 0]);
    let (result, ()) = tokio::join!(hang(), async {
        sleep(SECOND).await;
        steal_all(&dao);
    });
    assert!(matches!(result, Err(LockingError::Lost { callback: None, .. })), "{result:?}");
    assert_eq!(take(&told), ["lost"]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_lock_is_reported_as_broken() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    for how in [BreakMode::Now, BreakMode::AfterLease] {
        let result = locks.outcome(["a"], async |held| {
            let target = Target::Id("a".to_owned());
            locks.admin().break_lock(&target, held.fence("a"), how).await.unwrap();
            held.lost().await
        });
        // Stopped by the loss, unless it was the callback's own look that noticed it.
        let Ended { lost, .. } = result.await.unwrap();
        assert_eq!(lost[0].reason, LossReason::Broken, "{how:?}");
        assert!(dao.memory.is_empty());
    }
    assert_eq!(take(&told), ["lost"; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_shuts_down_refuses_and_waits_for_what_is_open() {
    let dao = Rigged::new();
    let (locks, _) = observed(&dao);
    let guard = locks.lock(["a"]).await.unwrap();
    assert_eq!(locks.shutdown(SECOND).await, 1);
    let refused: Result<(), LockError<String, Uuid>> = locks.run_locked(["b"], async || {}).await;
    assert!(matches!(refused, Err(LockingError::ShutDown)));
    let started = Instant::now();
    let (left, ()) = tokio::join!(locks.shutdown(60 * SECOND), async {
        sleep(SECOND).await;
        drop(guard);
    });
    assert_eq!((left, started.elapsed().as_secs()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn an_empty_set_runs_without_a_request() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    dao.always(Step::Acquire, Fault::Panics);
    let none: [&str; 0] = [];
    let call = locks.wait(Wait::forever()).with_held_locks(none, async |held| {
        held.check().unwrap();
        Ok::<_, io::Error>(held.locks().len())
    });
    assert_eq!(call.await.unwrap(), 0);
    locks.lock(none).await.unwrap().release().await.unwrap();
    assert_eq!((take(&told), dao.count(Step::Release)), (vec![], 0));
    assert!(matches!(locks.lock([""]).await, Err(LockingError::BadRequest(BadRequest::EmptyId))));
    assert_eq!(locks.shutdown(SECOND).await, 0);
}

/// A backend that grants less than it was asked for is not believed, and what it took is freed.
#[tokio::test(start_paused = true)]
async fn an_answer_that_lacks_a_lock_is_a_failure_of_the_backend() {
    for set in [vec!["a"], vec!["a", "b"]] {
        let dao = Rigged::new();
        let (locks, told) = observed(&dao);
        dao.once(Step::Acquire, Fault::TellsTooFew);
        let call = locks.wait(Wait::up_to(SECOND)).run_locked(&set, async || panic!("it does not run"));
        let error = call.await.unwrap_err();
        assert!(!error.is_contention() && !error.is_retryable(), "{error}");
        let LockingError::NotLocked { failures, timed_out: None } = error else { panic!("{error:?}") };
        let [Failure::Backend(error)] = &failures[..] else { panic!("{failures:?}") };
        let (has, wants) = (set.len() - 1, set.len());
        let bug = format!("a bug of the backend: {has} locks granted for {wants} claims");
        assert_eq!(error.to_string(), bug);
        assert_eq!(locks.shutdown(SECOND).await, 0);
        assert!(dao.memory.is_empty(), "what it took is withdrawn");
        assert_eq!(take(&told), ["refused"]);
    }
}

/// The same where a waiter whose time is over learns what it leaves with.
#[tokio::test(start_paused = true)]
async fn leaving_with_less_than_was_asked_for_is_leaving() {
    let dao = Rigged::new();
    let locks = dao.service();
    let holder = locks.lock(["a", "b"]).await.unwrap();
    // It has a place, and later the locks, but hears of them too late.
    dao.once(Step::Acquire, Fault::OffersLate { lasts: SECOND, by: SECOND * 2 });
    dao.once(Step::Withdraw, Fault::TellsTooFew);
    let waiting = locks.wait(Wait::up_to(SECOND)).run_locked(["a", "b"], async || panic!("it is not held"));
    let (waited, released) = tokio::join!(waiting, holder.release());
    released.unwrap();
    let LockingError::NotLocked { timed_out: Some(_), .. } = waited.unwrap_err() else {
        panic!("it was over")
    };
    assert_eq!(locks.shutdown(SECOND).await, 0);
    assert_eq!(dao.count(Step::Withdraw), 2, "what it left with is withdrawn");
    assert!(dao.memory.is_empty());
}

/// A caller that ends after a loss by dropping what it holds gets no report, but the hook does.
#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_though_its_guard_is_dropped() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    // Noticed by a renewal.
    let guard = locks.lock(["a"]).await.unwrap();
    steal_all(&dao);
    guard.lost().await;
    drop(guard);
    assert_eq!(take(&told), ["lost"]);
    // Noticed by the clock.
    dao.always(Step::Renew, Fault::Hangs);
    let guard = locks.lock(["a"]).await.unwrap();
    guard.lost().await;
    drop(guard);
    let events = take(&told);
    assert_eq!(events.iter().filter(|event| **event != "renewal failed").collect::<Vec<_>>(), [&"lost"]);
    dao.heal();
    // Found only by its release in the background.
    let guard = locks.lock(["a"]).await.unwrap();
    steal_all(&dao);
    drop(guard);
    assert_eq!(locks.shutdown(SECOND).await, 0);
    assert_eq!(take(&told), ["lost"]);
}

/// What is in order, or was reported before, is not reported as lost.
#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_once() {
    let dao = Rigged::new();
    let (locks, told) = observed(&dao);
    drop(locks.lock(["a"]).await.unwrap());
    assert_eq!(take(&told), [""; 0]);
    // Released, but the answer is lost: the release in the background finds nothing, and that is as it should be.
    dao.once(Step::Release, Fault::AnswerLost);
    locks.lock(["a"]).await.unwrap().release().await.unwrap();
    assert_eq!(take(&told), ["release failed"]);
    dao.once(Step::Release, Fault::AnswerLost);
    drop(locks.lock(["a"]).await.unwrap());
    sleep(SECOND).await;
    assert_eq!((take(&told), dao.count(Step::Release)), (vec![], 5));
    // Reported by the release, which fails: not reported again.
    let guard = locks.lock(["a"]).await.unwrap();
    steal_all(&dao);
    guard.lost().await;
    dao.once(Step::Release, UNAVAILABLE);
    assert!(matches!(guard.release().await, Err(LockingError::Lost { .. })));
    assert_eq!(locks.shutdown(SECOND).await, 0);
    assert_eq!(take(&told), ["release failed", "lost"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_in_its_release_is_not_reported_as_lost() {
    for lease in [None, Some(30 * SECOND)] {
        let dao = Rigged::new();
        let (locks, told) = observed(&dao);
        let call = || match lease {
            None => locks.permanent(),
            Some(lease) => locks.lease(lease),
        };
        dao.once(Step::Release, Fault::DoneButHangs);
        let mut running = Box::pin(call().with_locks(["a"], async || {}));
        assert!(poll_once(running.as_mut()).is_pending());
        drop(running);
        dao.once(Step::Release, Fault::DoneButHangs);
        let guard = call().lock(["a"]).await.unwrap();
        let mut releasing = Box::pin(guard.release());
        assert!(poll_once(releasing.as_mut()).is_pending());
        drop(releasing);
        assert_eq!(locks.shutdown(SECOND).await, 0);
        assert_eq!(*told.lock().unwrap(), [""; 0]);
    }
}
