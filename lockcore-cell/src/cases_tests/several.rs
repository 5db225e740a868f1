//! Stores that replace several cells in one step: each id has a cell of its own.

use std::time::Duration;

use lockcore::{
    BreakMode, Grant, LockDao, LockingService, Page,
    backend::{AcquireRequest, Acquired, AttemptId, Wake, Withdraw},
};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::{SECOND, cells::World, id, request, take};
use crate::CellLockDao;

pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(super) type Dao = CellLockDao<super::Process>;

pub(super) fn waits(ids: &[&str]) -> AcquireRequest<String, Uuid> {
    AcquireRequest { queue: true, lease: Some(10 * SECOND), ..request(ids) }
}

/// Waits for a set as a service does: each wake-up is an offer, or asks it to come again.
pub(super) async fn wait(dao: &Dao, request: &AcquireRequest<String, Uuid>) -> Vec<u64> {
    loop {
        match dao.acquire(request).await.expect("the store answers") {
            Acquired::Granted(granted) => return granted.iter().map(|granted| granted.fence).collect(),
            Acquired::Queued { mut wakeup, .. } => {
                if let Wake::Offer(offer) = timeout(HOUR, wakeup.recv()).await.expect("it is woken") {
                    return offer.granted.iter().map(|granted| granted.fence).collect();
                }
            }
            Acquired::Refused(conflicts) => panic!("{conflicts:?}"),
        }
    }
}

pub(super) async fn release(dao: &Dao, grant: &Grant<String, Uuid>) {
    let released = dao.release(grant).await.expect("the store answers");
    assert!(released.lost.is_empty() && released.failed.is_empty());
}

/// A set that is new costs a write to take and a write to free, and sets that share no id never meet.
#[tokio::test(start_paused = true)]
async fn a_set_is_taken_without_a_look() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    // The session of a process precedes its first grant.
    tokio::join!(take(&one, "c"), take(&two, "d"));
    let before = world.counts();
    let (first, second) = tokio::join!(take(&one, "a"), take(&two, "b"));
    let (reads, writes) = world.counts();
    assert_eq!((reads - before.0, writes - before.1), (0, 2));
    tokio::join!(release(&one, &first), release(&two, &second));
    let (reads, writes) = world.counts();
    assert_eq!((reads - before.0, writes - before.1), (0, 4));
}

/// A session's renewals go by fence.
#[tokio::test(start_paused = true)]
async fn no_two_grants_of_a_process_have_one_fence() {
    let world = World::new();
    let dao = world.dao_of_several().await;
    take(&dao, "c").await;
    let (first, second) = tokio::join!(take(&dao, "a"), take(&dao, "b"));
    let fence = |grant: &Grant<String, Uuid>| grant.locks[0].granted.fence;
    assert_ne!(fence(&first), fence(&second));
}

/// A guess that the cell is not there is refused where it is.
#[tokio::test(start_paused = true)]
async fn a_cell_that_is_not_known_may_be_held() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let held = take(&one, "b").await;
    let refused = two.acquire(&request(&["a", "b", "c"])).await.expect("the store answers");
    assert!(matches!(refused, Acquired::Refused(_)), "{refused:?}");
    assert_eq!(world.names("id/").len(), 1, "a refused set leaves nothing");
    release(&one, &held).await;
    let again = take(&two, "b").await;
    assert!(again.locks[0].granted.fence > held.locks[0].granted.fence);
}

/// One step frees an id, and hands over a set of which the other id was free.
#[tokio::test(start_paused = true)]
async fn who_waits_for_several_is_served_by_the_step_that_frees_one() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let held = take(&one, "a").await;
    let request = waits(&["a", "b"]);
    let waiting = async {
        wait(&two, &request).await;
    };
    let freeing = async {
        sleep(5 * SECOND).await;
        release(&one, &held).await;
        let other = world.content("id/x62");
        assert!(!other["ids"]["b"]["held"].is_null(), "the other id is held as well: {other}");
    };
    tokio::join!(waiting, freeing);
}

