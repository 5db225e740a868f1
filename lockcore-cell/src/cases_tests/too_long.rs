//! Steps that are too long for a write, where each id has a cell of its own.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use lockcore::{
    Claim, ClaimSet, Grant, LockDao, LockingService, Mode, Wait,
    backend::{AcquireRequest, Acquired, AttemptId, Withdraw, Withdrawn},
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    SECOND,
    cells::{Denied, Process, Way, World},
    id, request,
    several::{HOUR, release, waits},
    take,
};
use crate::parts::Part;

/// A process whose store takes a tenth of what etcd takes.
fn process(world: &World) -> Process {
    let mut process = world.process();
    (process.at_once, process.bytes) = (128, Some((120_000, 150_000)));
    process
}

/// Ids of a usual length.
fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{:032x}{number:04}", 7)).collect()
}

/// A withdrawal that would be too long for a write is made in several.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_is_made_in_several_writes_if_it_is_too_long() {
    let world = World::new();
    let process = process(&world);
    let one = world.dao_with(process.clone(), Duration::from_secs(10)).await;
    let two = world.dao_with(process, Duration::from_secs(10)).await;
    let names = names(20);
    let set: Vec<&str> = names.iter().map(String::as_str).collect();
    let mine = request(&set);
    assert!(matches!(one.acquire(&mine).await, Ok(Acquired::Granted(_))));
    let large = waits(&set);
    assert!(matches!(two.acquire(&large).await, Ok(Acquired::Queued { .. })));
    let mut waiting = Vec::new();
    for number in 0..120 {
        let part = &set[number % 4 * 5..][..5];
        let queued = two.acquire(&waits(part)).await.expect("it is a part of what fits");
        assert!(matches!(queued, Acquired::Queued { .. }));
        waiting.push(queued);
    }
    let left = two.withdraw(&large, Withdraw::KeepIfGranted).await.expect("what waits can leave");
    assert_eq!(left, Withdrawn::Left);
    for name in world.names("id/") {
        let places = world.content(&name)["places"].clone();
        let places = places.as_object().expect("others wait").values();
        let is_left = |place: &serde_json::Value| place["attempt"] == large.attempt.0;
        assert_eq!(places.filter(|place| is_left(place)).count(), 0, "{name}");
    }
}

/// A renewal in the table, for longer than before, is made in several writes as well.
#[tokio::test(start_paused = true)]
async fn a_renewal_is_made_in_several_writes_if_it_is_too_long() {
    let world = World::new();
    let process = process(&world);
    let one = world.dao_with(process.clone(), Duration::from_secs(10)).await;
    let two = world.dao_with(process, Duration::from_secs(10)).await;
    let names = names(100);
    let set: Vec<&str> = names.iter().map(String::as_str).collect();
    let mine = request(&set);
    let Ok(Acquired::Granted(granted)) = one.acquire(&mine).await else { panic!("it is free") };
    let mut waiting = Vec::new();
    for part in set.chunks(10).cycle().take(30) {
        waiting.push(two.acquire(&waits(part)).await.expect("it is a tenth of what fits"));
    }
    let longer = |hours| Grant::new(mine.context, mine.claims.clone(), granted.clone(), Some(hours * HOUR));
    let before = world.counts().1;
    let renewed = one.renew(&longer(6)).await.expect("what is held can be renewed");
    assert!(renewed.lost.is_empty(), "{renewed:?}");
    assert!(world.counts().1 > before + 1, "all of it fits into a write");
    // A part of the writes is not made: that is an error, and no renewal.
    let denied = async {
        let lease =
            |name: &str| world.content(Part::of(name).name())["ids"][name]["held"][0]["lease"].clone();
        while !set.iter().any(|name| lease(name) == 7 * 3_600_000_000_u64) {
            sleep(SECOND / 100).await;
        }
        world.deny(Denied::Writes);
    };
    let (renewed, ()) = tokio::join!(async { one.renew(&longer(7)).await }, denied);
    assert!(renewed.is_err(), "{renewed:?}");
}

