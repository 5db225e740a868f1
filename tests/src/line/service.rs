//! The service by a line that fails: whatever a call says, nothing is left locked, and two never hold.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{Event, LockDao, LockError, LockingService, Wait};
use tokio::{sync::oneshot, time::timeout};

use super::{FAULTS, Kind, LONG, Line, Mode, NEVER, Place, Remote, Route, SETTLED, STALLED, TestResult};
use crate::{PATIENCE, Store, eventually, judge::in_time, store::id};

/// The offer is on its way to a waiter whose line fails.
pub(super) async fn a_lost_offer_is_found_again_or_passed_on<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    for fault in FAULTS {
        let locks = line.locks().await?;
        let holder = line.store.caller();
        let held = holder.take(["a"]).await;
        let has_run = Arc::new(AtomicBool::new(false));
        let ran = has_run.clone();
        let waiting = tokio::spawn(async move {
            let call = locks.wait(Wait::forever());
            let done = call.run_locked(["a"], async || ran.store(true, Ordering::SeqCst)).await;
            done.map_err(|error| format!("{error:?}"))
        });
        eventually("it waits", || async { (waiters(&line.store, "a").await == 1).then_some(()) }).await;
        let behind = line.store.caller();
        let mut next = behind.queue(["a"]).await;
        line.proxy.set(fault).await;
        holder.free(&held).await;
        // Behind the lost one or behind the found one: either way the one at the good line has its turn.
        let begun = Instant::now();
        if matches!(fault, Mode::CutAfter(_)) {
            let turn = next.granted().await;
            behind.free(&turn).await;
            line.proxy.set(Mode::Pass).await;
        } else {
            let turn = next.granted().await;
            in_time(begun.elapsed(), Duration::from_secs(8));
            if has_run.load(Ordering::SeqCst) {
                // Its release gets no answer. Did it arrive now, after another's turn, that would be reported, and rightly.
                eventually("a call ends without it", || async { waiting.is_finished().then_some(()) }).await;
            }
            line.proxy.set(Mode::Pass).await;
            behind.free(&turn).await;
        }
        timeout(PATIENCE, waiting).await.expect("the first has its turn")??;
        assert!(line.store.is_free(&["a"]).await, "{fault:?}");
    }
    Ok(())
}

/// All of it as a program sees it: whatever `with_locks` says, nothing is left locked once the line is good again.
pub(super) async fn with_locks_leaves_nothing_behind<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    for fault in FAULTS {
        let locks = line.locks().await?;
        line.proxy.set(fault).await;
        let outcome = timeout(SETTLED, locks.run_locked(["a", "b"], async || 7)).await.expect("it ends");
        line.proxy.set(Mode::Pass).await;
        match outcome {
            Ok(value) => assert_eq!(value, 7),
            Err(LockError::NotLocked { .. }) => {}
            Err(other) => panic!("{fault:?}: {other:?}"),
        }
        // Long before the lease ends.
        line.store.becomes_free(&["a", "b"]).await;
        assert_eq!(locks.shutdown(PATIENCE).await, 0, "{fault:?}");
    }
    Ok(())
}

/// The same for a future that is dropped while the line stalls.
pub(super) async fn a_dropped_call_leaves_nothing_behind<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    let unanswered = Mode::Delay { requests: Duration::ZERO, replies: NEVER };
    for fault in [Mode::DropRequests, Mode::DropReplies, STALLED, unanswered] {
        let locks = line.locks().await?;
        line.proxy.set(fault).await;
        let before = line.proxy.counts();
        let call = locks.with_locks(["a", "b"], async || ());
        let sent = line.proxy.counted(|counts| counts.requests > before.requests);
        tokio::select! {
            ended = call => panic!("{fault:?}: {ended:?}"),
            _ = sent => {}
        }
        line.proxy.set(Mode::Pass).await;
        line.store.becomes_free(&["a", "b"]).await;
        assert_eq!(locks.shutdown(PATIENCE).await, 0, "{fault:?}");
    }
    Ok(())
}

