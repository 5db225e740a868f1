//! What goes over the line: how many messages a call costs, and that waiters cost none while nothing happens.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{LockDao, Wait, protocol::RECHECK};
use lockcore_conformance::{
    PATIENCE, eventually,
    servers::{Kind, Mode, Proxy, Server, TestResult},
    store::id,
};

use super::{
    place::{Failure, Place},
    topology::{Raw, server},
};

const EACH_WAY: Duration = Duration::from_millis(10);
const SLOW: Mode = Mode::Delay { requests: EACH_WAY, replies: EACH_WAY };

/// A server at the end of a long line.
async fn far_away() -> Result<(Server, Proxy, Place), Failure> {
    let server = Server::start(Kind::Redis).await?;
    let proxy = Proxy::start(server.address()).await?;
    let place = Place::at(server.url_through(proxy.address()));
    Ok((server, proxy, place))
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("some/object/{number:03}")).collect()
}

pub(crate) async fn with_locks_is_two_round_trips_and_three_the_first_time() -> TestResult {
    let (server, proxy, place) = far_away().await?;
    let raw = Raw::to(&server.url()).await?;
    for count in [1, 10, 100] {
        let (ids, locks) = (ids(count), place.locks().await?);
        proxy.set(SLOW).await;
        for (name, trips) in [("cold", 3), ("warm", 2)] {
            let (mut requests, mut replies, mut took) = (u64::MAX, u64::MAX, Duration::MAX);
            for _ in 0..5 {
                if name == "cold" {
                    raw.ask::<()>("SCRIPT FLUSH").await?;
                }
                let (before, begun) = (proxy.counts(), Instant::now());
                locks.with_locks(&ids, async || ()).await?;
                let after = proxy.counts();
                took = took.min(begun.elapsed());
                requests = requests.min(after.requests - before.requests);
                replies = replies.min(after.replies - before.replies);
            }
            assert!(requests <= trips && replies <= trips, "{name}, {count}: {requests} and {replies}");
            assert!(took >= EACH_WAY * 4, "{name}, {count}: {took:?}: the line is slow");
        }
        proxy.set(Mode::Pass).await;
    }
    Ok(())
}

/// A call is copied with all of its future whenever it is moved, as into a task.
pub(crate) async fn a_call_is_a_small_future() -> TestResult {
    let locks = Place::shared().await?.locks().await?;
    let size = size_of_val(&locks.with_locks(["a"], async || ()));
    assert!(size <= 2048, "{size} bytes");
    Ok(())
}

/// The first call of a connection, script and all.
pub(crate) async fn the_first_call_of_a_program_is_at_most_three_round_trips() -> TestResult {
    let (_server, proxy, place) = far_away().await?;
    let locks = place.locks().await?;
    proxy.set(SLOW).await;
    let before = proxy.counts();
    locks.with_locks(["a"], async || ()).await?;
    let requests = proxy.counts().requests - before.requests;
    assert!(requests <= 3, "{requests}");
    Ok(())
}

/// The release is all that is sent before the waiter's callback runs.
pub(crate) async fn a_hand_off_is_one_way_there_and_one_way_back() -> TestResult {
    let (_server, proxy, place) = far_away().await?;
    let (holder, waiter) = (place.locks().await?, place.locks().await?);
    let mut fewest = u64::MAX;
    // Heartbeats come in between now and then.
    for _ in 0..10 {
        let guard = holder.lock(["a"]).await?;
        let release = async {
            eventually("it waits", || async {
                let seen = holder.dao().inspect(&id("a")).await.ok()?;
                (!seen.waiters.is_empty()).then_some(())
            })
            .await;
            let before = proxy.counts().requests;
            guard.release().await.map(|_| before)
        };
        let turn = waiter.wait(Wait::forever());
        let (before, after) = tokio::join!(release, turn.run_locked(["a"], async || proxy.counts().requests));
        fewest = fewest.min(after? - before?);
    }
    assert_eq!(fewest, 1);
    Ok(())
}