/// A place that was left while the store was away, by a process that lives, is in the way of none.
#[tokio::test(start_paused = true)]
async fn a_place_that_was_left_ends_as_an_offer_does() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let (held_a, held_c) = (take(&one, "a").await, take(&one, "c").await);
    // Its process lives, as it waits for another id, but none waits in this place any more.
    let left = waits(&["a", "b"]);
    let queued = two.acquire(&left).await.expect("the store answers");
    assert!(matches!(queued, Acquired::Queued { .. }));
    drop(queued);
    two.store.waiters.remove(&left.attempt.0);
    let lives = waits(&["c"]);
    let living = wait(&two, &lives);
    let behind = async {
        release(&one, &held_a).await;
        let behind = waits(&["b"]);
        timeout(60 * SECOND, wait(&one, &behind)).await.expect("the place before it ends");
        release(&one, &held_c).await;
    };
    tokio::join!(living, behind);
}

/// A place is in the cells of all ids of its set, and so is the withdrawal of its attempt.
#[tokio::test(start_paused = true)]
async fn a_withdrawn_attempt_takes_nothing_of_any_id() {
    let world = World::new();
    let dao = world.dao_of_several().await;
    let held = take(&dao, "a").await;
    let attempt = waits(&["a", "b"]);
    assert!(matches!(dao.acquire(&attempt).await, Ok(Acquired::Queued { .. })));
    dao.withdraw(&attempt, Withdraw::Undo).await.expect("the store answers");
    release(&dao, &held).await;
    assert!(dao.acquire(&attempt).await.is_err(), "it was withdrawn");
    take(&dao, "b").await;
}

/// A renewal by the holder's process counts for each id, and so does its absence.
#[tokio::test(start_paused = true)]
async fn a_lease_of_several_ids_is_renewed_and_ends() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let set = AcquireRequest { lease: Some(10 * SECOND), ..request(&["a", "b"]) };
    let Ok(Acquired::Granted(granted)) = one.acquire(&set).await else { panic!("it is free") };
    let grant = Grant::new(set.context, set.claims.clone(), granted, set.lease);
    for _ in 0..10 {
        sleep(3 * SECOND).await;
        assert!(one.renew(&grant).await.expect("the store answers").lost.is_empty());
        assert!(matches!(two.acquire(&request(&["b"])).await, Ok(Acquired::Refused(_))));
    }
    sleep(12 * SECOND).await;
    let taken = take(&two, "b").await;
    assert!(taken.locks[0].granted.fence > grant.locks[1].granted.fence);
    let renewed = one.renew(&grant).await.expect("the store answers");
    assert!(renewed.lost.iter().any(|lost| lost.target == id("b")), "{renewed:?}");
}

/// A part of a set that was freed is not renewed with the rest.
#[tokio::test(start_paused = true)]
async fn a_part_is_renewed_by_itself() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let set = AcquireRequest { lease: Some(10 * SECOND), ..request(&["a", "b"]) };
    let Ok(Acquired::Granted(granted)) = one.acquire(&set).await else { panic!("it is free") };
    let grant = Grant::new(set.context, set.claims.clone(), granted, set.lease);
    let part = Grant { locks: grant.locks[..1].to_vec(), ..grant.clone() };
    for _ in 0..5 {
        sleep(3 * SECOND).await;
        assert!(one.renew(&part).await.expect("the store answers").lost.is_empty());
    }
    // Nothing renews the other, whose lease is over.
    take(&two, "b").await;
    assert!(matches!(two.acquire(&request(&["a"])).await, Ok(Acquired::Refused(_))));
}

