//! Removing what has expired and that no request came across.

use std::time::Duration;

use lockcore::{Swept, engine::Table as _};
use rusqlite::params;

use super::{
    admin,
    clock::LeaseAt,
    error::StoreError,
    row::Key,
    statements::state,
    step::{Liveness, Step},
    table::TOMBSTONE_AT_MOST,
};

/// A claim that was found to be over.
#[derive(Debug)]
struct Stale {
    id: Key,
    state: i64,
    number: i64,
    session: i64,
    renewed: i64,
}

/// The rows that a sweep is to remove.
#[derive(Debug, Default)]
pub(super) struct Found {
    claims: Vec<Stale>,
    /// Sessions whose processes ended, to be forgotten when nothing of theirs is left.
    gone: Vec<i64>,
    more: bool,
}

/// Looks, without the write lock, for at most `batch` claims that are over; the namespace may be large.
pub(super) fn look(
    step: &mut Step<'_>,
    batch: usize,
    unless_within: Option<Duration>,
) -> Result<Found, StoreError> {
    let mut found = Found::default();
    if let Some(within) = unless_within
        && admin::swept_within(step, within)?
    {
        return Ok(found);
    }
    let mut sessions = step.conn.prepare_cached(&step.sql.sessions)?;
    let sessions: Vec<i64> = sessions.query_map([step.ns], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for session in sessions {
        if matches!(step.liveness(session)?, Liveness::Gone | Liveness::Closed) {
            found.gone.push(session);
        }
    }
    let mut all = step.conn.prepare_cached(&step.sql.all_claims)?;
    let mut rows = all.query([step.ns])?;
    while let Some(row) = rows.next()? {
        let (claim_state, session): (i64, i64) = (row.get(1)?, row.get(3)?);
        let stale = if claim_state > state::OFFERED {
            step.liveness(session)? != Liveness::Alive
        } else {
            let lease = step.now.lease(row.get(6)?, row.get(7)?, row.get(5)?, row.get(8)?);
            lease == LeaseAt::Ended || (!row.get::<_, bool>(4)? && step.liveness(session)? == Liveness::Gone)
        };
        if stale {
            if found.claims.len() == batch {
                found.more = true;
                break;
            }
            found.claims.push(Stale {
                id: row.get(0)?,
                state: claim_state,
                number: row.get(2)?,
                session,
                renewed: row.get(7)?,
            });
        }
    }
    Ok(found)
}

/// Removes what was found, so far as it still is over, and tombstones that have had their time.
pub(super) fn remove(
    step: &mut Step<'_>,
    found: &Found,
    batch: usize,
    unless_within: Option<Duration>,
) -> Result<Swept, StoreError> {
    if let Some(within) = unless_within
        && admin::swept_within(step, within)?
    {
        return Ok(Swept { elsewhere: true, ..Swept::default() });
    }
    let swept = params![step.ns, step.now.boot, step.now.at];
    step.conn.prepare_cached(&step.sql.set_swept)?.execute(swept)?;
    let mut removed = 0;
    for stale in &found.claims {
        removed += usize::from(remove_one(step, stale)?);
    }
    let room = batch - found.claims.len();
    let tombstones = remove_tombstones(step, room)?;
    if !found.more {
        for session in &found.gone {
            step.conn.prepare_cached(&step.sql.remove_session)?.execute([session])?;
        }
        let old = step.now.wall - admin::BREAKS_KEPT_FOR;
        step.conn.prepare_cached(&step.sql.forget_breaks)?.execute([step.ns, old])?;
    }
    Ok(Swept {
        removed: removed + tombstones.min(room),
        more: found.more || tombstones > room,
        elsewhere: false,
    })
}

/// Removes a claim if it is as it was found: what was over cannot be renewed, but the same context may
/// hold the id again from another session, and a waiter may have come back to life.
fn remove_one(step: &mut Step<'_>, stale: &Stale) -> Result<bool, StoreError> {
    if stale.state > state::OFFERED && step.liveness(stale.session)? == Liveness::Alive {
        return Ok(false);
    }
    let Stale { id, state: claim_state, number, session, renewed } = stale;
    let mut remove = step.conn.prepare_cached(&step.sql.remove_unchanged)?;
    let removed = remove.execute(params![step.ns, &id[..], claim_state, number, session, renewed])? > 0;
    if removed {
        step.room(id, 0);
    }
    Ok(removed)
}

fn remove_tombstones(step: &Step<'_>, room: usize) -> Result<usize, StoreError> {
    let limit = i64::try_from(room).unwrap_or(i64::MAX).saturating_add(1);
    let mut stale = step.conn.prepare_cached(&step.sql.stale_tombstones)?;
    let too_late = step.now.at.saturating_add(TOMBSTONE_AT_MOST);
    let tombstones = stale
        .query_map(params![step.ns, step.now.boot, step.now.at, limit, too_late], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?))
        })?;
    let tombstones: Vec<_> = tombstones.collect::<Result<_, _>>()?;
    for (context, attempt) in tombstones.iter().take(room) {
        step.conn.prepare_cached(&step.sql.remove_tombstone)?.execute(params![step.ns, context, attempt])?;
    }
    Ok(tombstones.len())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use lockcore::{Mode, Owner, engine};

    use super::*;
    use crate::{
        SqliteLockDao,
        sqlite::{
            acquire::{Verdict, acquire},
            row::{Request, Text, Wanted},
            store::Store,
        },
    };

    fn request(context: &str) -> Request {
        Request {
            context: Text(context.into()),
            attempt: 1,
            claims: [Wanted { id: Key::from(&b"a"[..]), mode: Mode::Exclusive }].into_iter().collect(),
            lease: 60_000_000,
            owner: Owner::default(),
            queue: true,
            nested: false,
            detached: false,
        }
    }

    /// Without the look that a waiter's session takes by itself: the step that clears up serves who waits.
    #[test]
    fn a_step_that_meets_an_expired_lock_hands_it_over() {
        for way in ["asks", "sweeps"] {
            let settings = SqliteLockDao::<String>::builder().path(":memory:").settings;
            let mut store = Store::open(settings).expect("a database in memory");
            let deadline = Some(Instant::now() + Duration::from_secs(30));
            let short = Request { lease: 20_000, ..request("holder") };
            let held = store.write(deadline, |step| acquire(step, &short, false));
            assert!(matches!(held, Ok(Verdict::Granted(_))));
            let queued = store.write(deadline, |step| acquire(step, &request("waiter"), true));
            assert!(matches!(queued, Ok(Verdict::Queued { .. })));
            std::thread::sleep(Duration::from_millis(25));
            let never = Request { queue: false, ..request("another") };
            let found = store.read(deadline, |step| look(step, 10, None)).expect("an answer");
            let handed = store.write(deadline, |step| {
                match way {
                    "asks" => assert!(matches!(acquire(step, &never, false)?, Verdict::Refused(_))),
                    _ => assert_eq!(remove(step, &found, 10, None)?.removed, 1),
                }
                engine::serve(step)?;
                Ok(std::mem::take(&mut step.handed))
            });
            let contexts: Vec<_> =
                handed.expect("an answer").into_iter().map(|handed| handed.context).collect();
            assert_eq!(contexts, [Text("waiter".into())], "{way}");
        }
    }

    /// Between the look and the removal others may do anything.
    #[test]
    fn a_waiter_that_asks_again_after_the_look_keeps_its_place() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let open = || {
            let settings = SqliteLockDao::<String>::builder().path(folder.path().join("locks.db")).settings;
            Store::open(settings).expect("the file can be opened")
        };
        let (mut sweeps, mut silent, mut speaks) = (open(), open(), open());
        let deadline = Some(Instant::now() + Duration::from_secs(30));
        let held = sweeps.write(deadline, |step| acquire(step, &request("holder"), false));
        assert!(matches!(held, Ok(Verdict::Granted(_))));
        let queued =
            |store: &mut Store| store.write(deadline, |step| acquire(step, &request("waiter"), true));
        assert!(matches!(queued(&mut silent), Ok(Verdict::Queued { .. })));
        // As if it had been stopped for long.
        let long_ago = sweeps.opened.now().at - 60_000_000;
        let heartbeat = sweeps.opened.conn.prepare(&sweeps.opened.sql.heartbeat);
        let written = heartbeat.and_then(|mut statement| statement.execute([silent.session, long_ago]));
        written.expect("it can be written");

        let found = sweeps.read(deadline, |step| look(step, 10, None)).expect("an answer");
        assert_eq!(found.claims.len(), 1, "the place of a session without a heartbeat");
        assert!(matches!(queued(&mut speaks), Ok(Verdict::Queued { .. })));
        let swept = sweeps.write(deadline, |step| remove(step, &found, 10, None)).expect("an answer");
        assert_eq!(swept.removed, 0);
        let count = &sweeps.opened.sql.count_places;
        let places = sweeps.opened.conn.query_row(count, [speaks.session], |row| row.get::<_, i64>(0));
        assert_eq!(places.expect("an answer"), 1);
    }
}
