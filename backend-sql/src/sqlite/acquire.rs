//! Taking a set, and withdrawing a try to.

use lockcore::{
    ConflictReason, Granted, Owner,
    backend::{List, Withdraw},
    protocol, rules,
};
use rusqlite::{OptionalExtension, params};
use smallvec::SmallVec;

use super::{
    clock::micros,
    error::StoreError,
    grant::Terms,
    row::{HeldRow, Set, Text, mode_columns},
    statements::state,
    step::Step,
    weigh::{Asker, Stance},
};

/// How long the tombstone of a withdrawn attempt is kept at least, in microseconds: ten times the default busy timeout.
const TOMBSTONE: i64 = micros(protocol::TOMBSTONE);

/// How long it is kept at most, in microseconds: no busy timeout is longer.
pub(super) const TOMBSTONE_AT_MOST: i64 = 3_600_000_000;

/// A request in stored forms.
#[derive(Clone, Debug)]
pub(super) struct Request {
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
    Granted(List<Granted>),
    Refused(Vec<(usize, ConflictReason<String>)>),
    Queued {
        conflicts: Vec<(usize, ConflictReason<String>)>,
        /// When the first lease in the way ends, in microseconds from now.
        first_end: i64,
    },
}

impl Request {
    fn terms(&self, session: i64) -> Terms<'_> {
        let Request { lease, owner, detached, .. } = self;
        Terms { state: state::HELD, lease: *lease, owner, session, detached: *detached }
    }

    fn asker(&self, number: i64) -> Asker<'_> {
        let Request { context, attempt, nested, claims, .. } = self;
        Asker { context, attempt: *attempt, number, nested: *nested, claims }
    }
}

/// Takes the whole set, or nothing of it; with `heartbeat` one is written where a place is taken.
pub(super) fn acquire(
    step: &mut Step<'_>,
    request: &Request,
    heartbeat: bool,
) -> Result<Verdict, StoreError> {
    if step.is_withdrawn(&request.context, request.attempt)? {
        return Err(StoreError::Withdrawn);
    }
    if step.load_all(&request.claims)? {
        return Ok(Verdict::Granted(
            step.grant_unused(&request.asker(i64::MAX), &request.terms(step.session))?,
        ));
    }
    let waiters = request.claims.iter().any(|claim| step.ids[&claim.id].waiters);
    let place = if waiters { place(step, request)? } else { None };
    let who = request.asker(place.unwrap_or(i64::MAX));
    // What dead holders and lapsed leases left goes to those who waited for it, before it is our turn.
    let weighed = loop {
        step.serve()?;
        let weighed = step.weigh(&who)?;
        if step.freed.is_empty() {
            break weighed;
        }
    };
    if weighed.conflicts.is_empty() {
        let granted = step.grant(&who, &weighed.stances, &request.terms(step.session))?;
        if place.is_some() {
            step.leave_queue(&request.context, request.attempt)?;
        }
        return Ok(Verdict::Granted(granted));
    }
    // A stronger mode never waits: two who share an id and both want it alone would wait for ever.
    if !request.queue || weighed.changes {
        return Ok(Verdict::Refused(weighed.conflicts));
    }
    match place {
        Some(_) => move_place(step, request)?,
        None => take_place(step, request)?,
    }
    if heartbeat {
        step.heartbeat()?;
    }
    let holders = request.claims.iter().flat_map(|claim| &step.ids[&claim.id].holders);
    let first_end = holders.map(|row| row.remaining(&step.now)).min().unwrap_or(i64::MAX);
    Ok(Verdict::Queued { conflicts: weighed.conflicts, first_end })
}

/// Ends an attempt. `None`: it left; otherwise what it holds.
pub(super) fn withdraw(
    step: &mut Step<'_>,
    request: &Request,
    how: Withdraw,
) -> Result<Option<List<Granted>>, StoreError> {
    step.leave_queue(&request.context, request.attempt)?;
    let (mut holds_all, mut holds_any) = (true, false);
    for claim in &request.claims {
        let holders = &step.load(&claim.id)?.holders;
        let own = holders.iter().find(|row| row.context == request.context);
        holds_all &=
            own.is_some_and(|row| !row.broken && rules::again(row.mode, claim.mode) == rules::Again::Keep);
        holds_any |= own.is_some_and(|row| row.attempt == request.attempt);
    }
    if how == Withdraw::KeepIfGranted && holds_all && holds_any {
        let stances: SmallVec<[Stance; 1]> = request.claims.iter().map(|_| Stance::Keep).collect();
        return step.grant(&request.asker(i64::MAX), &stances, &request.terms(step.session)).map(Some);
    }
    for claim in &request.claims {
        let of_attempt = |row: &HeldRow| row.context == request.context && row.attempt == request.attempt;
        for row in step.remove_where(&claim.id, of_attempt)? {
            if row.replaces != 0 {
                step.restore(&claim.id, &row)?;
            }
        }
    }
    if how == Withdraw::Undo {
        let until = step.now.at + request.lease.clamp(TOMBSTONE, TOMBSTONE_AT_MOST);
        let tombstone = params![step.ns, request.context.0.as_bytes(), request.attempt, step.now.boot, until];
        step.conn.prepare_cached(&step.sql.add_tombstone)?.execute(tombstone)?;
    }
    Ok(None)
}

/// The ticket of the attempt, if it has a place.
fn place(step: &Step<'_>, request: &Request) -> Result<Option<i64>, StoreError> {
    let mut place = step.conn.prepare_cached(&step.sql.place)?;
    let key = params![step.ns, request.context.0.as_bytes(), request.attempt];
    Ok(place.query_row(key, |row| row.get(0)).optional()?)
}

fn take_place(step: &mut Step<'_>, request: &Request) -> Result<(), StoreError> {
    let ticket = step.next_number()?;
    let queue = if request.nested { state::NESTED } else { state::QUEUED };
    let mut wait = step.conn.prepare_cached(&step.sql.wait)?;
    for claim in &request.claims {
        let (mode, permits, cap) = mode_columns(claim.mode);
        wait.execute(params![
            step.ns,
            &claim.id[..],
            queue,
            ticket,
            request.context.0.as_bytes(),
            request.attempt,
            mode,
            permits,
            cap,
            &*request.owner,
            request.lease,
            step.now.wall,
            step.session,
            request.detached,
        ])?;
    }
    Ok(())
}

/// Keeps the place, for the session that asked last, which is to be notified.
fn move_place(step: &Step<'_>, request: &Request) -> Result<(), StoreError> {
    let place = params![step.ns, request.context.0.as_bytes(), request.attempt, step.session, request.lease];
    step.conn.prepare_cached(&step.sql.move_place)?.execute(place)?;
    Ok(())
}