/// The cells of ids that are not used any more go, and so do those of sessions that are over.
#[tokio::test(start_paused = true)]
async fn what_is_not_used_is_collected() {
    let world = World::new();
    let dao = world.dao_of_several().await;
    let locks = LockingService::new(world.dao_of_several().await);
    for name in ["a", "b"] {
        let held = locks.lock([name]).await.expect("it is free");
        sleep(20 * SECOND).await;
        held.release().await.expect("the store answers");
    }
    let held = take(&dao, "c").await;
    dao.freeze(&id("d"), true).await.expect("the store answers");
    sleep(5 * HOUR).await;
    while dao.sweep(100, None).await.expect("the store answers").more {}
    let list = dao.list(&Page::default()).await.expect("the store answers");
    let left: Vec<_> = list.ids.iter().map(|id| id.target.clone()).collect();
    assert_eq!(left, [Ok(id("d"))], "a lease of four hours has ended");
    sleep(5 * HOUR).await;
    while dao.sweep(100, None).await.expect("the store answers").more {}
    assert_eq!(world.names("id/").len(), 1, "{:?}", world.names("id/"));
    let sessions: Vec<_> = world.names("session/").iter().map(|name| world.content(name)).collect();
    assert!(sessions.is_empty(), "{sessions:?}");
    drop(held);
}

/// An administrator's request goes from page to page.
#[tokio::test(start_paused = true)]
async fn a_context_is_freed_from_all_its_cells() {
    let world = World::new();
    let dao = world.dao_of_several().await;
    let names: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
    let context = Uuid::from_u128(7);
    for set in names.chunks(50) {
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let mine = AcquireRequest { context, ..request(&set) };
        assert!(matches!(dao.acquire(&mine).await, Ok(Acquired::Granted(_))));
    }
    let page = dao.list(&Page { limit: 120, ..Page::default() }).await.expect("the store answers");
    assert_eq!((page.ids.len(), page.next.as_deref()), (120, Some("119")));
    let rest = dao.list(&Page { after: page.next, limit: 500 }).await.expect("the store answers");
    assert_eq!((rest.ids.len(), rest.next), (180, None));
    let fence = page.ids[0].holders[0].fence;
    dao.break_lock(&id("000"), fence, BreakMode::Now, "test").await.expect("the store answers");
    assert_eq!(dao.release_context(&context).await.expect("the store answers").len(), 299);
    take(&dao, "299").await;
}

/// A page with more old cells that are in use than a sweep collects is passed.
#[tokio::test(start_paused = true)]
async fn a_sweep_ends_beside_many_ids_that_are_held_for_long() {
    let world = World::new();
    let dao = world.dao_of_several().await;
    for number in 0..101 {
        let held = AcquireRequest { lease: Some(24 * HOUR), ..request(&[&*format!("{number:03}")]) };
        assert!(matches!(dao.acquire(&held).await, Ok(Acquired::Granted(_))));
    }
    sleep(5 * HOUR).await;
    let mut sweeps = 0;
    let before = world.counts();
    let mut within = Some(HOUR);
    while dao.sweep(100, within).await.expect("the store answers").more {
        within = None;
        sweeps += 1;
        assert!(sweeps < 50, "it does not end: {:?} to {:?}", before, world.counts());
    }
}

/// A place that got lost in one of its cells is put back when its waiter asks again.
#[tokio::test(start_paused = true)]
async fn a_place_with_the_ticket_of_another_one_is_served() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let three = world.dao_of_several().await;
    let (_a, c) = (take(&one, "a").await, take(&one, "c").await);
    // Both know the cells, and they come at one moment, with attempts that differ by what is added to a ticket at most.
    for (dao, ids) in [(&one, &["a"][..]), (&two, &["c", "d"])] {
        assert!(matches!(dao.acquire(&request(ids)).await, Ok(Acquired::Refused(_))));
    }
    let first = AcquireRequest { attempt: AttemptId(1), ..waits(&["a"]) };
    let second = AcquireRequest { attempt: AttemptId(1025), ..waits(&["c", "d"]) };
    let (first_place, second_place) = tokio::join!(one.acquire(&first), two.acquire(&second));
    assert!(matches!(
        (&first_place, &second_place),
        (Ok(Acquired::Queued { .. }), Ok(Acquired::Queued { .. }))
    ));
    drop((first_place, second_place));
    // A third process waits for ids of both.
    let third = waits(&["a", "c"]);
    let _third = three.acquire(&third).await.expect("the store answers");
    three.withdraw(&third, Withdraw::KeepIfGranted).await.expect("the store answers");
    // As a service does: it asks again each ten seconds.
    let served = async { while timeout(10 * SECOND, wait(&two, &second)).await.is_err() {} };
    let others = async {
        // From now on others come, one after the other, each while the one before it holds the id.
        let mut held = c;
        for _ in 0..60 {
            let next = AcquireRequest { lease: Some(HOUR), ..waits(&["c"]) };
            let waiting = async {
                let fences = wait(&three, &next).await;
                let granted = lockcore::Granted {
                    mode: lockcore::Mode::Exclusive,
                    fence: fences[0],
                    permits: Vec::new(),
                    in_use: 1,
                };
                Grant::new(next.context, next.claims.clone(), vec![granted], next.lease)
            };
            let freeing = async {
                sleep(SECOND).await;
                release(&one, &held).await;
            };
            let (now, ()) = tokio::join!(waiting, freeing);
            three.renew(&now).await.expect("the store answers");
            held = now;
        }
        panic!("60 who came later were served before it");
    };
    tokio::select! { _ = served => {}, () = others => {} }
}

