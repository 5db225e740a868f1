//! A sweep, and what it costs others.

use std::sync::atomic::Ordering::Relaxed;

use lockcore::{Wait, backend::AttemptId};
use tokio::time::{Instant, sleep};

use super::{LEASE, SECOND, cells::World, id};
use crate::{session::Session, table::Table};

/// Case 3: closing the sessions of the dead is not in the way of a renewal.
#[tokio::test(start_paused = true)]
async fn a_sweep_of_600_dead_sessions_costs_the_sweeper_no_lock() {
    let world = World::new();
    let (sweeper, _) = world.service().await;
    let held = sweeper.lease(LEASE).lock(["own"]).await.expect("it is free");
    world.add_dead_holders(600);
    let begun = Instant::now();
    let swept = sweeper.admin().sweep(600).await.expect("the store answers");
    assert!(swept.removed >= 600, "{swept:?} in {:?}", begun.elapsed());
    held.check().expect("it is renewed meanwhile");
    held.release().await.expect("it is held");
}

/// A sweep ends also where more sessions have to be read than it may read.
#[tokio::test(start_paused = true)]
async fn a_sweep_beside_many_holders_ends() {
    let world = World::new();
    let mut held = Vec::new();
    for number in 0..3 {
        let (holder, _) = world.service().await;
        held.push(holder.lease(LEASE).lock([&*format!("of {number}")]).await.expect("it is free"));
    }
    sleep(3 * LEASE).await;
    let (sweeper, _) = world.service().await;
    let begun = Instant::now();
    let swept = sweeper.admin().sweep(1).await.expect("the store answers");
    assert!(swept.removed == 0 && begun.elapsed() < SECOND, "{swept:?} in {:?}", begun.elapsed());
    held.iter().for_each(|held| held.check().expect("it is renewed"));
}

/// Case 13: what is left behind is collected page by page, many at once, and the sweep says that there is more.
#[tokio::test(start_paused = true)]
async fn thousands_of_old_sessions_are_collected() {
    let world = World::new();
    for number in 0..3_000_u128 {
        world.put(&format!("session/{number:032x}"), Session::default().write());
    }
    world.put(&format!("probe/{:032x}", 7), b"1".to_vec());
    world.put("session/of-the-application.json", b"{}".to_vec());
    sleep(24 * 3600 * SECOND).await;
    let (sweeper, _) = world.service().await;
    let begun = Instant::now();
    let mut sweeps = 0;
    while sweeper.admin().sweep(100).await.expect("the store answers").more {
        sweeps += 1;
        assert!(sweeps < 100, "it ends");
    }
    assert!(begun.elapsed() < 120 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(world.names("session/"), ["session/of-the-application.json"]);
    assert_eq!(world.names("probe/"), Vec::<String>::new());
}

/// A session that is in use is not collected, however long ago it was written.
#[tokio::test(start_paused = true)]
async fn a_session_with_a_grant_is_not_collected() {
    let world = World::new();
    let (sweeper, _) = world.service().await;
    sweeper.lock(["a"]).await.expect("it is free").release().await.expect("it is held");
    world.add_dead_holders(1);
    let mut table: serde_json::Value = serde_json::to_value(world.table()).expect("plain data");
    table["ids"]["dead 1"]["held"][0]["until"] = (world.now() + 48 * 3_600_000_000).into();
    table["ids"]["dead 1"]["held"][0]["lease"] = (48 * 3_600_000_000_u64).into();
    world.put("table", table.to_string().into_bytes());
    sleep(24 * 3600 * SECOND).await;
    while sweeper.admin().sweep(100).await.expect("the store answers").more {}
    assert_eq!(world.names("session/"), [format!("session/{:032x}", 1)]);
}

/// Case 18: the tombstones of many who gave up leave room in the table.
#[tokio::test(start_paused = true)]
async fn tombstones_are_bounded() {
    let world = World::new();
    let mut table = Table::default();
    table.tombstones = (0..20_000).map(|_| (AttemptId::fresh().0, world.now() + 3_600_000_000)).collect();
    world.put("table", table.write());
    let (locks, _) = world.service().await;
    locks.lock(["a"]).await.expect("there is room").release().await.expect("it is held");
    assert!(world.table().tombstones.len() <= 4096);
}

/// 2.9: a sweep removes the places of dead waiters, too, though no other caller asks for those ids.
#[tokio::test(start_paused = true)]
async fn a_sweep_removes_the_places_of_the_dead() {
    let world = World::new();
    let ((holder, _), (waiter, network), (sweeper, _)) =
        (world.service().await, world.service().await, world.service().await);
    let held = holder.lease(LEASE).lock(["a"]).await.expect("it is free");
    let waiting = tokio::spawn(async move { waiter.wait(Wait::forever()).lock(["a"]).await });
    sleep(10 * SECOND).await;
    sweeper.admin().sweep(10).await.expect("the store answers");
    assert_eq!(world.table().places.len(), 1, "it waits");
    network.store(true, Relaxed);
    waiting.abort();
    sleep(90 * SECOND).await;
    sweeper.admin().sweep(10).await.expect("the store answers");
    assert_eq!(world.table().places.len(), 0);
    held.release().await.expect("it is held");
}

/// 10.6: what is shown is only read.
#[tokio::test(start_paused = true)]
async fn looking_writes_nothing() {
    let world = World::new();
    let (locks, _) = world.service().await;
    locks.lock(["of mine"]).await.expect("it is free").leave();
    world.add_dead_holders(10);
    sleep(10 * LEASE).await;
    let (_, before) = world.counts();
    let listed = locks.admin().list(&lockcore::Page::default()).await.expect("the store answers");
    locks.admin().inspect(&id("dead 1")).await.expect("the store answers");
    assert_eq!(world.counts().1, before, "{listed:?}");
}
