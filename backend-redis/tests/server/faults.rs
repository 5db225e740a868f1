//! A line that is cut, stalls and swallows in either direction at every message: nobody holds what it does not know of.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore::{Acquired, BackendError, LockDao, LockError, Wait, Withdraw, Withdrawn};
use lockcore_conformance::{
    PATIENCE, Store, eventually,
    servers::{Kind, Mode, Proxy, Server, TestResult},
    store::grant,
};
use tokio::time::timeout;

use crate::{
    place::{Dao, Failure, Place},
    topology::Raw,
};

/// What is given up as unanswered, here; long enough for an answer on a loaded machine.
const TIMEOUT: Duration = Duration::from_millis(500);

/// More than any step may take: a few timeouts and reconnections.
const SETTLED: Duration = Duration::from_secs(15);

const NEVER: Duration = Duration::from_secs(3600);

/// What happens to the line: each way for a while, and cut after each of the next messages.
const FAULTS: [Mode; 10] = [
    Mode::CutAfter(1),
    Mode::CutAfter(2),
    Mode::CutAfter(3),
    Mode::CutAfter(4),
    Mode::DropRequests,
    Mode::DropReplies,
    Mode::Delay { requests: NEVER, replies: Duration::ZERO },
    Mode::Delay { requests: Duration::ZERO, replies: NEVER },
    Mode::Reset,
    Mode::Refuse,
];

/// A server with a bad line to it, and the good one by which the test sees what is so.
struct Line {
    _server: Server,
    proxy: Proxy,
    good: Place,
    /// By the bad line.
    place: Place,
    /// By the good one.
    store: Store<Place>,
    raw: Raw,
}

impl Line {
    async fn new() -> Result<Self, Failure> {
        let server = Server::start(Kind::Redis).await?;
        let proxy = Proxy::start(server.address()).await?;
        let good = Place::at(server.url());
        let place = good.through(server.url_through(proxy.address())).patient_for(TIMEOUT);
        let (store, raw) = (good.store().await, good.raw().await?);
        Ok(Line { _server: server, proxy, good, place, store, raw })
    }

    /// A DAO at the bad end that has been at work.
    async fn dao(&self) -> Result<Arc<Dao>, BackendError> {
        let dao = Arc::new(self.place.open().await?);
        let caller = self.store.caller().through(&dao);
        let grant = caller.take(["warm"]).await;
        caller.free(&grant).await;
        Ok(dao)
    }

    /// How many scripts the server has run.
    async fn scripts(&self) -> u64 {
        let stats: String = self.raw.send(&["INFO", "commandstats"]).await.expect("the good line is good");
        let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.filter_map(|line| line.split(',').next()?.parse::<u64>().ok()).sum()
    }
}

pub(crate) async fn an_acquire_is_granted_or_settled() -> TestResult {
    let line = Line::new().await?;
    for fault in FAULTS {
        let dao = line.dao().await?;
        let us = line.store.caller().through(&dao);
        let request = us.request(["a", "b"]);
        line.proxy.set(fault).await;
        let answer = timeout(SETTLED, dao.acquire(&request)).await.expect("acquire ends");
        match answer {
            Ok(Acquired::Granted(granted)) => {
                line.proxy.set(Mode::Pass).await;
                line.store.caller().refused(["a"]).await;
                let held = grant(&request, granted);
                until(fault, || async { dao.release(&held).await.ok() }).await;
            }
            Ok(other) => panic!("{fault:?}: {other:?}"),
            Err(error) => {
                if !error.in_doubt() {
                    assert!(line.store.is_free(&["a", "b"]).await, "{fault:?}: {error} was in doubt");
                }
                line.proxy.set(Mode::Pass).await;
                let left = until(fault, || async { dao.withdraw(&request, Withdraw::Undo).await.ok() }).await;
                assert_eq!(left, Withdrawn::Left);
                us.refused_as_withdrawn(&request).await;
            }
        }
        assert!(line.store.is_free(&["a", "b"]).await, "{fault:?}");
    }
    Ok(())
}

