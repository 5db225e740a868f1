//! A table in which there is no room.

use std::{cell::RefCell, collections::BTreeSet};

use futures_util::future::join_all;
use lockcore::{
    Claim, ClaimSet, FreshContext, LockDao, LockingService, MAX_PERMITS, Mode, Wait,
    backend::{AcquireRequest, Acquired, AttemptId, ServiceTime},
};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::{
    LEASE, SECOND,
    cells::{Way, World},
    id, request,
    several::{Dao, HOUR, release, wait, waits},
    take,
};
use crate::{
    parts::Part,
    request::Request,
    step::{Step, Verdict},
    table::{self, Table},
    takeover::Sessions,
};

/// One release hands over to all who wait for permits. What they will hold has its room before they get a place.
#[tokio::test(start_paused = true)]
async fn those_who_wait_for_many_permits_make_no_release_too_long() {
    let world = World::new();
    let mut process = world.process();
    (process.at_once, process.bytes) = (128, Some((100_000, 150_000)));
    let one = world.dao_with(process.clone(), LEASE).await;
    let two = LockingService::new(world.dao_with(process, LEASE).await);
    let held = take(&one, "a").await;
    let waiting = join_all((0..5).map(|_| async {
        let claim = Claim::slots("a".to_owned(), 100_000).permits(9_000);
        two.wait(Wait::forever()).run_locked([claim], async || sleep(SECOND).await).await
    }));
    let releasing = async {
        sleep(5 * SECOND).await;
        release(&one, &held).await;
    };
    let both = async { tokio::join!(waiting, releasing) };
    let (waited, ()) = timeout(HOUR / 6, both).await.expect("all of them have their turn");
    assert!(waited.iter().all(Result::is_ok), "{waited:?}");
}

/// Waiters of whom only one can hold leave their room to others, also beside the one that holds.
#[tokio::test(start_paused = true)]
async fn those_who_wait_for_the_same_permits_leave_room() {
    let world = World::new();
    let mut process = world.process();
    process.bytes = Some((40_000, 60_000));
    let one = world.dao_with(process, LEASE).await;
    let all = |queue| {
        let claims = [Claim::slots("a".to_owned(), 4_000).permits(4_000)];
        let claims = ClaimSet::new(claims, Mode::Exclusive).expect("valid claims");
        AcquireRequest { claims, queue, ..waits(&["a"]) }
    };
    assert!(matches!(one.acquire(&all(false)).await, Ok(Acquired::Granted(_))));
    for number in 0..20 {
        let queued = one.acquire(&all(true)).await;
        assert!(matches!(queued, Ok(Acquired::Queued { .. })), "{number}: {queued:?}");
    }
    assert!(matches!(one.acquire(&request(&["b"])).await, Ok(Acquired::Granted(_))));
}

/// A hand-over takes the room that was left for it, and no more.
#[tokio::test(start_paused = true)]
async fn a_hand_over_takes_no_more_room() {
    let world = World::new();
    let one = world.dao_with(world.process(), LEASE).await;
    let names: Vec<String> = (0..30).map(|number| format!("{number:016}")).collect();
    let set: Vec<&str> = names.iter().map(String::as_str).collect();
    let room = || {
        let table = world.table();
        table.write().len() + table.reserved()
    };
    let held = take(&one, &names[0]).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(one.acquire(&waits(&set)).await.expect("there is room"));
    }
    let before = room();
    release(&one, &held).await;
    assert_eq!(world.table().ids.len(), 30, "the first of them holds its set");
    assert!(room() < before + 100, "{} after {before}", room());
}

/// A set of more permits than any cell has room for is refused before they are looked for.
#[tokio::test(start_paused = true)]
async fn a_set_of_too_many_permits_is_refused_at_once() {
    let world = World::new();
    let one = world.dao_with(world.process(), LEASE).await;
    let before = world.counts();
    let claims = (0..10).map(|number| Claim::slots(number.to_string(), MAX_PERMITS).permits(MAX_PERMITS));
    let claims = ClaimSet::new(claims, Mode::Exclusive).expect("valid claims");
    let error = one.acquire(&AcquireRequest { claims, ..waits(&["a"]) }).await.expect_err("it fits nowhere");
    assert!(error.to_string().contains("the set alone"), "{error}");
    assert_eq!(world.counts(), before, "nothing is asked of the store");
}

