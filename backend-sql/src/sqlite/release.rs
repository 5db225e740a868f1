//! Renewing and freeing what a grant holds.

use lockcore::LossReason;
use rusqlite::{OptionalExtension, Statement, params};

use super::{
    clock::LeaseAt,
    error::StoreError,
    row::{HeldRow, Key},
    statements::state,
    step::Step,
};

/// A grant in stored forms.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) context: Box<str>,
    /// Ids and fences.
    pub(super) locks: smallvec::SmallVec<[(Key, i64); 1]>,
    pub(super) lease: i64,
}

/// By position in the grant: what was lost.
pub(super) type Losses = Vec<(usize, LossReason)>;

/// Frees what the grant holds. What it lost does not keep the rest from being freed.
pub(super) fn release(step: &mut Step<'_>, hold: &Hold) -> Result<Losses, StoreError> {
    let mut lost = Losses::new();
    let any_waiter =
        step.conn.prepare_cached(&step.sql.any_waiter)?.query_row([step.ns], |row| row.get(0))?;
    let mut free = step.conn.prepare_cached(&step.sql.free)?;
    let mut held_under = step.conn.prepare_cached(&step.sql.held_under)?;
    bind_common(step, &mut free, hold)?;
    for (position, (id, fence)) in hold.locks.iter().enumerate() {
        free.raw_bind_parameter(2, &id[..])?;
        free.raw_bind_parameter(3, fence)?;
        if free.raw_execute()? == 0 {
            match find(step, &mut held_under, id, *fence, &hold.context)? {
                Some(row) => {
                    let key = params![step.ns, &id[..], row.state, row.number];
                    step.conn.prepare_cached(&step.sql.remove)?.execute(key)?;
                    if row.lease_at(&step.now) == LeaseAt::Ended {
                        lost.push((position, LossReason::Expired));
                    }
                }
                None => {
                    lost.push((position, why_missing(step, id, *fence)?));
                    continue;
                }
            }
        }
        if any_waiter {
            step.freed.insert(id.clone());
        }
    }
    Ok(lost)
}

/// Extends what the grant still holds to a whole lease from now.
pub(super) fn renew(step: &mut Step<'_>, hold: &Hold) -> Result<Losses, StoreError> {
    let mut lost = Losses::new();
    let mut extend = step.conn.prepare_cached(&step.sql.extend)?;
    let mut held_under = step.conn.prepare_cached(&step.sql.held_under)?;
    bind_common(step, &mut extend, hold)?;
    extend.raw_bind_parameter(7, hold.lease)?;
    for (position, (id, fence)) in hold.locks.iter().enumerate() {
        extend.raw_bind_parameter(2, &id[..])?;
        extend.raw_bind_parameter(3, fence)?;
        if extend.raw_execute()? == 0 {
            let reason = match find(step, &mut held_under, id, *fence, &hold.context)? {
                Some(row) => renew_unusual(step, id, &row, hold.lease)?,
                None => Some(why_missing(step, id, *fence)?),
            };
            lost.extend(reason.map(|reason| (position, reason)));
        }
    }
    Ok(lost)
}

/// Has what the grant still holds end a whole lease from now.
pub(super) fn shorten(step: &mut Step<'_>, hold: &Hold) -> Result<Losses, StoreError> {
    let mut lost = Losses::new();
    let mut held_under = step.conn.prepare_cached(&step.sql.held_under)?;
    for (position, (id, fence)) in hold.locks.iter().enumerate() {
        let reason = match find(step, &mut held_under, id, *fence, &hold.context)? {
            Some(row) => match row.lease_at(&step.now) {
                LeaseAt::Ended => Some(LossReason::Expired),
                _ if row.broken => Some(LossReason::Broken),
                _ => {
                    lasts(step, id, &row, hold.lease)?;
                    None
                }
            },
            None => Some(why_missing(step, id, *fence)?),
        };
        lost.extend(reason.map(|reason| (position, reason)));
    }
    Ok(lost)
}

/// Binds what is the same for all ids of a grant, once.
fn bind_common(step: &Step<'_>, statement: &mut Statement<'_>, hold: &Hold) -> Result<(), StoreError> {
    statement.raw_bind_parameter(1, step.ns)?;
    statement.raw_bind_parameter(4, hold.context.as_bytes())?;
    statement.raw_bind_parameter(5, step.now.boot)?;
    Ok(statement.raw_bind_parameter(6, step.now.at)?)
}

/// Renews an offer, or a lock from the future; a lock with a longer lease left is as it should be.
fn renew_unusual(
    step: &Step<'_>,
    id: &Key,
    row: &HeldRow,
    lease: i64,
) -> Result<Option<LossReason>, StoreError> {
    let left = match row.lease_at(&step.now) {
        LeaseAt::Ended => return Ok(Some(LossReason::Expired)),
        _ if row.broken => return Ok(Some(LossReason::Broken)),
        LeaseAt::Lasts(left) if row.state == state::HELD => left,
        LeaseAt::Lasts(_) | LeaseAt::FromTheFuture => 0,
    };
    lasts(step, id, row, lease.max(left))?;
    Ok(None)
}

/// Has a row last for so long from now.
fn lasts(step: &Step<'_>, id: &Key, row: &HeldRow, lease: i64) -> Result<(), StoreError> {
    let key = params![
        step.ns,
        &id[..],
        row.state,
        row.number,
        lease,
        step.now.at,
        row.session,
        row.detached,
        step.now.boot
    ];
    step.conn.prepare_cached(&step.sql.keep)?.execute(key)?;
    Ok(())
}

fn find(
    step: &Step<'_>,
    held_under: &mut Statement<'_>,
    id: &Key,
    fence: i64,
    context: &str,
) -> Result<Option<HeldRow>, StoreError> {
    let row = held_under.query_row(params![step.ns, &id[..], fence], HeldRow::read).optional()?;
    Ok(row.filter(|row| *row.context.0 == *context))
}

fn why_missing(step: &Step<'_>, id: &Key, fence: i64) -> Result<LossReason, StoreError> {
    let mut was_broken = step.conn.prepare_cached(&step.sql.was_broken)?;
    let broken = was_broken.query_row(params![step.ns, &id[..], fence], |row| row.get(0))?;
    Ok(if broken { LossReason::Broken } else { LossReason::Vanished })
}
