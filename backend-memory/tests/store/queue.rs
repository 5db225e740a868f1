//! The queue of this backend: order, hand-over across sets, leaving, and what is left behind - nothing.

use std::{
    pin::pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use lockcore::{
    BackendErrorKind, ConflictReason, LockDao, Mode, StoredContext, Target,
    backend::{Acquired, Withdraw, Withdrawn},
};

use super::claims::{shared, slots};
use crate::support::*;

#[test]
fn ten_thousand_waiters_are_granted_in_order() {
    let dao = Dao::new();
    let mut held = take(&dao, &request(0, [exclusive("a")]));
    let mut waiters: Vec<_> = (1..=10_000).map(|n| queue(&dao, request(n, [exclusive("a")]))).collect();
    for next in 0..waiters.len() {
        assert!(waiters[next].offered().is_none());
        free(&dao, &held);
        held = waiters[next].offered().expect("it is its turn");
        assert!(waiters.get_mut(next + 1).is_none_or(|after| after.offered().is_none()));
    }
    free(&dao, &held);
    assert!(dao.is_empty());
}

#[test]
fn ten_thousand_waiters_leave_in_any_order() {
    let dao = Dao::new();
    let held = take(&dao, &request(0, [exclusive("a")]));
    let waiters: Vec<_> = (1..=10_000).map(|n| queue(&dao, request(n, [exclusive("a")]))).collect();
    let mut order: Vec<usize> = (0..waiters.len() - 1).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut order);
    for leaves in order {
        assert_eq!(withdraw(&dao, &waiters[leaves].request, Withdraw::KeepIfGranted), Withdrawn::Left);
    }
    let mut last = waiters.into_iter().last().unwrap();
    free(&dao, &held);
    free(&dao, &last.offered().expect("all before it have left"));
    assert!(dao.is_empty());
}

#[test]
fn ten_thousand_readers_get_in_together() {
    let dao = Dao::new();
    let held = take(&dao, &request(0, [exclusive("a")]));
    let mut readers: Vec<_> = (1..=10_000).map(|n| queue(&dao, request(n, [shared("a")]))).collect();
    let mut writer = queue(&dao, request(20_000, [exclusive("a")]));
    free(&dao, &held);
    let all: Vec<_> = readers.iter_mut().map(|reader| reader.offered().expect("readers share")).collect();
    assert_eq!(all.last().unwrap().locks[0].granted.in_use, 10_000);
    for reading in &all {
        assert!(writer.offered().is_none());
        free(&dao, reading);
    }
    free(&dao, &writer.offered().expect("all readers are gone"));
    assert!(dao.is_empty());
}

#[test]
fn a_set_is_handed_over_when_its_last_id_is_free() {
    let dao = Dao::new();
    let ids: Vec<_> = (0..40).map(|n| format!("id {n:02}")).collect();
    let holders: Vec<_> =
        ids.iter().zip(1..).map(|(id, n)| take(&dao, &request(n, [exclusive(id)]))).collect();
    let mut all = queue(&dao, request(100, ids.iter().map(|id| exclusive(id))));
    assert_eq!(all.conflicts.len(), ids.len());
    for holder in &holders {
        assert!(all.offered().is_none());
        free(&dao, holder);
    }
    free(&dao, &all.offered().expect("all ids are free"));
    assert!(dao.is_empty());
}

#[test]
fn no_request_passes_a_waiting_set_on_a_free_id() {
    let dao = Dao::new();
    let held = take(&dao, &request(1, [exclusive("a")]));
    let mut both = queue(&dao, request(2, [exclusive("a"), exclusive("b")]));
    let mut behind = queue(&dao, request(3, [exclusive("b")]));
    let ConflictReason::QueuedBehind { head, count } = &behind.conflicts[0].reason else {
        panic!("{:?}", behind.conflicts)
    };
    assert_eq!((head, *count), (&StoredContext::Known(2), 1));
    let mut never = request(4, [exclusive("b")]);
    never.queue = false;
    assert!(matches!(now(dao.acquire(&never)).unwrap(), Acquired::Refused(_)));
    let mut nested = request(5, [exclusive("b")]);
    nested.nested = true;
    let inner = take(&dao, &nested);
    free(&dao, &held);
    assert!(both.offered().is_none());
    free(&dao, &inner);
    let first = both.offered().expect("both are free");
    assert!(behind.offered().is_none());
    free(&dao, &first);
    free(&dao, &behind.offered().expect("it is its turn"));
    assert!(dao.is_empty());
}

