//! Properties that no backend on the engine shows by itself: the questions that a step asks its table, and dead processes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    convert::Infallible,
};

use super::*;
use crate::{
    Granted, LossReason, Mode,
    backend::{AttemptId, Withdraw},
    rules::{self, Admission},
};

#[derive(Clone, Debug)]
struct Try {
    context: u64,
    claims: Vec<(&'static str, Mode)>,
    nested: bool,
}

impl Request for Try {
    type Id = &'static str;
    type Context = u64;

    fn context(&self) -> &u64 {
        &self.context
    }

    fn attempt(&self) -> AttemptId {
        AttemptId(self.context)
    }

    fn nested(&self) -> bool {
        self.nested
    }

    fn queue(&self) -> bool {
        true
    }

    fn claims(&self) -> impl Iterator<Item = (&&'static str, Mode)> {
        self.claims.iter().map(|(id, mode)| (id, *mode))
    }
}

/// A table without leases and frozen ids, of which some processes may have died. A context is a process, and its ticket.
#[derive(Default)]
struct Plain {
    held: HashMap<&'static str, BTreeMap<u64, New>>,
    places: BTreeMap<u64, Try>,
    queues: HashMap<&'static str, Queue>,
    rooms: Vec<(&'static str, u64)>,
    fence: u64,
    dead: HashSet<u64>,
    /// The number of questions so far.
    asked: usize,
    asked_for_dead: usize,
    /// The number of sets that a step may still hand over; without a bound if there is none.
    may_hand_over: Option<usize>,
}

impl Plain {
    fn queue(&mut self, id: &'static str) -> &mut Queue {
        self.asked += 1;
        self.queues.entry(id).or_default()
    }

