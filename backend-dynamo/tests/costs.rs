//! What locks cost: requests, and the units that the engine counts for them. `--nocapture` is not needed: the table is
//! printed at the end of the run.

mod support;

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore::{Claim, LockingService, Wait};
use lockcore_conformance::{
    Store,
    servers::{self, Kind, TestResult, shared, trial},
};
use lockcore_dynamo::{DynamoLockDao, Usage};
use support::Table;
use uuid::Uuid;

fn main() -> ExitCode {
    servers::run_many(
        4,
        [
            trial(Kind::DynamoDb, "sets_cost_a_request_and_their_items", sets),
            trial(Kind::DynamoDb, "company_costs_a_second_request", company),
            trial(Kind::DynamoDb, "waiting_costs_reads", waiting),
        ],
    )
}

struct Rig {
    table: Table,
    store: Store<Table>,
    dao: Arc<DynamoLockDao>,
}

async fn rig() -> Result<Rig, Box<dyn std::error::Error + Send + Sync>> {
    let server = shared(Kind::DynamoDb).await?;
    let table = Table::at(server.url()).within(&Uuid::new_v4().simple().to_string());
    let store = Store::new(Arc::new(table.clone())).await;
    let dao = table.builder().own_clock().open().await?;
    dao.count_units();
    Ok(Rig { table, store, dao: Arc::new(dao) })
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
    let rig = rig().await?;
    let caller = rig.store.caller().through(&rig.dao);
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
            // An engine that does not count says 0.
            assert!(spent.write_units <= units && spent.read_units == 0.0, "{step} {count}: {spent:?}");
        }
    }
    Ok(())
}

async fn company() -> TestResult {
    let rig = rig().await?;
    for (name, claim) in [("shared", Claim::shared("a")), ("slot", Claim::slots("b", 5))] {
        let first = rig.store.caller().through(&rig.dao);
        first.take([claim.clone()]).await;
        let second = rig.store.caller().through(&rig.dao);
        let (grant, take) = cost(&rig.dao, second.take([claim])).await;
        let ((), renew) = cost(&rig.dao, second.keep(&grant)).await;
        let ((), release) = cost(&rig.dao, second.free(&grant)).await;
        println!("{name} besides another: take {take:?}, renew {renew:?}, release {release:?}");
        assert_eq!((take.requests, renew.requests, release.requests), (2, 1, 2), "{name}");
    }
    Ok(())
}

async fn waiting() -> TestResult {
    const WATCHED: Duration = Duration::from_secs(10);
    for waiters in [1, 100] {
        let rig = rig().await?;
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
        tokio::time::sleep(Duration::from_secs(3)).await;
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
    }
    Ok(())
}

impl Rig {
    async fn open(&self) -> DynamoLockDao {
        self.table.builder().own_clock().open().await.expect("the engine answers")
    }
}