/// Renewal by a line that swallows everything: the callback is stopped before the lease ends, and the next holder is
/// never there beside it.
pub(super) async fn who_cannot_renew_is_stopped_before_the_next_one_holds<R: Remote>(
    kind: Kind,
) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    for fault in [Mode::DropRequests, Mode::DropReplies, Mode::Refuse] {
        let locks = line.locks().await?;
        let next = line.store.caller();
        let (inside, is_inside) = oneshot::channel();
        let (stopped, was_stopped) = oneshot::channel();
        let call = locks.lease(Duration::from_secs(2)).with_locks(["a"], async move || {
            let _tells = Stopped(Some(stopped));
            let _ = inside.send(());
            std::future::pending::<()>().await
        });
        let cut = async {
            is_inside.await.expect("it runs");
            line.proxy.set(fault).await;
            let turn = next.queue(["a"]).await.granted().await;
            (turn, Instant::now())
        };
        let (ended, at, (turn, begun)) = tokio::join!(call, was_stopped, cut);
        assert!(matches!(ended, Err(lockcore::LockingError::Lost { .. })), "{fault:?}: {ended:?}");
        let at = at.expect("it was stopped");
        assert!(at < begun, "{fault:?}: both held for {:?}", at.saturating_duration_since(begun));
        next.free(&turn).await;
        line.proxy.set(Mode::Pass).await;
    }
    Ok(())
}

/// Once warm: no ping, no prepare, no rollback, for any number of ids, and nothing else meanwhile.
pub(super) async fn with_locks_is_two_round_trips<R: Remote>(kind: Kind) -> TestResult {
    let each_way = Duration::from_millis(10);
    let line = Line::<R>::new(kind).await?;
    let locks = line.locks().await?;
    line.proxy.set(Mode::Delay { requests: each_way, replies: each_way }).await;
    for count in [1, 10, 100] {
        let ids: Vec<String> = (0..count).map(|number| format!("some/object/{number:03}")).collect();
        let mut requests = Vec::new();
        // What is asked for again may be asked for in another way, and each way has to be prepared the first time.
        for _ in 0..3 {
            locks.with_locks(&ids, async || ()).await?;
        }
        for _ in 0..7 {
            let (before, begun) = (line.proxy.counts(), Instant::now());
            locks.with_locks(&ids, async || ()).await?;
            assert!(begun.elapsed() >= each_way * 4, "the line is slow");
            requests.push(line.proxy.counts().requests - before.requests);
        }
        // A listener may have sent something. An answer may arrive in pieces: each request has one.
        let usual = requests.iter().filter(|&&count| count == 2).count();
        assert!(usual >= 6, "{count} ids: {requests:?} requests");
    }
    Ok(())
}

/// A renewal is one round trip, and calls that wait share their requests: figures for the book, which are printed.
pub(super) async fn renewals_and_waiting_cost_few_requests<R: Remote>(kind: Kind) -> TestResult {
    const WATCHED: Duration = Duration::from_secs(6);
    let line = Line::<R>::new(kind).await?;
    let dao = line.dao().await?;
    let caller = line.store.caller().through(&dao).with_lease(LONG);
    for count in [1, 10, 100] {
        let ids: Vec<String> = (0..count).map(|number| format!("some/object/{number:03}")).collect();
        let grant = caller.take(&ids).await;
        let mut fewest = u64::MAX;
        // A listener may send something in between.
        for _ in 0..5 {
            let before = line.proxy.counts().turns;
            caller.keep(&grant).await;
            fewest = fewest.min(line.proxy.counts().turns - before);
        }
        assert_eq!(fewest, 1, "{count} ids");
        caller.free(&grant).await;
    }
    let holder = line.store.caller().with_lease(LONG);
    let held = holder.take(["a"]).await;
    for waiters in [1, 32] {
        let dao = line.dao().await?;
        let mut places = Vec::new();
        for _ in 0..waiters {
            places.push(line.store.caller().through(&dao).with_lease(LONG).queue(["a"]).await);
        }
        let (before, begun) = (line.proxy.counts().requests, Instant::now());
        tokio::time::sleep(WATCHED).await;
        let (sent, passed) = (line.proxy.counts().requests - before, begun.elapsed());
        println!(
            "{kind:?}, {waiters} wait for an hour: {:.0} requests",
            sent as f64 / passed.as_secs_f64() * 3600.0
        );
        // Heartbeats, however many wait, and a look at the listener.
        assert!(sent <= 5 * (passed.as_secs() + 1), "{sent} requests in {passed:?}");
        for place in places {
            place.leave().await;
        }
    }
    holder.free(&held).await;
    Ok(())
}