#[test]
fn leaving_lets_in_those_who_waited_only_for_it() {
    for how in [Withdraw::KeepIfGranted, Withdraw::Undo] {
        let dao = Dao::new();
        let held = take(&dao, &request(1, [slots("pool", 1, 3)]));
        let big = queue(&dao, request(2, [slots("pool", 3, 3)]));
        let mut small: Vec<_> = (3..6).map(|n| queue(&dao, request(n, [slots("pool", 1, 3)]))).collect();
        let larger = take(&dao, &request(6, [slots("pool", 1, 4)]));
        assert_eq!(withdraw(&dao, &big.request, how), Withdrawn::Left);
        let first = small[0].offered().expect("two of three are held");
        assert!(small[1].offered().is_none());
        free(&dao, &larger);
        let second = small[1].offered().expect("two of three are held");
        [held, first, second].iter().for_each(|held| free(&dao, held));
        free(&dao, &small[2].offered().expect("all are free"));
        assert!(dao.is_empty());
    }
}

#[test]
fn who_may_pass_a_stuck_waiter_is_found_behind_it() {
    let dao = Dao::new();
    let stopper = take(&dao, &request(1, [exclusive("x")]));
    let held = take(&dao, &request(2, [exclusive("a"), exclusive("pool")]));
    let mut stuck_reader = queue(&dao, request(3, [shared("a"), exclusive("x")]));
    let mut stuck_slot = queue(&dao, request(4, [slots("pool", 1, 2), exclusive("x")]));
    let mut reader = queue(&dao, request(5, [shared("a")]));
    let mut slot = queue(&dao, request(6, [slots("pool", 1, 2)]));
    let mut larger = queue(&dao, request(7, [slots("pool", 1, 3)]));
    let mut nested = request(8, [slots("pool", 1, 2)]);
    nested.nested = true;
    let mut nested = queue(&dao, nested);
    free(&dao, &held);
    for stays in [&mut stuck_reader, &mut stuck_slot, &mut slot] {
        assert!(stays.offered().is_none());
    }
    for passes in [&mut reader, &mut larger, &mut nested] {
        free(&dao, &passes.offered().expect("it passes the stuck one, or is nested"));
    }
    free(&dao, &stopper);
    for served in [&mut stuck_reader, &mut stuck_slot, &mut slot] {
        free(&dao, &served.offered().expect("all before it are gone"));
    }
    assert!(dao.is_empty());
}

#[test]
fn all_nested_waiters_pass_a_stuck_one() {
    let dao = Dao::new();
    let stopper = take(&dao, &request(1, [exclusive("x")]));
    let held = take(&dao, &request(2, [exclusive("a")]));
    let mut stuck = queue(&dao, request(3, [exclusive("a"), exclusive("x")]));
    let mut nested: Vec<_> = (4..9)
        .map(|context| {
            let mut nested = request(context, [shared("a")]);
            nested.nested = true;
            queue(&dao, nested)
        })
        .collect();
    free(&dao, &held);
    let all: Vec<_> = nested.iter_mut().map(|nested| nested.offered().expect("it obeys no queue")).collect();
    all.iter().for_each(|held| free(&dao, held));
    free(&dao, &stopper);
    free(&dao, &stuck.offered().expect("all others are gone"));
    assert!(dao.is_empty());
}

