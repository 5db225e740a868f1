//! Failures and lost answers, before the write took place and after.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore::{
    BackendErrorKind, Claim, Grant, LockDao, LockingService,
    backend::{Acquired, Withdraw, Withdrawn},
};
use lockcore_conformance::{eventually, judge::in_time, servers::TestResult};
use tokio::sync::Notify;
use uuid::Uuid;

use super::under;
use crate::engine::front::{
    Fault,
    rig::{Rig, SET, impatient, operation_of},
};

pub(super) async fn a_failure_before_the_write_is_tried_again() -> TestResult {
    let rig = Rig::new().await?;
    for (status, code) in [(500, "InternalServerError"), (503, "ServiceUnavailable"), (502, "Whatever")] {
        for ids in [&SET[..1], &SET] {
            let fault = Fault::Refuse(status, code);
            let grant = under(&rig, ids, fault.clone(), fault, 2).await;
            rig.caller().free(&grant).await;
        }
    }
    Ok(())
}

pub(super) async fn a_failure_after_the_write_is_found_to_be_a_success() -> TestResult {
    let rig = Rig::new().await?;
    for ids in [&SET[..1], &SET] {
        let fault = Fault::DoAndRefuse(500, "InternalServerError");
        let grant = under(&rig, ids, fault.clone(), fault, 1).await;
        assert_is_held(&rig, &grant).await;
        rig.caller().free(&grant).await;
        let next = rig.caller().take(ids.iter().copied()).await;
        rig.caller().free(&next).await;
    }
    Ok(())
}

/// The service may compare a repeat with what it knows by its token more strictly than by what both of them say.
pub(super) async fn a_repeat_that_the_service_does_not_know_again_is_tried_with_another_token() -> TestResult
{
    let rig = Rig::new().await?;
    let refused_after = |done| {
        rig.front.next("TransactWriteItems", done, 1);
        rig.front.next("TransactWriteItems", Fault::Refuse(400, "IdempotentParameterMismatchException"), 1);
    };
    for done in [Fault::DoAndRefuse(500, "InternalServerError"), Fault::Refuse(500, "InternalServerError")] {
        let caller = rig.caller();
        refused_after(done.clone());
        let grant = caller.take(SET).await;
        assert_is_held(&rig, &grant).await;
        refused_after(done.clone());
        caller.keep(&grant).await;
        refused_after(done);
        caller.free(&grant).await;
    }
    Ok(())
}

pub(super) async fn a_lost_answer_is_found_to_be_a_success() -> TestResult {
    let rig = Rig::with(impatient).await?;
    for ids in [&SET[..1], &SET] {
        let grant = under(&rig, ids, Fault::LoseAnswer, Fault::LoseAnswer, 1).await;
        assert_is_held(&rig, &grant).await;
        rig.caller().free(&grant).await;
    }
    Ok(())
}

pub(super) async fn a_release_whose_answer_is_lost_is_one() -> TestResult {
    let rig = Rig::with(impatient).await?;
    for fault in [Fault::LoseAnswer, Fault::DoAndRefuse(500, "InternalServerError")] {
        for ids in [&SET[..1], &SET] {
            let caller = rig.caller();
            let grant = caller.take(ids.iter().copied()).await;
            rig.front.next(operation_of(ids.len()), fault.clone(), 1);
            caller.free(&grant).await;
        }
    }
    Ok(())
}