/// Thousands wait through one subscription, cost nothing while they wait, get it in order, and leave nothing behind.
pub(crate) async fn ten_thousand_waiters_share_a_subscription_and_are_no_stampede() -> TestResult {
    const WAITERS: usize = 10_000;
    let server = server("").await?;
    // So many requests at once may take long on a loaded machine, and what is not answered in time is asked again.
    let place = Place::at(server.url()).patient_for(Duration::from_secs(60));
    let (locks, raw) = (place.locks().await?, place.raw().await?);
    // Whatever stays, such as scripts and the counters of commands, is there by now.
    locks.with_locks(["warm"], async || ()).await?;
    let guard = locks.lock(["hot"]).await?;
    let memory = raw.info("memory", "used_memory").await?;
    let (order, is_held) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let waiting: Vec<_> = (0..WAITERS)
        .map(|number| {
            let (locks, order, is_held) = (locks.clone(), order.clone(), is_held.clone());
            tokio::spawn(async move {
                let inside = async || {
                    assert!(!is_held.swap(true, Ordering::SeqCst), "one at a time");
                    order.lock().expect("no panic").push(number);
                    tokio::task::yield_now().await;
                    is_held.store(false, Ordering::SeqCst);
                };
                locks.wait(Wait::forever()).with_locks(["hot"], inside).await.is_ok()
            })
        })
        .collect();
    eventually("all wait", || async {
        let seen = locks.dao().inspect(&id("hot")).await.ok()?;
        (seen.waiters.len() == WAITERS).then_some(())
    })
    .await;
    let used = raw.info("memory", "used_memory").await?.saturating_sub(memory);
    assert!(used / (WAITERS as u64) < 2048, "{} bytes a waiter at the server", used / WAITERS as u64);
    assert!(listeners(&raw).await? <= 2, "{} connections listen", listeners(&raw).await?);

    eventually("nothing happens any more", || async {
        let before = scripts(&raw).await.ok()?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        (scripts(&raw).await.ok()? - before < WAITERS as u64 / 100).then_some(())
    })
    .await;

    let (before, begun) = (scripts(&raw).await?, Instant::now());
    guard.release().await?;
    let all = async {
        for waiter in waiting {
            assert!(waiter.await.expect("no panic"), "its turn comes");
        }
    };
    tokio::time::timeout(PATIENCE * 4, all).await?;
    let each = (scripts(&raw).await? - before) as f64 / WAITERS as f64;
    // Each that waits asks again each ten seconds, up to a fifth sooner.
    let repeats = begun.elapsed().div_duration_f64(RECHECK.mul_f64(0.8));
    assert!(each < 3.0 + repeats, "{each} calls for each grant, {repeats} repeats");
    assert_eq!(order.lock().expect("no panic").len(), WAITERS);
    assert!(locks.dao().inspect(&id("hot")).await?.holders.is_empty());
    eventually("nothing is left of them", || async {
        let keys = raw.ask::<usize>("DBSIZE").await.ok()?;
        (keys < 10).then_some(())
    })
    .await;
    Ok(())
}

/// How many scripts the server has run.
async fn scripts(raw: &Raw) -> Result<u64, Failure> {
    let stats: String = raw.send(&["INFO", "commandstats"]).await?;
    let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_eval")?.split("calls=").nth(1));
    Ok(calls.filter_map(|calls| calls.split(',').next()?.parse::<u64>().ok()).sum())
}

/// How many connections listen to anything.
async fn listeners(raw: &Raw) -> Result<usize, Failure> {
    let clients: String = raw.ask("CLIENT LIST").await?;
    let listens = |client: &&str| {
        let counts = client.split(' ').filter_map(|field| field.split_once('='));
        let mut counts = counts.filter(|(name, _)| matches!(*name, "sub" | "ssub" | "psub"));
        counts.any(|(_, count)| count != "0")
    };
    Ok(clients.lines().filter(listens).count())
}