/// 3.7: those who wait for what a holder has do not keep it from what is free, or all of them would wait for ever.
#[tokio::test(start_paused = true)]
async fn a_holder_goes_on_beside_those_who_fill_the_table() {
    let world = World::new();
    let one = world.dao_with(world.process(), LEASE).await;
    let two = world.dao_with(world.process(), LEASE).await;
    let held = request(&["x"]);
    assert!(matches!(one.acquire(&held).await, Ok(Acquired::Granted(_))));
    let names: Vec<String> = (0..40).map(|number| format!("{number:0900}")).collect();
    let mut waiting = Vec::new();
    for count in [40, 4, 0] {
        let set: Vec<&str> = names[..count].iter().map(String::as_str).chain(["x"]).collect();
        let full = loop {
            match two.acquire(&waits(&set)).await {
                Ok(queued @ Acquired::Queued { .. }) => waiting.push(queued),
                full => break full.expect_err("there is no room").to_string(),
            }
        };
        assert!(full.contains("bytes"), "{full}");
    }
    assert!(two.acquire(&waits(&["y"])).await.is_err(), "there is no room");
    // Also if both go into one write, as all that is asked for meanwhile does, whichever comes first.
    for (number, ids) in [["m", "n"], ["q", "p"]].into_iter().enumerate() {
        one.cell().next_writes.lock().expect("no panic").push_back(Way::Slow(SECOND));
        let freezing = async { one.freeze(&id("z"), number == 0).await };
        let ask = async |nested, id| {
            sleep(SECOND / if nested == (number == 0) { 10 } else { 5 }).await;
            let context = if nested { held.context } else { Uuid::fresh() };
            one.acquire(&AcquireRequest { context, nested, queue: !nested, ..waits(&[id]) }).await
        };
        let (frozen, taken, new) = tokio::join!(freezing, ask(true, ids[0]), ask(false, ids[1]));
        frozen.expect("it makes nothing longer");
        assert!(matches!(taken, Ok(Acquired::Granted(_))), "{taken:?}");
        assert!(new.is_err(), "there is no room: {new:?}");
    }
}

