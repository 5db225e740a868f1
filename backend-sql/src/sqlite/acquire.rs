//! Taking a set, and withdrawing a try to.

use lockcore::{ConflictReason, Granted, Owner, Withdraw, rules};
use rusqlite::{OptionalExtension, params};
use smallvec::SmallVec;

use super::{
    error::StoreError,
    grant::Terms,
    row::{HeldRow, Set, Text, mode_columns},
    statements::state,
    step::Step,
    weigh::{Applicant, Stance},
};

/// The least time for which the mark of a withdrawn attempt is kept, in microseconds: ten times the
/// default busy timeout, longer than a request can be on its way.
const MARK: i64 = 50_000_000;

/// The most, in microseconds: no busy timeout is longer.
pub(super) const MARK_AT_MOST: i64 = 3_600_000_000;

/// A request in stored forms.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) context: Text,
    pub(super) attempt: i64,
    pub(super) claims: Set,
    pub(super) lease: i64,
    pub(super) owner: Owner,
    pub(super) queue: bool,
    pub(super) nested: bool,
    pub(super) detached: bool,
}

/// What became of a request.
#[derive(Debug)]
pub(super) enum Verdict {
    Granted(SmallVec<[Granted; 1]>),
    Refused(Vec<(usize, ConflictReason<String>)>),
    Queued {
        conflicts: Vec<(usize, ConflictReason<String>)>,
        /// When the first lease in the way ends, in microseconds from now.
        first_end: i64,
    },
}

impl Ask {
    fn terms(&self, session: i64) -> Terms<'_> {
        let Ask { lease, owner, detached, .. } = self;
        Terms { state: state::HELD, lease: *lease, owner, session, detached: *detached }
    }

    fn applicant(&self, number: i64) -> Applicant<'_> {
        let Ask { context, attempt, nested, claims, .. } = self;
        Applicant { context, attempt: *attempt, number, nested: *nested, claims }
    }
}

/// Takes the whole set, or nothing of it; with `beat` a sign of life is given where a place is taken.
pub(super) fn acquire(step: &mut Step<'_, '_>, ask: &Ask, beat: bool) -> Result<Verdict, StoreError> {
    if step.is_withdrawn(&ask.context, ask.attempt)? {
        return Err(StoreError::Withdrawn);
    }
    if step.load_all(&ask.claims)? {
        return Ok(Verdict::Granted(step.grant_unused(&ask.applicant(i64::MAX), &ask.terms(step.session))?));
    }
    let waiters = ask.claims.iter().any(|claim| step.ids[&claim.id].waiters);
    let place = if waiters { place(step, ask)? } else { None };
    let who = ask.applicant(place.unwrap_or(i64::MAX));
    // What dead holders and lapsed leases left goes to those who waited for it, before it is our turn.
    let weighed = loop {
        step.serve()?;
        let weighed = step.weigh(&who)?;
        if step.freed.is_empty() {
            break weighed;
        }
    };
    if weighed.conflicts.is_empty() {
        let granted = step.grant(&who, &weighed.stances, &ask.terms(step.session))?;
        if place.is_some() {
            step.leave_line(&ask.context, ask.attempt)?;
        }
        return Ok(Verdict::Granted(granted));
    }
    // A stronger mode never waits: two who share an id and both want it alone would wait for ever.
    if !ask.queue || weighed.changes {
        return Ok(Verdict::Refused(weighed.conflicts));
    }
    match place {
        Some(_) => move_place(step, ask)?,
        None => take_place(step, ask)?,
    }
    if beat {
        step.sql.beat.get()?.execute([step.session, step.now.at])?;
    }
    let holders = ask.claims.iter().flat_map(|claim| &step.ids[&claim.id].holders);
    let first_end = holders.map(|row| row.remaining(&step.now)).min().unwrap_or(i64::MAX);
    Ok(Verdict::Queued { conflicts: weighed.conflicts, first_end })
}

/// Ends an attempt. `None`: it left; otherwise what it holds.
pub(super) fn withdraw(
    step: &mut Step<'_, '_>,
    ask: &Ask,
    how: Withdraw,
) -> Result<Option<SmallVec<[Granted; 1]>>, StoreError> {
    step.leave_line(&ask.context, ask.attempt)?;
    let (mut holds_all, mut holds_any) = (true, false);
    for claim in &ask.claims {
        let holders = &step.load(&claim.id)?.holders;
        let own = holders.iter().find(|row| row.context == ask.context);
        holds_all &=
            own.is_some_and(|row| !row.broken && rules::again(row.mode, claim.mode) == rules::Again::Keep);
        holds_any |= own.is_some_and(|row| row.attempt == ask.attempt);
    }
    if how == Withdraw::KeepIfGranted && holds_all && holds_any {
        let stances: SmallVec<[Stance; 1]> = ask.claims.iter().map(|_| Stance::Keep).collect();
        return step.grant(&ask.applicant(i64::MAX), &stances, &ask.terms(step.session)).map(Some);
    }
    for claim in &ask.claims {
        let of_attempt = |row: &HeldRow| row.context == ask.context && row.attempt == ask.attempt;
        for row in step.remove_where(&claim.id, of_attempt)? {
            if row.replaces != 0 {
                step.restore(&claim.id, &row)?;
            }
        }
    }
    if how == Withdraw::Undo {
        let until = step.now.at + ask.lease.clamp(MARK, MARK_AT_MOST);
        let mark = params![step.ns, ask.context.0.as_bytes(), ask.attempt, step.now.boot, until];
        step.sql.mark.get()?.execute(mark)?;
    }
    Ok(None)
}

/// The ticket of the attempt, if it has a place.
fn place(step: &Step<'_, '_>, ask: &Ask) -> Result<Option<i64>, StoreError> {
    let mut place = step.sql.place.get()?;
    let key = params![step.ns, ask.context.0.as_bytes(), ask.attempt];
    Ok(place.query_row(key, |row| row.get(0)).optional()?)
}

fn take_place(step: &mut Step<'_, '_>, ask: &Ask) -> Result<(), StoreError> {
    let ticket = step.next_number()?;
    let line = if ask.nested { state::NESTED } else { state::QUEUED };
    let mut wait = step.sql.wait.get()?;
    for claim in &ask.claims {
        let (mode, permits, cap) = mode_columns(claim.mode);
        wait.execute(params![
            step.ns,
            &claim.id[..],
            line,
            ticket,
            ask.context.0.as_bytes(),
            ask.attempt,
            mode,
            permits,
            cap,
            &*ask.owner,
            ask.lease,
            step.now.wall,
            step.session,
            ask.detached,
        ])?;
    }
    Ok(())
}

/// Keeps the place; it belongs to whoever asked last, who is to be told.
fn move_place(step: &Step<'_, '_>, ask: &Ask) -> Result<(), StoreError> {
    let place = params![step.ns, ask.context.0.as_bytes(), ask.attempt, step.session, ask.lease];
    step.sql.move_place.get()?.execute(place)?;
    Ok(())
}