/// A set that is too long to wait for with a place is asked for again: what is in the way is told, and it is taken when it is free.
#[tokio::test(start_paused = true)]
async fn a_set_that_is_too_long_for_a_place_waits_without_one() {
    let world = World::new();
    let process = process(&world);
    let one = world.dao_with(process.clone(), Duration::from_secs(10)).await;
    let two = LockingService::new(world.dao_with(process, Duration::from_secs(10)).await);
    let names = names(100);
    let held = take(&one, &names[50]).await;
    let waited = two.wait(Wait::up_to(5 * SECOND)).run_locked(&names, async || {}).await;
    let error = waited.expect_err("an id is held");
    assert!(error.is_contention(), "{error}");
    let waiting = two.wait(Wait::up_to(60 * SECOND)).run_locked(&names, async || {});
    let freeing = async {
        sleep(5 * SECOND).await;
        release(&one, &held).await;
    };
    let (waited, ()) = tokio::join!(waiting, freeing);
    waited.expect("it is free");
}

/// A set cannot be granted to the first of a queue while so many stay behind it that the write is too long: it lets them go first.
#[tokio::test(start_paused = true)]
async fn a_queue_that_is_too_long_for_its_first_goes_on() {
    let world = World::new();
    let process = process(&world);
    let one = world.dao_with(process.clone(), Duration::from_secs(10)).await;
    let two = LockingService::new(world.dao_with(process.clone(), Duration::from_secs(10)).await);
    let three = LockingService::new(world.dao_with(process, Duration::from_secs(10)).await);
    let names = names(20);
    let (held, _other) = (take(&one, &names[0]).await, take(&one, "other").await);
    let first = two.wait(Wait::forever()).run_locked(&names, async || {});
    // The process of the first lives by this one.
    let living = two.wait(Wait::forever()).run_locked(["other"], async || {});
    let others = (0..16).map(|number| {
        let part = &names[number % 2 * 10..][..10];
        let three = &three;
        async move {
            sleep(SECOND).await;
            three.wait(Wait::forever()).run_locked(part, async || {}).await
        }
    });
    let freeing = async {
        sleep(10 * SECOND).await;
        release(&one, &held).await;
    };
    let all = async { tokio::join!(first, futures_util::future::join_all(others), freeing) };
    let (first, others, ()) = tokio::select! {
        all = timeout(HOUR / 6, all) => all.expect("nothing is held"),
        _ = living => panic!("it is held"),
    };
    first.expect("its turn comes");
    assert!(others.iter().all(Result::is_ok), "{others:?}");
}

/// Withdrawals of large sets leave room in the cells of their ids.
#[tokio::test(start_paused = true)]
async fn a_release_fits_into_a_write_whatever_was_withdrawn() {
    let world = World::new();
    let process = process(&world);
    let dao = world.dao_with(process, Duration::from_secs(10)).await;
    let names: Vec<String> = (0..50).map(|number| format!("{number:03}")).collect();
    let set: Vec<&str> = names.iter().map(String::as_str).collect();
    let mine = request(&set);
    let Ok(Acquired::Granted(granted)) = dao.acquire(&mine).await else { panic!("it is free") };
    let grant = Grant::new(mine.context, mine.claims.clone(), granted, mine.lease);
    for _ in 0..300 {
        // A caller that was dropped while it asked.
        let dropped = AcquireRequest { lease: Some(60 * SECOND), ..request(&set) };
        dao.withdraw(&dropped, Withdraw::Undo).await.expect("there is room");
    }
    assert!(dao.renew(&grant).await.expect("there is room").lost.is_empty());
    release(&dao, &grant).await;
}

/// A release that would be too long for a write, by those who wait, is made in several.
#[tokio::test(start_paused = true)]
async fn a_release_is_made_in_several_writes_if_it_is_too_long() {
    let world = World::new();
    let process = process(&world);
    let one = world.dao_with(process.clone(), Duration::from_secs(10)).await;
    let two = world.dao_with(process, Duration::from_secs(10)).await;
    let names = names(100);
    let set: Vec<&str> = names.iter().map(String::as_str).collect();
    let mine = request(&set);
    let Ok(Acquired::Granted(granted)) = one.acquire(&mine).await else { panic!("it is free") };
    let grant = Grant::new(mine.context, mine.claims.clone(), granted, mine.lease);
    let mut waiting = Vec::new();
    for _ in 0..3 {
        for part in set.chunks(10) {
            let queued = two.acquire(&waits(part)).await.expect("it is a tenth of what fits");
            assert!(matches!(queued, Acquired::Queued { .. }));
            waiting.push(queued);
        }
    }
    one.release(&grant).await.expect("what is held can be freed");
}

