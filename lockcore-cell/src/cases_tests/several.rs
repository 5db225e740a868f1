//! Stores that replace several cells in one step: each id has a cell of its own.

use std::time::Duration;

use lockcore::{
    BreakMode, Grant, LockDao, LockingService, Page,
    backend::{AcquireRequest, Acquired, Wake, Withdraw},
};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::{SECOND, cells::World, id, request, take};
use crate::CellLockDao;

const HOUR: Duration = Duration::from_secs(3600);

type Dao = CellLockDao<super::Process>;

fn waits(ids: &[&str]) -> AcquireRequest<String, Uuid> {
    AcquireRequest { queue: true, lease: Some(10 * SECOND), ..request(ids) }
}

/// Waits for a set as a service does: each wake-up is an offer, or asks it to come again.
async fn wait(dao: &Dao, request: &AcquireRequest<String, Uuid>) -> Vec<u64> {
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

async fn release(dao: &Dao, grant: &Grant<String, Uuid>) {
    let released = dao.release(grant).await.expect("the store answers");
    assert!(released.lost.is_empty() && released.failed.is_empty());
}

/// A set that is new costs a write to take and a write to free, and sets that share no id never meet.
#[tokio::test(start_paused = true)]
async fn a_set_is_taken_without_a_look() {
    let world = World::new();
    let (one, two) = (world.dao_of_several().await, world.dao_of_several().await);
    let before = world.counts();
    let (first, second) = tokio::join!(take(&one, "a"), take(&two, "b"));
    let (reads, writes) = world.counts();
    assert_eq!((reads - before.0, writes - before.1), (0, 2));
    tokio::join!(release(&one, &first), release(&two, &second));
    let (reads, writes) = world.counts();
    assert_eq!((reads - before.0, writes - before.1), (0, 4));
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
        let other = one.acquire(&super::request(&["b"])).await.expect("the store answers");
        assert!(matches!(other, Acquired::Refused(_)), "the other id is held as well: {other:?}");
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

/// What the process of a holder renews, and what it does not renew any more, counts for each id.
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

/// What an administrator asks for goes from page to page.
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