#[test]
fn of_those_a_release_sets_free_the_first_comes_first() {
    for (many, reversed) in [(2, false), (2, true), (40, false), (40, true)] {
        let dao = Dao::new();
        let mut ids: Vec<_> = (0..many).map(|n| format!("id {n:02}")).collect();
        if reversed {
            ids.reverse();
        }
        let held = take(&dao, &request(1, ids.iter().map(|id| exclusive(id))));
        // All compete for one more id, but wait for different ones of those that are freed together.
        let mut waiters: Vec<_> = ids
            .iter()
            .zip(2..)
            .map(|(id, context)| {
                let mut nested = request(context, [exclusive(id), exclusive("prize")]);
                nested.nested = true;
                queue(&dao, nested)
            })
            .collect();
        free(&dao, &held);
        for next in 0..waiters.len() {
            let held = waiters[next].offered().expect("it came first");
            assert!(waiters.iter_mut().skip(next + 1).all(|later| later.offered().is_none()));
            free(&dao, &held);
        }
        assert!(dao.is_empty());
    }
}

#[test]
fn room_that_a_hand_off_makes_is_handed_on() {
    let dao = Dao::new();
    let held = take(&dao, &request(1, [exclusive("x"), slots("pool", 2, 3)]));
    let mut two = queue(&dao, request(2, [slots("pool", 2, 3)]));
    let mut changes = queue(&dao, request(3, [exclusive("x"), slots("pool", 1, 2)]));
    // A client further back whom the walk through the queue has reached when room is made.
    let stopper = take(&dao, &request(4, [exclusive("y")]));
    let mut last = queue(&dao, request(5, [slots("pool", 1, 9), exclusive("y")]));
    let mut meanwhile = request(3, [slots("pool", 2, 4)]);
    meanwhile.attempt = lockcore::backend::AttemptId(99);
    meanwhile.nested = true;
    take(&dao, &meanwhile);
    free(&dao, &held);
    let changed = changes.offered().expect("both are free, and its own two permits become one");
    free(&dao, &two.offered().expect("two of three were free by then"));
    free(&dao, &changed);
    free(&dao, &stopper);
    free(&dao, &last.offered().expect("all others are gone"));
    assert!(dao.is_empty());
}

#[test]
fn a_set_got_by_a_repeated_request_lets_in_those_behind() {
    let dao = Dao::new();
    let held = take(&dao, &request(1, [exclusive("a")]));
    let wants = [exclusive("a"), slots("pool", 1, 2)];
    let first = queue(&dao, request(2, wants));
    let mut second = queue(&dao, request(3, [slots("pool", 1, 2)]));
    // Both listen for the release; the first one asks at that moment.
    free(&dao, &held);
    let first = take(&dao, &first.request);
    let second = second.offered().expect("one of two is held");
    free(&dao, &first);
    free(&dao, &second);
    assert!(dao.is_empty());
}

#[test]
fn fewer_permits_let_the_next_in() {
    let dao = Dao::new();
    let mut more = request(1, [slots("pool", 2, 2)]);
    take(&dao, &more);
    let mut next = queue(&dao, request(2, [slots("pool", 1, 2)]));
    more.claims = request(1, [slots("pool", 1, 2)]).claims;
    more.attempt = lockcore::backend::AttemptId(99);
    let fewer = take(&dao, &more);
    let next = next.offered().expect("a permit is free");
    assert_ne!(next.locks[0].granted.permits, fewer.locks[0].granted.permits);
    free(&dao, &fewer);
    free(&dao, &next);
    assert!(dao.is_empty());
}

#[test]
fn undoing_a_change_brings_back_what_was_held() {
    let dao = Dao::new();
    let reading = take(&dao, &request(1, [shared("a")]));
    let mut upgrade = request(1, [exclusive("a"), exclusive("b")]);
    upgrade.attempt = lockcore::backend::AttemptId(99);
    take(&dao, &upgrade);
    assert_eq!(withdraw(&dao, &upgrade, Withdraw::Undo), Withdrawn::Left);
    let holders = &dao.current()[0].holders;
    assert_eq!((holders[0].mode, holders[0].fence), (Mode::Shared, reading.locks[0].granted.fence));
    assert_eq!(dao.len(), 1);
    free(&dao, &reading);
    assert!(dao.is_empty());
}