/// Grants that have no room in the cell of a session are renewed in the cells of the ids.
#[tokio::test(start_paused = true)]
async fn a_process_that_holds_many_renews_them() {
    let world = World::new();
    // A hundredth of the bounds of etcd.
    let mut process = world.process();
    (process.at_once, process.bytes) = (128, Some((12_000, 15_000)));
    let dao = world.dao_with(process, Duration::from_secs(10)).await;
    let mut grants = Vec::new();
    for number in 0..300 {
        let set = AcquireRequest { lease: Some(100 * SECOND), ..request(&[&*format!("{number}")]) };
        let Ok(Acquired::Granted(granted)) = dao.acquire(&set).await else { panic!("it is free") };
        grants.push(Grant::new(set.context, set.claims.clone(), granted, set.lease));
    }
    for (number, grant) in grants.iter().enumerate() {
        let renewed = dao.renew(grant).await;
        assert!(renewed.is_ok(), "{number}: {renewed:?}");
    }
}

/// A lock that was closed is forgotten, so that there is room in the cell of the session.
#[tokio::test(start_paused = true)]
async fn leases_that_end_leave_room_in_their_session() {
    let world = World::new();
    // A hundredth of the bounds of etcd.
    let mut process = world.process();
    (process.at_once, process.bytes) = (128, Some((12_000, 15_000)));
    let one = world.dao_with(process.clone(), Duration::from_secs(10)).await;
    let two = world.dao_with(process, Duration::from_secs(10)).await;
    let ten = |id: &str| AcquireRequest { lease: Some(10 * SECOND), ..request(&[id]) };
    let set = ten("renewed");
    let Ok(Acquired::Granted(granted)) = one.acquire(&set).await else { panic!("it is free") };
    let grant = Grant::new(set.context, set.claims.clone(), granted, set.lease);
    for number in 0..400 {
        // Three end by their leases, and another process takes them.
        let ids: Vec<String> = (0..3).map(|of| format!("job/{}", (3 * number + of) % 15)).collect();
        for id in &ids {
            let Ok(Acquired::Granted(_)) = one.acquire(&ten(id)).await else {
                panic!("{number}: it is free")
            };
        }
        for _ in 0..4 {
            sleep(3 * SECOND).await;
            let renewed = one.renew(&grant).await;
            assert!(renewed.is_ok(), "{number}: {renewed:?}");
        }
        for id in &ids {
            let next = ten(id);
            let taken = two.acquire(&next).await;
            let Ok(Acquired::Granted(granted)) = taken else {
                panic!("{number}: its lease is over: {taken:?}")
            };
            release(&two, &Grant::new(next.context, next.claims.clone(), granted, next.lease)).await;
        }
    }
}

/// A step beside many that fit into no write is made at once, and not after as many tries.
#[tokio::test(start_paused = true)]
async fn a_release_is_made_beside_many_that_are_too_long() {
    let world = World::new();
    let process = process(&world);
    let one = Arc::new(world.dao_with(process, Duration::from_secs(10)).await);
    let names = names(20);
    let set: Vec<&str> = names.iter().map(String::as_str).collect();
    let mine = request(&set);
    let Ok(Acquired::Granted(granted)) = one.acquire(&mine).await else { panic!("it is free") };
    let held = Grant::new(mine.context, mine.claims.clone(), granted, Some(HOUR));
    // All that is asked for meanwhile goes into one write.
    one.cell().next_writes.lock().expect("no panic").push_back(Way::Slow(SECOND));
    let slow = tokio::spawn({
        let (one, first) = (one.clone(), id(set[0]));
        async move { one.freeze(&first, false).await }
    });
    sleep(SECOND / 10).await;
    let waiting: Vec<_> = (0..80).map(|_| waits(&set)).collect();
    let asked = join_all(waiting.iter().map(|wanted| one.acquire(wanted)));
    let begun = Instant::now();
    let releasing = async {
        sleep(SECOND / 10).await;
        release(&one, &held).await;
        begun.elapsed()
    };
    let (_, took) = tokio::join!(asked, releasing);
    assert!(took < 3 * SECOND, "{took:?}");
    slow.await.expect("no panic").expect("the store answers");
}

