//! Cells that cannot be read, where each id has one of its own: they concern their own ids.

use std::error::Error;

use lockcore::{
    Grant, LockDao,
    backend::{AcquireRequest, Acquired, Withdraw},
};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::{
    SECOND,
    cells::World,
    id, request,
    several::{HOUR, release, wait, waits},
    take,
};
/// A cell that cannot be read keeps none of the others from being freed, and is named.
#[tokio::test(start_paused = true)]
async fn a_context_is_freed_from_what_can_be_read() {
    let world = World::new();
    let dao = world.dao_of_several().await;
    let context = Uuid::from_u128(7);
    let _held = take(&dao, "d").await;
    for id in ["a", "b", "c"] {
        let mine = AcquireRequest { context, ..request(&[id]) };
        assert!(matches!(dao.acquire(&mine).await, Ok(Acquired::Granted(_))));
    }
    // It waits in a cell that cannot be read, too.
    let waiting = AcquireRequest { context: Uuid::from_u128(8), ..waits(&["a", "b"]) };
    assert!(matches!(dao.acquire(&waiting).await, Ok(Acquired::Queued { .. })));
    world.put("id/x61", b"{\"format\":2}".to_vec());
    let left = dao.release_context(&waiting.context).await;
    assert!(left.is_err(), "its place is in a: {left:?}");
    let freed = dao.release_context(&context).await;
    assert!(freed.is_err(), "it may hold a: {freed:?}");
    take(&dao, "b").await;
    take(&dao, "c").await;
}

/// The message has no name of an id, which may be secret: logs have it. The source has it.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_named_by_the_source_only() {
    let world = World::new();
    let dao = world.dao_of_several().await;
    let _held = take(&dao, "a").await;
    world.put("id/x61", b"mine".to_vec());
    let error = dao.inspect(&id("a")).await.expect_err("it is another program's");
    assert!(!error.to_string().contains("x61"), "{error}");
    let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
    assert!(causes.any(|cause| cause.to_string().contains("id/x61")), "{error:?}");
}

/// A waiter wants an id whose cell cannot be read as well: the release of the other one does not fail by that.
#[tokio::test(start_paused = true)]
async fn a_release_is_not_about_the_other_ids_of_a_waiter() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let held = take(&one, "a").await;
    let waiting = waits(&["a", "b"]);
    assert!(matches!(two.acquire(&waiting).await, Ok(Acquired::Queued { .. })));
    world.put("id/x62", b"{\"format\":2}".to_vec());
    one.release(&held).await.expect("a can be read");
}

/// An id whose cell cannot be read keeps no other one of its set from being freed.
#[tokio::test(start_paused = true)]
async fn what_can_be_read_is_released() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let set = request(&["a", "b", "c"]);
    let Ok(Acquired::Granted(granted)) = one.acquire(&set).await else { panic!("it is free") };
    let grant = Grant::new(set.context, set.claims.clone(), granted, set.lease);
    world.put("id/x62", b"{\"format\":2}".to_vec());
    let released = one.release(&grant).await.expect("most of it can be read");
    assert_eq!(released.failed.iter().map(|(target, _)| target.clone()).collect::<Vec<_>>(), [id("b")]);
    assert!(released.lost.is_empty(), "{released:?}");
    take(&two, "a").await;
    take(&two, "c").await;
}

/// Steps of one batch about the same id: that one of them cannot be made fails none of the others.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_fails_only_the_steps_about_it() {
    let world = World::new();
    let dao = world.dao_of_several().await;
    let held = take(&dao, "a").await;
    world.put("id/x62", b"{\"format\":2}".to_vec());
    let (before, set) = (waits(&["a"]), request(&["a", "b"]));
    // The other two go together while this is on its way.
    let (withdrawn, released, taken) =
        tokio::join!(dao.withdraw(&before, Withdraw::Undo), dao.release(&held), dao.acquire(&set));
    withdrawn.expect("a can be read");
    released.expect("a can be read");
    assert!(taken.is_err(), "b cannot be read: {taken:?}");
}

/// An id whose cell cannot be read keeps no waiter's place in the others.
#[tokio::test(start_paused = true)]
async fn what_can_be_read_is_withdrawn() {
    let world = World::new();
    let (one, two, three) =
        (world.dao_of_several().await, world.dao_of_several().await, world.dao_of_several().await);
    let (held, _keeps) = (take(&one, "a").await, take(&one, "c").await);
    let waiting = waits(&["a", "b"]);
    assert!(matches!(two.acquire(&waiting).await, Ok(Acquired::Queued { .. })));
    // The process of the place lives.
    let other = waits(&["c"]);
    let living = async {
        wait(&two, &other).await;
    };
    let freeing = async {
        world.put("id/x62", b"{\"format\":2}".to_vec());
        let withdrawn = two.withdraw(&waiting, Withdraw::Undo).await;
        assert!(withdrawn.is_err(), "the place is in a cell that cannot be read: {withdrawn:?}");
        sleep(SECOND).await;
        release(&one, &held).await;
        take(&three, "a").await;
    };
    tokio::select! { () = living => panic!("it is held"), () = freeing => {} }
}

