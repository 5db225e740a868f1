//! The steps of the DAO by a line that is cut, stalls and swallows, in either direction and at every message.

use std::sync::Arc;

use lockcore::{
    BackendErrorKind, LockDao,
    backend::{Acquired, Withdraw, Withdrawn},
};
use tokio::time::timeout;

use super::{FAULTS, Kind, Line, Mode, Remote, Route, SETTLED, STALLED, TestResult, until};
use crate::store::grant;

pub(super) async fn an_acquire_is_granted_or_settled<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
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

pub(super) async fn an_acquire_that_arrives_late_is_refused<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    let dao = line.dao().await?;
    let us = line.store.caller().through(&dao);
    let request = us.request(["a", "b"]);
    line.stall().await;
    let stuck = line.proxy.counts().requests;
    let error = dao.acquire(&request).await.expect_err("it is on its way for ever");
    assert!(error.in_doubt(), "{error:?}");
    line.proxy.counted(|counts| counts.requests > stuck).await;
    // The withdrawal takes another way and overtakes it.
    assert_eq!(line.store.caller().withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    line.arrives().await;
    assert!(line.store.is_free(&["a", "b"]).await);
    Ok(())
}

pub(super) async fn a_renewal_extends_or_says_that_it_did_not<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
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

pub(super) async fn a_renewal_that_arrives_after_the_release_changes_nothing<R: Remote>(
    kind: Kind,
) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    let dao = line.dao().await?;
    let us = line.store.caller().through(&dao);
    let held = us.take(["a", "b"]).await;
    line.stall().await;
    dao.renew(&held).await.expect_err("it is on its way for ever");
    let elsewhere = line.store.caller();
    elsewhere.free(&held).await;
    line.arrives().await;
    assert!(line.store.is_free(&["a", "b"]).await);
    Ok(())
}

pub(super) async fn a_release_is_done_in_the_end_and_once<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
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

pub(super) async fn a_release_that_arrives_late_frees_no_later_grant<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    let dao = line.dao().await?;
    let us = line.store.caller().through(&dao);
    let held = us.take(["a"]).await;
    line.stall().await;
    dao.release(&held).await.expect_err("it is on its way for ever");
    // The same context, by another way: released, and taken again.
    let again = us.through(line.store.dao());
    again.free(&held).await;
    let later = again.take(["a"]).await;
    line.arrives().await;
    again.keep(&later).await;
    again.free(&later).await;
    Ok(())
}

/// It is on its way until another has the lock: whether it came in time before it was cut off is not known, and so it
/// is not called done.
pub(super) async fn a_release_that_was_overtaken_is_not_reported_as_done<R: Remote>(
    kind: Kind,
) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    for fault in [Mode::DropRequests, STALLED] {
        let dao = line.dao().await?;
        let us = line.store.caller().with_lease(line.store.short()).through(&dao);
        let held = us.take(["a"]).await;
        line.proxy.set(fault).await;
        let next = line.store.caller();
        let overtaken = async {
            let turn = next.take_soon(["a"]).await;
            line.proxy.set(Mode::Pass).await;
            turn
        };
        let (answer, turn) = tokio::join!(timeout(SETTLED, dao.release(&held)), overtaken);
        match answer.expect("release ends") {
            Ok(released) => assert_eq!(released.lost.len(), 1, "{fault:?}: another holds it"),
            Err(error) => assert!(error.in_doubt(), "{fault:?}: {error:?}"),
        }
        next.free(&turn).await;
    }
    Ok(())
}

pub(super) async fn a_withdrawal_is_done_in_the_end<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
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
            assert!(line.store.is_free(&["a"]).await, "{fault:?}: it was handed to no waiter");
        }
    }
    Ok(())
}

/// The releaser's line fails while another waits.
pub(super) async fn a_hand_off_by_a_failing_line_takes_place<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    for fault in FAULTS {
        let dao = line.dao().await?;
        let us = line.store.caller().through(&dao);
        let held = us.take(["a"]).await;
        let waiter = line.store.caller();
        let mut waiting = waiter.queue(["a"]).await;
        line.proxy.set(fault).await;
        let turn = async {
            let turn = waiting.granted().await;
            waiter.free(&turn).await;
        };
        let release = async {
            let _ = timeout(SETTLED, dao.release(&held)).await.expect("release ends");
            line.proxy.set(Mode::Pass).await;
            until(fault, || async { dao.release(&held).await.ok() }).await;
        };
        // At once: an offer has to be confirmed within 2 s.
        tokio::join!(turn, release);
        assert!(line.store.is_free(&["a"]).await, "{fault:?}");
    }
    Ok(())
}

/// The only connection waits for an answer that does not come.
pub(super) async fn an_exhausted_pool_is_reported<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    let route = Route { connections: 1, ..line.bad.route.clone() };
    // Both requests time out together, so that once in a while the second still gets the connection of the first.
    for round in 0..10 {
        let dao = Arc::new(R::open(&route).await?);
        let us = line.store.caller().through(&dao);
        us.free(&us.take(["a", "b"]).await).await;
        line.stall().await;
        let (stuck, other) = (us.request(["a"]), line.store.caller().request(["b"]));
        let (stuck_ended, other_ended) = tokio::join!(dao.acquire(&stuck), dao.acquire(&other));
        let error = stuck_ended.expect_err("it is on its way for ever");
        assert!(error.in_doubt() && error.kind() == BackendErrorKind::Timeout, "{error:?}");
        let error = other_ended.expect_err("the only connection is in use");
        line.proxy.set(Mode::Pass).await;
        for request in [&stuck, &other] {
            until("a stall", || async { dao.withdraw(request, Withdraw::Undo).await.ok() }).await;
        }
        if !error.in_doubt() {
            assert_eq!(error.kind(), BackendErrorKind::Busy, "{error:?}");
            assert!(error.is_retryable(), "{error:?}");
            us.free(&us.take(["a", "b"]).await).await;
            return Ok(());
        }
        assert!(round < 9, "sent each time: {error:?}");
    }
    Ok(())
}