/// Places that two processes take at once in cells of the same state have different tickets.
#[tokio::test(start_paused = true)]
async fn places_of_two_that_come_at_once_are_both_kept() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let three = world.dao_of_several().await;
    let (_a, _c) = (take(&one, "a").await, take(&one, "c").await);
    // Both cells have the same next ticket, which the clock does not reach for an hour.
    let before = waits(&["a", "c"]);
    assert!(matches!(three.acquire(&before).await, Ok(Acquired::Queued { .. })));
    world.set_back(HOUR);
    let first = AcquireRequest { attempt: AttemptId(1), ..waits(&["a"]) };
    let second = AcquireRequest { attempt: AttemptId(2), ..waits(&["c", "d"]) };
    let (first, second) = tokio::join!(one.acquire(&first), two.acquire(&second));
    assert!(matches!((first, second), (Ok(Acquired::Queued { .. }), Ok(Acquired::Queued { .. }))));
    three.withdraw(&before, Withdraw::KeepIfGranted).await.expect("the store answers");
    for (name, attempt) in [("id/x61", 1), ("id/x63", 2)] {
        let places = world.content(name)["places"].clone();
        let mut places = places.as_object().expect("places go by their tickets").values();
        assert!(places.any(|place| place["attempt"] == attempt), "{name}: {places:?}");
    }
}

/// No other process makes the cell of a session again that was removed: what is renewed after that is seen by all.
#[tokio::test(start_paused = true)]
async fn a_removed_session_is_not_made_again_by_another_process() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let three = world.dao_of_several().await;
    let ten = |ids: &[&str]| AcquireRequest { lease: Some(10 * SECOND), ..request(ids) };
    // A lock that is kept for some time and not renewed: there was no heartbeat yet.
    assert!(matches!(one.acquire(&ten(&["b"])).await, Ok(Acquired::Granted(_))));
    let set = ten(&["a"]);
    let Ok(Acquired::Granted(granted)) = one.acquire(&set).await else { panic!("it is free") };
    let grant = Grant::new(set.context, set.claims.clone(), granted, set.lease);
    for _ in 0..4 {
        sleep(3 * SECOND).await;
        assert!(one.renew(&grant).await.expect("the store answers").lost.is_empty());
    }
    world.remove_folder("session/");
    assert!(matches!(two.acquire(&request(&["a"])).await, Ok(Acquired::Refused(_))));
    // It was not renewed, but what its session said is not known any more.
    let ended = request(&["b"]);
    while !matches!(three.acquire(&ended).await, Ok(Acquired::Granted(_))) {
        assert!(one.renew(&grant).await.expect("the store answers").lost.is_empty());
        sleep(SECOND).await;
    }
    for number in 0..20 {
        sleep(2 * SECOND).await;
        let renewed = one.renew(&grant).await.expect("the store answers");
        assert!(renewed.lost.is_empty(), "{number}: {renewed:?}");
        sleep(SECOND).await;
        let other = two.acquire(&request(&["a"])).await.expect("the store answers");
        assert!(matches!(other, Acquired::Refused(_)), "{number}: it was renewed a second ago: {other:?}");
    }
}

