//! What an attack broke once, in virtual time: whole services over cells in memory, with the latencies of a bucket.

pub(crate) mod cells;

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use lockcore::{
    ClaimSet, FreshContext, Grant, LockDao, LockingService, Mode, Owner, Target, Wait,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use self::cells::{Denied, Process, Way, World};
use crate::{CellLockDao, CellSettings, session::Session, table::Table};

type Locks = LockingService<String, Uuid, CellLockDao<Process>>;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);

fn id(id: &str) -> Target<String> {
    Target::Id(id.to_owned())
}

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

/// The same, where the clock is set back between the look and the first renewal: only the order of what is learned counts.
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

/// The same, where a clock that was set back at once makes another look at it.
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

/// Case 14: a process knows its own write again for as long as it looks for it.
#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_is_lost_for_minutes_is_no_loss() {
    let world = World::new();
    let dao = world.dao_with(world.process(), Duration::from_secs(300)).await;
    let lossy = dao.cell().clone();
    let locks = Locks::new(dao);
    let held = locks.lease(3600 * SECOND).lock(["a"]).await.expect("it is free");
    lossy.loses_answers.store(true, Relaxed);
    let releasing = tokio::spawn(held.release());
    let (other, _) = world.service().await;
    for _ in 0..150 {
        sleep(SECOND).await;
        other.lock(["b"]).await.expect("it is free").release().await.expect("it is held");
    }
    lossy.loses_answers.store(false, Relaxed);
    releasing.await.expect("no panic").expect("it was released");
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

/// Case 18: a namespace that is in use is not probed again, and a pair costs two writes.
#[tokio::test(start_paused = true)]
async fn a_pair_of_a_new_process_is_two_writes() {
    let world = World::new();
    let (first, _) = world.service().await;
    first.lock(["a"]).await.expect("it is free").release().await.expect("it is held");
    let before = world.counts();
    let (second, _) = world.service().await;
    second.lock(["a"]).await.expect("it is free").release().await.expect("it is held");
    let (reads, writes) = world.counts();
    assert_eq!((reads - before.0, writes - before.1), (1, 2));
    // A copy of the namespace, or another way to it, may ignore conditions.
    let settings =
        CellSettings { way: "elsewhere".to_owned(), ..CellSettings::new("cells", "cells in memory") };
    CellLockDao::<_, String, Uuid>::open(world.process(), settings).await.expect("it keeps conditions");
    assert!(world.counts().1 > writes, "it is probed");
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

fn request(ids: &[&str]) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::fresh(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new(ids, Mode::Exclusive).expect("valid claims"),
        lease: Some(4 * 3600 * SECOND),
        owner: Owner::default(),
        queue: false,
        nested: false,
        detached: false,
    }
}

async fn take(dao: &CellLockDao<Process>, id: &str) -> Grant<String, Uuid> {
    let request = request(&[id]);
    match dao.acquire(&request).await.expect("the store answers") {
        Acquired::Granted(granted) => {
            Grant::new(request.context, request.claims.clone(), granted, request.lease)
        }
        other => panic!("{other:?}"),
    }
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

/// 2.6: a refusal is true though a write of before, in which the request was granted, arrives after it.
#[tokio::test(start_paused = true)]
async fn what_is_refused_is_not_granted_by_a_late_write() {
    let world = World::new();
    let dao = std::sync::Arc::new(world.dao_with(world.process(), 10 * SECOND).await);
    let held = take(&dao, "x").await;
    // While a slow write is under way the release and, much later, the request come into the next one, which is late.
    *dao.cell().next_writes.lock().expect("no panic") =
        [Way::Slow(8 * SECOND), Way::Late(6 * SECOND)].into_iter().collect();
    let slow = dao.clone();
    let slow = tokio::spawn(async move { slow.freeze(&id("z"), true).await });
    sleep(SECOND / 10).await;
    let (releasing, of) = (dao.clone(), held.clone());
    let releasing = tokio::spawn(async move { releasing.release(&of).await });
    sleep(76 * SECOND / 10).await;
    let wanted = request(&["x"]);
    let refused = dao.acquire(&wanted).await.expect("the store answers");
    assert!(matches!(refused, Acquired::Refused(_)), "{refused:?}");
    slow.await.expect("no panic").expect("the store answers");
    assert!(releasing.await.expect("no panic").is_err(), "its outcome is in doubt");
    sleep(10 * SECOND).await;
    let holders = dao.inspect(&id("x")).await.expect("the store answers").holders;
    assert_eq!(holders.iter().map(|holder| holder.fence).collect::<Vec<_>>(), [held.locks[0].granted.fence]);
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