/// 3.7: nor do they where each id has a cell, and the places of few fill what one write can have of all of them: a set that is granted
/// takes their room.
#[tokio::test(start_paused = true)]
async fn a_holder_goes_on_beside_those_whose_places_are_too_long_together() {
    // Also if it names what it holds, so that it has all ids of the waiters; and if it had to wait for one, with a place or without.
    for (again, is_free, is_early) in
        [(None, true, false), (Some("x"), true, false), (None, false, true), (None, false, false)]
    {
        let world = World::new();
        let mut process = world.process();
        (process.at_once, process.bytes) = (128, Some((100_000, 150_000)));
        let one = world.dao_with(process.clone(), LEASE).await;
        let two = LockingService::new(world.dao_with(process, LEASE).await);
        let (held, in_the_way) = (request(&["x"]), request(&["7"]));
        assert!(matches!(one.acquire(&held).await, Ok(Acquired::Granted(_))));
        let names: Vec<String> = (0..30).map(|number| format!("{number:040}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).chain(again).chain(["7"]).collect();
        let nested = AcquireRequest { context: held.context, nested: true, lease: held.lease, ..waits(&all) };
        if !is_free {
            assert!(matches!(one.acquire(&in_the_way).await, Ok(Acquired::Granted(_))));
        }
        if is_early {
            assert!(matches!(one.acquire(&nested).await, Ok(Acquired::Queued { .. })));
        }
        let sets = names.chunks(15).flat_map(|half| vec![half; 5]).chain([&[][..]; 3]);
        let waiting = join_all(sets.map(|half| {
            let (two, mut set) = (two.clone(), half.to_vec());
            set.push("x".to_owned());
            async move { two.wait(Wait::forever()).run_locked(set, async || sleep(SECOND).await).await }
        }));
        let places = || {
            let cell = world.content(Part::of("x").name());
            cell["places"].as_object().expect("there are some").len()
        };
        let going_on = async {
            sleep(10 * SECOND).await;
            let before = places();
            assert!(before > 8, "{before} have room for their places");
            if !is_free {
                assert!(matches!(one.acquire(&nested).await, Ok(Acquired::Queued { .. })));
                assert_eq!(places(), before, "none makes room for a set that is not granted");
                one.release_context(&in_the_way.context).await.expect("the store answers");
            }
            let mut tries = 0;
            while !matches!(one.acquire(&nested).await, Ok(Acquired::Granted(_))) {
                tries += 1;
                assert!(tries < 3, "it waits for their room");
                sleep(SECOND).await;
            }
            assert_eq!(
                places(),
                if again.is_some() { 0 } else { before },
                "only its cells have to have room"
            );
            sleep(10 * SECOND).await;
            assert_eq!(one.inspect(&id("7")).await.expect("the store answers").holders.len(), 1);
            one.release_context(&held.context).await.expect("the store answers");
        };
        let both = async { tokio::join!(waiting, going_on) };
        let (waited, ()) = timeout(HOUR, both).await.expect("all of them have their turn");
        assert!(waited.iter().all(Result::is_ok), "{waited:?}");
    }
}

/// A place that was removed from some cells and cannot be put back keeps no other waiter from what is free.
#[tokio::test(start_paused = true)]
async fn a_place_that_cannot_be_put_back_goes_from_all_cells() {
    let world = World::new();
    let mut process = world.process();
    (process.at_once, process.bytes) = (128, Some((100_000, 150_000)));
    let one = world.dao_with(process.clone(), LEASE).await;
    let two = world.dao_with(process.clone(), LEASE).await;
    let three = world.dao_with(process, LEASE).await;
    let names: Vec<String> = (0..15).map(|number| format!("{number:040}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let places = |id: &str| {
        let cell = world.content(Part::of(id).name());
        cell["places"].as_object().map_or(0, |places| places.len())
    };
    // One that is dropped waits no more.
    let waiting = RefCell::new(Vec::new());
    let queued = async |dao: &Dao, request: &AcquireRequest<String, Uuid>| {
        let queued = dao.acquire(request).await.expect("the store answers");
        assert!(matches!(queued, Acquired::Queued { .. }), "{queued:?}");
        waiting.borrow_mut().push(queued);
    };
    // Others, behind it, fill what one write can have.
    let fill = async || loop {
        let before = places(all[0]);
        queued(&three, &waits(&all)).await;
        if places(all[0]) == before {
            break;
        }
    };
    let held = take(&one, "x").await;
    let first = waits(&[&all[..], &["x"]].concat());
    queued(&two, &first).await;
    let behind = waits(&["x"]);
    queued(&three, &behind).await;
    fill().await;
    for _ in 0..60 {
        queued(&three, &waits(&all[..1])).await;
    }
    let nested = AcquireRequest { context: held.context, nested: true, lease: held.lease, ..waits(&all) };
    let taken = one.acquire(&nested).await;
    assert!(matches!(taken, Ok(Acquired::Granted(_))), "{taken:?}");
    assert_eq!(places("x"), 2);
    fill().await;
    queued(&two, &first).await;
    assert_eq!(places("x"), 1, "it waits without a place");
    release(&one, &held).await;
    timeout(SECOND * 5, wait(&three, &behind)).await.expect("it is free");
}

/// A place that made room is put back after the next look, and not when its waiter asks again by itself.
#[tokio::test(start_paused = true)]
async fn a_place_that_made_room_is_soon_put_back() {
    let world = World::new();
    let mut process = world.process();
    (process.at_once, process.bytes) = (128, Some((100_000, 150_000)));
    let one = world.dao_with(process.clone(), LEASE).await;
    let two = world.dao_with(process.clone(), LEASE).await;
    let three = world.dao_with(process, LEASE).await;
    let names: Vec<String> = (0..30).map(|number| format!("{number:040}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let places = |id: &str| {
        let cell = world.content(Part::of(id).name());
        cell["places"].as_object().map_or(0, |places| places.len())
    };
    let held = take(&one, "x").await;
    let first = waits(&[&all[..1], &["x"]].concat());
    let going_on = async {
        sleep(SECOND).await;
        // One that is dropped waits no more.
        let mut waiting = Vec::new();
        for half in [&all[..15], &all[15..]] {
            for _ in 0..5 {
                waiting
                    .push(three.acquire(&waits(&[half, &["x"]].concat())).await.expect("the store answers"));
            }
        }
        assert!(places(all[0]) > 4);
        let nested = AcquireRequest { context: held.context, nested: true, lease: held.lease, ..waits(&all) };
        let taken = one.acquire(&nested).await;
        assert!(matches!(taken, Ok(Acquired::Granted(_))), "{taken:?}");
        assert_eq!(places(all[0]), 0, "they make room");
        sleep(3 * SECOND).await;
        assert_eq!(places(all[0]), 1, "its waiter has put it back");
        one.release_context(&held.context).await.expect("the store answers");
    };
    let both = async { tokio::join!(wait(&two, &first), going_on) };
    timeout(HOUR, both).await.expect("it is its turn");
}

/// Places that made room are put back where a request has room only: what holders need is not theirs.
#[tokio::test(start_paused = true)]
async fn places_that_are_put_back_leave_the_room_of_holders() {
    let world = World::new();
    let mut process = world.process();
    (process.at_once, process.bytes) = (128, Some((2_000_000, usize::MAX)));
    let one = world.dao_with(process.clone(), LEASE).await;
    let two = world.dao_with(process.clone(), LEASE).await;
    let three = world.dao_with(process, LEASE).await;
    // Those who wait for permits of which none is in use, and for what is held.
    let fill = async |dao: &Dao, held: &str| {
        take(&one, held).await;
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let request = asks(28_000, &[held]);
            waiting.push((dao.acquire(&request).await.expect("there is room"), request));
        }
        waiting
    };
    let places =
        || world.content(Part::of("a").name())["places"].as_object().map_or(0, |places| places.len());
    let holder = take(&one, "w").await;
    let first = fill(&two, "x").await;
    assert_eq!(places(), 4);
    let nested =
        AcquireRequest { context: holder.context, nested: true, lease: holder.lease, ..asks(65_000, &[]) };
    assert!(matches!(one.acquire(&nested).await, Ok(Acquired::Granted(_))));
    assert_eq!(places(), 0, "they make room");
    one.release_context(&holder.context).await.expect("the store answers");
    let others = fill(&three, "y").await;
    assert_eq!(places(), 4);
    let again = two.acquire(&first[0].1).await;
    assert!(matches!(again, Ok(Acquired::Queued { .. })), "{again:?}");
    assert_eq!(places(), 4, "it waits without a place");
    drop(others);
}

/// Of several waiters whose places made room, the last ones give theirs up if there is no room for all: the first keeps its rank.
#[tokio::test(start_paused = true)]
async fn the_first_of_those_who_made_room_keeps_its_place() {
    let world = World::new();
    let mut process = world.process();
    (process.at_once, process.bytes) = (128, Some((2_000_000, usize::MAX)));
    let [one, two, three] = [0; 3].map(|_| world.dao_with(process.clone(), LEASE));
    let (one, two, three) = (one.await, two.await, three.await);
    let tickets = |id: &str| {
        let cell = world.content(Part::of(id).name());
        let places = cell["places"].as_object().expect("there are some");
        places.keys().map(|ticket| ticket.parse::<u64>().expect("a number")).collect::<BTreeSet<_>>()
    };
    let holder = take(&one, "w").await;
    for id in ["x", "y"] {
        take(&one, id).await;
    }
    let waiting = join_all((0..4).map(|_| async { wait(&two, &asks(28_000, &["x"])).await }));
    let going_on = async {
        sleep(SECOND).await;
        let before = tickets("x");
        assert_eq!(before.len(), 4);
        let nested = AcquireRequest {
            context: holder.context,
            nested: true,
            lease: holder.lease,
            ..asks(65_000, &[])
        };
        assert!(matches!(one.acquire(&nested).await, Ok(Acquired::Granted(_))));
        one.release_context(&holder.context).await.expect("the store answers");
        let other = three.acquire(&asks(28_000, &["y"])).await.expect("there is room");
        sleep(8 * SECOND).await;
        assert_eq!(tickets("a").len(), 4, "there is room for three of them");
        assert_eq!(tickets("x").first(), before.first(), "the first keeps its rank");
        drop(other);
    };
    tokio::select! {
        _ = waiting => panic!("none can have it"),
        () = going_on => {}
    }
}

/// A set that never has room is told so, and does not wait for ever: it is measured with all that is written of it.
#[tokio::test(start_paused = true)]
async fn a_set_takes_at_least_what_is_written_of_it() {
    for at_once in [1, 100] {
        let world = World::new();
        let mut process = world.process();
        process.at_once = at_once;
        let one = world.dao_with(process, LEASE).await;
        let names: Vec<String> = (0..100).map(|number| format!("{number:0100}")).collect();
        let set: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(matches!(one.acquire(&request(&set)).await, Ok(Acquired::Granted(_))));
        let claims: Vec<_> = names.iter().map(|id| table::Claim::new(id, Mode::Exclusive)).collect();
        let parts = claims.chunks(if at_once == 1 { 100 } else { 1 });
        let (alone, written) = match at_once {
            1 => (parts.map(|part| asked(part).size_alone(part)).sum(), world.size("table")),
            _ => (
                parts.map(|part| asked(part).size_alone(part)).sum::<usize>(),
                world.names("id/").iter().map(|name| world.size(name)).sum(),
            ),
        };
        assert!((written..written + 60 * set.len()).contains(&alone), "{alone} for {written} bytes");
    }
}

/// A request for a lock that may be over is one for a new grant, which makes its cell longer.
#[test]
fn a_hold_that_may_be_over_makes_no_request_known() {
    let (mut table, sessions) = (Table::default(), Sessions::new());
    let mut at = |lo: u64, look: &dyn Fn(Step<'_>) -> bool| {
        look(Step::new(&mut table, &sessions, ServiceTime { lo, hi: lo + 10 }, 0, "s"))
    };
    let request = Request { lease: 100, ..asked(&[table::Claim::new("a", Mode::Exclusive)]) };
    assert!(at(0, &|mut step| matches!(step.acquire(&request), Verdict::Granted(_))));
    for (lo, is_known) in [(0, true), (100, true), (101, false)] {
        assert_eq!(at(lo, &|step| step.knows(&request)), is_known, "{lo}");
    }
}

/// Of the places that a step knows, only those of the set go, and only for a grant.
#[test]
fn a_set_that_is_not_granted_removes_no_places() {
    let (mut table, sessions) = (Table::default(), Sessions::new());
    let mut step = Step::new(&mut table, &sessions, ServiceTime { lo: 0, hi: 10 }, 0, "s");
    let of = |context: &str, ids: &[&str]| {
        let claims: Vec<_> = ids.iter().map(|id| table::Claim::new(*id, Mode::Exclusive)).collect();
        Request { context: context.to_owned(), queue: true, ..asked(&claims) }
    };
    for (context, ids) in [("holder", ["x"]), ("other", ["y"])] {
        assert!(matches!(step.acquire(&of(context, &ids)), Verdict::Granted(_)));
    }
    for (context, ids) in [("1", &["x"][..]), ("2", &["a", "x"]), ("3", &["b", "y"])] {
        assert!(matches!(step.acquire(&of(context, ids)), Verdict::Queued(_)));
    }
    let nested = |ids: &[&str]| Request { nested: true, ..of("holder", ids) };
    for ids in [&["a", "y"][..], &["b", "y"]] {
        let refused = Request { queue: false, ..nested(ids) };
        assert!(matches!(step.acquire_before_waiters(&refused), Verdict::Refused(_)));
    }
    assert!(matches!(step.acquire_before_waiters(&nested(&["a", "c"])), Verdict::Granted(_)));
    let left: Vec<_> = step.table.places.values().map(|place| &*place.context).collect();
    assert_eq!(left, ["1", "3"]);
}

/// A request for permits of `a`, and for other ids.
fn asks(permits: u32, others: &[&str]) -> AcquireRequest<String, Uuid> {
    let pool = Claim::slots("a".to_owned(), 200_000).permits(permits);
    let claims = others.iter().map(|id| Claim::exclusive(id.to_string())).chain([pool]);
    let claims = ClaimSet::new(claims, Mode::Exclusive).expect("valid claims");
    AcquireRequest { claims, ..waits(&["a"]) }
}

fn asked(claims: &[table::Claim]) -> Request {
    Request {
        context: "00000000-0000-4000-8000-000000000000".to_owned(),
        attempt: AttemptId::fresh().0,
        claims: claims.to_vec(),
        lease: 4 * 3600 * 1_000_000,
        owner: String::new(),
        queue: false,
        nested: false,
    }
}
