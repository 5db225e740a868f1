//! What locks cost: requests, and the units that the engine counts for them. `--nocapture` is not needed: the table is
//! printed at the end of the run.

use std::time::{Duration, Instant};

use lockcore::{Claim, LockDao, LockingService, Wait, backend::Withdraw};
use lockcore_conformance::{
    eventually, race,
    servers::{Kind, TestResult, Trial, trial},
};
use lockcore_dynamo::{DynamoLockDao, Usage};
use uuid::Uuid;

use crate::engine::{
    front::rig::{self, Rig, SET, operation_of},
    python::run_python,
};

/// The lock client of AWS, in Python (`python-dynamodb-lock`, after the Java one): takes so many ids, holds them for some
/// seconds while as many others wait for the first, releases them, and prints requests and units by operation.
const AWS_CLIENT: &str = r#"
import datetime, sys, threading, time
import boto3
from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient, DynamoDBLockError

endpoint, table, count, seconds, waiters = *sys.argv[1:3], *map(int, sys.argv[3:])
keys = dict(region_name="eu-central-1", aws_access_key_id="test", aws_secret_access_key="test")
service = boto3.resource("dynamodb", endpoint_url=endpoint, **keys)
DynamoDBLockClient.create_dynamodb_table(service.meta.client, table_name=table)
service.meta.client.get_waiter("table_exists").wait(TableName=table)
spent = {}

def ask(params, model, **_):
    if model.name.endswith("Item"):
        params["ReturnConsumedCapacity"] = "TOTAL"

def count_it(parsed, model, **_):
    requests, units = spent.get(model.name, (0, 0))
    spent[model.name] = (requests + 1, units + parsed.get("ConsumedCapacity", {}).get("CapacityUnits", 0))

service.meta.client.meta.events.register("before-parameter-build.dynamodb.*", ask)
service.meta.client.meta.events.register("after-call.dynamodb.*", count_it)
client = DynamoDBLockClient(service, table_name=table)
locks = [client.acquire_lock(f"lock-{number}") for number in range(count)]

def wait():
    try:
        client.acquire_lock("lock-0", retry_timeout=datetime.timedelta(seconds=seconds))
    except DynamoDBLockError as error:
        assert error.code == DynamoDBLockError.ACQUIRE_TIMEOUT, error

others = [threading.Thread(target=wait) for _ in range(waiters)]
for other in others:
    other.start()
time.sleep(seconds)
for other in others:
    other.join()
for lock in locks:
    lock.release(best_effort=False)
client.close()
for operation, (requests, units) in sorted(spent.items()):
    print(operation, requests, units)
"#;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial(Kind::DynamoDb, "costs::a_set_is_two_requests", requests),
        trial(Kind::DynamoDb, "costs::a_set_is_two_round_trips", round_trips),
        trial(Kind::DynamoDb, "costs::sets_cost_a_request_and_their_items", sets),
        trial(Kind::DynamoDb, "costs::strict_fences_double_the_writes_of_taking", strict),
        trial(Kind::DynamoDb, "costs::the_client_of_aws_needs_three_requests_an_id", aws_client),
        trial(Kind::DynamoDb, "costs::the_client_of_aws_holds_and_waits_id_by_id", aws_client_in_time)
            .of_liveness(),
        trial(Kind::DynamoDb, "costs::company_costs_a_second_request", company),
        trial(Kind::DynamoDb, "costs::waiting_costs_reads", waiting).of_liveness(),
        trial(Kind::DynamoDb, "costs::withdrawals_at_once_cost_a_few_requests_each", withdrawals),
        trial(Kind::DynamoDb, "costs::a_write_costs_all_holders_of_its_item", crowd),
    ]
}

async fn counted() -> Result<Rig, rig::Error> {
    let rig = Rig::new().await?;
    rig.dao.count_units();
    Ok(rig)
}

/// What `step` cost.
async fn cost<T>(dao: &DynamoLockDao, step: impl Future<Output = T>) -> (T, Usage) {
    let before = dao.usage();
    let done = step.await;
    let after = dao.usage();
    let spent = Usage {
        requests: after.requests - before.requests,
        write_units: after.write_units - before.write_units,
        read_units: after.read_units - before.read_units,
    };
    (done, spent)
}

