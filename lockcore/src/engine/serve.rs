//! Handing over: what is free goes to those whose turn it is, in the step that freed it.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
};

use super::{Request, Table, Terms, Turn, grant::grant, weigh};
use crate::rules::Admission;

/// Serves those who wait for what has [room](Table::room), in the order of their tickets, until nothing more fits.
///
/// Only the head part of each queue is looked at: as soon as one has to go on waiting, only who may pass is looked for. So a
/// release costs the same with two waiters and with ten thousand. Nested waiters are looked at one by one: they pass each other,
/// and are few. If the table [may not hand over](Table::may_hand_over) as much, it has room left.
pub fn serve<T: Table>(table: &mut T) -> Result<(), T::Error> {
    if table.rooms().is_empty() || !table.may_hand_over() {
        return Ok(());
    }
    let mut walks = Walks::default();
    loop {
        while let Some((id, behind)) = table.rooms().pop() {
            walks.begin(table, id, behind)?;
        }
        let Some(ticket) = walks.first() else { return Ok(()) };
        if !table.may_hand_over() {
            walks.leave_room(table);
            return Ok(());
        }
        let stays = table.still_waits(ticket)? && !(walks.admit(ticket) && try_hand_over(table, ticket)?);
        walks.go_on(table, ticket, stays)?;
    }
}

/// Grants a waiter its whole set. `false`: it has to go on waiting.
fn try_hand_over<T: Table>(table: &mut T, ticket: u64) -> Result<bool, T::Error> {
    let waiter = table.waiter(ticket)?;
    let request: &T::Request = waiter.borrow();
    let Some(stances) = weigh::unopposed(table, request, ticket)? else { return Ok(false) };
    let granted = grant(table, &stances, &Terms { request, offer: Some(ticket) })?;
    table.hand_over(ticket, granted)?;
    for (id, _) in request.claims() {
        table.room(id, ticket);
    }
    Ok(true)
}

/// The walks along the queues of ids with room.
struct Walks<I> {
    all: Vec<Walk<I>>,
    by_id: HashMap<I, usize>,
    /// The waiters at which they stand: their tickets, the walk, and whether they are nested.
    stands: BTreeSet<(u64, usize, bool)>,
}

/// A walk along the queue of an id: along the nested waiters, who obey holders only, and along the others.
struct Walk<I> {
    id: I,
    /// The claims that may pass those that were left behind.
    wall: Admission,
    /// The ticket of the last one that was left behind, or 0.
    past: u64,
    nested: Option<Turn>,
    other: Option<Turn>,
}

impl<I> Default for Walks<I> {
    fn default() -> Self {
        Walks { all: Vec::new(), by_id: HashMap::new(), stands: BTreeSet::new() }
    }
}

impl<I: Clone + Eq + std::hash::Hash> Walks<I> {
    /// Begins a walk, or begins it again if it left some behind that are better off now.
    fn begin<T: Table<Id = I>>(&mut self, table: &mut T, id: I, behind: u64) -> Result<(), T::Error> {
        let at = match self.by_id.get(&id) {
            Some(at) if behind > 0 && self.all[*at].past < behind => return Ok(()),
            Some(at) => *at,
            None => {
                self.by_id.insert(id.clone(), self.all.len());
                self.all.push(Walk { id, wall: Admission::Open, past: 0, nested: None, other: None });
                self.all.len() - 1
            }
        };
        let walk = &mut self.all[at];
        (walk.wall, walk.past) = (Admission::Open, 0);
        let look = table.look(&walk.id)?;
        let is_open = look.waited_for
            && !look.frozen
            // Only holders that are in the way are asked whether their processes live: that may cost a look at the system.
            && (table.in_use(&walk.id, None)?.exclusive == 0 || table.remove_dead(&walk.id)?);
        for nested in [true, false] {
            if let Some(turn) = self.all[at].turn(nested).take() {
                self.stands.remove(&(turn.ticket, at, nested));
            }
            if is_open {
                self.stand(table, at, nested, 0)?;
            }
        }
        Ok(())
    }

    /// Returns the ticket of the waiter whose turn it is.
    fn first(&self) -> Option<u64> {
        self.stands.first().map(|(ticket, ..)| *ticket)
    }

    fn at(&self, ticket: u64) -> impl Iterator<Item = &(u64, usize, bool)> {
        self.stands.range((ticket, 0, false)..=(ticket, usize::MAX, true))
    }

    /// Returns whether none of those that were left behind keeps a waiter out.
    fn admit(&self, ticket: u64) -> bool {
        self.at(ticket).all(|(_, at, nested)| {
            let walk = &self.all[*at];
            *nested || walk.other.is_some_and(|turn| walk.wall.admits(turn.mode))
        })
    }

    /// Goes on behind a waiter, which `stays` in its queues or has left them.
    fn go_on<T: Table<Id = I>>(&mut self, table: &mut T, ticket: u64, stays: bool) -> Result<(), T::Error> {
        let here: Vec<_> = self.at(ticket).copied().collect();
        for stand in here {
            self.stands.remove(&stand);
            let (_, at, nested) = stand;
            let walk = &mut self.all[at];
            if let Some(Turn { mode, .. }) = walk.turn(nested).take()
                && stays
            {
                (walk.wall, walk.past) = (walk.wall.behind(mode), ticket);
                // One that the wall did not admit was not looked at; it keeps others out all the same.
                if !nested && let Some(first) = weigh::blocker(table, &walk.id, mode, ticket)? {
                    walk.wall = walk.wall.behind(first.mode);
                }
            }
            self.stand(table, at, nested, ticket)?;
        }
        Ok(())
    }

    /// Leaves room where a walk is not at its end. A walk that is has seen all whom its id lets in.
    fn leave_room<T: Table<Id = I>>(&self, table: &mut T) {
        for walk in self.all.iter().filter(|walk| walk.nested.is_some() || walk.other.is_some()) {
            table.room(&walk.id, 0);
        }
    }

    /// Stands a walk at the next waiter who could be served as far as this id is concerned.
    fn stand<T: Table<Id = I>>(
        &mut self,
        table: &mut T,
        at: usize,
        nested: bool,
        behind: u64,
    ) -> Result<(), T::Error> {
        let walk = &mut self.all[at];
        let mut in_use = table.in_use(&walk.id, None)?;
        if in_use.exclusive > 0 {
            return Ok(());
        }
        // Permits are in the way of those who may pass: the first one of the queue may not have come to ask for their holders.
        if matches!(walk.wall, Admission::SlotsAbove(limit) if in_use.permits > limit)
            && table.remove_dead(&walk.id)?
        {
            in_use = table.in_use(&walk.id, None)?;
        }
        let admission = match walk.wall {
            // No limit up to what is held fits either.
            Admission::SlotsAbove(limit) => Admission::SlotsAbove(limit.max(in_use.permits)),
            wall => wall,
        };
        let turn = table.next(&walk.id, nested, admission, behind)?;
        self.stands.extend(turn.map(|turn| (turn.ticket, at, nested)));
        *walk.turn(nested) = turn;
        Ok(())
    }
}

impl<I> Walk<I> {
    fn turn(&mut self, nested: bool) -> &mut Option<Turn> {
        if nested { &mut self.nested } else { &mut self.other }
    }
}
