//! Model checks: thousands of schedules of a few threads, chosen by shuttle.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p lockcore-memory --release --test memory`, with a target
//! folder of its own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lockcore::{
    LockDao,
    backend::{AcquireRequest, Acquired, Wake, Withdraw, Withdrawn},
};
use shuttle::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use crate::support::*;

/// Runs the threads under random schedules, and under such as have few but nasty preemptions.
fn check(threads: fn()) {
    shuttle::check_random(threads, 20_000);
    shuttle::check_pct(threads, 20_000, 3);
}

type Request = AcquireRequest<String, u64>;

/// What became of a request that may have to wait.
enum Turn {
    Holds(Held),
    Waits(Asked),
}

fn ask(dao: &Dao, request: Request) -> Turn {
    match now(dao.acquire(&request)).unwrap() {
        Acquired::Granted(granted) => Turn::Holds(grant(&request, granted)),
        Acquired::Queued { conflicts, wakeup, recheck } => {
            let asked = Asked { request, conflicts, wakeup, recheck };
            assert!(!asked.conflicts.is_empty(), "a waiter learns for what");
            assert_eq!(asked.recheck, None, "nothing here ends by itself");
            Turn::Waits(asked)
        }
        Acquired::Refused(conflicts) => panic!("it would wait: {conflicts:?}"),
    }
}

impl Turn {
    /// What it holds once all clients before it is gone.
    fn served(self) -> Held {
        match self {
            Turn::Holds(held) => held,
            Turn::Waits(mut waiter) => waiter.offered().expect("all before it are gone"),
        }
    }
}

/// Two holders release one id each, in shards of their own, while a waiter for both and one for the
/// second arrive, and a client tries to barge in.
#[test]
fn a_set_is_handed_over_across_shards() {
    check(|| {
        let dao = Arc::new(Dao::new());
        let one = take(&dao, &request(1, [exclusive("a")]));
        let two = take(&dao, &request(2, [exclusive("b")]));
        let waiter = queue(&dao, request(3, [exclusive("a"), exclusive("b")]));
        let releases = [one, two].map(|held| {
            let dao = dao.clone();
            thread::spawn(move || free(&dao, &held))
        });
        let later = {
            let dao = dao.clone();
            thread::spawn(move || ask(&dao, request(4, [exclusive("b")])))
        };
        let barges = {
            let dao = dao.clone();
            thread::spawn(move || {
                let mut never = request(5, [exclusive("a")]);
                never.queue = false;
                assert!(matches!(now(dao.acquire(&never)).unwrap(), Acquired::Refused(_)));
            })
        };
        releases.into_iter().for_each(|release| release.join().unwrap());
        barges.join().unwrap();
        let later = later.join().unwrap();
        let Turn::Waits(mut later) = later else { panic!("passed an earlier waiter") };
        assert!(later.offered().is_none(), "passed an earlier waiter");
        free(&dao, &Turn::Waits(waiter).served());
        free(&dao, &later.offered().expect("it is its turn"));
        assert!(dao.is_empty());
    });
}

/// The waiter at the head leaves while the lock is handed over: either it has left, and the next one holds
/// the lock, or it holds it, and passes it on.
fn release_against(how: Withdraw) {
    let dao = Arc::new(Dao::new());
    let held = take(&dao, &request(1, [exclusive("a")]));
    let first = queue(&dao, request(2, [exclusive("a"), exclusive("b")]));
    let next = queue(&dao, request(3, [exclusive("b"), exclusive("c")]));
    let last = queue(&dao, request(4, [exclusive("a"), exclusive("c")]));
    let release = {
        let dao = dao.clone();
        thread::spawn(move || free(&dao, &held))
    };
    let withdraws = {
        let dao = dao.clone();
        thread::spawn(move || {
            let withdrawn = withdraw(&dao, &first.request, how);
            (withdrawn, first)
        })
    };
    release.join().unwrap();
    let (withdrawn, mut first) = withdraws.join().unwrap();
    match withdrawn {
        Withdrawn::Left => {
            // Undone is also what it was offered in between.
            let offered = matches!(told(&mut first.wakeup), Some(Wake::Offer(_)));
            assert!(how == Withdraw::Undo || !offered, "left, and was granted");
        }
        Withdrawn::Holds(granted) => free(&dao, &grant(&first.request, granted)),
    }
    free(&dao, &Turn::Waits(next).served());
    free(&dao, &Turn::Waits(last).served());
    assert!(dao.is_empty());
}

#[test]
fn a_release_races_with_a_waiter_that_leaves() {
    check(|| release_against(Withdraw::KeepIfGranted));
}

#[test]
fn a_release_races_with_a_waiter_that_is_undone() {
    check(|| release_against(Withdraw::Undo));
}

/// The waiter asks again, as after a recheck, while the lock is handed over.
#[test]
fn a_release_races_with_a_waiter_that_asks_again() {
    check(|| {
        let dao = Arc::new(Dao::new());
        let held = take(&dao, &request(1, [exclusive("a")]));
        let waiter = queue(&dao, request(2, [exclusive("a"), exclusive("b")]));
        let next = queue(&dao, request(3, [exclusive("b")]));
        let release = {
            let dao = dao.clone();
            thread::spawn(move || free(&dao, &held))
        };
        let again = {
            let dao = dao.clone();
            thread::spawn(move || {
                let again = ask(&dao, waiter.request.clone());
                (waiter.wakeup, again)
            })
        };
        release.join().unwrap();
        let (_old, again) = again.join().unwrap();
        free(&dao, &again.served());
        free(&dao, &Turn::Waits(next).served());
        assert!(dao.is_empty());
    });
}

/// Three sets of which each overlaps with both others, asked for at once: no client deadlocks, no client is
/// inside together with another, no client is forgotten.
#[test]
fn overlapping_sets_exclude_each_other_and_all_get_their_turn() {
    check(|| {
        let dao = Arc::new(Dao::new());
        let inside = Arc::new(AtomicUsize::new(0));
        let sets = [["a", "b"], ["c", "b"], ["c", "a"]];
        let threads: Vec<_> = sets
            .into_iter()
            .zip(1..)
            .map(|(ids, context)| {
                let (dao, inside) = (dao.clone(), inside.clone());
                thread::spawn(move || match ask(&dao, request(context, ids.map(exclusive))) {
                    Turn::Holds(held) => {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        free(&dao, &held);
                        None
                    }
                    Turn::Waits(waiter) => Some(waiter),
                })
            })
            .collect();
        let mut waiting: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
        while !waiting.is_empty() {
            let before = waiting.len();
            let mut offered = Vec::new();
            waiting.retain_mut(|waiter| match waiter.offered() {
                Some(held) => {
                    offered.push(held);
                    false
                }
                None => true,
            });
            assert!(offered.len() == 1, "{} of {before} waiters are inside", offered.len());
            free(&dao, &offered[0]);
        }
        assert!(dao.is_empty());
    });
}