/// A step of one id, whose cell alone fits, is made beside one of several that do not.
#[tokio::test(start_paused = true)]
async fn a_step_of_one_id_is_made_beside_a_set_that_is_too_long() {
    let world = World::new();
    let process = process(&world);
    let one = Arc::new(world.dao_with(process, Duration::from_secs(10)).await);
    let names = names(3);
    let set: Vec<&str> = names.iter().map(String::as_str).collect();
    let mine = request(&set);
    assert!(matches!(one.acquire(&mine).await, Ok(Acquired::Granted(_))));
    let large = waits(&set);
    assert!(matches!(one.acquire(&large).await, Ok(Acquired::Queued { .. })));
    let length = |name: &str| world.content(Part::of(name).name()).to_string().len();
    for name in &set {
        while length(name) < 50_000 {
            assert!(matches!(one.acquire(&waits(&[name])).await, Ok(Acquired::Queued { .. })));
        }
    }
    one.cell().next_writes.lock().expect("no panic").push_back(Way::Slow(SECOND));
    let slow = tokio::spawn({
        let (one, first) = (one.clone(), id(set[0]));
        async move { one.freeze(&first, false).await }
    });
    sleep(SECOND / 10).await;
    let withdrawn = one.withdraw(&large, Withdraw::KeepIfGranted);
    let frozen = join_all((0..3).map(|_| async { one.freeze(&id(set[0]), true).await }));
    let (withdrawn, frozen) = tokio::join!(withdrawn, frozen);
    for frozen in frozen {
        frozen.expect("its cell fits into a write");
    }
    assert_eq!(withdrawn.expect("what waits can leave"), Withdrawn::Left);
    slow.await.expect("no panic").expect("the store answers");
}

/// A waiter that asks again keeps its place beside one that comes and does not fit, and a holder that asks again goes on.
#[tokio::test(start_paused = true)]
async fn a_place_is_kept_beside_one_that_does_not_fit() {
    let world = World::new();
    let one = Arc::new(world.dao_with(process(&world), Duration::from_secs(10)).await);
    let held = request(&["a"]);
    assert!(matches!(one.acquire(&held).await, Ok(Acquired::Granted(_))));
    let places = || world.content("id/x61")["places"].as_object().expect("places go by tickets").clone();
    let first = waits(&["a"]);
    assert!(matches!(one.acquire(&first).await, Ok(Acquired::Queued { .. })));
    let mut before = 0;
    while places().len() > before {
        before = places().len();
        assert!(matches!(one.acquire(&waits(&["a"])).await, Ok(Acquired::Queued { .. })));
    }
    // All that is asked for meanwhile goes into one write.
    one.cell().next_writes.lock().expect("no panic").push_back(Way::Slow(SECOND));
    let slow = tokio::spawn({
        let one = one.clone();
        async move { one.freeze(&id("a"), false).await }
    });
    sleep(SECOND / 10).await;
    let (newcomer, other) = (waits(&["a"]), waits(&["a"]));
    let held = AcquireRequest { attempt: AttemptId::fresh(), ..held };
    // Whichever of them comes first.
    let never = request(&["a"]);
    let (new, again, refused, ..) = tokio::join!(
        one.acquire(&newcomer),
        one.acquire(&held),
        one.acquire(&never),
        one.acquire(&first),
        one.acquire(&other),
        one.acquire(&first)
    );
    assert!(matches!((&new, &again), (Ok(Acquired::Queued { .. }), Ok(Acquired::Granted(_)))), "{again:?}");
    assert!(matches!(refused, Ok(Acquired::Refused(_))), "{refused:?}");
    slow.await.expect("no panic").expect("the store answers");
    assert!(places().values().any(|place| place["attempt"] == first.attempt.0), "it has lost its place");
}

