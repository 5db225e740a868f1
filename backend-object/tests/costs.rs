//! What locks cost: the requests of a pair, of renewals and of waiting. The figures are printed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore_conformance::{
    Caller, eventually, race,
    servers::{TestResult, Trial},
};
use lockcore_object::ObjectLockDao;
use uuid::Uuid;

use crate::place;

type Dao = ObjectLockDao<String, Uuid>;

/// What S3 Standard takes for requests in us-east-1, in dollars for a million, as of 2026.
const READS: f64 = 0.4;
const WRITES: f64 = 5.0;

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($name:ident)*) => { vec![$(trial(stringify!($name), $name)),*] };
    }
    trials! {
        a_pair_is_two_writes
        tasks_share_writes
        renewals_share_a_write
        waiters_share_reads
    }
}

fn trial<F>(name: &str, test: fn(Arc<Dao>) -> F) -> Trial
where
    F: Future<Output = TestResult> + 'static,
{
    place::trial(&format!("costs::{name}"), move |bucket| async move {
        let dao = Arc::new(bucket.builder().open().await?);
        // The first step reads the table, which later ones know.
        let first = caller(&dao);
        let held = first.take(["first"]).await;
        first.free(&held).await;
        test(dao).await
    })
    // What is answered late may ask for the time once more.
    .of_liveness()
}

fn caller(dao: &Arc<Dao>) -> Caller<Dao> {
    Caller::new(dao.clone(), Duration::from_secs(60))
}

/// The reads and writes of a step.
async fn cost<T>(dao: &Dao, step: impl Future<Output = T>) -> (T, (u64, u64)) {
    let before = dao.requests();
    let done = step.await;
    let after = dao.requests();
    (done, (after.0 - before.0, after.1 - before.1))
}

fn dollars((reads, writes): (u64, u64)) -> f64 {
    reads as f64 * READS + writes as f64 * WRITES
}

async fn a_pair_is_two_writes(dao: Arc<Dao>) -> TestResult {
    let one = caller(&dao);
    for count in [1, 10, 100, 1000] {
        let ids: Vec<String> = (0..count).map(|number| format!("{count}/{number}")).collect();
        let (held, take) = cost(&dao, one.take(&ids)).await;
        let ((), free) = cost(&dao, one.free(&held)).await;
        let pair = (take.0 + free.0, take.1 + free.1);
        println!(
            "a pair of {count} ids: {} reads, {} writes, {} dollars a million",
            pair.0,
            pair.1,
            dollars(pair)
        );
        assert_eq!(pair, (0, 2), "{count} ids");
    }
    Ok(())
}

async fn tasks_share_writes(dao: Arc<Dao>) -> TestResult {
    const TASKS: usize = 32;
    let pairs = race(TASKS, |number| {
        let one = caller(&dao);
        async move {
            let held = one.take([format!("task/{number}")]).await;
            one.free(&held).await;
        }
    });
    let (_, (reads, writes)) = cost(&dao, pairs).await;
    println!("{TASKS} tasks, a pair each: {reads} reads, {writes} writes");
    assert!(reads == 0 && writes <= TASKS as u64 / 4, "{reads} reads, {writes} writes");
    Ok(())
}

async fn renewals_share_a_write(dao: Arc<Dao>) -> TestResult {
    const GRANTS: usize = 32;
    let mut grants = Vec::new();
    for number in 0..GRANTS {
        let one = caller(&dao);
        let held = one.take([format!("grant/{number}")]).await;
        grants.push((one, held));
    }
    let grants = Arc::new(grants);
    let renewals = race(GRANTS, |number| {
        let grants = grants.clone();
        async move { grants[number].0.keep(&grants[number].1).await }
    });
    let (_, (reads, writes)) = cost(&dao, renewals).await;
    println!("{GRANTS} grants renewed at once: {reads} reads, {writes} writes");
    let (one, held) = &grants[0];
    // It is written only if it ends later, by an estimate of the time that may have become narrower.
    let alone = eventually("a renewal is written", || async {
        let ((), alone) = cost(&dao, one.keep(held)).await;
        (alone.1 > 0).then_some(alone)
    })
    .await;
    // A lease of 60 s is renewed each 20 s.
    let month = dollars(alone) / 1e6 * 3.0 * 60.0 * 24.0 * 30.0;
    println!("one renewal: {} reads, {} writes; {month:.2} dollars a month", alone.0, alone.1);
    assert!(writes <= GRANTS as u64 / 4, "{reads} reads, {writes} writes");
    assert_eq!(alone, (1, 1));
    Ok(())
}

async fn waiters_share_reads(dao: Arc<Dao>) -> TestResult {
    let one = caller(&dao);
    let held = one.take(["a"]).await;
    for waiters in [1, 32] {
        let mut places = Vec::new();
        for _ in 0..waiters {
            places.push(caller(&dao).queue(["a"]).await);
        }
        let (before, since) = (dao.requests(), Instant::now());
        let read = || dao.requests().0 - before.0;
        eventually("there are reads", || async { (read() >= 10).then_some(()) }).await;
        let (reads, writes, passed) = (read(), dao.requests().1 - before.1, since.elapsed().as_secs_f64());
        let hour = reads as f64 / passed * 3600.0;
        println!(
            "{waiters} waiters, an hour: {hour:.0} reads, {:.4} dollars; {writes} writes",
            hour * READS / 1e6
        );
        // No pause is shorter than a tenth of a second, and all waiters share it; a heartbeat is written each 1.2 s.
        assert!(
            reads as f64 <= passed * 10.0 + 1.0 && writes as f64 <= passed + 2.0,
            "{reads} reads, {writes} writes in {passed} s"
        );
    }
    one.free(&held).await;
    Ok(())
}