/// A place that was withdrawn counts no more in a cell that could not be read then.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_left_in_one_cell_is_in_the_way_of_none() {
    a_place_is_left_before(&["b"]).await;
}

/// Nor of those who wait for other ids as well.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_left_in_one_cell_is_in_the_way_of_no_set() {
    a_place_is_left_before(&["b", "d"]).await;
}

async fn a_place_is_left_before(set: &[&str]) {
    let world = World::new();
    let (one, two, three) =
        (world.dao_of_several().await, world.dao_of_several().await, world.dao_of_several().await);
    let (_a, _c) = (take(&one, "a").await, take(&one, "c").await);
    let waiting = waits(&["a", "b"]);
    assert!(matches!(two.acquire(&waiting).await, Ok(Acquired::Queued { .. })));
    let before = world.content("id/x62");
    world.put("id/x62", b"{\"format\":2}".to_vec());
    assert!(two.withdraw(&waiting, Withdraw::Undo).await.is_err());
    world.put("id/x62", before.to_string().into_bytes());
    // The process of the place lives, and its other id is held.
    let (other, next) = (waits(&["c"]), waits(set));
    let served = async { while timeout(10 * SECOND, wait(&three, &next)).await.is_err() {} };
    tokio::select! {
        _ = wait(&two, &other) => panic!("it is held"),
        served = timeout(60 * SECOND, served) => served.expect("b is free"),
    }
}

/// A cell that cannot be read is passed, and named at the end.
#[tokio::test(start_paused = true)]
async fn a_sweep_passes_what_cannot_be_read() {
    let world = World::new();
    let ends = |id: &str| AcquireRequest { lease: Some(10 * SECOND), ..request(&[id]) };
    let unknown = world.dao_of_several().await;
    assert!(matches!(unknown.acquire(&ends("a")).await, Ok(Acquired::Granted(_))));
    let session = world.names("session/");
    let dead = world.dao_of_several().await;
    for id in ["b", "c"] {
        assert!(matches!(dead.acquire(&ends(id)).await, Ok(Acquired::Granted(_))));
    }
    world.put("id/x61", b"{\"format\":2}".to_vec());
    let dao = world.dao_of_several().await;
    let sweep = async || {
        sleep(12 * HOUR).await;
        let error = loop {
            match dao.sweep(1, None).await {
                Ok(swept) => assert!(swept.more, "one could not be read"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("format 2"), "{error}");
    };
    sweep().await;
    for name in ["id/x62", "id/x63"] {
        assert!(world.content(name)["ids"].as_object().is_none_or(|ids| ids.is_empty()), "{name}");
    }
    // By then they were not written for long.
    sweep().await;
    assert_eq!(world.names("id/"), ["id/x61"]);
    // It may be in the cell that cannot be read.
    assert!(session.iter().all(|name| world.names("session/").contains(name)));
}

/// A session that cannot be read is passed as well.
#[tokio::test(start_paused = true)]
async fn a_sweep_passes_a_session_that_cannot_be_read() {
    let world = World::new();
    let ends = |id: &str| AcquireRequest { lease: Some(10 * SECOND), ..request(&[id]) };
    for id in ["a", "b", "c", "d"] {
        let unreadable = world.dao_of_several().await;
        assert!(matches!(unreadable.acquire(&ends(id)).await, Ok(Acquired::Granted(_))));
    }
    for name in world.names("session/") {
        world.put(&name, b"{\"format\":2}".to_vec());
    }
    let dead = world.dao_of_several().await;
    assert!(matches!(dead.acquire(&ends("e")).await, Ok(Acquired::Granted(_))));
    sleep(60 * SECOND).await;
    let dao = world.dao_of_several().await;
    let mut sweeps = 0;
    while dao.sweep(1, None).await.expect("the store answers").more {
        sweeps += 1;
        assert!(sweeps < 50, "it does not end");
    }
    assert!(world.content("id/x65")["ids"].as_object().is_none_or(|ids| ids.is_empty()));
}

/// A dead waiter for an id whose cell cannot be read is in the way of none.
#[tokio::test(start_paused = true)]
async fn an_id_is_free_though_a_dead_waiter_wanted_one_that_cannot_be_read() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let held = AcquireRequest { lease: Some(10 * SECOND), ..request(&["a"]) };
    assert!(matches!(one.acquire(&held).await, Ok(Acquired::Granted(_))));
    assert!(matches!(two.acquire(&waits(&["a", "b"])).await, Ok(Acquired::Queued { .. })));
    world.put("id/x62", b"{\"format\":2}".to_vec());
    // None waits any more.
    drop(two);
    sleep(HOUR).await;
    let three = world.dao_of_several().await;
    let taken = three.acquire(&request(&["a"])).await;
    assert!(matches!(taken, Ok(Acquired::Granted(_))), "{taken:?}");
}