/// A waiter keeps its place beside what another one left in a cell, where there is no room to take that out.
#[tokio::test(start_paused = true)]
async fn a_place_is_kept_where_nothing_can_be_written() {
    let world = World::new();
    let one = world.dao_with(process(&world), Duration::from_secs(10)).await;
    let two = world.dao_with(process(&world), Duration::from_secs(10)).await;
    let (_a, _b) = (take(&one, "a").await, take(&one, "b").await);
    let (mine, left) = (waits(&["a", "b"]), waits(&["a", "b"]));
    // Its process lives as long as it waits.
    let _waits = two.acquire(&mine).await.expect("the store answers");
    assert!(matches!(two.acquire(&left).await, Ok(Acquired::Queued { .. })));
    let before = world.content("id/x62");
    two.withdraw(&left, Withdraw::KeepIfGranted).await.expect("the store answers");
    world.put("id/x62", before.to_string().into_bytes());
    let length = |name: &str| world.content(name).to_string().len();
    for (id, name) in [("a", "id/x61"), ("b", "id/x62")] {
        while length(name) < 61_000 {
            assert!(matches!(one.acquire(&waits(&[id])).await, Ok(Acquired::Queued { .. })));
        }
    }
    sleep(10 * SECOND).await;
    let again = two.acquire(&mine).await;
    assert!(matches!(again, Ok(Acquired::Queued { .. })), "{again:?}");
    let places = world.content("id/x62")["places"].clone();
    let mut places = places.as_object().expect("places go by tickets").values();
    assert!(places.any(|place| place["attempt"] == mine.attempt.0), "it has lost its place");
}

/// A waiter for two ids keeps its place though only one of them is written meanwhile.
#[tokio::test(start_paused = true)]
async fn a_place_is_kept_where_only_one_of_its_ids_can_be_written() {
    let world = World::new();
    let one = Arc::new(world.dao_with(process(&world), Duration::from_secs(10)).await);
    let (held, _b) = (take(&one, "a").await, take(&one, "b").await);
    let mine = waits(&["a", "b"]);
    let _waits = one.acquire(&mine).await.expect("the store answers");
    let length = |name: &str| world.content(name).to_string().len();
    for (id, name) in [("a", "id/x61"), ("b", "id/x62")] {
        while length(name) < 61_000 {
            assert!(matches!(one.acquire(&waits(&[id])).await, Ok(Acquired::Queued { .. })));
        }
    }
    // All that is asked for meanwhile goes into one write.
    one.cell().next_writes.lock().expect("no panic").push_back(Way::Slow(SECOND));
    let slow = tokio::spawn({
        let one = one.clone();
        async move { one.freeze(&id("a"), true).await }
    });
    sleep(SECOND / 10).await;
    let (again, ()) = tokio::join!(one.acquire(&mine), release(&one, &held));
    assert!(matches!(again, Ok(Acquired::Queued { .. })), "{again:?}");
    slow.await.expect("no panic").expect("the store answers");
    for name in ["id/x61", "id/x62"] {
        let places = world.content(name)["places"].clone();
        let mut places = places.as_object().expect("places go by tickets").values();
        assert!(places.any(|place| place["attempt"] == mine.attempt.0), "it has lost its place in {name}");
    }
}

/// A holder that asks for more makes its cell longer: it is refused as a newcomer is.
#[tokio::test(start_paused = true)]
async fn a_holder_that_asks_for_more_makes_no_write_too_long() {
    let world = World::new();
    let one = world.dao_with(process(&world), Duration::from_secs(10)).await;
    let slots = |permits| {
        let claims = ClaimSet::new([Claim::slots("a".to_owned(), 60_000).permits(permits)], Mode::Exclusive);
        claims.expect("valid claims")
    };
    let held = AcquireRequest { claims: slots(1), ..request(&["a"]) };
    assert!(matches!(one.acquire(&held).await, Ok(Acquired::Granted(_))));
    let more = AcquireRequest { claims: slots(60_000), attempt: AttemptId::fresh(), ..held };
    let error = one.acquire(&more).await.expect_err("60000 permits fit into no write");
    assert!(error.to_string().contains("the set alone"), "{error}");
}

/// A set of many long ids, whose place would be too long for their cells, waits without one.
#[tokio::test(start_paused = true)]
async fn a_set_of_long_ids_waits() {
    let world = World::new();
    let mut process = world.process();
    (process.at_once, process.bytes) = (1000, Some((6 << 20, 8 << 20)));
    let one = world.dao_with(process.clone(), Duration::from_secs(10)).await;
    let two = world.dao_with(process, Duration::from_secs(10)).await;
    let names: Vec<String> = (0..1000).map(|number| format!("{number:0800}")).collect();
    let set: Vec<&str> = names.iter().map(String::as_str).collect();
    let held = take(&one, &names[7]).await;
    let waiting = waits(&set);
    let waited = two.acquire(&waiting).await;
    assert!(matches!(waited, Ok(Acquired::Queued { .. })), "{waited:?}");
    release(&one, &held).await;
    assert!(matches!(two.acquire(&waiting).await, Ok(Acquired::Granted(_))));
}
