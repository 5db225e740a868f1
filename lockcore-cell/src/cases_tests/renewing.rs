//! Renewals beside steps, take-overs and other processes.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use lockcore::{Grant, LockDao, Wait};
use tokio::time::{Instant, sleep, timeout};

use super::{
    LEASE, Locks, SECOND,
    cells::{Way, World},
    id, take,
};

/// Case 4: a renewal waits for no step of its process, and for no other process.
#[tokio::test(start_paused = true)]
async fn a_holder_keeps_a_lease_of_10_s_beside_32_processes_and_its_own_steps() {
    let world = World::new();
    let (holder, _) = world.service().await;
    let held = holder.lease(LEASE).lock(["held"]).await.expect("it is free");
    let mut others = Vec::new();
    for number in 0..32 {
        let (locks, _) = world.service().await;
        others.push((locks, format!("of {number}")));
    }
    others.push((holder.clone(), "own".to_owned()));
    for (locks, id) in others {
        tokio::spawn(async move {
            loop {
                if let Ok(guard) = locks.lease(LEASE).lock([&*id]).await {
                    let _ = guard.release().await;
                }
            }
        });
    }
    for _ in 0..100 {
        sleep(SECOND).await;
        held.check().expect("it is renewed");
    }
}

/// A lease that was extended in the table only is not over for a process that knows an older table.
#[tokio::test(start_paused = true)]
async fn a_lock_is_not_closed_by_an_old_table() {
    let world = World::new();
    let (other, _) = world.service().await;
    let dao = world.dao_with(world.process(), 10 * SECOND).await;
    let locks = Locks::new(dao);
    let held = locks.lease(6 * LEASE).lock(["a"]).await.expect("it is free");
    let mut grant = held.held().grant().clone();
    held.leave();
    sleep(SECOND).await;
    assert!(other.lock(["a"]).await.expect_err("it is held").is_contention());
    sleep(40 * SECOND).await;
    grant.lease = Some(60 * LEASE);
    let third = world.dao_with(world.process(), 10 * SECOND).await;
    assert_eq!(third.renew(&grant).await.expect("the store answers").lost, []);
    for _ in 0..19 {
        sleep(30 * SECOND).await;
        assert!(other.lock(["a"]).await.expect_err("two holders").is_contention());
    }
    assert_eq!(third.release(&grant).await.expect("the store answers").lost, []);
}

/// A process releases and renews what another one took and renewed.
#[tokio::test(start_paused = true)]
async fn a_grant_is_renewed_and_released_by_another_process() {
    let world = World::new();
    let (holder, network) = world.service().await;
    let held = holder.lease(LEASE).lock(["a"]).await.expect("it is free");
    let grant = held.held().grant().clone();
    sleep(6 * LEASE).await;
    network.store(true, Relaxed);
    let dao = world.dao_with(world.process(), 10 * SECOND).await;
    for _ in 0..10 {
        assert_eq!(dao.renew(&grant).await.expect("the store answers").lost, []);
        sleep(LEASE / 2).await;
    }
    let last = world.dao_with(world.process(), 10 * SECOND).await;
    assert_eq!(last.release(&grant).await.expect("the store answers").lost, []);
}

/// A lock that was closed to renewal, and is over, is lost also while the table still has it.
#[tokio::test(start_paused = true)]
async fn a_closed_lock_is_not_renewed() {
    let world = World::new();
    let dao = world.dao_with(world.process(), 10 * SECOND).await;
    let locks = Locks::new(world.dao_with(world.process(), 10 * SECOND).await);
    let held = locks.lease(LEASE).lock(["a"]).await.expect("it is free");
    let grant = held.held().grant().clone();
    held.leave();
    for _ in 0..4 {
        sleep(LEASE / 2).await;
        assert_eq!(dao.renew(&grant).await.expect("the store answers").lost, []);
    }
    let fence = grant.locks[0].granted.fence;
    let session = format!("session/{}", world.table().grants[&fence].session);
    let mut closed: serde_json::Value = world.content(&session);
    closed["closed"] = serde_json::json!({ fence.to_string(): { "a": world.now() - 1_000_000 } });
    world.put(&session, closed.to_string().into_bytes());
    let lost = dao.renew(&grant).await.expect("the store answers").lost;
    assert_eq!(lost.iter().map(|lost| lost.reason).collect::<Vec<_>>(), [lockcore::LossReason::Expired]);
}

