//! The steps.

use super::{
    Request, Table, Terms,
    grant::{grant, undo},
    serve,
    weigh::{Reasons, Stance, Weighed, weigh},
};
use crate::{
    Granted, LossReason, Withdraw,
    rules::{self, Again},
};

/// The lost locks of a grant, by position.
pub type Losses = Vec<(usize, LossReason)>;

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict<C> {
    /// All of it is held.
    Granted(Vec<Granted>),
    /// Nothing of it was taken.
    Refused(Reasons<C>),
    /// Nothing of it was taken yet: it has a place.
    Queued(Reasons<C>),
    /// The attempt was withdrawn before.
    Withdrawn,
}

/// Takes the whole set, or nothing of it; a request that is to wait gets a place.
pub fn acquire<T: Table>(table: &mut T, request: &T::Request) -> Result<Verdict<T::Context>, T::Error> {
    if table.is_withdrawn(request)? {
        return Ok(Verdict::Withdrawn);
    }
    table.remove_ended()?;
    // Room that ended leases left goes to earlier waiters before it is this request's turn.
    let (ticket, Weighed { stances, reasons }) = loop {
        serve(table)?;
        let ticket = table.ticket(request)?;
        let weighed = weigh(table, request, ticket)?;
        if table.rooms().is_empty() || !table.may_hand_over() {
            break (ticket, weighed);
        }
    };
    if reasons.is_empty() {
        let granted = grant(table, &stances, &Terms { request, offer: None })?;
        if let Some(ticket) = ticket {
            leave(table, request, ticket)?;
        }
        return Ok(Verdict::Granted(granted));
    }
    // A stronger mode never waits: two who share an id and both want it alone would wait for ever.
    let changes = stances.iter().any(|stance| matches!(stance, Stance::Change | Stance::Broken));
    if !request.queue() || changes {
        return Ok(Verdict::Refused(reasons));
    }
    table.queue(request, ticket)?;
    Ok(Verdict::Queued(reasons))
}

/// Ends an attempt. `None`: it left; otherwise what it holds.
pub fn withdraw<T: Table>(
    table: &mut T,
    request: &T::Request,
    how: Withdraw,
) -> Result<Option<Vec<Granted>>, T::Error> {
    table.remove_ended()?;
    if let Some(ticket) = table.ticket(request)? {
        leave(table, request, ticket)?;
    }
    let (mut stances, mut holds_any) = (Vec::new(), false);
    for (id, mode) in request.claims() {
        table.look(id)?;
        let own = table.own(id, request.context())?.filter(|own| own.lasts);
        holds_any |= own.as_ref().is_some_and(|own| own.attempt == request.attempt());
        if own.is_some_and(|own| !own.broken && rules::again(own.mode, mode) == Again::Keep) {
            stances.push(Stance::Keep);
        }
    }
    let holds_all = stances.len() == request.claims().count();
    let kept = if how == Withdraw::KeepIfGranted && holds_all && holds_any {
        Some(grant(table, &stances, &Terms { request, offer: None })?)
    } else {
        for (id, _) in request.claims() {
            undo(table, request, id)?;
        }
        None
    };
    if how == Withdraw::Undo {
        table.withdraw(request)?;
    }
    Ok(kept)
}

/// Removes a request from its queues, for good.
pub fn leave<T: Table>(table: &mut T, request: &T::Request, ticket: u64) -> Result<(), T::Error> {
    table.leave(ticket)?;
    for (id, _) in request.claims() {
        table.room(id, ticket);
    }
    Ok(())
}

/// Frees what a grant holds: ids with fences. What it lost does not keep the rest from being freed.
pub fn release<'l, T: Table>(
    table: &mut T,
    context: &T::Context,
    locks: impl Iterator<Item = (&'l T::Id, u64)>,
) -> Result<Losses, T::Error>
where
    T::Id: 'l,
{
    let mut lost = Losses::new();
    for (position, (id, fence)) in locks.enumerate() {
        let reason = table.free(id, context, fence)?;
        if matches!(reason, None | Some(LossReason::Expired)) {
            table.room(id, 0);
        }
        lost.extend(reason.map(|reason| (position, reason)));
    }
    Ok(lost)
}

/// Has `extend` extend what a grant still holds for certain. Nothing brings a lock back to life, and one that was broken is not
/// extended.
pub fn renew<'l, T: Table>(
    table: &mut T,
    context: &T::Context,
    locks: impl Iterator<Item = (&'l T::Id, u64)>,
    mut extend: impl FnMut(&mut T, &'l T::Id, u64) -> Result<(), T::Error>,
) -> Result<Losses, T::Error>
where
    T::Id: 'l,
{
    let mut lost = Losses::new();
    for (position, (id, fence)) in locks.enumerate() {
        table.look(id)?;
        let reason = match table.own(id, context)?.filter(|own| own.fence == fence) {
            None => table.why_missing(id, fence)?,
            Some(own) if !own.lasts => LossReason::Expired,
            Some(own) if own.broken => LossReason::Broken,
            Some(_) => {
                extend(table, id, fence)?;
                continue;
            }
        };
        lost.push((position, reason));
    }
    Ok(lost)
}
