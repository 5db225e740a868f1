//! What this backend shows to tests: the current locks, and the history.

use std::time::Duration;

use lockcore::{BreakMode, LockDao, Target, backend::Withdraw};
use lockcore_memory::{MemoryLockDao, What};

use super::claims::{leased, shared};
use crate::support::*;

#[test]
fn the_current_locks_are_those_held_and_waited_for() {
    let dao = Dao::new();
    take(&dao, &request(1, [exclusive("b"), shared("a")]));
    let _waiter = queue(&dao, request(2, [exclusive("a")]));
    let current = dao.current();
    let seen: Vec<_> =
        current.iter().map(|id| (id.target.clone(), id.holders.len(), id.waiters.len())).collect();
    let id = |id: &str| Ok(Target::Id(id.to_owned()));
    assert_eq!(seen, [(id("a"), 1, 1), (id("b"), 1, 0)]);
    assert_eq!(format!("{dao:?}"), "MemoryLockDao { .. }");
}

#[test]
fn the_history_tells_what_happened_in_order() {
    let dao = Dao::new().with_history(100);
    let held = take(&dao, &request(1, [exclusive("a")]));
    let mut never = request(2, [exclusive("a")]);
    never.queue = false;
    now(dao.acquire(&never)).unwrap();
    let mut waiter = queue(&dao, request(3, [exclusive("a")]));
    free(&dao, &held);
    let second = waiter.offered().unwrap();
    let leaver = queue(&dao, request(4, [exclusive("a")]));
    withdraw(&dao, &leaver.request, Withdraw::Undo);
    let fence = second.locks[0].granted.fence;
    now(dao.break_lock(&Target::Id("a".to_owned()), fence, BreakMode::Now, "me")).unwrap();
    let history = dao.history();
    let seen: Vec<_> = history.iter().map(|event| (event.what, event.context)).collect();
    use What::*;
    let expected = [
        (Granted, 1),
        (Refused, 2),
        (Queued, 3),
        (Released, 1),
        (Granted, 3),
        (Queued, 4),
        (Withdrawn, 4),
        (Broken, 3),
    ];
    assert_eq!(seen, expected);
    assert_eq!(history[4].ids, [(Target::Id("a".to_owned()), Some(fence))]);
}

#[test]
fn the_history_is_bounded_and_off_by_default() {
    let dao = Dao::new().with_history(3);
    for n in 0..5 {
        free(&dao, &take(&dao, &request(n, [exclusive("a")])));
    }
    let seen: Vec<_> = dao.history().iter().map(|event| (event.what, event.context)).collect();
    assert_eq!(seen, [(What::Released, 3), (What::Granted, 4), (What::Released, 4)]);
    let dao = Dao::new();
    take(&dao, &request(1, [exclusive("a")]));
    assert!(dao.history().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_history_tells_of_expiry() {
    let dao = Dao::new().with_history(10);
    take(&dao, &leased(request(1, [exclusive("a")]), Duration::from_secs(1)));
    tokio::time::advance(Duration::from_secs(1)).await;
    take(&dao, &request(2, [exclusive("a")]));
    let seen: Vec<_> = dao.history().iter().map(|event| event.what).collect();
    assert_eq!(seen, [What::Granted, What::Expired, What::Granted]);
}

#[test]
fn the_default_types_are_strings_and_uuids() {
    let dao: MemoryLockDao = MemoryLockDao::<String>::new();
    assert!(dao.is_empty());
    assert!(MemoryLockDao::<u32, String>::default().is_empty());
}
