//! Decisions about claims, without a service.

use lockcore::{backend::Withdraw, engine::Verdict};

use super::*;
use crate::{
    request::StoredClaim,
    row::{Foreign, SECOND},
};

const NOW: ServiceTime = ServiceTime { lo: 1000 * SECOND, hi: 1001 * SECOND };
const ID: &str = "id";

/// Asks for an id with this row, which is as it has to be written then.
fn ask(row: &mut Row, request: Request, now: ServiceTime) -> Verdict<String> {
    let fence = row.fence.max(now.hi) + 1;
    let mut step = Step::new([(ID.to_owned(), std::mem::take(row))], now).granting(fence);
    let Ok(verdict) = engine::acquire(&mut step, &request);
    *row = step.row(ID).clone();
    match verdict {
        Verdict::Refused(reasons) => {
            let named = |(position, reason)| (position, step.named(ID, reason));
            Verdict::Refused(reasons.into_iter().map(named).collect())
        }
        verdict => verdict,
    }
}

fn request(context: &str, attempt: u64, mode: Mode) -> Request {
    Request {
        context: context.to_owned(),
        attempt,
        claims: vec![StoredClaim { key: ID.to_owned(), mode }],
        lease: 30 * SECOND,
        owner: Owner::default(),
    }
}

fn slots(permits: u32, limit: u32) -> Mode {
    Mode::Slots { permits, limit }
}

fn granted(row: &mut Row, request: Request, now: ServiceTime) -> Granted {
    match ask(row, request, now) {
        Verdict::Granted(granted) => granted[0].clone(),
        other => panic!("not granted: {other:?}"),
    }
}

fn blocked(row: &mut Row, request: Request, now: ServiceTime) -> ConflictReason<String> {
    match ask(row, request, now) {
        Verdict::Refused(mut reasons) => reasons.remove(0).1,
        other => panic!("not blocked: {other:?}"),
    }
}

#[test]
fn a_lease_lasts_until_it_has_certainly_ended() {
    let mut row = Row::default();
    let first = granted(&mut row, request("a", 1, Mode::Exclusive), NOW);
    let until = row.holder("a").map(|entry| entry.until);
    assert_eq!(until, Some(NOW.hi + 30 * SECOND), "a whole lease from the upper bound");
    let late = ServiceTime { lo: NOW.hi + 30 * SECOND, hi: NOW.hi + 90 * SECOND };
    blocked(&mut row.clone(), request("b", 2, Mode::Exclusive), late);
    let later = ServiceTime { lo: late.lo + 1, ..late };
    let second = granted(&mut row, request("b", 2, Mode::Exclusive), later);
    assert!(second.fence > first.fence);
}

#[test]
fn what_may_have_ended_is_a_new_grant_for_its_own_context() {
    let mut row = Row::default();
    let first = granted(&mut row, request("a", 1, Mode::Exclusive), NOW);
    let kept = granted(&mut row, request("a", 2, Mode::Exclusive), NOW);
    assert_eq!(kept.fence, first.fence);
    let uncertain = ServiceTime { lo: NOW.lo, hi: NOW.hi + 31 * SECOND };
    let new = granted(&mut row, request("a", 3, Mode::Exclusive), uncertain);
    assert!(new.fence > first.fence);
}

#[test]
fn a_shorter_lease_cuts_no_longer_one_short() {
    let mut row = Row::default();
    granted(&mut row, Request { lease: 600 * SECOND, ..request("a", 1, Mode::Exclusive) }, NOW);
    granted(&mut row, request("a", 2, Mode::Exclusive), NOW);
    // A step looks for leases from the future first.
    assert!(!row.rebase(NOW), "it is as long as it was");
    assert_eq!(row.holder("a").map(|entry| entry.until), Some(NOW.hi + 600 * SECOND));
    let later = ServiceTime { lo: NOW.lo + 60 * SECOND, hi: NOW.hi + 60 * SECOND };
    blocked(&mut row, request("b", 3, Mode::Exclusive), later);
}