/// What it freed is another's by the time it asks again: it cannot tell that from a loss, and does not say that it is one.
pub(super) async fn a_release_after_whose_lost_answer_another_takes_the_ids_is_no_loss() -> TestResult {
    let rig = Rig::new().await?;
    for ids in [&SET[..1], &SET] {
        let (caller, next) = (rig.caller(), rig.store.caller());
        let grant = caller.take(ids.iter().copied()).await;
        let gate = Arc::new(Notify::new());
        let fault = Fault::DoAndWait(gate.clone(), 500, "InternalServerError");
        rig.front.next(operation_of(ids.len()), fault, 1);
        let taken = async {
            let taken = next.take_soon(ids.iter().copied()).await;
            gate.notify_one();
            taken
        };
        let (released, taken) = tokio::join!(rig.dao.release(&grant), taken);
        match released {
            // The service knows a transaction again for some minutes.
            Ok(released) => assert_eq!((ids.len(), released.lost), (SET.len(), Vec::new())),
            Err(error) => {
                assert_eq!(
                    (error.kind(), error.in_doubt()),
                    (BackendErrorKind::Unavailable, true),
                    "{error}"
                );
            }
        }
        next.free(&taken).await;
    }
    Ok(())
}

/// As the rest is still there, the try without an answer was not done: what is gone was lost before.
pub(super) async fn a_loss_among_what_is_freed_is_reported_after_silence_too() -> TestResult {
    let rig = Rig::new().await?;
    let caller = rig.caller();
    let grant = caller.take(SET).await;
    let lost = &grant.locks[1];
    let mut part = grant.clone();
    part.locks.retain(|lock| lock.target == lost.target);
    caller.free(&part).await;
    let next = rig.caller();
    next.take([SET[1]]).await;
    rig.front.next("TransactWriteItems", Fault::Refuse(500, "InternalServerError"), 1);
    let told = caller.release(&grant).await.lost;
    assert_eq!((told.len(), &told[0].target), (1, &lost.target), "{told:?}");
    rig.caller().take([SET[0], SET[2]]).await;
    rig.caller().refused([SET[1]]).await;
    Ok(())
}

/// The rest is lost too before it is freed: by then there is no doubt any more.
pub(super) async fn a_loss_after_a_doubt_that_ended_is_reported() -> TestResult {
    let rig = Rig::new().await?;
    let grant = rig.caller().take([SET[0], SET[1]]).await;
    let part = |position: usize| Grant { locks: vec![grant.locks[position].clone()], ..grant.clone() };
    rig.store.dao().release(&part(0)).await?;
    let gate = Arc::new(Notify::new());
    rig.front.next("TransactWriteItems", Fault::Refuse(500, "InternalServerError"), 1);
    rig.front.next("UpdateItem", Fault::Wait(gate.clone()), 1);
    let (released, ()) = tokio::join!(rig.dao.release(&grant), async {
        eventually("the rest is to be freed", async || rig.front.is_over().then_some(())).await;
        rig.store.dao().release(&part(1)).await.expect("an answer");
        gate.notify_one();
    });
    assert_eq!(released?.lost.len(), 2);
    Ok(())
}

pub(super) async fn a_renewal_whose_answer_is_lost_is_one() -> TestResult {
    let rig = Rig::with(impatient).await?;
    for fault in [
        Fault::LoseAnswer,
        Fault::DoAndRefuse(500, "InternalServerError"),
        Fault::Refuse(500, "InternalServerError"),
    ] {
        for ids in [&SET[..1], &SET] {
            let caller = rig.caller();
            let grant = caller.take(ids.iter().copied()).await;
            rig.front.next(operation_of(ids.len()), fault.clone(), 1);
            caller.keep(&grant).await;
            caller.free(&grant).await;
        }
    }
    Ok(())
}

pub(super) async fn silence_is_a_timeout_in_doubt() -> TestResult {
    let rig = Rig::with(impatient).await?;
    for ids in [&SET[..1], &SET] {
        for fault in [Fault::Swallow, Fault::LoseAnswer] {
            rig.front.next("UpdateItem", fault.clone(), usize::MAX);
            rig.front.next("TransactWriteItems", fault, usize::MAX);
            let caller = rig.caller();
            let request = caller.request(ids.iter().copied());
            let begun = Instant::now();
            let error = rig.dao.acquire(&request).await.expect_err("it does not answer");
            assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Timeout, true), "{error}");
            in_time(begun.elapsed(), Duration::from_secs(10));
            rig.front.lift();
            assert_eq!(caller.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
            caller.refused_as_withdrawn(&request).await;
            let other = rig.caller();
            let taken = other.take(ids.iter().copied()).await;
            other.free(&taken).await;
        }
    }
    Ok(())
}