/// Nor does the process itself.
#[tokio::test(start_paused = true)]
async fn a_process_does_not_make_its_removed_session_again() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let leased = |id: &str, lease| AcquireRequest { lease: Some(lease), ..request(&[id]) };
    let granted = async |set: AcquireRequest<String, Uuid>| {
        let Ok(Acquired::Granted(granted)) = one.acquire(&set).await else { panic!("it is free") };
        Grant::new(set.context, set.claims.clone(), granted, set.lease)
    };
    // The first renewal of this one is due after the others.
    let b = granted(leased("b", 60 * SECOND)).await;
    let (a, c) = (granted(leased("a", 10 * SECOND)).await, granted(leased("c", 10 * SECOND)).await);
    for _ in 0..4 {
        sleep(3 * SECOND).await;
        for held in [&a, &c] {
            assert!(one.renew(held).await.expect("the store answers").lost.is_empty());
        }
    }
    world.remove_folder("session/");
    assert!(matches!(two.acquire(&request(&["c"])).await, Ok(Acquired::Refused(_))));
    sleep(2 * SECOND).await;
    for number in 0..20 {
        for held in [&a, &b, &c] {
            let renewed = one.renew(held).await.expect("the store answers");
            assert!(renewed.lost.is_empty(), "{number}: {renewed:?}");
        }
        sleep(SECOND).await;
        let other = two.acquire(&request(&["c"])).await.expect("the store answers");
        assert!(matches!(other, Acquired::Refused(_)), "{number}: it was renewed a second ago: {other:?}");
        sleep(2 * SECOND).await;
    }
}

/// A sweep goes on until nothing is left.
#[tokio::test(start_paused = true)]
async fn a_sweep_leaves_nothing_that_is_over() {
    let world = World::new();
    for number in 0..120 {
        let dao = world.dao_of_several().await;
        let ends = AcquireRequest { lease: Some(10 * SECOND), ..request(&[&*format!("{number:03}")]) };
        assert!(matches!(dao.acquire(&ends).await, Ok(Acquired::Granted(_))));
    }
    sleep(60 * SECOND).await;
    let dao = world.dao_of_several().await;
    let mut within = Some(SECOND);
    let mut removed = 0;
    loop {
        let swept = dao.sweep(10, within).await.expect("the store answers");
        removed += swept.removed;
        within = None;
        if !swept.more {
            break;
        }
    }
    let held = world
        .names("id/")
        .iter()
        .filter(|name| world.content(name)["ids"].as_object().is_some_and(|ids| !ids.is_empty()))
        .count();
    assert_eq!((removed, held), (120, 0), "all leases were over");
}

/// A sweep that an administrator asks for, each three hours, collects what is old.
#[tokio::test(start_paused = true)]
async fn a_sweep_collects_however_long_ago_the_last_one_was() {
    let world = World::new();
    let dead = world.dao_of_several().await;
    take(&dead, "a").await;
    let session = format!("session/{}", dead.store.own.name().0);
    drop(dead);
    let dao = world.dao_of_several().await;
    for _ in 0..4 {
        sleep(3 * HOUR).await;
        while dao.sweep(100, None).await.expect("the store answers").more {}
    }
    assert!(!world.names("session/").contains(&session), "it is old, and holds nothing");
}

