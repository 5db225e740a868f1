//! The reasons against granting a set: the rules of the holders and of the queue.

use super::{Own, Request, Table, Turn};
use crate::{
    ConflictReason, Holder, MAX_HOLDERS_LISTED, Mode, StoredContext,
    rules::{self, Again},
};

/// The reasons against a set, with the positions of the claims.
pub type Reasons<C> = Vec<(usize, ConflictReason<C>)>;

/// The relation of a claim to what its context holds of the id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stance {
    /// Nothing.
    New,
    /// As much: it goes on, under the same fence.
    Keep,
    /// Otherwise: a new grant if no other context is in the way.
    Change,
    /// It was broken: it is not extended, and so in the way.
    Broken,
}

/// The reason against a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Obstacle {
    Frozen,
    Others,
    /// The lock of the context itself was broken.
    Own,
    /// A waiter that comes first.
    Waiter(Turn),
}

/// The reasons against a set, and how each claim relates to what its context holds.
pub(super) struct Weighed<C> {
    pub(super) stances: Vec<Stance>,
    pub(super) reasons: Reasons<C>,
}

/// Returns all that stands against a set, for a request whose place has this ticket, or comes last.
pub(super) fn weigh<T: Table>(
    table: &mut T,
    request: &T::Request,
    ticket: Option<u64>,
) -> Result<Weighed<T::Context>, T::Error> {
    let (before, context) = (ticket.unwrap_or(u64::MAX), request.context());
    let mut weighed = Weighed { stances: Vec::new(), reasons: Reasons::new() };
    for (position, (id, mode)) in request.claims().enumerate() {
        let (stance, obstacle) = judge(table, request, id, mode, before)?;
        weighed.stances.push(stance);
        let reason = match obstacle {
            None => continue,
            Some(Obstacle::Frozen) => ConflictReason::Frozen,
            Some(Obstacle::Own) => held(table, id, None)?,
            Some(Obstacle::Others) => held(table, id, Some(context))?,
            Some(Obstacle::Waiter(first)) => {
                let head = StoredContext::Known(table.context_of(first.ticket)?);
                ConflictReason::QueuedBehind { head, count: table.count_blockers(id, mode, before)? }
            }
        };
        weighed.reasons.push((position, reason));
    }
    Ok(weighed)
}

/// Returns how a waiter's claims relate to what its context holds, if nothing stands against its set.
pub(super) fn unopposed<T: Table>(
    table: &mut T,
    request: &T::Request,
    ticket: u64,
) -> Result<Option<Vec<Stance>>, T::Error> {
    let mut stances = Vec::new();
    for (id, mode) in request.claims() {
        match judge(table, request, id, mode, ticket)? {
            (stance, None) => stances.push(stance),
            (_, Some(_)) => return Ok(None),
        }
    }
    Ok(Some(stances))
}

fn judge<T: Table>(
    table: &mut T,
    request: &T::Request,
    id: &T::Id,
    mode: Mode,
    before: u64,
) -> Result<(Stance, Option<Obstacle>), T::Error> {
    let look = table.look(id)?;
    let stance = match look.held {
        true => stance(table.own(id, request.context())?.as_ref(), mode),
        false => Stance::New,
    };
    let obstacle = match stance {
        Stance::Keep => None,
        Stance::Broken => Some(Obstacle::Own),
        Stance::New | Stance::Change if look.frozen => Some(Obstacle::Frozen),
        Stance::New | Stance::Change => {
            // Who holds the id already, or holds others, obeys no queue: nesting would deadlock.
            let obeys = look.waited_for && !request.nested() && stance == Stance::New;
            if look.held && !fits(table, request.context(), id, mode)? {
                Some(Obstacle::Others)
            } else if obeys {
                blocker(table, id, mode, before)?.map(Obstacle::Waiter)
            } else {
                None
            }
        }
    };
    Ok((stance, obstacle))
}

fn stance(own: Option<&Own>, wanted: Mode) -> Stance {
    match own.filter(|own| own.lasts) {
        None => Stance::New,
        Some(own) if own.broken => Stance::Broken,
        Some(own) => match rules::again(own.mode, wanted) {
            Again::Keep => Stance::Keep,
            Again::Change => Stance::Change,
        },
    }
}

/// Returns whether a claim fits beside what other contexts hold.
fn fits<T: Table>(table: &mut T, context: &T::Context, id: &T::Id, mode: Mode) -> Result<bool, T::Error> {
    let fits = table.in_use(id, Some(context))?.fits(mode);
    Ok(fits || (table.remove_dead(id)? && table.in_use(id, Some(context))?.fits(mode)))
}

/// Returns the first waiter before a ticket that a claim may not pass, and that still waits.
pub(super) fn blocker<T: Table>(
    table: &mut T,
    id: &T::Id,
    mode: Mode,
    before: u64,
) -> Result<Option<Turn>, T::Error> {
    while let Some(first) = table.blocker(id, mode, before)? {
        if table.still_waits(first.ticket)? {
            return Ok(Some(first));
        }
    }
    Ok(None)
}

fn held<T: Table>(
    table: &mut T,
    id: &T::Id,
    but: Option<&T::Context>,
) -> Result<ConflictReason<T::Context>, T::Error> {
    let in_use = table.in_use(id, None)?.units();
    let mut all: Vec<_> = table.holders(id)?.filter(|held| but != Some(held.context)).collect();
    let count = all.len();
    if count > MAX_HOLDERS_LISTED {
        all.select_nth_unstable_by_key(MAX_HOLDERS_LISTED, |held| longest_first(held.remaining));
        all.truncate(MAX_HOLDERS_LISTED);
    }
    all.sort_by_key(|held| longest_first(held.remaining));
    let holders = all.iter().map(|held| Holder {
        context: StoredContext::Known(held.context.clone()),
        owner: held.owner.into(),
        mode: held.mode,
        fence: held.fence,
        remaining: held.remaining,
    });
    Ok(ConflictReason::Held { holders: holders.collect(), count, in_use })
}

fn longest_first(remaining: Option<std::time::Duration>) -> std::cmp::Reverse<std::time::Duration> {
    std::cmp::Reverse(remaining.unwrap_or(std::time::Duration::MAX))
}
