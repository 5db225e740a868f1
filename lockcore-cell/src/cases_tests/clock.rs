//! The clock of the store is set back.

use std::sync::atomic::Ordering::Relaxed;

use lockcore::Wait;
use tokio::time::{Instant, sleep};

use super::{LEASE, SECOND, cells::World, id};

/// Case 11: also if it is set back by less than what a lock is old.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_a_little_frees_no_lock() {
    let world = World::new();
    let ((holder, _), (other, _)) = (world.service().await, world.service().await);
    let held = holder.lease(6 * LEASE).lock(["a"]).await.expect("it is free");
    sleep(600 * SECOND).await;
    for back in [30, 60, 240] {
        world.set_back(back * SECOND);
        for _ in 0..90 {
            assert!(other.lock(["a"]).await.expect_err("two holders").is_contention());
            held.check().expect("it is renewed");
            sleep(SECOND).await;
        }
    }
    held.release().await.expect("it is held");
}

/// A place that was made after the clock was set back is not judged by what was seen before.
#[tokio::test(start_paused = true)]
async fn a_place_outlives_a_clock_that_is_set_back() {
    let world = World::new();
    let ((holder, _), (waiter, _)) = (world.service().await, world.service().await);
    let held = holder.lease(6 * LEASE).lock(["a"]).await.expect("it is free");
    let first = waiter.clone();
    let waiting = tokio::spawn(async move { first.wait(Wait::up_to(20 * SECOND)).lock(["a", "x"]).await });
    sleep(5 * SECOND).await;
    // It looks at the session of the waiter.
    assert!(holder.lock(["x"]).await.expect_err("it is queued for").is_contention());
    waiting.await.expect("no panic").expect_err("its time is over");
    world.set_back(2 * 3600 * SECOND);
    let waiting = tokio::spawn(async move { waiter.wait(Wait::up_to(600 * SECOND)).lock(["a"]).await });
    sleep(SECOND).await;
    let since = world.table().places.keys().next().copied().expect("it waits");
    for _ in 0..20 {
        sleep(SECOND).await;
        holder.lock(["other"]).await.expect("it is free").release().await.expect("it is held");
        assert_eq!(world.table().places.keys().next().copied(), Some(since), "it lost its place");
    }
    held.release().await.expect("it is held");
    waiting.await.expect("no panic").expect("it is its turn").release().await.expect("it is held");
}

/// Case 11: what was renewed before the clock was set back ends a lease later.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_keeps_no_lock_of_the_dead() {
    let world = World::new();
    let (holder, network) = world.service().await;
    let held = holder.lease(6 * LEASE).lock(["a"]).await.expect("it is free");
    sleep(300 * SECOND).await;
    held.check().expect("it is renewed");
    network.store(true, Relaxed);
    world.set_back(2 * 3600 * SECOND);
    let (other, _) = world.service().await;
    let begun = Instant::now();
    let guard = other.lease(LEASE).wait(Wait::up_to(4 * 3600 * SECOND)).lock(["a"]).await;
    let waited = begun.elapsed();
    guard.expect("it ends").release().await.expect("it is held");
    assert!((50 * SECOND..80 * SECOND).contains(&waited), "{waited:?}");
}

/// Case 11: a holder that lives goes on, and its renewals count.
#[tokio::test(start_paused = true)]
async fn a_holder_goes_on_when_the_clock_is_set_back() {
    let world = World::new();
    let ((holder, network), (other, _)) = (world.service().await, world.service().await);
    let held = holder.lease(LEASE).lock(["a"]).await.expect("it is free");
    sleep(60 * SECOND).await;
    world.set_back(2 * 3600 * SECOND);
    for _ in 0..60 {
        sleep(SECOND).await;
        held.check().expect("it is renewed");
        assert!(other.lock(["a"]).await.expect_err("it is held").is_contention());
    }
    network.store(true, Relaxed);
    let begun = Instant::now();
    other.wait(Wait::up_to(3600 * SECOND)).lock(["a"]).await.expect("it ends").release().await.expect("held");
    assert!(begun.elapsed() < 2 * LEASE + 5 * SECOND, "{:?}", begun.elapsed());
}

/// Case 11, of waiters: one that died before the clock was set back is found out as usual.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_keeps_no_dead_waiter_alive() {
    let world = World::new();
    let ((leader, _), (dead, network), (other, _)) =
        (world.service().await, world.service().await, world.service().await);
    let held = leader.lease(LEASE).lock(["b"]).await.expect("it is free");
    tokio::spawn(async move { dead.wait(Wait::up_to(1000 * SECOND)).lock(["a", "b"]).await });
    sleep(10 * SECOND).await;
    assert!(other.lock(["a"]).await.expect_err("it is queued for").is_contention());
    network.store(true, Relaxed);
    world.set_back(2 * 3600 * SECOND);
    let begun = Instant::now();
    let guard = other.lease(LEASE).wait(Wait::up_to(600 * SECOND)).lock(["a"]).await;
    guard.expect("the waiter is dead").release().await.expect("it is held");
    assert!(begun.elapsed() < 10 * SECOND, "{:?}", begun.elapsed());
    held.release().await.expect("it is renewed");
}

/// A clock that is set back between the look and the first renewal hides no session: only the order counts in which the
/// two are learned.
#[tokio::test(start_paused = true)]
async fn a_look_before_a_set_back_misses_no_session() {
    let world = World::new();
    let ((holder, _), (other, _)) = (world.service().await, world.service().await);
    let held = holder.lease(6 * LEASE).lock(["a"]).await.expect("it is free");
    sleep(SECOND).await;
    other.admin().inspect(&id("a")).await.expect("the store answers");
    world.set_back(30 * SECOND);
    sleep(94 * SECOND).await;
    for _ in 0..120 {
        other.lock(["b"]).await.expect("it is free").release().await.expect("it is held");
        assert!(other.lock(["a"]).await.expect_err("two holders").is_contention());
        held.check().expect("it is renewed");
        sleep(SECOND).await;
    }
    held.release().await.expect("it is held");
}

/// A clock that is set back before the first renewal, so that it is looked at again, ends no lock.
#[tokio::test(start_paused = true)]
async fn a_young_lock_outlives_a_clock_that_is_set_back() {
    let world = World::new();
    let ((holder, _), (other, _)) = (world.service().await, world.service().await);
    let held = holder.lease(6 * LEASE).lock(["a"]).await.expect("it is free");
    sleep(SECOND).await;
    world.set_back(30 * SECOND);
    for _ in 0..300 {
        sleep(SECOND).await;
        assert!(other.lock(["a"]).await.expect_err("two holders").is_contention());
        held.check().expect("it is renewed");
    }
    held.release().await.expect("it is held");
}
