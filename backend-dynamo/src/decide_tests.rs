//! Decisions about claims, without a service.

use lockcore::{ConflictReason, Mode, Owner};

use super::*;

const SECOND: u64 = 1_000_000;
const NOW: ServiceTime = ServiceTime { lo: 1000 * SECOND, hi: 1001 * SECOND };

fn asker(context: &str, attempt: u64) -> Asker<'_> {
    static NO_OWNER: std::sync::LazyLock<Owner> = std::sync::LazyLock::new(Owner::default);
    Asker { context, attempt, lease: 30 * SECOND, owner: &NO_OWNER }
}

fn slots(permits: u32, limit: u32) -> Mode {
    Mode::Slots { permits, limit }
}

fn granted(row: &mut Row, asker: Asker<'_>, mode: Mode, now: ServiceTime) -> Granted {
    let fence = row.fence.max(now.hi) + 1;
    match take(row, asker, mode, fence, now) {
        ClaimDecision::Granted(granted) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

fn blocked(row: &mut Row, asker: Asker<'_>, mode: Mode, now: ServiceTime) -> ConflictReason<String> {
    match take(row, asker, mode, row.fence + 1, now) {
        ClaimDecision::Blocked(reason) => reason,
        other => panic!("not blocked: {other:?}"),
    }
}

#[test]
fn a_lease_lasts_until_it_has_certainly_ended() {
    let mut row = Row::default();
    let first = granted(&mut row, asker("a", 1), Mode::Exclusive, NOW);
    let until = row.holder("a").map(|entry| entry.until);
    assert_eq!(until, Some(NOW.hi + 30 * SECOND), "a whole lease from the upper bound");
    let late = ServiceTime { lo: NOW.hi + 30 * SECOND, hi: NOW.hi + 90 * SECOND };
    blocked(&mut row.clone(), asker("b", 2), Mode::Exclusive, late);
    let later = ServiceTime { lo: late.lo + 1, ..late };
    let second = granted(&mut row, asker("b", 2), Mode::Exclusive, later);
    assert!(second.fence > first.fence);
}

#[test]
fn what_may_have_ended_is_a_new_grant_for_its_own_context() {
    let mut row = Row::default();
    let first = granted(&mut row, asker("a", 1), Mode::Exclusive, NOW);
    let kept = granted(&mut row, asker("a", 2), Mode::Exclusive, NOW);
    assert_eq!(kept.fence, first.fence);
    let uncertain = ServiceTime { lo: NOW.lo, hi: NOW.hi + 31 * SECOND };
    let new = granted(&mut row, asker("a", 3), Mode::Exclusive, uncertain);
    assert!(new.fence > first.fence);
}

#[test]
fn a_shorter_lease_cuts_no_longer_one_short() {
    let mut row = Row::default();
    granted(&mut row, Asker { lease: 600 * SECOND, ..asker("a", 1) }, Mode::Exclusive, NOW);
    granted(&mut row, asker("a", 2), Mode::Exclusive, NOW);
    // A step looks for leases from the future first.
    assert!(!row.rebase(NOW), "it is as long as it was");
    assert_eq!(row.holder("a").map(|entry| entry.until), Some(NOW.hi + 600 * SECOND));
    let later = ServiceTime { lo: NOW.lo + 60 * SECOND, hi: NOW.hi + 60 * SECOND };
    blocked(&mut row, asker("b", 3), Mode::Exclusive, later);
}

#[test]
fn the_lowest_permits_are_given_within_the_callers_limit() {
    let mut row = Row::default();
    for (context, permits) in [("a", vec![0, 1]), ("b", vec![2, 3])] {
        let granted = granted(&mut row, asker(context, 1), slots(2, 5), NOW);
        assert_eq!(granted.permits.to_vec(), permits);
    }
    blocked(&mut row, asker("c", 1), slots(1, 4), NOW);
    row.remove("a");
    let third = granted(&mut row, asker("c", 1), slots(1, 3), NOW);
    assert_eq!((third.permits.to_vec(), third.in_use), (vec![0], 3));
}

#[test]
fn a_frozen_id_is_kept_and_not_granted() {
    let mut row = Row::default();
    granted(&mut row, asker("a", 1), Mode::Shared, NOW);
    row.frozen = true;
    granted(&mut row, asker("a", 2), Mode::Shared, NOW);
    assert_eq!(blocked(&mut row, asker("b", 1), Mode::Shared, NOW), ConflictReason::Frozen);
    assert_eq!(blocked(&mut row, asker("a", 3), Mode::Exclusive, NOW), ConflictReason::Frozen);
}

#[test]
fn a_change_remembers_what_was_held_before_the_attempt() {
    let mut row = Row::default();
    let shared = granted(&mut row, asker("a", 1), Mode::Shared, NOW);
    granted(&mut row, asker("a", 2), slots(1, 3), NOW);
    granted(&mut row, asker("a", 2), Mode::Exclusive, NOW);
    let prior = row.holder("a").and_then(|entry| entry.prior.clone()).expect("what attempt 1 got");
    assert_eq!((prior.fence, prior.mode), (shared.fence, Mode::Shared));
    assert!(prior.prior.is_none());
}

#[test]
fn a_withdrawn_attempt_is_refused_and_others_are_not() {
    let mut row = Row::default();
    row.tombstones.push((7, NOW.hi + SECOND));
    assert!(matches!(take(&mut row, asker("a", 7), Mode::Exclusive, 1, NOW), ClaimDecision::Withdrawn));
    granted(&mut row, asker("a", 8), Mode::Exclusive, NOW);
}
