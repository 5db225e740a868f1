//! Sessions that are absent, removed, or cannot be read.

use std::sync::atomic::Ordering::Relaxed;

use lockcore::{LockDao, Wait};
use tokio::time::{Instant, sleep};

use super::{LEASE, SECOND, cells::World, id, take};

/// Case 6: an absent session is unknown, and not over. Its process goes on in the table, under another name.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_removed_costs_no_lock() {
    let world = World::new();
    let ((holder, _), (other, _)) = (world.service().await, world.service().await);
    let held = holder.lease(LEASE).lock(["a"]).await.expect("it is free");
    sleep(6 * LEASE).await;
    held.check().expect("it is renewed");
    world.remove_folder("session/");
    let waiting = tokio::spawn(async move { other.wait(Wait::up_to(1000 * SECOND)).lock(["a"]).await });
    for _ in 0..100 {
        sleep(SECOND).await;
        held.check().expect("it is renewed");
        assert!(!waiting.is_finished(), "two holders");
    }
    assert_eq!(world.names("session/").len(), 2, "one of the holder, one of the waiter");
    held.release().await.expect("it is held");
    waiting.await.expect("no panic").expect("it is its turn").release().await.expect("it is held");
}

/// A process whose own session was spoiled goes on under another name.
#[tokio::test(start_paused = true)]
async fn a_spoiled_session_costs_what_it_held() {
    let world = World::new();
    let (holder, _) = world.service().await;
    let held = holder.lease(LEASE).lock(["a"]).await.expect("it is free");
    sleep(2 * LEASE).await;
    let session = world.table().grants.values().next().expect("it is granted").session.clone();
    world.put(&format!("session/{session}"), b"by another".to_vec());
    sleep(2 * LEASE).await;
    let next = holder.lease(LEASE).lock(["b"]).await.expect("it is free");
    sleep(3 * LEASE).await;
    next.check().expect("it is renewed");
    let _ = held.release().await;
    next.release().await.expect("it is held");
}

/// A session that was looked at before it was there is not missed.
#[tokio::test(start_paused = true)]
async fn a_session_that_was_not_there_yet_is_not_missed() {
    let world = World::new();
    let ((holder, _), (other, _)) = (world.service().await, world.service().await);
    let held = holder.lease(6 * LEASE).lock(["a"]).await.expect("it is free");
    sleep(5 * SECOND).await;
    let seen = other.admin().inspect(&id("a")).await.expect("the store answers");
    assert_eq!(seen.holders.len(), 1);
    for _ in 0..300 {
        sleep(SECOND).await;
        other.lock(["b"]).await.expect("it is free").release().await.expect("it is held");
        assert!(other.lock(["a"]).await.expect_err("two holders").is_contention());
        held.check().expect("it is renewed");
    }
    held.release().await.expect("it is held");
}

/// Case 6: nor does a process that knows an old table only make a removed session again.
#[tokio::test(start_paused = true)]
async fn a_removed_session_is_made_again_by_none() {
    let world = World::new();
    let ((holder, _), (other, _)) = (world.service().await, world.service().await);
    let held = holder.lease(6 * LEASE).lock(["a"]).await.expect("it is free");
    sleep(SECOND).await;
    assert!(other.lock(["a"]).await.expect_err("it is held").is_contention());
    sleep(101 * SECOND).await;
    world.remove_folder("session/");
    for _ in 0..60 {
        sleep(SECOND).await;
        assert!(other.lock(["a"]).await.expect_err("two holders").is_contention());
        held.check().expect("it is renewed");
    }
    held.release().await.expect("it is held");
}

/// Case 6, for those who do not wait: that the session is missed is in the table.
#[tokio::test(start_paused = true)]
async fn what_is_missed_ends_for_processes_that_ask_once() {
    let world = World::new();
    let (holder, network) = world.service().await;
    let held = holder.lease(LEASE).lock(["a"]).await.expect("it is free");
    sleep(6 * LEASE).await;
    held.check().expect("it is renewed");
    network.store(true, Relaxed);
    world.remove_folder("session/");
    let mut tries = 0;
    loop {
        sleep(SECOND).await;
        tries += 1;
        let (once, _) = world.service().await;
        match once.lock(["a"]).await {
            Ok(guard) => break guard.release().await.expect("it is held"),
            Err(refused) => assert!(tries < 14, "{refused}"),
        }
    }
    held.check().expect_err("two holders");
}

/// Case 12: a session that cannot be had concerns those who want its ids.
#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_be_read_concerns_its_own_ids() {
    let world = World::new();
    let (holder, network) = world.service().await;
    let held = holder.lease(LEASE).lock(["x"]).await.expect("it is free");
    let session = world.table().grants.values().next().expect("it is granted").session.clone();
    let ((other, _), (waiter, _)) = (world.service().await, world.service().await);
    let waiting = tokio::spawn(async move { waiter.wait(Wait::up_to(200 * SECOND)).lock(["x"]).await });
    sleep(SECOND).await;
    network.store(true, Relaxed);
    world.fail_reads_of(&format!("session/{session}"));
    sleep(2 * LEASE).await;
    sleep(SECOND).await;
    for _ in 0..5 {
        let begun = Instant::now();
        let guard = other.lock(["unrelated"]).await.expect("it is free");
        guard.release().await.expect("it is held");
        assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
        sleep(SECOND).await;
    }
    let refused = other.lock(["x"]).await.expect_err("nothing is known of its holder");
    assert!(!refused.is_contention(), "{refused}");
    assert!(!waiting.is_finished(), "its holder may have renewed");
    world.fail_reads_of("");
    waiting.await.expect("no panic").expect("it is over").release().await.expect("it is held");
    drop(held);
}

/// 10.3: a process goes on under another name when its session is old, and never while anything is held or queued under it.
#[tokio::test(start_paused = true)]
async fn a_session_is_left_when_nothing_is_under_it() {
    let world = World::new();
    let dao = world.dao_with(world.process(), 10 * SECOND).await;
    let sessions =
        || -> Vec<String> { world.table().grants.values().map(|grant| grant.session.clone()).collect() };
    let first = take(&dao, "a").await;
    dao.renew(&first).await.expect("the store answers");
    let before = sessions();
    sleep(2 * 3600 * SECOND).await;
    let kept = take(&dao, "b").await;
    assert_eq!(sessions(), [&before[..], &before[..]].concat());
    dao.release(&first).await.expect("the store answers");
    dao.release(&kept).await.expect("the store answers");
    take(&dao, "c").await;
    assert_ne!(sessions(), before);
}
