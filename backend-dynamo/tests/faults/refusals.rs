//! The service refuses: throttling, conflicts, credentials, tables that will not do.

use lockcore::{BackendErrorKind, LockDao};
use lockcore_conformance::{eventually, servers::TestResult};

use crate::{
    front::{
        Fault,
        rig::{Rig, SET, impatient},
    },
    under,
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
        let error = dao.acquire(&fresh.request(["a"])).await.expect_err("nobody is there");
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
