//! Removing what has expired and that nobody came to ask for.

use std::time::Duration;

use lockcore::Swept;
use rusqlite::params;

use super::{
    acquire, admin,
    clock::LeaseAt,
    error::StoreError,
    row::Key,
    statements::state,
    step::{Sign, Step},
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

/// What a sweep is to remove.
#[derive(Debug, Default)]
pub(super) struct Found {
    claims: Vec<Stale>,
    /// Sessions whose processes ended, to be forgotten when nothing of theirs is left.
    gone: Vec<i64>,
    more: bool,
}

/// Looks, without the write lock, for at most `batch` claims that are over; the namespace may be large.
pub(super) fn look(
    step: &mut Step<'_, '_>,
    batch: usize,
    unless_within: Option<Duration>,
) -> Result<Found, StoreError> {
    let mut found = Found::default();
    if let Some(within) = unless_within
        && admin::swept_within(step, within)?
    {
        return Ok(found);
    }
    let mut sessions = step.sql.sessions.get()?;
    let sessions: Vec<i64> = sessions.query_map([step.ns], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for session in sessions {
        if matches!(step.sign(session)?, Sign::Gone | Sign::Closed) {
            found.gone.push(session);
        }
    }
    let mut all = step.sql.all_claims.get()?;
    let mut rows = all.query([step.ns])?;
    while let Some(row) = rows.next()? {
        let (claim_state, session): (i64, i64) = (row.get(1)?, row.get(3)?);
        let stale = if claim_state > state::OFFERED {
            step.sign(session)? != Sign::Alive
        } else {
            let lease = step.now.lease(row.get(6)?, row.get(7)?, row.get(5)?, row.get(8)?);
            lease == LeaseAt::Ended || (!row.get::<_, bool>(4)? && step.sign(session)? == Sign::Gone)
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

/// Removes what was found, so far as it still is over, and marks that have had their time.
pub(super) fn remove(
    step: &mut Step<'_, '_>,
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
    step.sql.set_swept.get()?.execute(swept)?;
    let mut removed = 0;
    for stale in &found.claims {
        removed += usize::from(remove_one(step, stale)?);
    }
    let room = batch - found.claims.len();
    let marks = remove_marks(step, room)?;
    if !found.more {
        for session in &found.gone {
            step.sql.remove_session.get()?.execute([session])?;
        }
        let old = step.now.wall - admin::BREAKS_KEPT_FOR;
        step.sql.forget_breaks.get()?.execute([step.ns, old])?;
    }
    Ok(Swept { removed: removed + marks.min(room), more: found.more || marks > room, elsewhere: false })
}

/// Removes a claim if it is as it was found: what was over cannot be renewed, but the same context may
/// hold the id anew from another session, and a waiter may have come back to life.
fn remove_one(step: &mut Step<'_, '_>, stale: &Stale) -> Result<bool, StoreError> {
    if stale.state > state::OFFERED && step.sign(stale.session)? == Sign::Alive {
        return Ok(false);
    }
    let Stale { id, state, number, session, renewed } = stale;
    let mut remove = step.sql.remove_unchanged.get()?;
    let removed = remove.execute(params![step.ns, &id[..], state, number, session, renewed])? > 0;
    if removed {
        step.freed.insert(id.clone());
    }
    Ok(removed)
}

fn remove_marks(step: &Step<'_, '_>, room: usize) -> Result<usize, StoreError> {
    let limit = i64::try_from(room).unwrap_or(i64::MAX).saturating_add(1);
    let mut stale = step.sql.stale_marks.get()?;
    let too_late = step.now.at.saturating_add(acquire::MARK_AT_MOST);
    let marks = stale.query_map(params![step.ns, step.now.boot, step.now.at, limit, too_late], |row| {
        Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?))
    })?;
    let marks: Vec<_> = marks.collect::<Result<_, _>>()?;
    for (context, attempt) in marks.iter().take(room) {
        step.sql.unmark.get()?.execute(params![step.ns, context, attempt])?;
    }
    Ok(marks.len())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use lockcore::{Mode, Owner};

    use super::*;
    use crate::{
        SqliteLockDao,
        sqlite::{
            acquire::{Ask, Verdict, acquire},
            row::{Text, Wanted},
            store::{Opened, Store},
        },
    };

    fn ask(context: &str) -> Ask {
        Ask {
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
    fn whoever_meets_what_is_over_hands_it_over() {
        for way in ["asks", "sweeps"] {
            let settings = SqliteLockDao::<String>::builder().path(":memory:").into_settings();
            let opened = Opened::open(settings).expect("a database in memory");
            let mut store = Store::of(&opened);
            let deadline = Instant::now() + Duration::from_secs(30);
            let short = Ask { lease: 20_000, ..ask("holder") };
            let held = store.write(deadline, |step| acquire(step, &short, false));
            assert!(matches!(held, Ok(Verdict::Granted(_))));
            let queued = store.write(deadline, |step| acquire(step, &ask("waiter"), true));
            assert!(matches!(queued, Ok(Verdict::Queued { .. })));
            std::thread::sleep(Duration::from_millis(25));
            let never = Ask { queue: false, ..ask("another") };
            let found = store.read(deadline, |step| look(step, 10, None)).expect("an answer");
            let handed = store.write(deadline, |step| {
                match way {
                    "asks" => assert!(matches!(acquire(step, &never, false)?, Verdict::Refused(_))),
                    _ => assert_eq!(remove(step, &found, 10, None)?.removed, 1),
                }
                step.serve()?;
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
            let settings =
                SqliteLockDao::<String>::builder().path(folder.path().join("locks.db")).into_settings();
            Opened::open(settings).expect("the file can be opened")
        };
        let (sweeps, silent, speaks) = (open(), open(), open());
        let deadline = Instant::now() + Duration::from_secs(30);
        let (mut sweeps, mut silent, mut speaks) =
            (Store::of(&sweeps), Store::of(&silent), Store::of(&speaks));
        let held = sweeps.write(deadline, |step| acquire(step, &ask("holder"), false));
        assert!(matches!(held, Ok(Verdict::Granted(_))));
        let queued =
            |store: &mut Store<'_>| store.write(deadline, |step| acquire(step, &ask("waiter"), true));
        assert!(matches!(queued(&mut silent), Ok(Verdict::Queued { .. })));
        // As if it had been stopped for long.
        let long_ago = sweeps.opened.now().at - 60_000_000;
        let beat = [silent.session, long_ago];
        sweeps.sql.beat.get().and_then(|mut statement| statement.execute(beat)).expect("it can be written");

        let found = sweeps.read(deadline, |step| look(step, 10, None)).expect("an answer");
        assert_eq!(found.claims.len(), 1, "the place of a session that gives no sign of life");
        assert!(matches!(queued(&mut speaks), Ok(Verdict::Queued { .. })));
        let swept = sweeps.write(deadline, |step| remove(step, &found, 10, None)).expect("an answer");
        assert_eq!(swept.removed, 0);
        let mut places = sweeps.sql.count_places.get().expect("it is valid");
        let places = places.query_row([speaks.session], |row| row.get::<_, i64>(0));
        assert_eq!(places.expect("an answer"), 1);
    }
}