    fn ask(&mut self, context: u64, claims: &[(&'static str, Mode)], nested: bool) -> bool {
        let request = Try { context, claims: claims.to_vec(), nested };
        let Ok(verdict) = acquire(self, &request);
        let Ok(()) = serve(self);
        matches!(verdict, Verdict::Granted(_))
    }

    fn free_all(&mut self, context: u64) {
        let own = self.held.iter().filter_map(|(id, held)| Some((*id, held.get(&context)?.fence)));
        let own: Vec<_> = own.collect();
        let Ok(lost) = release(self, &context, own.iter().map(|(id, fence)| (id, *fence)));
        assert_eq!(lost, []);
        let Ok(()) = serve(self);
    }

    fn holders(&self, id: &'static str) -> Vec<u64> {
        self.held[id].keys().copied().collect()
    }
}

impl Table for Plain {
    type Error = Infallible;
    type Id = &'static str;
    type Context = u64;
    type Request = Try;
    type Waiter = Try;

    fn look(&mut self, id: &&'static str) -> Result<Look, Infallible> {
        let waited_for = !Plain::queue(self, id).is_empty();
        let held = self.held.get(id).is_some_and(|held| !held.is_empty());
        Ok(Look { held, waited_for, frozen: false })
    }

    fn holders(&mut self, id: &&'static str) -> Result<impl Iterator<Item = Held<'_, u64>>, Infallible> {
        let all = self.held.get(id).into_iter().flatten();
        Ok(all.map(|(context, new)| Held {
            context,
            owner: "",
            mode: new.mode,
            permits: &new.permits,
            fence: new.fence,
            remaining: None,
        }))
    }

    fn own(&mut self, id: &&'static str, context: &u64) -> Result<Option<Own>, Infallible> {
        self.asked += 1;
        let own = self.held.get(id).and_then(|held| held.get(context));
        Ok(own.map(|new| Own {
            attempt: AttemptId(*context),
            mode: new.mode,
            permits: new.permits.clone(),
            fence: new.fence,
            lasts: true,
            broken: false,
        }))
    }

    fn replaced(&mut self, _id: &&'static str, _context: &u64) -> Result<Option<Own>, Infallible> {
        Ok(None)
    }

    fn ticket(&mut self, request: &Try) -> Result<Option<u64>, Infallible> {
        Ok(self.places.contains_key(&request.context).then_some(request.context))
    }

    fn next(
        &mut self,
        id: &&'static str,
        nested: bool,
        admission: Admission,
        behind: u64,
    ) -> Result<Option<Turn>, Infallible> {
        Ok(Plain::queue(self, id).next(nested, admission, behind))
    }

    fn blocker(&mut self, id: &&'static str, mode: Mode, before: u64) -> Result<Option<Turn>, Infallible> {
        Ok(Plain::queue(self, id).blocker(mode, before))
    }

    fn count_blockers(&mut self, id: &&'static str, mode: Mode, before: u64) -> Result<usize, Infallible> {
        Ok(Plain::queue(self, id).count_blockers(mode, before))
    }

    fn waiter(&mut self, ticket: u64) -> Result<Try, Infallible> {
        self.asked += 1;
        Ok(self.places[&ticket].clone())
    }

    fn is_withdrawn(&mut self, _request: &Try) -> Result<bool, Infallible> {
        Ok(false)
    }

    fn why_missing(&mut self, _id: &&'static str, _fence: u64) -> Result<LossReason, Infallible> {
        Ok(LossReason::Vanished)
    }

    fn remove_dead(&mut self, id: &&'static str) -> Result<bool, Infallible> {
        self.asked_for_dead += 1;
        let (dead, held) = (&self.dead, self.held.entry(id).or_default());
        let before = held.len();
        held.retain(|context, _| !dead.contains(context));
        let any = held.len() < before;
        self.rooms.extend(any.then_some((*id, 0)));
        Ok(any)
    }

    fn still_waits(&mut self, ticket: u64) -> Result<bool, Infallible> {
        self.asked += 1;
        if !self.dead.contains(&ticket) {
            return Ok(true);
        }
        if let Some(request) = self.places.get(&ticket).cloned() {
            let Ok(()) = leave(self, &request, ticket);
        }
        Ok(false)
    }

    fn may_hand_over(&self) -> bool {
        self.may_hand_over != Some(0)
    }

    fn new_fence(&mut self, _terms: &Terms<'_, Try>) -> Result<u64, Infallible> {
        self.fence = rules::next_fence(self.fence, 0);
        Ok(self.fence)
    }

    fn hold(
        &mut self,
        id: &&'static str,
        new: New,
        _back: Back,
        terms: &Terms<'_, Try>,
    ) -> Result<(), Infallible> {
        self.held.entry(id).or_default().insert(terms.request.context, new);
        Ok(())
    }

    fn keep(&mut self, _id: &&'static str, _terms: &Terms<'_, Try>) -> Result<(), Infallible> {
        Ok(())
    }

    fn free(
        &mut self,
        id: &&'static str,
        context: &u64,
        _fence: u64,
    ) -> Result<Option<LossReason>, Infallible> {
        Ok(self.held.entry(id).or_default().remove(context).is_none().then_some(LossReason::Vanished))
    }

    fn undo(&mut self, id: &&'static str, context: &u64, _restores: bool) -> Result<(), Infallible> {
        self.held.entry(id).or_default().remove(context);
        Ok(())
    }

    fn queue(&mut self, request: &Try, _ticket: Option<u64>) -> Result<(), Infallible> {
        for (id, mode) in &request.claims {
            Plain::queue(self, id).insert(Turn { ticket: request.context, mode: *mode }, request.nested);
        }
        self.places.insert(request.context, request.clone());
        Ok(())
    }

    fn leave(&mut self, ticket: u64) -> Result<(), Infallible> {
        let request = self.places.remove(&ticket);
        for (id, _) in request.into_iter().flat_map(|request| request.claims) {
            Plain::queue(self, id).remove(ticket);
        }
        Ok(())
    }

    fn hand_over(&mut self, ticket: u64, _granted: Vec<Granted>) -> Result<(), Infallible> {
        self.may_hand_over = self.may_hand_over.map(|left| left - 1);
        self.leave(ticket)
    }

    fn withdraw(&mut self, _request: &Try) -> Result<(), Infallible> {
        Ok(())
    }

    fn rooms(&mut self) -> &mut Vec<(&'static str, u64)> {
        &mut self.rooms
    }
}

const ALONE: Mode = Mode::Exclusive;
const SHARED: Mode = Mode::Shared;
const SLOT: Mode = Mode::Slots { permits: 1, limit: 2 };

#[test]
fn whether_holders_live_is_asked_only_where_they_are_in_the_way() {
    let mut table = Plain::default();
    assert!(table.ask(1, &[("a", SHARED)], false) && table.ask(2, &[("a", SHARED)], false));
    assert_eq!(table.asked_for_dead, 0);
    table.dead.insert(1);
    assert!(table.ask(3, &[("a", SHARED)], false));
    assert_eq!((table.asked_for_dead, table.holders("a")), (0, vec![1, 2, 3]));
    table.dead.extend([2, 3]);
    assert!(table.ask(4, &[("a", ALONE)], false));
    assert_eq!(table.holders("a"), [4]);
}

#[test]
fn what_the_dead_held_goes_to_those_who_wait_first() {
    let mut table = Plain::default();
    assert!(table.ask(1, &[("a", ALONE)], false));
    assert!(!table.ask(2, &[("a", ALONE)], false));
    table.dead.insert(1);
    assert!(!table.ask(3, &[("a", ALONE)], false));
    assert_eq!(table.holders("a"), [2]);
}

/// The first waiter for `b` is kept out of `a`, and comes not to ask for the holders of `b`.
#[test]
fn the_permits_of_the_dead_are_in_the_way_of_none_who_may_pass() {
    let slots = |permits, limit| Mode::Slots { permits, limit };
    let mut table = Plain::default();
    assert!(table.ask(1, &[("a", ALONE)], false) && table.ask(2, &[("b", slots(4, 4))], false));
    assert!(!table.ask(3, &[("a", ALONE), ("b", slots(1, 2))], false));
    assert!(!table.ask(4, &[("b", slots(1, 3))], false));
    table.dead.insert(2);
    table.room(&"b", 0);
    let Ok(()) = serve(&mut table);
    assert_eq!(table.holders("b"), [4]);
}

/// The walk along one id is at its last waiter when another walk, which began later, serves that one.
#[test]
fn a_waiter_that_was_left_behind_and_is_served_after_all_keeps_none_out() {
    let mut table = Plain::default();
    assert!(table.ask(1, &[("a", ALONE)], false) && table.ask(2, &[("b", ALONE)], false));
    assert!(!table.ask(3, &[("b", SLOT)], false));
    assert!(!table.ask(4, &[("a", SLOT), ("b", SLOT)], false));
    assert!(!table.ask(5, &[("a", SLOT)], false));
    table.dead.insert(2);
    table.free_all(1);
    assert_eq!((table.holders("a"), table.holders("b")), (vec![4, 5], vec![3, 4]));
}

#[test]
fn dead_waiters_are_passed_over() {
    for ends in [false, true] {
        let mut table = Plain::default();
        assert!(table.ask(1, &[("a", ALONE)], false));
        assert!(table.ask(2, &[("b", SHARED)], false));
        for dead in [3, 4] {
            assert!(!table.ask(dead, &[("a", ALONE), ("b", ALONE)], false));
        }
        assert!(!table.ask(5, &[("b", SHARED)], false));
        table.dead.extend([3, 4]);
        match ends {
            // Met by a release, and by a request that they are in the way of.
            true => table.free_all(1),
            false => assert!(table.ask(6, &[("b", SHARED)], false)),
        }
        assert!(table.places.is_empty(), "{:?}", table.places);
        assert!(table.holders("b").starts_with(&[2, 5]));
    }
}

/// 3.7: all that a release asks its table for, with queues of which only the head can be served.
#[test]
fn a_release_costs_the_same_however_long_the_queue() {
    let asked = |waiters: u64, head: &[(&'static str, Mode, bool)], rest: Mode| {
        let mut table = Plain::default();
        assert!(table.ask(1, &[("a", ALONE)], false) && table.ask(2, &[("stuck", ALONE)], false));
        for (ticket, (with, mode, nested)) in (3..).zip(head) {
            assert!(!table.ask(ticket, &[("a", *mode), (*with, ALONE)], *nested));
        }
        for ticket in 10..10 + waiters {
            assert!(!table.ask(ticket, &[("a", rest)], false));
        }
        table.asked = 0;
        table.free_all(1);
        table.asked
    };
    let heads: [&[_]; 6] = [
        &[],
        &[("stuck", ALONE, false)],
        &[("stuck", SHARED, false), ("stuck", ALONE, false)],
        &[("stuck", ALONE, true)],
        &[("stuck", SHARED, false), ("stuck", ALONE, true)],
        &[("stuck", SLOT, false)],
    ];
    for head in heads {
        for rest in [ALONE, SHARED, SLOT] {
            // Here all are served, which has its price.
            if head.is_empty() && rest == SHARED {
                continue;
            }
            let (few, many) = (asked(4, head, rest), asked(4000, head, rest));
            assert_eq!(few, many, "{head:?} before {rest:?}");
        }
    }
    let (few, many) = (asked(10, &[], SHARED), asked(1000, &[], SHARED));
    assert!(many <= few * 100, "{few} for 10 that are served, {many} for 1000");
}

#[test]
fn a_waiter_that_leaves_is_found_by_none() {
    let mut table = Plain::default();
    assert!(table.ask(1, &[("a", ALONE)], false));
    assert!(!table.ask(2, &[("a", ALONE)], false) && !table.ask(3, &[("a", ALONE)], false));
    let leaves = table.places[&2].clone();
    assert_eq!(withdraw(&mut table, &leaves, Withdraw::KeepIfGranted), Ok(None));
    table.free_all(1);
    assert_eq!(table.holders("a"), [3]);
}

#[test]
fn what_one_step_may_not_hand_over_the_next_ones_do() {
    let mut table = Plain::default();
    assert!(table.ask(1, &[("a", ALONE), ("b", ALONE)], false));
    let wanted = |ticket: u64| match ticket % 3 {
        0 => vec![("a", SHARED)],
        1 => vec![("b", SHARED)],
        _ => vec![("a", SHARED), ("b", SHARED)],
    };
    for ticket in 2..=20 {
        assert!(!table.ask(ticket, &wanted(ticket), ticket % 2 == 0));
    }
    table.may_hand_over = Some(4);
    table.free_all(1);
    assert_eq!(table.places.len(), 15);
    // They come first all the same.
    assert!(!table.ask(21, &[("a", ALONE)], false));
    for left in [11, 7, 3, 0] {
        assert!(!table.rooms.is_empty());
        table.may_hand_over = Some(4);
        let Ok(()) = serve(&mut table);
        assert_eq!(table.places.len(), left + 1);
    }
    assert_eq!(table.rooms, []);
    assert_eq!(table.places.into_keys().collect::<Vec<_>>(), [21]);
}
