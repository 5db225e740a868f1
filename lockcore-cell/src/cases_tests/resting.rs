//! Waiters of several processes where nothing is freed: nothing is written but heartbeats.

use std::sync::Arc;

use lockcore::{
    Claim, ClaimSet, LockDao, Mode,
    backend::{AcquireRequest, Acquired},
};
use tokio::{task::JoinSet, time::sleep};
use uuid::Uuid;

use super::{
    SECOND,
    cells::World,
    several::{Dao, HOUR, wait, waits},
    take,
};

/// The sets that are waited for: the modes of `a`, which is free, and `b`, which is held.
const SETS: [(Option<Mode>, Mode); 4] = [
    (None, Mode::Shared),
    (None, Mode::Exclusive),
    (Some(Mode::Exclusive), Mode::Shared),
    (Some(Mode::Exclusive), Mode::Exclusive),
];

/// No poll takes back what the poll of another process wrote, whoever of three waits for what, and is dead.
#[tokio::test(start_paused = true)]
async fn polls_do_not_write_against_the_first_who_is_dead() {
    all_rest(0).await;
}

#[tokio::test(start_paused = true)]
async fn polls_do_not_write_against_the_second_who_is_dead() {
    all_rest(1).await;
}

#[tokio::test(start_paused = true)]
async fn polls_do_not_write_against_the_third_who_is_dead() {
    all_rest(2).await;
}

async fn all_rest(dead: usize) {
    for first in SETS {
        for second in SETS {
            for third in SETS {
                rests([first, second, third], dead).await;
            }
        }
    }
}

async fn rests(sets: [(Option<Mode>, Mode); 3], dead: usize) {
    let world = World::new();
    let holder = world.dao_of_several().await;
    let _held = take(&holder, "b").await;
    let mut waiting = JoinSet::new();
    for (number, set) in sets.into_iter().enumerate() {
        let (dao, request) = (world.dao_of_several().await, request(set));
        if number == dead {
            assert!(matches!(dao.acquire(&request).await, Ok(Acquired::Queued { .. })));
            dao.store.waiters.remove(&request.attempt.0);
        } else {
            waiting.spawn(wait_for_long(Arc::new(dao), request));
        }
        sleep(SECOND).await;
    }
    sleep(20 * SECOND).await;
    let all = || world.names("id/").into_iter().map(|name| (world.content(&name), name)).collect::<Vec<_>>();
    let before = all();
    sleep(10 * SECOND).await;
    assert_eq!(all(), before, "{sets:?}");
}

fn request((a, b): (Option<Mode>, Mode)) -> AcquireRequest<String, Uuid> {
    let claim = |id: &str, mode| match mode {
        Mode::Shared => Claim::shared(id.to_owned()),
        _ => Claim::exclusive(id.to_owned()),
    };
    let claims: Vec<_> = a.map(|mode| claim("a", mode)).into_iter().chain([claim("b", b)]).collect();
    let claims = ClaimSet::new(claims, Mode::Exclusive).expect("valid claims");
    AcquireRequest { claims, lease: Some(HOUR), ..waits(&["b"]) }
}

async fn wait_for_long(dao: Arc<Dao>, request: AcquireRequest<String, Uuid>) {
    wait(&dao, &request).await;
}

/// Two processes know of different dead, and neither can write all the cells of the waiters: none puts back the place that the other one
/// removed.
#[tokio::test(start_paused = true)]
async fn two_that_know_of_different_dead_do_not_write_against_each_other() {
    let world = World::new();
    let holder = world.dao_of_several().await;
    let (_c, _e, _g) = (take(&holder, "c").await, take(&holder, "e").await, take(&holder, "g").await);
    let (one, two) = (Arc::new(world.dao_of_several().await), Arc::new(world.dao_of_several().await));
    let (dead, other_dead) = (world.dao_of_several().await, world.dao_of_several().await);
    let third = world.dao_of_several().await;
    // Each waits behind a process that is to die, before that takes its other place.
    let [e, g, cd, cf] = [&["e"][..], &["g"], &["c", "d"], &["c", "f"]].map(waits);
    let _first = (dead.acquire(&e).await, other_dead.acquire(&g).await);
    let mut waiting = JoinSet::new();
    for (dao, other, behind) in [(one, "f", "e"), (two, "d", "g")] {
        // Neither is in the way of the other one, or the later would look at the cells of the earlier.
        let set = [Claim::shared("c".to_owned()), Claim::exclusive(other.to_owned())];
        let claims = ClaimSet::new(set, Mode::Exclusive).expect("valid claims");
        for request in [AcquireRequest { claims, ..waits(&["c"]) }, waits(&[behind])] {
            waiting.spawn(wait_for_long(dao.clone(), request));
            sleep(SECOND).await;
        }
    }
    let _second = (dead.acquire(&cd).await, other_dead.acquire(&cf).await);
    // It lives. No write of all the waiters' ids can be made.
    let _third = third.acquire(&waits(&["c", "x"])).await.expect("the store answers");
    world.put("id/x78", b"{\"format\":2}".to_vec());
    for (dao, requests) in [(&dead, [&e, &cd]), (&other_dead, [&g, &cf])] {
        requests.iter().for_each(|request| dao.store.waiters.remove(&request.attempt.0));
    }
    sleep(20 * SECOND).await;
    let before = world.content("id/x63");
    sleep(5 * SECOND).await;
    assert_eq!(world.content("id/x63"), before);
}
