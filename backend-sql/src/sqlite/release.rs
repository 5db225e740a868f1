//! Renewing and freeing what a grant holds.

use lockcore::engine::{self, Losses};
use smallvec::SmallVec;

use super::{
    error::StoreError,
    row::{Key, Text},
    statements::state,
    step::Step,
};

/// A grant in stored forms.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) context: Text,
    /// Ids and fences.
    pub(super) locks: SmallVec<[(Key, u64); 1]>,
    pub(super) lease: i64,
}

/// The positions of locks in a grant.
type Positions = SmallVec<[usize; 1]>;

/// Frees what the grant holds. What it lost does not keep the rest from being freed.
pub(super) fn release(step: &mut Step<'_>, hold: &Hold) -> Result<Losses, StoreError> {
    let any_waiter =
        step.conn.prepare_cached(&step.sql.any_waiter)?.query_row([step.ns], |row| row.get(0))?;
    let others = usual(step, &step.sql.free, hold, state::HELD, all(hold))?;
    let others = usual(step, &step.sql.free, hold, state::OFFERED, others)?;
    if any_waiter {
        step.rooms.extend(hold.locks.iter().map(|(id, _)| (id.clone(), 0)));
    }
    let lost = engine::release(step, &hold.context, at(hold, &others))?;
    Ok(in_grant(lost, &others))
}

/// Extends what the grant still holds to a whole lease from now. A longer lease is not cut short.
pub(super) fn renew(step: &mut Step<'_>, hold: &Hold) -> Result<Losses, StoreError> {
    let others = usual(step, &step.sql.extend, hold, hold.lease, all(hold))?;
    // All whom one release let in confirm at once: the engine would read each of them for each.
    let others = usual(step, &step.sql.confirm, hold, hold.lease, others)?;
    let lost = engine::renew(step, &hold.context, at(hold, &others), |step, id, _| {
        let now = step.now;
        let left = step.load(id)?.holder(&hold.context).map_or(0, |own| own.remaining(&now));
        step.set_lease(id, &hold.context, hold.lease.max(left))
    })?;
    Ok(in_grant(lost, &others))
}

/// Has what the grant still holds end a whole lease from now.
pub(super) fn shorten(step: &mut Step<'_>, hold: &Hold) -> Result<Losses, StoreError> {
    engine::renew(step, &hold.context, at(hold, &all(hold)), |step, id, _| {
        step.set_lease(id, &hold.context, hold.lease)
    })
}

fn all(hold: &Hold) -> Positions {
    (0..hold.locks.len()).collect()
}

/// Runs the statement of a usual case, of which `last` is the last parameter, for the locks at these positions; returns those that are
/// otherwise. Nothing was read in this step before.
fn usual(
    step: &Step<'_>,
    statement: &str,
    hold: &Hold,
    last: i64,
    positions: Positions,
) -> Result<Positions, StoreError> {
    if positions.is_empty() {
        return Ok(positions);
    }
    let mut statement = step.conn.prepare_cached(statement)?;
    // Binding costs as much as deleting: only the id and its fence are bound for each.
    statement.raw_bind_parameter(1, step.ns)?;
    statement.raw_bind_parameter(4, hold.context.bytes())?;
    statement.raw_bind_parameter(5, step.now.boot)?;
    statement.raw_bind_parameter(6, step.now.at)?;
    statement.raw_bind_parameter(7, last)?;
    let mut others = Positions::new();
    for position in positions {
        let (id, fence) = &hold.locks[position];
        statement.raw_bind_parameter(2, &id[..])?;
        statement.raw_bind_parameter(3, *fence as i64)?;
        if statement.raw_execute()? == 0 {
            others.push(position);
        }
    }
    Ok(others)
}

fn at<'h>(hold: &'h Hold, positions: &'h Positions) -> impl Iterator<Item = (&'h Key, u64)> {
    positions.iter().map(|position| &hold.locks[*position]).map(|(id, fence)| (id, *fence))
}

/// Returns losses by position in the grant, of which these locks were looked at.
fn in_grant(lost: Losses, among: &Positions) -> Losses {
    lost.into_iter().map(|(position, reason)| (among[position], reason)).collect()
}