#[test]
fn the_lowest_permits_are_given_within_the_callers_limit() {
    let mut row = Row::default();
    for (context, permits) in [("a", vec![0, 1]), ("b", vec![2, 3])] {
        let granted = granted(&mut row, request(context, 1, slots(2, 5)), NOW);
        assert_eq!(granted.permits.to_vec(), permits);
    }
    blocked(&mut row, request("c", 1, slots(1, 4)), NOW);
    row.remove("a");
    let third = granted(&mut row, request("c", 1, slots(1, 3)), NOW);
    assert_eq!((third.permits.to_vec(), third.in_use), (vec![0], 3));
}

#[test]
fn a_frozen_id_is_kept_and_not_granted() {
    let mut row = Row::default();
    granted(&mut row, request("a", 1, Mode::Shared), NOW);
    row.frozen = true;
    granted(&mut row, request("a", 2, Mode::Shared), NOW);
    assert_eq!(blocked(&mut row, request("b", 1, Mode::Shared), NOW), ConflictReason::Frozen);
    assert_eq!(blocked(&mut row, request("a", 3, Mode::Exclusive), NOW), ConflictReason::Frozen);
}

#[test]
fn a_change_remembers_what_was_held_before_the_attempt() {
    let mut row = Row::default();
    let shared = granted(&mut row, request("a", 1, Mode::Shared), NOW);
    granted(&mut row, request("a", 2, slots(1, 3)), NOW);
    granted(&mut row, request("a", 2, Mode::Exclusive), NOW);
    let prior = row.holder("a").and_then(|entry| entry.prior.clone()).expect("what attempt 1 got");
    assert_eq!((prior.fence, prior.mode), (shared.fence, Mode::Shared));
    assert!(prior.prior.is_none());
}

#[test]
fn a_withdrawn_attempt_is_refused_and_others_are_not() {
    let mut row = Row::default();
    row.tombstones.push((7, NOW.hi + SECOND));
    assert_eq!(ask(&mut row, request("a", 7, Mode::Exclusive), NOW), Verdict::Withdrawn);
    granted(&mut row, request("a", 8, Mode::Exclusive), NOW);
}

#[test]
fn an_attempt_gives_back_what_it_replaced_though_its_lease_has_ended() {
    let mut row = Row::default();
    granted(&mut row, Request { lease: 600 * SECOND, ..request("a", 1, Mode::Shared) }, NOW);
    granted(&mut row, request("a", 2, Mode::Exclusive), NOW);
    granted(&mut row, request("a", 2, Mode::Exclusive), NOW);
    let later = ServiceTime { lo: NOW.lo + 60 * SECOND, hi: NOW.hi + 60 * SECOND };
    let mut step = Step::new([(ID.to_owned(), row)], later).withdrawing("a", later.hi);
    let left = engine::withdraw(&mut step, &request("a", 2, Mode::Exclusive), Withdraw::Undo);
    assert_eq!(left, Ok(None));
    let row = step.pruned(ID);
    assert_eq!(row.holder("a").map(|own| own.mode), Some(Mode::Shared));
    assert!(row.was_withdrawn(2));
}

/// The lock of a client that calls itself as the caller does is not the caller's.
#[test]
fn another_clients_lock_is_named_and_excludes_its_own_name_too() {
    let foreign = |until| Some(Foreign { context: "a".to_owned(), since: NOW.lo, until });
    for context in ["a", "b"] {
        let mut row = Row { foreign: foreign(None), ..Row::default() };
        let ConflictReason::Held { holders, count, in_use } =
            blocked(&mut row, request(context, 1, Mode::Shared), NOW)
        else {
            panic!("it is held");
        };
        assert_eq!((count, in_use, holders[0].remaining), (1, 1, None));
        assert_eq!(holders[0].context, StoredContext::Foreign("a".to_owned()));
        let mut row = Row { foreign: foreign(Some(NOW.lo - 1)), ..Row::default() };
        granted(&mut row, request(context, 1, Mode::Shared), NOW);
    }
}
