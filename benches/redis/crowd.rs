//! Many at once: tasks that contend for few ids, and thousands that wait for one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{Target, Wait};
use lockcore_benches::resident_bytes;
use redis::aio::MultiplexedConnection;

use crate::{Locks, bare::Bare, service, turns::Turns};

const TASKS: usize = 64;
const HOT: usize = 8;
const EACH: usize = 150;

/// 64 tasks take one of 8 ids again and again, on one connection. The floor is the same load on the same scripts: 64 tasks
/// of the bare client take turns on as many ids by the server's queue, on one connection too ([`Turns`]). Beside it, what is
/// another load: the scripts of the case in which no client waits, which a mutex of this process for each id sees to.
pub(crate) async fn hot_ids(url: &str) {
    let locks = service(url).await;
    let turns = Turns::new(url, &locks).await;
    let mut bare: Vec<Bare> = Vec::new();
    for id in 0..HOT {
        let one = Bare::of(url, &locks, &[format!("hot/{id}")]).await;
        bare.push(one.over(bare.first()));
    }
    let bare: Arc<[_]> = bare.into_iter().map(tokio::sync::Mutex::new).collect();
    let (mut ours, mut floor, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    let mut server = Vec::new();
    for _ in 0..5 {
        bare[0].lock().await.forget_time().await;
        ours.push(
            throughput(|task, number| {
                let (locks, id) = (locks.clone(), hot(task, number));
                async move {
                    let id = format!("hot/{id}");
                    locks.wait(Wait::forever()).with_locks([id], || async {}).await.expect("for ever");
                }
            })
            .await,
        );
        server.push(bare[0].lock().await.time_spent().await.as_secs_f64() * 1e6 / (TASKS * EACH) as f64);
        floor.push(
            throughput(|task, number| {
                let (mut turns, id) = (turns.clone(), hot(task, number));
                async move {
                    let turn = turns.take(&format!("hot/{id}")).await;
                    turns.free(turn).await;
                }
            })
            .await,
        );
        alone.push(
            throughput(|task, number| {
                let bare = bare.clone();
                async move {
                    let mut bare = bare[hot(task, number)].lock().await;
                    bare.take().await;
                    bare.free().await;
                }
            })
            .await,
        );
    }
    let (ours, floor, alone, server) = (median(ours), median(floor), median(alone), median(server));
    println!(
        "64 tasks over 8 hot ids: with_locks {ours:.0} pairs/s, {:.0} % of {floor:.0} by the bare scripts under the same \
         load; {server:.0} us of scripts each; without contention in the server, behind mutexes: {alone:.0} pairs/s",
        100.0 * ours / floor
    );
}

fn hot(task: usize, number: usize) -> usize {
    (task * 31 + number * 17 + number * number) % HOT
}

async fn throughput<F: Future<Output = ()> + Send + 'static>(work: impl Fn(usize, usize) -> F + Sync) -> f64 {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let rounds: Vec<_> = (0..EACH).map(|number| work(task, number)).collect();
            tokio::spawn(async move {
                for round in rounds {
                    round.await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    (TASKS * EACH) as f64 / begun.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Ten thousand wait for one id, and get it one after the other.
pub(crate) async fn ten_thousand(url: &str) {
    const WAITERS: u32 = 10_000;
    let locks: Locks = service(url).await;
    let mut raw = redis::Client::open(url)
        .expect("a URL")
        .get_multiplexed_async_connection()
        .await
        .expect("the server answers");
    let first = locks.lock(["hot"]).await.expect("free");
    let (here, there) = (resident_bytes(), used_memory(&mut raw).await);
    let order = Arc::new(AtomicU32::new(0));
    let begun = Instant::now();
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (locks, order) = (locks.clone(), order.clone());
            tokio::spawn(async move {
                let count = || async { order.fetch_add(1, Ordering::Relaxed) };
                locks.wait(Wait::forever()).run_locked(["hot"], count).await.expect("for ever");
            })
        })
        .collect();
    let target = Target::Id("hot".to_owned());
    while locks.admin().inspect(&target).await.expect("redis").waiters.len() < WAITERS as usize {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let queued = begun.elapsed();
    let (here, there) = (resident_bytes().saturating_sub(here), used_memory(&mut raw).await - there);
    let idle = scripts(&mut raw).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let idle = scripts(&mut raw).await - idle;
    let subscriptions = subscriptions(&mut raw).await;
    let (before, begun) = (scripts(&mut raw).await, Instant::now());
    first.release().await.expect("held");
    for task in waiting {
        task.await.expect("no panic");
    }
    let (granted, after) = (begun.elapsed(), scripts(&mut raw).await);
    assert_eq!(order.load(Ordering::Relaxed), WAITERS);
    println!(
        "{WAITERS} waiters on one id: queued in {queued:.1?}, {subscriptions} subscribed connections, {} bytes each here \
         and {} there, {:.1} calls/s while nothing happens; granted in {granted:.1?}, {:.0?} and {:.2} calls each",
        here / u64::from(WAITERS),
        there / u64::from(WAITERS),
        idle as f64 / 5.0,
        granted / WAITERS,
        (after - before) as f64 / f64::from(WAITERS),
    );
}

async fn used_memory(raw: &mut MultiplexedConnection) -> u64 {
    let info: String = redis::cmd("INFO").arg("memory").query_async(raw).await.expect("an answer");
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.parse().ok()).expect("a number")
}

/// How many scripts the server has run.
async fn scripts(raw: &mut MultiplexedConnection) -> u64 {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(raw).await.expect("an answer");
    let calls = info.lines().filter_map(|line| line.strip_prefix("cmdstat_eval")?.split("calls=").nth(1));
    calls.filter_map(|calls| calls.split(',').next()?.parse::<u64>().ok()).sum()
}

/// How many connections listen to anything.
async fn subscriptions(raw: &mut MultiplexedConnection) -> usize {
    let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(raw).await.expect("an answer");
    let listens = |client: &&str| {
        client.split(' ').any(
            |field| matches!(field.split_once('='), Some(("sub" | "ssub" | "psub", count)) if count != "0"),
        )
    };
    clients.lines().filter(listens).count()
}
