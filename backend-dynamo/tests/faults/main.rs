//! Every fault of the service is a typed outcome, and nothing is left behind longer than its lease.

mod front;
mod support;

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use front::{Fault, Front};
use lockcore::{
    Acquired, BackendError, BackendErrorKind, Claim, ConflictReason, Grant, LockDao, LockingService,
    Withdraw, Withdrawn,
};
use lockcore_conformance::{
    Caller, Store, eventually,
    servers::{self, Kind, TestResult, Trial, shared, trial},
};
use lockcore_dynamo::{DynamoBuilder, DynamoLockDao};
use support::Table;
use uuid::Uuid;

fn main() -> ExitCode {
    servers::run_many(8, trials())
}

macro_rules! trials {
    ($($name:ident)*) => { vec![$(trial(Kind::DynamoDb, stringify!($name), || $name()),)*] };
}

fn trials() -> Vec<Trial> {
    trials! {
        throttling_is_waited_out
        throttling_to_the_end_is_busy_and_never_held
        conflicts_of_transactions_are_tried_again
        a_failure_before_the_write_is_tried_again
        a_failure_after_the_write_is_found_to_be_a_success
        a_lost_answer_is_found_to_be_a_success
        a_release_whose_answer_is_lost_is_one
        a_renewal_whose_answer_is_lost_is_one
        silence_is_a_timeout_in_doubt
        a_refusal_after_silence_is_in_doubt
        what_cannot_be_withdrawn_ends_with_its_lease
        a_connection_that_is_refused_is_certain
        expired_credentials_are_denied
        a_missing_table_is_told
        another_key_schema_is_refused
        unprocessed_reads_are_asked_for_again
        a_clock_an_hour_off_works_and_takes_nothing_early
        an_answer_with_a_wrong_date_takes_nothing_early
        a_grant_from_the_future_counts_from_now
        a_fence_ahead_of_our_clock_is_topped
        undoing_a_change_goes_back_to_what_was_held
        a_set_is_two_requests
        a_set_is_two_round_trips
    }
}

const SET: [&str; 3] = ["a", "b", "c"];

/// A namespace of its own behind a front of its own.
struct Rig {
    front: Front,
    table: Table,
    /// Straight at the engine.
    store: Store<Table>,
    dao: Arc<DynamoLockDao>,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Rig {
    async fn new() -> Result<Self, Error> {
        Rig::with(|builder| builder).await
    }

    async fn with(
        configure: impl FnOnce(DynamoBuilder<String, Uuid>) -> DynamoBuilder<String, Uuid>,
    ) -> Result<Self, Error> {
        let server = shared(Kind::DynamoDb).await?;
        let namespace = Uuid::new_v4().simple().to_string();
        let store = Store::new(Arc::new(Table::at(server.url()).within(&namespace))).await;
        let front = Front::before(server.address()).await?;
        let table = Table::at(front.url()).within(&namespace);
        let dao = Arc::new(configure(table.builder().own_clock()).open().await?);
        front.counted();
        Ok(Rig { front, table, store, dao })
    }

    fn caller(&self) -> Caller<DynamoLockDao> {
        self.store.caller().through(&self.dao)
    }

    /// Another DAO for the same ids, which knows nothing of the first.
    async fn open(&self) -> DynamoLockDao {
        self.table.builder().own_clock().open().await.expect("the engine answers")
    }

    async fn other(&self) -> Caller<DynamoLockDao> {
        self.store.caller().through(&Arc::new(self.open().await))
    }
}

fn impatient(builder: DynamoBuilder<String, Uuid>) -> DynamoBuilder<String, Uuid> {
    builder.timeout(Duration::from_millis(1500)).attempt_timeout(Duration::from_millis(400))
}

/// Takes the ids under a fault of the operation that this needs.
async fn under(rig: &Rig, ids: &[&str], single: Fault, set: Fault, times: usize) -> Grant<String, Uuid> {
    match ids.len() {
        1 => rig.front.next("UpdateItem", single, times),
        _ => rig.front.next("TransactWriteItems", set, times),
    }
    rig.caller().take(ids.iter().copied()).await
}

/// What writes so many ids.
fn operation_of(count: usize) -> &'static str {
    if count == 1 { "UpdateItem" } else { "TransactWriteItems" }
}