/// Case 16: a heartbeat renews all that its process holds.
#[tokio::test(start_paused = true)]
async fn a_hundred_grants_are_renewed_by_one_write() {
    let world = World::new();
    let (holder, _) = world.service().await;
    let mut held = Vec::new();
    for number in 0..100 {
        held.push(holder.lease(3 * LEASE).lock([&*format!("of {number}")]).await.expect("it is free"));
    }
    sleep(10 * LEASE).await;
    let before = world.counts();
    sleep(20 * LEASE).await;
    let (reads, writes) = world.counts();
    held.iter().for_each(|held| held.check().expect("it is renewed"));
    // Twenty renewals of ten seconds each.
    let (reads, writes) = (reads - before.0, writes - before.1);
    assert!(writes <= 24 && reads <= 120, "{writes} writes, {reads} reads");
}

/// A process that stands still for longer than its lease learns that it lost it, and its late write changes nothing.
#[tokio::test(start_paused = true)]
async fn a_late_heartbeat_brings_nothing_back() {
    let world = World::new();
    let ((holder, network), (other, _)) = (world.service().await, world.service().await);
    let dao = world.dao_with(world.process(), 10 * SECOND).await;
    let held = holder.lease(LEASE).lock(["a"]).await.expect("it is free");
    sleep(LEASE).await;
    network.store(true, Relaxed);
    let taken = other.wait(Wait::up_to(60 * SECOND)).lock(["a"]).await.expect("it ends");
    network.store(false, Relaxed);
    sleep(2 * LEASE).await;
    assert!(held.check().is_err(), "two holders");
    taken.check().expect("it is renewed");
    let inspected = dao.inspect(&id("a")).await.expect("the store answers");
    assert_eq!(inspected.holders.len(), 1, "{inspected:?}");
    let _ = timeout(SECOND, held.release()).await;
    taken.release().await.expect("it is held");
}

/// 2.5: a renewal that waited for the heartbeat before it, and longer than half a lease, renews all the same.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_had_to_wait_extends_the_lease() {
    let world = World::new();
    let dao = std::sync::Arc::new(world.dao_with(world.process(), 10 * SECOND).await);
    let grant = Grant { lease: Some(LEASE), ..take(&dao, "a").await };
    dao.renew(&grant).await.expect("the store answers");
    let session = world.names("session/").remove(0);
    sleep(4 * SECOND).await;
    dao.cell().next_writes.lock().expect("no panic").push_back(Way::Slow(6 * SECOND));
    let beating = tokio::spawn({
        let dao = dao.clone();
        async move { dao.store.show_life(Duration::ZERO).await }
    });
    sleep(SECOND / 10).await;
    let asked = Instant::now();
    assert_eq!(dao.renew(&grant).await.expect("the store answers").lost, []);
    assert!(asked.elapsed() > LEASE / 2, "it waited for {:?}", asked.elapsed());
    beating.await.expect("no panic").expect("the store answers");
    let until =
        world.content(&session)["renewals"][grant.locks[0].granted.fence.to_string()]["until"].as_u64();
    let least = world.now() + 9_000_000;
    assert!(until.is_some_and(|until| until >= least), "until {until:?}, {least} at least");
}

/// 2.5: a renewal does not fail because another one, which asked for the next heartbeat before it, was given up by a release.
#[tokio::test(start_paused = true)]
async fn a_release_fails_no_renewal_of_another_grant() {
    let world = World::new();
    let dao = std::sync::Arc::new(world.dao_with(world.process(), 10 * SECOND).await);
    let released = Grant { lease: Some(LEASE), ..take(&dao, "released").await };
    let held = Grant { lease: Some(LEASE), ..take(&dao, "held").await };
    for grant in [&released, &held] {
        dao.renew(grant).await.expect("the store answers");
    }
    sleep(4 * SECOND).await;
    dao.cell().next_writes.lock().expect("no panic").push_back(Way::Slow(2 * SECOND));
    let beating = tokio::spawn({
        let dao = dao.clone();
        async move { dao.store.show_life(Duration::ZERO).await }
    });
    let renewing = |grant: &Grant<String, uuid::Uuid>| {
        let (dao, grant) = (dao.clone(), grant.clone());
        tokio::spawn(async move { dao.renew(&grant).await })
    };
    sleep(SECOND / 10).await;
    let given_up = renewing(&released);
    sleep(SECOND / 2).await;
    let renewed = renewing(&held);
    sleep(SECOND / 2).await;
    assert_eq!(dao.release(&released).await.expect("the store answers").lost, []);
    assert_eq!(renewed.await.expect("no panic").expect("it is held").lost, []);
    // It may fail: there is nothing left to renew.
    let _ = given_up.await.expect("no panic");
    beating.await.expect("no panic").expect("the store answers");
}