pub(crate) async fn an_acquire_that_arrives_late_is_refused() -> TestResult {
    let line = Line::new().await?;
    let dao = line.dao().await?;
    let us = line.store.caller().through(&dao);
    let request = us.request(["a", "b"]);
    line.proxy.set(Mode::Delay { requests: NEVER, replies: Duration::ZERO }).await;
    let stuck = line.proxy.counts().requests;
    let error = dao.acquire(&request).await.expect_err("it is on its way for ever");
    assert!(error.in_doubt(), "{error:?}");
    line.proxy.counted(|counts| counts.requests > stuck).await;
    // The withdrawal takes another way and overtakes it.
    assert_eq!(line.store.caller().withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    let before = line.scripts().await;
    line.proxy.set(Mode::Pass).await;
    eventually("it arrives", || async { (line.scripts().await > before).then_some(()) }).await;
    assert!(line.store.is_free(&["a", "b"]).await);
    Ok(())
}

pub(crate) async fn a_renewal_extends_or_says_that_it_did_not() -> TestResult {
    let line = Line::new().await?;
    for fault in FAULTS {
        let dao = line.dao().await?;
        let us = line.store.caller().through(&dao);
        let held = us.take(["a", "b"]).await;
        line.proxy.set(fault).await;
        let answer = timeout(SETTLED, dao.renew(&held)).await.expect("renew ends");
        if let Ok(renewed) = answer {
            assert_eq!(renewed.lost, [], "{fault:?}");
        }
        line.proxy.set(Mode::Pass).await;
        let renewed = until(fault, || async { dao.renew(&held).await.ok() }).await;
        assert_eq!(renewed.lost, [], "{fault:?}");
        us.free(&held).await;
    }
    Ok(())
}

pub(crate) async fn a_renewal_that_arrives_after_the_release_changes_nothing() -> TestResult {
    let line = Line::new().await?;
    let dao = line.dao().await?;
    let us = line.store.caller().through(&dao);
    let held = us.take(["a", "b"]).await;
    line.proxy.set(Mode::Delay { requests: NEVER, replies: Duration::ZERO }).await;
    dao.renew(&held).await.expect_err("it is on its way for ever");
    let elsewhere = line.store.caller();
    elsewhere.free(&held).await;
    let before = line.scripts().await;
    line.proxy.set(Mode::Pass).await;
    eventually("it arrives", || async { (line.scripts().await > before).then_some(()) }).await;
    assert!(line.store.is_free(&["a", "b"]).await);
    Ok(())
}

pub(crate) async fn a_release_is_done_in_the_end_and_once() -> TestResult {
    let line = Line::new().await?;
    for fault in FAULTS {
        let dao = line.dao().await?;
        let us = line.store.caller().through(&dao);
        let held = us.take(["a", "b"]).await;
        line.proxy.set(fault).await;
        let answer = timeout(SETTLED, dao.release(&held)).await.expect("release ends");
        line.proxy.set(Mode::Pass).await;
        if answer.is_ok() {
            assert!(line.store.is_free(&["a", "b"]).await, "{fault:?}");
        } else {
            until(fault, || async { dao.release(&held).await.ok() }).await;
        }
        assert!(line.store.is_free(&["a", "b"]).await, "{fault:?}");
    }
    Ok(())
}

pub(crate) async fn a_release_that_arrives_late_frees_no_later_grant() -> TestResult {
    let line = Line::new().await?;
    let dao = line.dao().await?;
    let us = line.store.caller().through(&dao);
    let held = us.take(["a"]).await;
    line.proxy.set(Mode::Delay { requests: NEVER, replies: Duration::ZERO }).await;
    dao.release(&held).await.expect_err("it is on its way for ever");
    // The same context, by another way: released, and taken again.
    let good = Arc::new(line.good.open().await?);
    let again = us.through(&good);
    again.free(&held).await;
    let later = again.take(["a"]).await;
    let before = line.scripts().await;
    line.proxy.set(Mode::Pass).await;
    eventually("it arrives", || async { (line.scripts().await > before).then_some(()) }).await;
    again.keep(&later).await;
    again.free(&later).await;
    Ok(())
}

pub(crate) async fn a_withdrawal_is_done_in_the_end() -> TestResult {
    let line = Line::new().await?;
    for fault in FAULTS {
        for how in [Withdraw::Undo, Withdraw::KeepIfGranted] {
            let dao = line.dao().await?;
            let holder = line.store.caller();
            let held = holder.take(["a"]).await;
            let us = line.store.caller().through(&dao);
            let waiting = us.queue(["a"]).await;
            line.proxy.set(fault).await;
            // Whether it failed or not: done again it has the same end.
            let _ = timeout(SETTLED, dao.withdraw(&waiting.request, how)).await.expect("withdraw ends");
            line.proxy.set(Mode::Pass).await;
            let left = until(fault, || async { dao.withdraw(&waiting.request, how).await.ok() }).await;
            assert_eq!(left, Withdrawn::Left, "{fault:?}");
            holder.free(&held).await;
            assert!(line.store.is_free(&["a"]).await, "{fault:?}: it was handed to nobody");
        }
    }
    Ok(())
}

/// The offer is on its way to a waiter whose line fails.
pub(crate) async fn a_lost_offer_is_found_again_or_passed_on() -> TestResult {
    let line = Line::new().await?;
    for fault in FAULTS {
        let locks = line.place.locks().await?;
        let holder = line.store.caller();
        let held = holder.take(["a"]).await;
        let waiting = tokio::spawn(async move {
            let done = locks.wait(Wait::forever()).run_locked(["a"], async || Instant::now()).await;
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
            timeout(PATIENCE, waiting).await.expect("the first has its turn")??;
            line.proxy.set(Mode::Pass).await;
            let turn = next.granted().await;
            behind.free(&turn).await;
        } else {
            let turn = next.granted().await;
            assert!(begun.elapsed() < Duration::from_secs(6), "{fault:?}: {:?}", begun.elapsed());
            line.proxy.set(Mode::Pass).await;
            behind.free(&turn).await;
            timeout(PATIENCE, waiting).await.expect("the first has its turn")??;
        }
        assert!(line.store.is_free(&["a"]).await, "{fault:?}");
    }
    Ok(())
}

/// The releaser's line fails while somebody waits.
pub(crate) async fn a_hand_off_by_a_failing_line_takes_place() -> TestResult {
    let line = Line::new().await?;
    for fault in FAULTS {
        let dao = line.dao().await?;
        let us = line.store.caller().through(&dao);
        let held = us.take(["a"]).await;
        let waiter = line.store.caller();
        let mut waiting = waiter.queue(["a"]).await;
        line.proxy.set(fault).await;
        let _ = timeout(SETTLED, dao.release(&held)).await.expect("release ends");
        line.proxy.set(Mode::Pass).await;
        until(fault, || async { dao.release(&held).await.ok() }).await;
        let turn = waiting.granted().await;
        waiter.free(&turn).await;
        assert!(line.store.is_free(&["a"]).await, "{fault:?}");
    }
    Ok(())
}

/// All of it as a program sees it: whatever `with_locks` says, nothing is left locked once the line is good again.
pub(crate) async fn with_locks_leaves_nothing_behind() -> TestResult {
    let line = Line::new().await?;
    for fault in FAULTS {
        let locks = line.place.locks().await?;
        locks.with_locks(["warm"], async || ()).await?;
        line.proxy.set(fault).await;
        let begun = Instant::now();
        let outcome = timeout(SETTLED, locks.run_locked(["a", "b"], async || 7)).await.expect("it ends");
        line.proxy.set(Mode::Pass).await;
        match outcome {
            Ok(value) => assert_eq!(value, 7),
            Err(LockError::NotLocked { .. }) => {}
            Err(other) => panic!("{fault:?}: {other:?}"),
        }
        line.store.becomes_free(&["a", "b"]).await;
        assert!(begun.elapsed() < SETTLED, "{fault:?}: not by the lease: {:?}", begun.elapsed());
        assert_eq!(locks.shutdown(PATIENCE).await, 0, "{fault:?}");
    }
    Ok(())
}

/// The same for a future that is dropped while the line stalls.
pub(crate) async fn a_dropped_call_leaves_nothing_behind() -> TestResult {
    let line = Line::new().await?;
    for fault in [
        Mode::DropRequests,
        Mode::DropReplies,
        Mode::Delay { requests: NEVER, replies: Duration::ZERO },
        Mode::Delay { requests: Duration::ZERO, replies: NEVER },
    ] {
        let locks = line.place.locks().await?;
        locks.with_locks(["warm"], async || ()).await?;
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
pub(crate) async fn who_cannot_renew_is_stopped_before_the_next_one_holds() -> TestResult {
    let line = Line::new().await?;
    for fault in [Mode::DropRequests, Mode::DropReplies, Mode::Refuse] {
        let locks = line.place.locks().await?;
        let next = line.store.caller();
        let (inside, is_inside) = tokio::sync::oneshot::channel();
        let (stopped, was_stopped) = tokio::sync::oneshot::channel();
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
        assert!(matches!(ended, Err(LockError::Lost { .. })), "{fault:?}: {ended:?}");
        let at = at.expect("it was stopped");
        assert!(at < begun, "{fault:?}: both held for {:?}", at.saturating_duration_since(begun));
        next.free(&turn).await;
        line.proxy.set(Mode::Pass).await;
    }
    Ok(())
}

/// Tells when it is dropped, which is when the callback is stopped.
struct Stopped(Option<tokio::sync::oneshot::Sender<Instant>>);

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            let _ = tell.send(Instant::now());
        }
    }
}

/// Does it again until it is done, as the service does in the background.
async fn until<T, F: Future<Output = Option<T>>>(fault: Mode, again: impl FnMut() -> F) -> T {
    eventually(&format!("done after {fault:?}"), again).await
}

/// How many wait for an id.
async fn waiters(store: &Store<Place>, id: &str) -> usize {
    let seen = store.dao().inspect(&lockcore_conformance::store::id(id)).await;
    seen.expect("the good line is good").waiters.len()
}