async fn acquire(rig: &Rig, ids: &[&str]) -> Result<Acquired<String, Uuid>, BackendError> {
    let request = rig.caller().request(ids.iter().copied());
    rig.dao.acquire(&request).await
}

async fn throttling_is_waited_out() -> TestResult {
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

async fn throttling_to_the_end_is_busy_and_never_held() -> TestResult {
    let rig = Rig::with(impatient).await?;
    for operation in ["UpdateItem", "TransactWriteItems"] {
        rig.front.next(operation, Fault::Refuse(400, "ThrottlingException"), usize::MAX);
    }
    for ids in [&SET[..1], &SET] {
        let error = acquire(&rig, ids).await.expect_err("it is throttled");
        assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Busy, false), "{error}");
        assert!(error.is_retryable());
    }
    rig.front.lift();
    rig.caller().take(SET).await;
    Ok(())
}

async fn conflicts_of_transactions_are_tried_again() -> TestResult {
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
        let error = acquire(&rig, ids).await.expect_err("it never gets through");
        assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Busy, false), "{error}");
    }
    Ok(())
}

async fn a_failure_before_the_write_is_tried_again() -> TestResult {
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

async fn a_failure_after_the_write_is_found_to_be_a_success() -> TestResult {
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

async fn a_lost_answer_is_found_to_be_a_success() -> TestResult {
    let rig = Rig::with(impatient).await?;
    for ids in [&SET[..1], &SET] {
        let grant = under(&rig, ids, Fault::LoseAnswer, Fault::LoseAnswer, 1).await;
        assert_is_held(&rig, &grant).await;
        rig.caller().free(&grant).await;
    }
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

async fn a_release_whose_answer_is_lost_is_one() -> TestResult {
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

async fn a_renewal_whose_answer_is_lost_is_one() -> TestResult {
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

async fn silence_is_a_timeout_in_doubt() -> TestResult {
    let rig = Rig::with(impatient).await?;
    for ids in [&SET[..1], &SET] {
        for fault in [Fault::Swallow, Fault::LoseAnswer] {
            rig.front.next("UpdateItem", fault.clone(), usize::MAX);
            rig.front.next("TransactWriteItems", fault, usize::MAX);
            let caller = rig.caller();
            let request = caller.request(ids.iter().copied());
            let begun = Instant::now();
            let error = rig.dao.acquire(&request).await.expect_err("nobody answers");
            assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Timeout, true), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(10));
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
async fn a_refusal_after_silence_is_in_doubt() -> TestResult {
    let rig = Rig::with(impatient).await?;
    let holder = rig.caller();
    let held = holder.take(["a"]).await;
    rig.front.next("UpdateItem", Fault::Swallow, 1);
    let error = acquire(&rig, &["a"]).await.expect_err("the first try may still arrive");
    assert!(error.in_doubt() && error.is_retryable(), "{error:?}");
    holder.free(&held).await;
    Ok(())
}

async fn what_cannot_be_withdrawn_ends_with_its_lease() -> TestResult {
    let rig = Rig::with(impatient).await?;
    let dao = impatient(rig.table.builder().own_clock()).open().await?;
    let locks = LockingService::builder(dao).lease(Duration::from_secs(5)).build()?;
    rig.front.next("TransactWriteItems", Fault::LoseAnswer, usize::MAX);
    let outcome = locks.with_locks(SET, || async { Ok::<_, std::io::Error>(()) }).await;
    assert!(outcome.is_err_and(|error| error.is_retryable() && !error.is_contention()));
    // Its withdrawal does not get through either. The engine has done what was asked.
    let other = rig.store.caller();
    other.refused(SET).await;
    let begun = Instant::now();
    other.take_soon(SET).await;
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    Ok(())
}

async fn a_connection_that_is_refused_is_certain() -> TestResult {
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

async fn expired_credentials_are_denied() -> TestResult {
    let rig = Rig::new().await?;
    for code in ["ExpiredTokenException", "UnrecognizedClientException", "AccessDeniedException"] {
        rig.front.next("UpdateItem", Fault::Refuse(400, code), usize::MAX);
        let error = acquire(&rig, &["a"]).await.expect_err("it is refused");
        assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Denied, false), "{error}");
        assert!(!error.is_retryable() && error.to_string().contains(code), "{error}");
        assert_eq!(rig.front.counted()["UpdateItem"], 1, "trying again would not help");
        rig.front.lift();
    }
    rig.caller().take(["a"]).await;
    Ok(())
}

async fn a_missing_table_is_told() -> TestResult {
    let rig = Rig::new().await?;
    let name = format!("missing-{}", Uuid::new_v4());
    let dao = Arc::new(rig.table.builder().table(name).open().await?);
    let caller = rig.store.caller().through(&dao);
    let error = dao.acquire(&caller.request(["a"])).await.expect_err("there is no table");
    assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Misconfigured, false), "{error}");
    assert!(error.to_string().contains("lockctl migrate"), "{error}");
    let findings = dao.doctor().await?;
    assert!(findings.iter().any(|found| found.severity == lockcore::Severity::Error), "{findings:?}");
    dao.migrate().await?;
    caller.take(["a"]).await;
    Ok(())
}

async fn another_key_schema_is_refused() -> TestResult {
    let rig = Rig::new().await?;
    let table = &rig.table;
    let name = format!("other-{}", Uuid::new_v4());
    let other = table.builder().table(&name).id_attribute("key").open().await?;
    other.migrate().await?;
    let error = table.builder().table(&name).open().await.expect_err("its key has another name");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("\"id\"") && error.to_string().contains("key (HASH)"), "{error}");
    Ok(())
}

async fn unprocessed_reads_are_asked_for_again() -> TestResult {
    let rig = Rig::new().await?;
    let caller = rig.caller();
    let request = caller.request(SET);
    assert!(matches!(caller.send(&request).await, Acquired::Granted(_)));
    rig.front.next("BatchGetItem", Fault::Unprocessed, 3);
    assert_eq!(caller.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    rig.caller().take(SET).await;
    Ok(())
}

async fn a_clock_an_hour_off_works_and_takes_nothing_early() -> TestResult {
    for ahead in [3600, -3600] {
        let rig = Rig::new().await?;
        rig.front.check_signatures();
        let off = rig.table.builder().own_clock().pretend_ahead(ahead).open().await?;
        let off = rig.store.caller().through(&Arc::new(off));
        let lease = Duration::from_secs(5);
        let holder = rig.caller().with_lease(lease);
        let begun = Instant::now();
        holder.take(["a"]).await;
        off.take_soon(["a"]).await;
        assert!(
            begun.elapsed() >= lease,
            "taken over after {:?} with a clock {ahead} s ahead",
            begun.elapsed()
        );
        // And the other way: what it writes ends for the others when it should.
        let begun = Instant::now();
        let short = off.clone().with_lease(lease);
        short.take(["b"]).await;
        rig.caller().take_soon(["b"]).await;
        let taken_over = begun.elapsed();
        assert!(taken_over >= lease && taken_over < lease + Duration::from_secs(6), "{taken_over:?}");
    }
    Ok(())
}

async fn an_answer_with_a_wrong_date_takes_nothing_early() -> TestResult {
    let rig = Rig::new().await?;
    let holder = rig.caller();
    holder.take(["a"]).await;
    let other = rig.other().await;
    other.refused(["a"]).await;
    // One answer from a host whose clock is off.
    rig.front.shift_date(3600);
    other.refused(["a"]).await;
    rig.front.shift_date(0);
    for _ in 0..3 {
        other.refused(["a"]).await;
    }
    Ok(())
}

async fn a_grant_from_the_future_counts_from_now() -> TestResult {
    let rig = Rig::new().await?;
    rig.front.shift_date(3600);
    let lease = Duration::from_secs(5);
    let ahead = rig.other().await.with_lease(lease);
    ahead.take(["a"]).await;
    // The service's clock is set back.
    rig.front.shift_date(0);
    let later = rig.other().await;
    let conflicts = later.refused(["a"]).await;
    let ConflictReason::Held { holders, .. } = &conflicts[0].reason else { panic!("{conflicts:?}") };
    assert!(holders[0].remaining.is_some_and(|left| left <= lease), "{holders:?}");
    let begun = Instant::now();
    later.take_soon(["a"]).await;
    assert!(begun.elapsed() < lease + Duration::from_secs(6), "{:?}", begun.elapsed());
    Ok(())
}

async fn a_fence_ahead_of_our_clock_is_topped() -> TestResult {
    let rig = Rig::new().await?;
    for ids in [&SET[..1], &SET] {
        rig.front.shift_date(60);
        let ahead = rig.other().await;
        let grant = ahead.take(ids.iter().copied()).await;
        ahead.free(&grant).await;
        rig.front.shift_date(0);
        let fence = |grant: &Grant<String, Uuid>| grant.locks[0].granted.fence;
        let later = rig.other().await.take(ids.iter().copied()).await;
        assert!(fence(&later) > fence(&grant), "{later:?} after {grant:?}");
        rig.caller().free(&later).await;
    }
    Ok(())
}

async fn undoing_a_change_goes_back_to_what_was_held() -> TestResult {
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

async fn a_set_is_two_requests() -> TestResult {
    let rig = Rig::new().await?;
    let locks = LockingService::new(rig.open().await);
    for count in [1, 2, 10, 100] {
        for shared in [false, true] {
            let ids: Vec<String> = (0..count).map(|number| format!("{count}/{number}")).collect();
            let claims: Vec<_> = match shared {
                true => ids.iter().map(|id| Claim::shared(id.clone())).collect(),
                false => ids.iter().map(|id| Claim::exclusive(id.clone())).collect(),
            };
            for _ in 0..2 {
                rig.front.counted();
                locks.with_locks(claims.clone(), || async { Ok::<_, std::io::Error>(()) }).await?;
                let counted = rig.front.counted();
                let expected = [(operation_of(count).to_owned(), 2)].into();
                assert_eq!(counted, expected, "{count} ids, shared: {shared}");
            }
        }
        for shared in [false, true] {
            let ids: Vec<_> = (0..count).map(|number| format!("renewed {shared} {count}/{number}")).collect();
            let claims: Vec<_> = match shared {
                true => ids.iter().map(|id| Claim::shared(id.clone())).collect(),
                false => ids.iter().map(|id| Claim::exclusive(id.clone())).collect(),
            };
            let caller = rig.caller();
            let grant = caller.take(claims).await;
            rig.front.counted();
            caller.keep(&grant).await;
            assert_eq!(rig.front.counted(), [(operation_of(count).to_owned(), 1)].into(), "a renewal is one");
            caller.free(&grant).await;
        }
    }
    Ok(())
}

async fn a_set_is_two_round_trips() -> TestResult {
    let rig = Rig::new().await?;
    let locks = LockingService::new(rig.open().await);
    let warm = || locks.with_locks(["warm"], || async { Ok::<_, std::io::Error>(()) });
    warm().await?;
    rig.front.delay(Duration::from_millis(10));
    rig.front.counted();
    for ids in [vec!["a"], SET.to_vec()] {
        let mut fastest = Duration::MAX;
        for _ in 0..10 {
            let begun = Instant::now();
            locks.with_locks(ids.clone(), || async { Ok::<_, std::io::Error>(()) }).await?;
            fastest = fastest.min(begun.elapsed());
        }
        assert!(fastest >= Duration::from_millis(40), "{fastest:?}");
        println!("{} ids behind 10 ms each way: {fastest:?}", ids.len());
        assert_eq!(rig.front.counted().values().sum::<usize>(), 20, "two for each set");
    }
    Ok(())
}