/// A try that had no answer may still arrive after the next one was refused: then that is not the last word.
pub(super) async fn a_refusal_after_silence_is_in_doubt() -> TestResult {
    let rig = Rig::with(impatient).await?;
    let holder = rig.caller();
    let held = holder.take(["a"]).await;
    rig.front.next("UpdateItem", Fault::Swallow, 1);
    let error = rig.acquire(&["a"]).await.expect_err("the first try may still arrive");
    assert!(error.in_doubt() && error.is_retryable(), "{error:?}");
    holder.free(&held).await;
    Ok(())
}

pub(super) async fn what_cannot_be_withdrawn_ends_with_its_lease() -> TestResult {
    let rig = Rig::with(impatient).await?;
    let dao = impatient(rig.table.builder().own_clock()).open().await?;
    let locks = LockingService::builder(dao).lease(Duration::from_secs(5)).build()?;
    // The engine grants the set. Neither its answer nor the withdrawal that follows gets through.
    rig.front.next("TransactWriteItems", Fault::LoseAnswer, 1);
    rig.front.next("TransactWriteItems", Fault::Swallow, usize::MAX);
    let outcome = locks.with_locks(SET, || async { Ok::<_, std::io::Error>(()) }).await;
    assert!(outcome.is_err_and(|error| error.is_retryable() && !error.is_contention()));
    let other = rig.store.caller();
    other.refused(SET).await;
    let begun = Instant::now();
    other.take_soon(SET).await;
    in_time(begun.elapsed(), Duration::from_secs(12));
    Ok(())
}

/// What is left out of an answer is not taken for missing.
pub(super) async fn unprocessed_reads_are_asked_for_again() -> TestResult {
    let rig = Rig::new().await?;
    for how in [Withdraw::KeepIfGranted, Withdraw::Undo] {
        let caller = rig.caller();
        let request = caller.request(SET);
        assert!(matches!(caller.send(&request).await, Acquired::Granted(_)));
        rig.front.next("BatchGetItem", Fault::Unprocessed, 3);
        rig.front.counted();
        let withdrawn = caller.withdraw(&request, how).await;
        assert_eq!(rig.front.counted()["BatchGetItem"], 4);
        match (how, withdrawn) {
            (Withdraw::Undo, Withdrawn::Left) => drop(rig.caller().take(SET).await),
            (Withdraw::KeepIfGranted, Withdrawn::Holds(granted)) => {
                caller.free(&Grant::new(request.context, request.claims, granted, request.lease)).await;
            }
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

pub(super) async fn undoing_a_change_goes_back_to_what_was_held() -> TestResult {
    let rig = Rig::new().await?;
    let (one, two) = (rig.caller(), rig.caller());
    let weak = one.take([Claim::shared("a".to_owned())]).await;
    let request = one.request(["a", "b"]);
    assert!(matches!(one.send(&request).await, Acquired::Granted(_)));
    two.refused([Claim::shared("a".to_owned())]).await;
    assert_eq!(one.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    let beside = two.take([Claim::shared("a".to_owned()), Claim::exclusive("b".to_owned())]).await;
    two.refused(["a"]).await;
    one.keep(&weak).await;
    one.free(&weak).await;
    two.free(&beside).await;
    Ok(())
}

/// The holder that the store shows is the one that was granted, once, under the fence that was told.
async fn assert_is_held(rig: &Rig, grant: &Grant<String, Uuid>) {
    for lock in &grant.locks {
        let shown = rig.dao.inspect(&lock.target).await.expect("the engine answers");
        let [holder] = &shown.holders[..] else { panic!("one holds it: {shown:?}") };
        assert_eq!(holder.fence, lock.granted.fence);
    }
}
