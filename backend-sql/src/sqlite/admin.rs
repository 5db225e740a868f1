//! The administrator's steps: listing, inspecting, breaking, freezing.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, BreakMode, BreakRecord, Broken, HeldBy, Inspection, Listing, Page, StoredContext,
    WaitingFor, engine::Table as _, protocol,
};
use rusqlite::{OptionalExtension, Row, params};

use super::{
    clock::{self, LeaseAt, wall_time},
    error::StoreError,
    row::{HeldRow, Key, Text, mode_at, owner_at},
    statements::state,
    step::{Liveness, Step},
};

/// The time for which breaks are kept on record, in microseconds.
pub(super) const BREAKS_KEPT_FOR: i64 = clock::micros(protocol::BREAKS_KEPT_FOR);

/// An inspection in stored forms; `target` is always `Err`.
pub(super) type Inspected = Inspection<String, String>;

/// One page of what is held, queued for or frozen.
pub(super) fn list(step: &mut Step<'_>, page: &Page) -> Result<Listing<String, String>, StoreError> {
    let mut ids = Vec::new();
    let mut next_id = step.conn.prepare_cached(&step.sql.next_id)?;
    // The global lock's id is empty and sorts first.
    let mut candidate = match &page.after {
        None => Some(Key::from(&b""[..])),
        Some(after) => next_id.query_row(params![step.ns, after.as_bytes()], |row| row.get(0))?,
    };
    while let Some(id) = candidate {
        let inspected = inspect(step, &id)?;
        let is_shown = !inspected.holders.is_empty() || !inspected.waiters.is_empty() || inspected.frozen;
        if is_shown || inspected.unreadable.is_some() {
            ids.push(inspected);
        }
        candidate = next_id.query_row(params![step.ns, &id[..]], |row| row.get(0))?;
        if ids.len() >= page.limit {
            let next = candidate.map(|_| stored(&id));
            return Ok(Listing { ids, next });
        }
    }
    Ok(Listing { ids, next: None })
}

/// All that is known of one id. Changes nothing: neither what has expired nor who has died is removed.
pub(super) fn inspect(step: &mut Step<'_>, id: &Key) -> Result<Inspected, StoreError> {
    let mut unreadable = None;
    let mut holders = Vec::new();
    let mut read = step.conn.prepare_cached(&step.sql.holders)?;
    let mut rows = read.query(params![step.ns, &id[..]])?;
    while let Some(row) = rows.next()? {
        if row.get::<_, i64>(0)? > state::OFFERED {
            break;
        }
        let Some(row) = readable(HeldRow::read(row), "a holder", &mut unreadable)? else { continue };
        if row.state != state::REPLACED && row.lease_at(&step.now) != LeaseAt::Ended {
            holders.push(held_by(step, row));
        }
    }
    holders.sort_by_key(|holder| holder.fence);
    let mut waiters = Vec::new();
    let mut read = step.conn.prepare_cached(&step.sql.waiters)?;
    let mut rows = read.query(params![step.ns, &id[..]])?;
    while let Some(row) = rows.next()? {
        if step.liveness(row.get(6)?)? == Liveness::Alive {
            waiters.extend(readable(waiting_for(row), "a waiter", &mut unreadable)?);
        }
    }
    let mut frozen = step.conn.prepare_cached(&step.sql.is_frozen)?;
    let frozen = frozen.query_row(params![step.ns, &id[..]], |row| row.get(0))?;
    let mut breaks = step.conn.prepare_cached(&step.sql.breaks)?;
    let mut rows = breaks.query(params![step.ns, &id[..]])?;
    let mut breaks = Vec::new();
    while let Some(row) = rows.next()? {
        breaks.extend(readable(break_record(row), "a break", &mut unreadable)?);
    }
    Ok(Inspection { target: Err(stored(id)), holders, waiters, frozen, breaks, unreadable })
}

