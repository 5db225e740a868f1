//! Sets of more ids than one transaction takes: refused, or taken in chunks and given back as a whole.

use std::sync::Arc;

use lockcore::{
    BackendErrorKind, BadRequest, LockDao, LockingError, LockingService,
    backend::{Withdraw, Withdrawn},
};
use lockcore_conformance::servers::{Kind, TestResult, Trial, trial};
use lockcore_dynamo::{DynamoBuilder, LargeSets};
use uuid::Uuid;

use crate::engine::front::{Fault, rig::Rig};

type Builder = DynamoBuilder<String, Uuid>;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial(Kind::DynamoDb, "large_sets::they_are_refused_before_anything_is_sent", refused),
        trial(Kind::DynamoDb, "large_sets::chunks_are_taken_renewed_and_freed", chunks),
        trial(Kind::DynamoDb, "large_sets::a_refused_chunk_gives_all_back", given_back),
        trial(Kind::DynamoDb, "large_sets::a_failed_chunk_gives_all_back", failed),
        trial(Kind::DynamoDb, "large_sets::what_a_refused_chunk_cannot_give_back_is_in_doubt", stuck),
        trial(Kind::DynamoDb, "large_sets::a_chunk_that_cannot_be_freed_keeps_no_other", half_freed),
        trial(Kind::DynamoDb, "large_sets::chunks_have_room_for_strict_fences", strict),
    ]
}

fn large(max: usize) -> impl FnOnce(Builder) -> Builder {
    move |builder| builder.large_sets(LargeSets::Chunks { max })
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:04}")).collect()
}

async fn refused() -> TestResult {
    let rig = Rig::new().await?;
    let dao = Arc::into_inner(rig.dao).expect("no other has it");
    let locks = LockingService::new(dao);
    let outcome = locks.with_locks(ids(101), || async { Ok::<_, std::io::Error>(()) }).await;
    let Err(LockingError::BadRequest(BadRequest::TooManyIds { count: 101, max: 100, .. })) = outcome else {
        panic!("not refused: {outcome:?}");
    };
    assert!(rig.front.counted().is_empty(), "nothing was sent");
    Ok(())
}

async fn chunks() -> TestResult {
    let rig = Rig::with(large(1000)).await?;
    let caller = rig.caller();
    let grant = caller.take(ids(250)).await;
    assert_eq!(rig.front.counted()["TransactWriteItems"], 3);
    rig.caller().refused(["0249"]).await;
    caller.keep(&grant).await;
    assert_eq!(rig.front.counted()["TransactWriteItems"], 3);
    caller.free(&grant).await;
    rig.caller().take(ids(250)).await;
    Ok(())
}

async fn given_back() -> TestResult {
    let rig = Rig::with(large(1000)).await?;
    let (holder, caller) = (rig.caller(), rig.caller());
    holder.take(["0150", "0249"]).await;
    let before = caller.take(["0003"]).await;
    let conflicts = caller.refused(ids(250)).await;
    assert_eq!(conflicts.len(), 2, "of every chunk: {conflicts:?}");
    caller.keep(&before).await;
    rig.caller().refused(["0003"]).await;
    let rest = ids(250).into_iter().filter(|id| !["0003", "0150", "0249"].contains(&id.as_str()));
    rig.caller().take(rest.collect::<Vec<_>>()).await;
    Ok(())
}

async fn failed() -> TestResult {
    let rig = Rig::with(large(1000)).await?;
    let caller = rig.caller();
    // The second chunk is denied, and what was taken given back.
    rig.front.next("TransactWriteItems", Fault::Pass, 1);
    rig.front.next("TransactWriteItems", Fault::Refuse(400, "AccessDeniedException"), 1);
    let request = caller.request(ids(150));
    let error = rig.dao.acquire(&request).await.expect_err("the second chunk is denied");
    assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Denied, false), "{error}");
    let taken = rig.caller().take(ids(150)).await;
    rig.caller().free(&taken).await;
    // Nothing can be given back either: then it is in doubt, and the caller withdraws.
    rig.front.next("TransactWriteItems", Fault::Pass, 1);
    rig.front.next("TransactWriteItems", Fault::Refuse(400, "AccessDeniedException"), 2);
    let error = rig.dao.acquire(&request).await.expect_err("the second chunk is denied");
    assert!(error.in_doubt(), "{error:?}");
    assert_eq!(caller.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    rig.caller().take(ids(150)).await;
    Ok(())
}

async fn stuck() -> TestResult {
    let rig = Rig::with(large(1000)).await?;
    let (holder, caller) = (rig.store.caller(), rig.caller());
    let held = holder.take(["0120"]).await;
    rig.front.next("TransactWriteItems", Fault::Pass, 2);
    rig.front.next("TransactWriteItems", Fault::Refuse(400, "AccessDeniedException"), 1);
    let request = caller.request(ids(150));
    let error = rig.dao.acquire(&request).await.expect_err("what was taken cannot be given back");
    assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Denied, true), "{error}");
    assert_eq!(caller.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    holder.free(&held).await;
    rig.caller().take(ids(150)).await;
    Ok(())
}

async fn strict() -> TestResult {
    let rig = Rig::with(|builder| large(1000)(builder.strict_fence(true))).await?;
    let caller = rig.caller();
    let grant = caller.take(ids(120)).await;
    assert_eq!(rig.front.counted()["TransactWriteItems"], 3, "50 ids and their fences at a time");
    caller.keep(&grant).await;
    caller.free(&grant).await;
    assert_eq!(rig.front.counted()["TransactWriteItems"], 4, "two each");
    rig.caller().take(["0119"]).await;
    // Of the last chunk nothing is had, and the two before it are given back.
    let conflicts = rig.caller().refused(ids(120)).await;
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    rig.caller().take(ids(119)).await;
    Ok(())
}

async fn half_freed() -> TestResult {
    let rig = Rig::with(large(1000)).await?;
    let caller = rig.caller();
    let grant = caller.take(ids(250)).await;
    rig.front.next("TransactWriteItems", Fault::Pass, 1);
    rig.front.next("TransactWriteItems", Fault::Refuse(400, "AccessDeniedException"), 1);
    let released = caller.release(&grant).await;
    assert_eq!(released.failed.len(), 100, "the second chunk: {released:?}");
    assert!(released.failed.iter().all(|(_, error)| error.kind() == BackendErrorKind::Denied));
    let next = rig.store.caller();
    next.take(&ids(250)[..100]).await;
    next.take(&ids(250)[200..]).await;
    rig.store.caller().refused(["0150"]).await;
    Ok(())
}