#[test]
fn an_unheard_offer_is_found_by_asking_again_or_by_leaving() {
    let dao = Dao::new();
    let held = take(&dao, &request(1, [exclusive("a")]));
    let asks = queue(&dao, request(2, [exclusive("a")])).request;
    let leaves = queue(&dao, request(3, [exclusive("a")])).request;
    let undoes = queue(&dao, request(4, [exclusive("a")])).request;
    let mut last = queue(&dao, request(5, [exclusive("a")]));
    free(&dao, &held);
    free(&dao, &take(&dao, &asks));
    let Withdrawn::Holds(granted) = withdraw(&dao, &leaves, Withdraw::KeepIfGranted) else {
        panic!("it was granted by now")
    };
    free(&dao, &grant(&leaves, granted));
    assert!(
        matches!(told(&mut last.wakeup), Some(lockcore::backend::Wake::Recheck)),
        "an offer unheard can end"
    );
    last = queue(&dao, last.request);
    assert_eq!(withdraw(&dao, &undoes, Withdraw::Undo), Withdrawn::Left);
    free(&dao, &last.offered().expect("the one before has left"));
    let late = now(dao.acquire(&undoes)).unwrap_err();
    assert_eq!(late.kind(), BackendErrorKind::Withdrawn);
    assert!(dao.is_empty());
}

#[test]
fn a_waiter_that_asks_again_keeps_its_place() {
    let dao = Dao::new();
    let held = take(&dao, &request(1, [exclusive("a")]));
    let mut first = queue(&dao, request(2, [exclusive("a")]));
    let mut second = queue(&dao, request(3, [exclusive("a")]));
    let again = queue(&dao, first.request.clone());
    assert!(
        matches!(told(&mut first.wakeup), Some(lockcore::backend::Wake::Recheck)),
        "the old wake-up ends"
    );
    first = again;
    free(&dao, &held);
    assert!(second.offered().is_none());
    free(&dao, &first.offered().expect("it is its turn"));
    free(&dao, &second.offered().expect("it is its turn"));
    assert!(dao.is_empty());
}

#[test]
fn nothing_is_kept_of_an_unused_id() {
    let dao = Dao::new();
    let target = |id: &str| lockcore::Target::Id(id.to_owned());
    let held = take(&dao, &request(1, [exclusive("b")]));
    let mut never = request(2, [exclusive("a"), exclusive("b"), exclusive("c")]);
    never.queue = false;
    assert!(matches!(now(dao.acquire(&never)).unwrap(), Acquired::Refused(_)));
    assert_eq!(dao.len(), 1);
    let waits = queue(&dao, request(3, [exclusive("a"), exclusive("b"), exclusive("c")]));
    assert_eq!(dao.len(), 3);
    now(dao.freeze(&target("d"), true)).unwrap();
    assert_eq!(dao.len(), 4);
    now(dao.freeze(&target("d"), false)).unwrap();
    assert_eq!(withdraw(&dao, &waits.request, Withdraw::KeepIfGranted), Withdrawn::Left);
    assert_eq!(dao.len(), 1);
    now(dao.release_context(&1)).unwrap();
    assert!(dao.is_empty());
    assert_eq!(now(dao.release(&held)).unwrap().lost.len(), 1);
    assert!(dao.is_empty());
}

#[test]
fn the_lowest_permits_are_given_again() {
    let dao = Dao::new();
    let permits = |held: &Held| held.locks[0].granted.permits.to_vec();
    let one = take(&dao, &request(1, [slots("pool", 1, 9)]));
    let two = take(&dao, &request(2, [slots("pool", 3, 9)]));
    let three = take(&dao, &request(3, [slots("pool", 1, 9)]));
    assert_eq!((permits(&one), permits(&two), permits(&three)), (vec![0], vec![1, 2, 3], vec![4]));
    free(&dao, &two);
    let four = take(&dao, &request(4, [slots("pool", 2, 9)]));
    let five = take(&dao, &request(5, [slots("pool", 2, 9)]));
    assert_eq!((permits(&four), permits(&five)), (vec![1, 2], vec![3, 5]));
    assert_eq!(five.locks[0].granted.in_use, 6);
}

