//! The service refuses: throttling, conflicts, credentials, tables that will not do.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use lockcore::{BackendErrorKind, Claim, ConflictReason, LockDao};
use lockcore_conformance::{eventually, servers::TestResult};
use tokio::sync::Notify;

use super::{removals::Collector, under};
use crate::engine::front::{
    Fault,
    rig::{Rig, SET, impatient},
};

pub(super) async fn throttling_is_waited_out() -> TestResult {
    let rig = Rig::new().await?;
    for code in ["ThrottlingException", "ProvisionedThroughputExceededException", "RequestLimitExceeded"] {
        for ids in [&SET[..1], &SET] {
            let grant = under(&rig, ids, Fault::Refuse(400, code), Fault::Refuse(400, code), 2).await;
            let requests: usize = rig.front.counted().values().sum();
            assert_eq!(requests, 3, "{code}");
            rig.caller().free(&grant).await;
            rig.front.counted();
        }
    }
    Ok(())
}

pub(super) async fn throttling_to_the_end_is_busy_and_never_held() -> TestResult {
    let rig = Rig::with(impatient).await?;
    for operation in ["UpdateItem", "TransactWriteItems"] {
        rig.front.next(operation, Fault::Refuse(400, "ThrottlingException"), usize::MAX);
    }
    for ids in [&SET[..1], &SET] {
        let error = rig.acquire(ids).await.expect_err("it is throttled");
        assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Busy, false), "{error}");
        assert!(error.is_retryable());
    }
    rig.front.lift();
    rig.caller().take(SET).await;
    Ok(())
}

pub(super) async fn conflicts_of_transactions_are_tried_again() -> TestResult {
    let rig = Rig::with(impatient).await?;
    let single = Fault::Refuse(400, "TransactionConflictException");
    for ids in [&SET[..1], &SET] {
        for reason in ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"] {
            let grant = under(&rig, ids, single.clone(), Fault::Cancel(reason), 3).await;
            rig.caller().free(&grant).await;
        }
    }
    rig.front.next("UpdateItem", single, usize::MAX);
    rig.front.next("TransactWriteItems", Fault::Cancel("TransactionConflict"), usize::MAX);
    for ids in [&SET[..1], &SET] {
        let error = rig.acquire(ids).await.expect_err("it never gets through");
        assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Busy, false), "{error}");
    }
    Ok(())
}

pub(super) async fn a_connection_that_is_refused_is_certain() -> TestResult {
    let rig = Rig::with(impatient).await?;
    let fresh = rig.caller();
    let Rig { front, dao, .. } = rig;
    let address = front.address;
    drop(front);
    eventually("the front is gone", || async {
        tokio::net::TcpStream::connect(address).await.is_err().then_some(())
    })
    .await;
    let error = eventually("no connection is left", || async {
        let error = dao.acquire(&fresh.request(["a"])).await.expect_err("nothing listens there");
        (!error.in_doubt()).then_some(error)
    })
    .await;
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    Ok(())
}

pub(super) async fn expired_credentials_are_denied() -> TestResult {
    let rig = Rig::new().await?;
    for code in ["ExpiredTokenException", "UnrecognizedClientException", "AccessDeniedException"] {
        rig.front.next("UpdateItem", Fault::Refuse(400, code), usize::MAX);
        let error = rig.acquire(&["a"]).await.expect_err("it is refused");
        assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Denied, false), "{error}");
        assert!(!error.is_retryable() && error.to_string().contains(code), "{error}");
        assert_eq!(rig.front.counted()["UpdateItem"], 1, "trying again would not help");
        rig.front.lift();
    }
    rig.caller().take(["a"]).await;
    Ok(())
}

/// An item takes 400 KB at most, and every holder of an id adds to it: no fault of the table's set-up, and it ends as
/// holders leave.
pub(super) async fn an_item_that_is_full_is_reported_as_such() -> TestResult {
    let rig = Rig::new().await?;
    Collector::of(&rig).fill("a", 409_500).await;
    for ids in [&SET[..1], &SET] {
        let error = rig.acquire(ids).await.expect_err("there is no room for another holder");
        assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Busy, false), "{error}");
        assert!(error.to_string().contains("400 KB"), "{error}");
    }
    let spent: usize = rig.front.counted().values().sum();
    assert_eq!(spent, 2, "the same request again would not help");
    Ok(())
}

/// The permit that a caller saw free still is, when its write arrives; but as many as its limit are taken by then.
pub(super) async fn a_join_counts_what_came_in_between() -> TestResult {
    let rig = Rig::new().await?;
    let [first, second, third] = rig.store.callers();
    let slot = |limit| Claim::slots("a", limit);
    let pair = first.take([slot(3).permits(2)]).await;
    // Ahead, so that its fence and its end are above those of the others: only the count is in its way.
    rig.front.shift_date(3);
    let ahead = rig.other().await;
    let gate = Arc::new(Notify::new());
    rig.front.counted();
    rig.front.next("UpdateItem", Fault::Pass, 1);
    rig.front.next("UpdateItem", Fault::Wait(gate.clone()), 1);
    let joining = tokio::spawn(async move { ahead.try_take([slot(3)]).await });
    let seen = AtomicUsize::new(0);
    eventually("it has looked, and is about to join", || async {
        let more = rig.front.counted().get("UpdateItem").copied().unwrap_or(0);
        (seen.fetch_add(more, SeqCst) + more == 2).then_some(())
    })
    .await;
    let next = second.take([slot(6)]).await;
    third.take([slot(6)]).await;
    second.free(&next).await;
    gate.notify_one();
    let conflicts = joining.await?.expect_err("three are held of three");
    assert!(matches!(conflicts[0].reason, ConflictReason::Held { in_use: 3, .. }), "{conflicts:?}");
    first.free(&pair).await;
    rig.caller().take([slot(3)]).await;
    Ok(())
}
