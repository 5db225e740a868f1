//! Waiters that live, that died, and that are refused.

use std::sync::atomic::Ordering::Relaxed;

use lockcore::{LockingService, Wait};
use tokio::time::{Instant, sleep, timeout};

use super::{
    LEASE, SECOND,
    cells::{Denied, World},
    id,
};

/// Case 7: a dead waiter for a set keeps a free id from none for long.
#[tokio::test(start_paused = true)]
async fn a_dead_waiter_for_a_set_costs_5_s() {
    let world = World::new();
    let (leader, _) = world.service().await;
    let held = leader.lock(["b"]).await.expect("it is free");
    let (dead, network) = world.service().await;
    let waiting = tokio::spawn(async move { dead.wait(Wait::up_to(1000 * SECOND)).lock(["a", "b"]).await });
    sleep(10 * SECOND).await;
    let (other, _) = world.service().await;
    assert!(other.lock(["a"]).await.expect_err("it is queued for").is_contention());
    network.store(true, Relaxed);
    let begun = Instant::now();
    let guard = other.wait(Wait::up_to(60 * SECOND)).lock(["a"]).await.expect("the waiter is dead");
    assert!(begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
    guard.release().await.expect("it is held");
    // Also without a place of its own.
    other.lock(["a"]).await.expect("none waits").release().await.expect("it is held");
    waiting.abort();
    held.release().await.expect("it is held");
}

/// Case 8: the dead are found together.
#[tokio::test(start_paused = true)]
async fn thirty_dead_waiters_cost_as_much_as_one() {
    let world = World::new();
    let (leader, _) = world.service().await;
    let held = leader.lock(["a"]).await.expect("it is free");
    let mut networks = Vec::new();
    for _ in 0..30 {
        let (dead, network) = world.service().await;
        tokio::spawn(async move { dead.wait(Wait::up_to(1000 * SECOND)).lock(["a"]).await });
        networks.push(network);
    }
    sleep(10 * SECOND).await;
    networks.iter().for_each(|network| network.store(true, Relaxed));
    let (living, _) = world.service().await;
    let waiting = tokio::spawn(async move { living.wait(Wait::up_to(1000 * SECOND)).lock(["a"]).await });
    sleep(SECOND).await;
    held.release().await.expect("it is held");
    let begun = Instant::now();
    waiting.await.expect("no panic").expect("the others are dead").release().await.expect("it is held");
    assert!(begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
}

/// A place goes on as long as its process lives.
#[tokio::test(start_paused = true)]
async fn a_living_waiter_keeps_its_place() {
    let world = World::new();
    let (leader, _) = world.service().await;
    let held = leader.lock(["b"]).await.expect("it is free");
    let (waiter, _) = world.service().await;
    let waiting = tokio::spawn(async move { waiter.wait(Wait::up_to(1000 * SECOND)).lock(["a", "b"]).await });
    sleep(2 * SECOND).await;
    let (other, _) = world.service().await;
    for _ in 0..40 {
        sleep(3 * SECOND).await;
        assert!(other.lock(["a"]).await.expect_err("it is queued for").is_contention());
    }
    let since = world.table().places.values().next().expect("it waits").since;
    assert!(since < world.now() - 100_000_000, "it lost its place");
    held.release().await.expect("it is held");
    waiting.await.expect("no panic").expect("it is its turn").release().await.expect("it is held");
}

/// A waiter learns by the next look, or the next heartbeat, of a refusal that will not pass.
#[tokio::test(start_paused = true)]
async fn a_right_that_is_taken_away_ends_a_wait() {
    for denied in [Denied::Reads, Denied::Writes] {
        let world = World::new();
        let ((holder, _), (waiter, _)) = (world.service().await, world.service().await);
        let held = holder.lease(LEASE).lock(["x"]).await.expect("it is free");
        let waiting = tokio::spawn(async move { waiter.wait(Wait::up_to(200 * SECOND)).lock(["x"]).await });
        sleep(SECOND).await;
        world.deny(denied);
        let begun = Instant::now();
        let refused = waiting.await.expect("no panic").expect_err("it cannot be granted");
        assert!(!refused.is_contention(), "{denied:?}: {refused}");
        assert!(begun.elapsed() < 3 * SECOND, "{denied:?} after {:?}: {refused}", begun.elapsed());
        drop(held);
    }
}

/// A session of our own that cannot be read ends no wait: the process goes on under another name.
#[tokio::test(start_paused = true)]
async fn a_spoiled_session_of_a_waiter_ends_no_wait() {
    let world = World::new();
    let ((holder, _), (waiter, _)) = (world.service().await, world.service().await);
    let held = holder.lease(LEASE).lock(["x"]).await.expect("it is free");
    let waiting = tokio::spawn(async move { waiter.wait(Wait::up_to(200 * SECOND)).lock(["x"]).await });
    sleep(5 * SECOND).await;
    let session = world.table().places.values().next().expect("it waits").session.clone();
    world.put(&format!("session/{session}"), b"garbage".to_vec());
    sleep(20 * SECOND).await;
    assert!(!waiting.is_finished(), "the wait ended");
    held.release().await.expect("it is held");
    waiting.await.expect("no panic").expect("it is its turn").release().await.expect("it is held");
}

/// 7: a set that fits into no table is refused for good.
#[tokio::test(start_paused = true)]
async fn a_set_that_fits_into_no_table_does_not_wait_for_ever() {
    let world = World::new();
    let (locks, _) = world.service().await;
    let ids: Vec<String> = (0..1000).map(|number| format!("{number:0>1000}")).collect();
    let waiting = timeout(1000 * SECOND, locks.wait(Wait::forever()).lock(&ids)).await.expect("it ends");
    let refused = waiting.expect_err("it has no room");
    assert!(!refused.is_retryable() && refused.to_string().contains("the set alone"), "{refused}");
    // One for which there is room later waits for it.
    let held = locks.lock(&ids[..500]).await.expect("it is free");
    let full = locks.lock(&ids[500..]).await.expect_err("it has no room yet");
    assert!(full.is_retryable(), "{full}");
    held.release().await.expect("it is held");
    locks.lock(&ids[500..]).await.expect("it is free").release().await.expect("it is held");
}

/// A waiter is notified of its turn also if it comes while the poll of its process pauses, as none waited just before.
#[tokio::test(start_paused = true)]
async fn who_comes_while_the_poll_pauses_is_notified() {
    let world = World::new();
    let mut process = world.process();
    (process.at_once, process.is_notified) = (100, true);
    let one = LockingService::new(world.dao_with(process.clone(), LEASE).await);
    let two = LockingService::new(world.dao_with(process, LEASE).await);
    for round in 0..20 {
        let guard = one.lock(["a"]).await.expect("it is free");
        let waiting = async {
            let waiting = two.wait(Wait::forever());
            waiting.run_locked(["a"], async || Instant::now()).await.expect("it is handed over")
        };
        let releasing = async {
            while one.admin().inspect(&id("a")).await.expect("the store answers").waiters.is_empty() {}
            guard.release().await.expect("it is held");
            Instant::now()
        };
        let (begun, released) = tokio::join!(waiting, releasing);
        // A look takes 60 ms.
        let after = begun.saturating_duration_since(released);
        assert!(after < SECOND / 10, "{round}: {after:?}");
    }
}
