//! The queue of an id, for tables in memory.

use std::collections::BTreeMap;

use super::Turn;
use crate::{
    Mode,
    rules::{self, Admission},
};

/// The waiters for an id, in lines of those who pass and are passed by the same: who is next is the first of some lines, and
/// there are few.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Queue {
    lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    /// The mode of one of them: all have its kind and its limit.
    mode: Mode,
    nested: bool,
    tickets: BTreeMap<u64, Mode>,
}

impl Queue {
    /// Adds a waiter.
    pub fn insert(&mut self, Turn { ticket, mode }: Turn, nested: bool) {
        match self.lines.iter_mut().find(|line| line.nested == nested && line.has_place_for(mode)) {
            Some(line) => drop(line.tickets.insert(ticket, mode)),
            None => self.lines.push(Line { mode, nested, tickets: BTreeMap::from([(ticket, mode)]) }),
        }
    }

    /// Removes a waiter.
    pub fn remove(&mut self, ticket: u64) {
        self.lines.retain_mut(|line| line.tickets.remove(&ticket).is_none() || !line.tickets.is_empty());
    }

    /// Returns whether none waits.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns all waiters, in order.
    pub fn turns(&self) -> Vec<Turn> {
        let all = self.lines.iter().flat_map(|line| &line.tickets);
        let mut all: Vec<Turn> = all.map(|(&ticket, &mode)| Turn { ticket, mode }).collect();
        all.sort_unstable_by_key(by_ticket);
        all
    }

    /// Returns the first waiter behind a ticket: of the nested ones, or of the others that `admission` admits.
    pub fn next(&self, nested: bool, admission: Admission, behind: u64) -> Option<Turn> {
        let admits = |line: &&Line| line.nested == nested && (nested || admission.admits(line.mode));
        self.lines.iter().filter(admits).filter_map(|line| line.first(behind + 1..)).min_by_key(by_ticket)
    }

    /// Returns the first waiter before a ticket that a claim in this mode may not pass.
    pub fn blocker(&self, mode: Mode, before: u64) -> Option<Turn> {
        self.blocking(mode).filter_map(|line| line.first(..before)).min_by_key(by_ticket)
    }

    /// Counts these waiters.
    pub fn count_blockers(&self, mode: Mode, before: u64) -> usize {
        self.blocking(mode)
            .map(|line| match line.tickets.last_key_value() {
                Some((last, _)) if *last < before => line.tickets.len(),
                _ => line.tickets.range(..before).count(),
            })
            .sum()
    }

    fn blocking(&self, mode: Mode) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| !rules::passes(mode, line.mode))
    }
}

impl Line {
    fn has_place_for(&self, mode: Mode) -> bool {
        match (self.mode, mode) {
            (Mode::Slots { limit, .. }, Mode::Slots { limit: wanted, .. }) => limit == wanted,
            (one, other) => one == other,
        }
    }

    fn first(&self, among: impl std::ops::RangeBounds<u64>) -> Option<Turn> {
        self.tickets.range(among).next().map(|(&ticket, &mode)| Turn { ticket, mode })
    }
}

fn by_ticket(turn: &Turn) -> u64 {
    turn.ticket
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 6] = [
        Mode::Exclusive,
        Mode::Shared,
        Mode::Slots { permits: 1, limit: 1 },
        Mode::Slots { permits: 1, limit: 2 },
        Mode::Slots { permits: 2, limit: 2 },
        Mode::Slots { permits: 1, limit: 3 },
    ];

    #[test]
    fn it_answers_as_a_walk_along_all_waiters_does() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut queue, mut all) = (Queue::default(), Vec::new());
        for ticket in 1..=400 {
            let turn = Turn { ticket, mode: MODES[random.usize(..6)] };
            let nested = random.u8(..4) == 0;
            queue.insert(turn, nested);
            all.push((turn, nested));
            if random.bool() {
                let (gone, _) = all.remove(random.usize(..all.len()));
                queue.remove(gone.ticket);
            }
            let (at, mode) = (random.u64(..=ticket + 1), MODES[random.usize(..6)]);
            let admission = Admission::Open.behind(mode);
            for (nested, admission) in [(true, admission), (false, admission), (false, Admission::Open)] {
                let admits = |turn: &Turn| turn.ticket > at && (nested || admission.admits(turn.mode));
                let mut turns = all.iter().filter(|(turn, of)| *of == nested && admits(turn));
                assert_eq!(queue.next(nested, admission, at), turns.next().map(|(turn, _)| *turn));
            }
            let blocks = |turn: &Turn| turn.ticket < at && !rules::passes(mode, turn.mode);
            let blocking: Vec<_> = all.iter().map(|(turn, _)| *turn).filter(blocks).collect();
            assert_eq!(queue.blocker(mode, at), blocking.first().copied());
            assert_eq!(queue.count_blockers(mode, at), blocking.len());
        }
        assert_eq!(queue.turns(), all.iter().map(|(turn, _)| *turn).collect::<Vec<_>>());
        all.iter().for_each(|(turn, _)| queue.remove(turn.ticket));
        assert!(queue.is_empty());
    }
}