/// Those that live are read, and passed, until the dead one among them is found.
#[tokio::test(start_paused = true)]
async fn a_sweep_finds_a_dead_session_behind_many_that_live() {
    let world = World::new();
    let mut held = Vec::new();
    for number in 0..8 {
        let dao = world.dao_of_several().await;
        let id = format!("{number}");
        let set = AcquireRequest { lease: Some(10 * SECOND), ..request(&[&*id]) };
        let Ok(Acquired::Granted(granted)) = dao.acquire(&set).await else { panic!("it is free") };
        held.push((dao, Grant::new(set.context, set.claims.clone(), granted, set.lease)));
    }
    // The last one that is read.
    let last = world.names("session/").pop().expect("each has one");
    let is_dead = |(dao, _): &(Dao, Grant<String, Uuid>)| last.ends_with(&*dao.store.own.name().0);
    for _ in 0..8 {
        sleep(2 * SECOND).await;
        for (dao, grant) in held.iter().filter(|of| !is_dead(of)) {
            assert!(dao.renew(grant).await.expect("the store answers").lost.is_empty());
        }
    }
    let sweeper = world.dao_of_several().await;
    let (mut removed, mut more) = (0, true);
    while more {
        let swept = sweeper.sweep(1, None).await.expect("the store answers");
        (removed, more) = (removed + swept.removed, swept.more);
    }
    assert_eq!(removed, 1);
}

/// A sweep that goes on over hours has not seen what was granted meanwhile.
#[tokio::test(start_paused = true)]
async fn a_sweep_of_hours_collects_no_session() {
    let world = World::new();
    let leased = |id: &str, lease| AcquireRequest { lease: Some(lease), ..request(&[id]) };
    let dead = world.dao_of_several().await;
    for id in ["b", "c"] {
        assert!(matches!(dead.acquire(&leased(id, 10 * SECOND)).await, Ok(Acquired::Granted(_))));
    }
    let one = world.dao_of_several().await;
    let first = take(&one, "a").await;
    release(&one, &first).await;
    let session = format!("session/{}", one.store.own.name().0);
    sleep(HOUR / 2).await;
    let sweeper = world.dao_of_several().await;
    assert!(sweeper.sweep(1, Some(SECOND)).await.expect("the store answers").more);
    sleep(HOUR / 4).await;
    assert!(matches!(one.acquire(&leased("a", 24 * HOUR)).await, Ok(Acquired::Granted(_))));
    sleep(4 * HOUR).await;
    while sweeper.sweep(1, None).await.expect("the store answers").more {}
    assert!(world.names("session/").contains(&session));
}

/// A sweep removes no session with a grant that may be renewed still.
#[tokio::test(start_paused = true)]
async fn a_session_with_a_long_lease_is_not_collected() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let leased = |id: &str, lease| AcquireRequest { lease: Some(lease), ..request(&[id]) };
    let granted = async |set: AcquireRequest<String, Uuid>| {
        let Ok(Acquired::Granted(granted)) = one.acquire(&set).await else { panic!("it is free") };
        Grant::new(set.context, set.claims.clone(), granted, set.lease)
    };
    // Before the first heartbeat, and after it.
    let first = granted(leased("first", 24 * HOUR)).await;
    let short = granted(leased("short", 10 * SECOND)).await;
    sleep(3 * SECOND).await;
    assert!(one.renew(&short).await.expect("the store answers").lost.is_empty());
    release(&one, &short).await;
    let held = granted(leased("held", 24 * HOUR)).await;
    let session = world.names("session/");
    sleep(6 * HOUR).await;
    let sweeper = world.dao_of_several().await;
    while sweeper.sweep(100, None).await.expect("the store answers").more {}
    assert!(session.iter().all(|name| world.names("session/").contains(name)));
    // A watcher looks, and so reads the session.
    two.inspect(&id("held")).await.expect("the store answers");
    sleep(HOUR).await;
    // Any step: its process goes on under another name.
    let other = take(&one, "other").await;
    release(&one, &other).await;
    sleep(HOUR).await;
    for hour in [8, 16, 24] {
        for grant in [&first, &held] {
            let renewed = one.renew(grant).await.expect("the store answers");
            assert!(renewed.lost.is_empty(), "{hour} h: {renewed:?}");
        }
        sleep(6 * HOUR).await;
        let other = two.acquire(&request(&["held"])).await.expect("the store answers");
        assert!(
            matches!(other, Acquired::Refused(_)),
            "{hour} h: a lease of 24 h was renewed 6 h ago: {other:?}, {:?}",
            one.renew(&held).await
        );
        sleep(2 * HOUR).await;
    }
}