#[test]
fn a_frozen_id_is_not_handed_over_by_its_release() {
    let (dao, target) = (Dao::new(), exclusive("a").target);
    let held = take(&dao, &request(1, [exclusive("a")]));
    let mut waiter = queue(&dao, request(2, [exclusive("a")]));
    now(dao.freeze(&target, true)).unwrap();
    free(&dao, &held);
    assert!(told(&mut waiter.wakeup).is_none(), "handed over though frozen");
    now(dao.freeze(&target, false)).unwrap();
    free(&dao, &waiter.offered().expect("thawing serves it"));
    assert!(dao.is_empty());
}

/// Two generations of withdrawn tries are remembered: the last 16,384 and the 16,384 before.
#[test]
fn an_undone_try_is_refused_though_many_were_undone_since() {
    let dao = Dao::new();
    let undone = request(1, [exclusive("a")]);
    withdraw(&dao, &undone, Withdraw::Undo);
    for context in 2..20_000 {
        withdraw(&dao, &request(context, [exclusive("a")]), Withdraw::Undo);
    }
    let late = now(dao.acquire(&undone)).unwrap_err();
    assert_eq!(late.kind(), BackendErrorKind::Withdrawn);
}

#[test]
fn a_burst_of_other_ids_leaves_what_is_held_and_awaited_alone() {
    let dao = Dao::new();
    let burst = |part: u64| (0..2000).map(move |number| exclusive(&format!("burst {part} {number}")));
    let mut waiting = Vec::new();
    let mut held = Vec::new();
    let mut parts = Vec::new();
    for part in 0..5 {
        parts.push(take(&dao, &request(1000 + part, burst(part))));
        let set = [exclusive(&format!("first {part}")), exclusive(&format!("second {part}"))];
        held.push(take(&dao, &request(2000 + part, set.clone())));
        waiting.push(queue(&dao, request(3000 + part, set)));
    }
    let frozen = Target::Id("frozen".to_owned());
    now(dao.freeze(&frozen, true)).unwrap();
    parts.iter().for_each(|part| free(&dao, part));
    assert_eq!(dao.len(), 11);
    for (held, waiter) in held.iter().zip(&mut waiting) {
        assert_eq!(now(dao.renew(held)).unwrap().lost, []);
        free(&dao, held);
        let offered = waiter.offered().expect("its turn has come");
        assert!(offered.locks.iter().zip(&held.locks).all(|(later, lock)| {
            later.target == lock.target && later.granted.fence > lock.granted.fence
        }));
        free(&dao, &offered);
    }
    assert!(now(dao.inspect(&frozen)).unwrap().frozen);
    now(dao.freeze(&frozen, false)).unwrap();
    assert!(dao.is_empty());
    parts.push(take(&dao, &request(1, burst(0))));
    free(&dao, parts.last().expect("just taken"));
}

/// Uses the backend when it is woken, and notes how many ids were locked then.
struct CallsBack {
    dao: Arc<Dao>,
    seen: Mutex<Option<usize>>,
}

impl Wake for CallsBack {
    fn wake(self: Arc<Self>) {
        let (answer, answered) = mpsc::channel();
        let dao = self.dao.clone();
        thread::spawn(move || answer.send(dao.len()));
        *self.seen.lock().unwrap() = answered.recv_timeout(Duration::from_secs(30)).ok();
    }
}

#[test]
fn who_is_woken_may_use_the_backend() {
    // By an offer, and by a sender that is dropped.
    for asks_again in [false, true] {
        let dao = Arc::new(Dao::new());
        let held = take(&dao, &request(1, [exclusive("a")]));
        let mut waiter = queue(&dao, request(2, [exclusive("a")]));
        let woken = Arc::new(CallsBack { dao: dao.clone(), seen: Mutex::default() });
        let waker = Waker::from(woken.clone());
        assert!(pin!(waiter.wakeup.recv()).as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        match asks_again {
            true => drop(queue(&dao, waiter.request.clone())),
            false => free(&dao, &held),
        }
        assert_eq!(*woken.seen.lock().unwrap(), Some(1), "woken while the table is locked");
    }
}