/// Returns what was read of a row; of one that cannot be read, as another program may write it, notes why.
fn readable<T>(
    row: rusqlite::Result<T>,
    what: &str,
    unreadable: &mut Option<String>,
) -> Result<Option<T>, StoreError> {
    match row.map_err(StoreError::from) {
        Ok(row) => Ok(Some(row)),
        Err(error) if error.kind() == BackendErrorKind::Corrupt => {
            unreadable.get_or_insert_with(|| format!("{what}: {error}"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn waiting_for(row: &Row<'_>) -> rusqlite::Result<WaitingFor<String>> {
    Ok(WaitingFor {
        context: row.get::<_, Text>(0)?.stored(),
        owner: owner_at(row, 1)?,
        mode: mode_at(row, 2)?,
        since: wall_time(row.get(5)?),
    })
}

fn break_record(row: &Row<'_>) -> rusqlite::Result<BreakRecord<String>> {
    Ok(BreakRecord {
        context: row.get::<_, Text>(0)?.stored(),
        fence: row.get::<_, i64>(1)? as u64,
        by: owner_at(row, 2)?,
        at: wall_time(row.get(3)?),
        now: row.get(4)?,
    })
}

/// Breaks the lock held under `fence`, and records that `by` did.
pub(super) fn break_lock(
    step: &mut Step<'_>,
    id: &Key,
    fence: i64,
    how: BreakMode,
    by: &str,
) -> Result<Broken, StoreError> {
    let found = step.load(id)?.holders.iter().find(|row| row.number == fence).cloned();
    let Some(row) = found else {
        return Ok(Broken::NotHeld);
    };
    let now = how == BreakMode::Now;
    if now {
        step.remove_where(id, |row| row.number == fence)?;
        step.room(id, 0);
    } else {
        let key = params![step.ns, &id[..], row.state, row.number];
        step.conn.prepare_cached(&step.sql.mark_broken)?.execute(key)?;
    }
    if now || !row.broken {
        let record = params![step.ns, &id[..], fence, row.context.0.as_bytes(), by, step.now.wall, now];
        step.conn.prepare_cached(&step.sql.record_break)?.execute(record)?;
        step.conn.prepare_cached(&step.sql.trim_breaks)?.execute(params![
            step.ns,
            &id[..],
            protocol::BREAKS_KEPT as i64
        ])?;
    }
    Ok(match now {
        true => Broken::Freed,
        false => Broken::Within(Some(clock::duration(row.remaining(&step.now)))),
    })
}

/// Freezes an id, or thaws it and serves who waits for it.
pub(super) fn freeze(step: &mut Step<'_>, id: &Key, frozen: bool) -> Result<(), StoreError> {
    let statement = if frozen { &step.sql.freeze } else { &step.sql.thaw };
    step.conn.prepare_cached(statement)?.execute(params![step.ns, &id[..]])?;
    if !frozen {
        step.room(id, 0);
    }
    Ok(())
}

/// Frees all that a context holds and takes it from every queue. Reads the whole namespace.
pub(super) fn release_context(step: &mut Step<'_>, context: &str) -> Result<Vec<String>, StoreError> {
    let mut of_context = step.conn.prepare_cached(&step.sql.of_context)?;
    let rows = of_context.query_map(params![step.ns, context.as_bytes()], |row| {
        let lease = step.now.lease(row.get(4)?, row.get(5)?, row.get(3)?, row.get(6)?);
        Ok((row.get::<_, Key>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, lease))
    })?;
    let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
    let mut freed = Vec::new();
    let mut remove = step.conn.prepare_cached(&step.sql.remove)?;
    for (id, claim_state, number, lease) in rows {
        remove.execute(params![step.ns, &id[..], claim_state, number])?;
        if (state::HELD..=state::OFFERED).contains(&claim_state) && lease != LeaseAt::Ended {
            freed.push(stored(&id));
        }
        step.room(&id, 0);
    }
    Ok(freed)
}

/// Returns whether the namespace was swept less than `within` ago.
pub(super) fn swept_within(step: &Step<'_>, within: Duration) -> Result<bool, StoreError> {
    let mut swept = step.conn.prepare_cached(&step.sql.swept)?;
    let swept = swept.query_row([step.ns], |row| row.get::<_, i64>(0)).optional()?;
    // After a reboot the time since boot may be right by chance: then the sweep comes later by `within`.
    Ok(swept.is_some_and(|at| (1..=step.now.at).contains(&at) && step.now.at - at < clock::micros(within)))
}

fn held_by(step: &Step<'_>, row: HeldRow) -> HeldBy<String> {
    let remaining = Some(clock::duration(row.remaining(&step.now)));
    HeldBy {
        context: StoredContext::Known(row.context.0.to_string()),
        owner: row.owner,
        mode: row.mode,
        permits: row.indexes,
        fence: row.number as u64,
        since: wall_time(row.since),
        lease: Some(clock::duration(row.lease)),
        remaining,
        broken: row.broken,
    }
}

fn stored(id: &Key) -> String {
    String::from_utf8_lossy(id).into_owned()
}