/// While a program asked for nothing, its connections ended without its notice: its next call succeeds all the same, also one
/// that does not wait, and whether it listens or not.
pub(super) async fn a_connection_that_ended_while_it_was_idle_costs_no_call<R: Remote>(
    kind: Kind,
) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    for listen in [true, false] {
        let dao = R::open(&Route { listen, ..line.bad.route.clone() }).await?;
        let locks = LockingService::builder(dao).lease(LONG).wait(Wait::never()).build()?;
        locks.with_locks(["warm"], async || ()).await?;
        for round in 0..5 {
            line.proxy.forget();
            locks.with_locks(["a", "b"], async || ()).await?;
            let guard = locks.lock(["c"]).await?;
            line.proxy.forget();
            let seen = locks.admin().inspect(&id("c")).await?;
            assert_eq!(seen.holders.len(), 1, "round {round}");
            line.proxy.forget();
            guard.release().await?;
            line.store.becomes_free(&["c"]).await;
            // The next request arrives, and its answer is lost.
            line.proxy.set(Mode::CutAfter(1)).await;
            locks.with_locks(["a", "b"], async || ()).await?;
            line.proxy.set(Mode::Pass).await;
        }
        line.store.becomes_free(&["a", "b"]).await;
        assert_eq!(locks.shutdown(PATIENCE).await, 0);
    }
    Ok(())
}

/// A callback that ended within its lease has lost nothing though its release arrives after another has taken over.
pub(super) async fn what_ended_in_time_is_not_lost_by_a_slow_release<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    let lost = Arc::new(AtomicBool::new(false));
    let told = lost.clone();
    let locks = LockingService::builder(R::open(&line.bad.route).await?)
        .lease(line.store.short())
        .on_event(move |event| {
            told.fetch_or(matches!(event, Event::Lost { .. }), Ordering::SeqCst);
        })
        .build()?;
    locks.with_locks(["warm"], async || ()).await?;
    let (inside, is_inside) = oneshot::channel();
    let call = locks.run_locked(["a"], async || {
        line.stall().await;
        let _ = inside.send(());
        7
    });
    let next = line.store.caller();
    let taken_over = async {
        is_inside.await.expect("it runs");
        let turn = next.take_soon(["a"]).await;
        line.proxy.set(Mode::Pass).await;
        turn
    };
    let (outcome, turn) = tokio::join!(call, taken_over);
    assert_eq!(outcome?, 7);
    next.free(&turn).await;
    assert_eq!(locks.shutdown(PATIENCE).await, 0);
    assert!(!lost.load(Ordering::SeqCst), "it was reported as lost");
    Ok(())
}

/// Tells when it is dropped, which is when the callback is stopped.
struct Stopped(Option<oneshot::Sender<Instant>>);

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            let _ = tell.send(Instant::now());
        }
    }
}

/// How many wait for an id.
async fn waiters<R: Remote>(store: &Store<Place<R>>, name: &str) -> usize {
    store.dao().inspect(&id(name)).await.expect("the good line is good").waiters.len()
}