async fn sets() -> TestResult {
    let rig = counted().await?;
    let caller = rig.caller();
    println!("| step | requests | write units | read units |\n| --- | --- | --- | --- |");
    for count in [1, 10, 100] {
        let ids: Vec<String> = (0..count).map(|number| format!("{count}/{number}")).collect();
        let (grant, take) = cost(&rig.dao, caller.take(&ids)).await;
        let ((), renew) = cost(&rig.dao, caller.keep(&grant)).await;
        let ((), release) = cost(&rig.dao, caller.free(&grant)).await;
        for (step, spent) in [("take", take), ("renew", renew), ("release", release)] {
            println!(
                "| {step} {count} | {} | {} | {} |",
                spent.requests, spent.write_units, spent.read_units
            );
            assert_eq!(spent.requests, 1, "{step} {count}");
            let units = if count == 1 { 1.0 } else { 2.0 * f64::from(count) };
            assert_eq!((spent.write_units, spent.read_units), (units, 0.0), "{step} {count}");
        }
    }
    Ok(())
}

async fn strict() -> TestResult {
    let rig = Rig::with(|builder| builder.strict_fence(true)).await?;
    rig.dao.count_units();
    let caller = rig.caller();
    for count in [1, 10, 50] {
        let ids: Vec<String> = (0..count).map(|number| format!("{count}/{number}")).collect();
        let (grant, take) = cost(&rig.dao, caller.take(&ids)).await;
        let ((), release) = cost(&rig.dao, caller.free(&grant)).await;
        assert_eq!((take.requests, take.write_units), (1, 4.0 * f64::from(count)), "{count}");
        let plain = if count == 1 { 1.0 } else { 2.0 * f64::from(count) };
        assert_eq!((release.requests, release.write_units), (1, plain), "{count}");
    }
    Ok(())
}

async fn aws_client() -> TestResult {
    let rig = counted().await?;
    let caller = rig.caller();
    for count in [1, 10, 100_u32] {
        let ids: Vec<String> = (0..count).map(|number| format!("{count}/{number}")).collect();
        let (grant, take) = cost(&rig.dao, caller.take(&ids)).await;
        let ((), release) = cost(&rig.dao, caller.free(&grant)).await;
        let said = run_python(AWS_CLIENT, aws_arguments(&rig, count, 0, 0)).await?;
        println!(
            "{count} ids, {} requests of ours, theirs: {}",
            take.requests + release.requests,
            said.replace('\n', ", ")
        );
        for operation in ["GetItem", "PutItem", "DeleteItem"] {
            assert!(said.contains(&format!("{operation} {count} {count}.0")), "{said}");
        }
        assert_eq!(take.requests + release.requests, 2);
    }
    Ok(())
}

fn aws_arguments(rig: &Rig, count: u32, seconds: u32, waiters: u32) -> Vec<String> {
    let table = format!("aws-{}", Uuid::new_v4());
    vec![rig.engine.clone(), table, count.to_string(), seconds.to_string(), waiters.to_string()]
}

/// Of every id a heartbeat every five seconds, and of every waiter a look as often.
async fn aws_client_in_time() -> TestResult {
    const SECONDS: u32 = 22;
    let rig = counted().await?;
    for (count, waiters) in [(1, 3), (10, 0)] {
        let said = run_python(AWS_CLIENT, aws_arguments(&rig, count, SECONDS, waiters)).await?;
        println!("{count} ids held for {SECONDS} s, {waiters} waiters: {}", said.replace('\n', ", "));
        let spent = |operation: &str| {
            let line = said.lines().find(|line| line.starts_with(operation)).expect("it is listed");
            let numbers: Vec<f64> =
                line.split(' ').skip(1).map(|number| number.parse().expect("a number")).collect();
            (numbers[0], numbers[1])
        };
        // Four, and fewer or more as they are spread.
        let (beats, units) = spent("UpdateItem");
        let each = beats / f64::from(count);
        assert!((3.0..=5.0).contains(&each) && units == beats, "{said}");
        let (looks, units) = spent("GetItem");
        let waiting = looks - f64::from(count);
        assert!((4.0 * f64::from(waiters)..=5.0 * f64::from(waiters)).contains(&waiting), "{said}");
        assert!(units == looks, "{said}");
    }
    Ok(())
}

async fn company() -> TestResult {
    let rig = counted().await?;
    for (name, claim) in [("shared", Claim::shared("a")), ("slot", Claim::slots("b", 5))] {
        let first = rig.store.caller().through(&rig.dao);
        first.take([claim.clone()]).await;
        let second = rig.store.caller().through(&rig.dao);
        let (grant, take) = cost(&rig.dao, second.take([claim])).await;
        let ((), renew) = cost(&rig.dao, second.keep(&grant)).await;
        let ((), release) = cost(&rig.dao, second.free(&grant)).await;
        println!("{name} besides another: take {take:?}, renew {renew:?}, release {release:?}");
        // The refused write of the take costs as much again, and says nothing.
        assert_eq!((take.requests, renew.requests, release.requests), (2, 1, 1), "{name}");
        assert_eq!((take.write_units, renew.write_units, release.write_units), (1.0, 1.0, 1.0), "{name}");
    }
    Ok(())
}

async fn waiting() -> TestResult {
    const WATCHED: Duration = Duration::from_secs(10);
    for waiters in [1, 100_u64] {
        let rig = counted().await?;
        let holder = rig.store.caller();
        let held = holder.take(["a"]).await;
        let locks = LockingService::new(rig.open().await);
        let usage = |locks: &LockingService<String, Uuid, DynamoLockDao>| locks.dao().usage();
        locks.dao().count_units();
        let calls: Vec<_> = (0..waiters)
            .map(|_| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    let call = locks.wait(Wait::up_to(Duration::from_secs(120)));
                    call.with_locks(["a"], || async { Ok::<_, std::io::Error>(()) }).await
                })
            })
            .collect();
        // First each is refused for itself.
        eventually("all of them wait", || async {
            let before = usage(&locks).requests;
            tokio::time::sleep(Duration::from_secs(1)).await;
            (before >= waiters && usage(&locks).requests - before <= 3).then_some(())
        })
        .await;
        let (before, since) = (usage(&locks), Instant::now());
        tokio::time::sleep(WATCHED).await;
        let (after, watched) = (usage(&locks), since.elapsed());
        let per_hour = 3600.0 / watched.as_secs_f64();
        let requests = (after.requests - before.requests) as f64;
        let (reads, writes) = (after.read_units - before.read_units, after.write_units - before.write_units);
        println!(
            "{waiters} waiters of one process, an hour: {:.0} requests, {:.0} read units, {:.0} write units",
            requests * per_hour,
            reads * per_hour,
            writes * per_hour
        );
        // At most two looks a second, however many wait in one process; none of them writes.
        assert!(requests <= 2.5 * watched.as_secs_f64(), "{requests} in {watched:?}");
        assert!(writes == 0.0, "waiting writes nothing: {writes}");
        let before = usage(&locks);
        holder.free(&held).await;
        for call in calls {
            call.await??;
        }
        let spent = usage(&locks).requests - before.requests;
        println!("{waiters} grants after waiting: {spent} requests");
        // A look, a take, a release; and a look or two that were too early.
        assert!((2 * waiters..=3 * waiters + 10).contains(&spent), "{spent} requests");
    }
    Ok(())
}

async fn requests() -> TestResult {
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

async fn round_trips() -> TestResult {
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

/// A shutdown withdraws what many calls wait for: one held id.
async fn withdrawals() -> TestResult {
    const CALLS: usize = 100;
    let rig = Rig::new().await?;
    let holder = rig.store.caller();
    let held = holder.take(["a"]).await;
    let requests: Vec<_> = (0..CALLS).map(|_| rig.caller().request(["a"])).collect();
    rig.front.counted();
    let begun = Instant::now();
    let outcomes = race(CALLS, |number| {
        let (dao, request) = (rig.dao.clone(), requests[number].clone());
        async move { dao.withdraw(&request, Withdraw::Undo).await }
    })
    .await;
    let (spent, took) = (rig.front.counted(), begun.elapsed());
    println!("{CALLS} withdrawals of one id at once: {spent:?} in {took:?}");
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    assert_eq!(failed, 0, "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
    // A look, a write that creates the marks or meets the one that did, and the write that counts; a few more where the
    // engine is so slow that the end of the item has to be moved in between.
    let requests_sent: usize = spent.values().sum();
    assert!(requests_sent <= 6 * CALLS, "{requests_sent} requests");
    holder.free(&held).await;
    for request in &requests {
        rig.caller().refused_as_withdrawn(request).await;
    }
    Ok(())
}

/// Why an id has room for some hundred holders, and not for thousands: every write of the item costs all of it.
async fn crowd() -> TestResult {
    const HOLDERS: usize = 40;
    let rig = counted().await?;
    let mut last = None;
    for _ in 0..HOLDERS {
        let caller = rig.store.caller().through(&rig.dao);
        let grant = caller.take([Claim::shared("a")]).await;
        last = Some((caller, grant));
    }
    let (caller, grant) = last.ok_or("there are some")?;
    let ((), renew) = cost(&rig.dao, caller.keep(&grant)).await;
    println!("a renewal besides {} others: {renew:?}", HOLDERS - 1);
    let each = renew.write_units * 1024.0 / HOLDERS as f64;
    assert!((128.0..=320.0).contains(&each), "{each} bytes a holder");
    Ok(())
}
