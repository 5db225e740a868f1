//! One step: what a transaction has read, what it decided, and which waiters are to be notified after the commit.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use lockcore::{
    Granted,
    backend::Moment,
    engine::{New, Table as _, Turn},
    protocol,
    rules::{self, InUse},
};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Statement, params};
use smallvec::SmallVec;

use super::{
    clock::{Clock, LeaseAt, Now, micros},
    error::StoreError,
    opened::Opened,
    process::Process,
    row::{HeldRow, IndexesColumn, Key, Place, Request, Set, Text, Wanted, mode_columns},
    statements::{Statements, state},
};

/// The time for which a heartbeat counts, in microseconds: the places of a session without one lapse.
const HEARTBEAT_LASTS: i64 = micros(protocol::HEARTBEAT_LASTS);

/// A transaction under way.
///
/// Under the write lock nothing moves but by this step, so that what was read stays true until the
/// commit; `ids` is kept current by every change.
pub(super) struct Step<'a> {
    pub(super) conn: &'a Connection,
    pub(super) sql: &'a Statements,
    pub(super) process: &'a Process,
    clock: &'a Clock,
    pub(super) ns: i64,
    pub(super) session: i64,
    /// Read after the write lock was had: waiting for it takes time.
    pub(super) now: Now,
    /// The ids looked at so far.
    pub(super) ids: HashMap<Key, IdState, RandomState>,
    /// The waiters come upon so far, by ticket.
    pub(super) places: HashMap<u64, Place, RandomState>,
    /// The ids with room for those who wait. What is left when the step ends is for another one to serve.
    pub(super) rooms: Vec<(Key, u64)>,
    /// The ids and fences of the locks that were removed since their leases were over.
    pub(super) ended: Vec<(Key, u64)>,
    /// The sets that were handed over; their waiters are notified after the commit.
    pub(super) handed: Vec<Handed>,
    /// Read once, for the one request of a step.
    pub(super) gate: Option<Gate>,
    liveness: HashMap<i64, Liveness, RandomState>,
}

/// The obstacles of a request apart from its ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    /// The attempt has a tombstone.
    pub(super) withdrawn: bool,
    /// There is a frozen id.
    any_frozen: bool,
}

/// The state of one id, as it was read.
#[derive(Debug, Default)]
pub(super) struct IdState {
    /// Holders whose lease lasts.
    pub(super) holders: Vec<HeldRow>,
    /// Set if there are waiters, or rows of watchers.
    pub(super) waiters: bool,
    pub(super) frozen: bool,
}

impl IdState {
    /// Returns whether nothing can be in the way of taking the id.
    fn is_unused(&self) -> bool {
        self.holders.is_empty() && !self.waiters && !self.frozen
    }

    pub(super) fn holder(&self, context: &Text) -> Option<&HeldRow> {
        self.holders.iter().find(|row| row.context == *context)
    }

    /// Takes the holder of a context out.
    pub(super) fn take(&mut self, context: &Text) -> Option<HeldRow> {
        let own = self.holders.iter().position(|row| row.context == *context)?;
        Some(self.holders.swap_remove(own))
    }
}

/// A set that was granted to a waiter.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) session: i64,
    pub(super) context: Text,
    pub(super) attempt: i64,
    pub(super) granted: Vec<Granted>,
    /// The time for which the offer lasts from `as_of`, in microseconds.
    pub(super) lasts: i64,
    pub(super) as_of: Moment,
}

/// The liveness of a session, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Liveness {
    Alive,
    /// Running or not, its heartbeat has stopped.
    Silent,
    /// Its process has certainly ended.
    Gone,
    /// It was closed; or its process is not found here, but it had another boot id. What it holds lasts until the lease
    /// ends.
    Closed,
}

impl<'a> Step<'a> {
    pub(super) fn new(opened: &'a Opened, ns: i64, session: i64, now: Now) -> Self {
        Step {
            conn: &opened.conn,
            sql: &opened.sql,
            process: &opened.process,
            clock: &opened.clock,
            ns,
            session,
            now,
            ids: HashMap::default(),
            places: HashMap::default(),
            rooms: Vec::new(),
            ended: Vec::new(),
            handed: Vec::new(),
            gate: None,
            liveness: HashMap::default(),
        }
    }

    /// Returns how much is left of what lasts for `lasts` from `now`, in microseconds, and of which moment that is
    /// true: one before the look at the clock that says so (lockcore's L1).
    pub(super) fn left_of(&self, lasts: i64) -> (i64, Moment) {
        let as_of = Moment::now();
        (lasts - (self.clock.now().at - self.now.at), as_of)
    }

    /// Reads what could be in the way of the request of this step apart from its ids.
    pub(super) fn read_gate(&mut self, request: &Request) -> Result<Gate, StoreError> {
        let mut gate = self.conn.prepare_cached(&self.sql.gate)?;
        let key = params![self.ns, request.context.bytes(), request.attempt];
        let gate = gate.query_row(key, |row| Ok(Gate { withdrawn: row.get(0)?, any_frozen: row.get(1)? }))?;
        Ok(*self.gate.insert(gate))
    }

    /// Reads an id unless that was done. Holders whose lease is over are removed in passing.
    pub(super) fn load(&mut self, id: &Key) -> Result<&mut IdState, StoreError> {
        if !self.ids.contains_key(id) {
            let mut holders = self.reading_holders()?;
            let read = self.read_id(&mut holders, id)?;
            self.ids.insert(id.clone(), read);
        }
        Ok(self.ids.get_mut(id).expect("it was inserted above if it was missing"))
    }

    /// Reads all ids of a set, and returns whether nothing can be in the way of taking any of them: then nothing is noted of
    /// them. For a step that has read none before.
    pub(super) fn load_all(&mut self, claims: &Set) -> Result<bool, StoreError> {
        let mut states: SmallVec<[IdState; 1]> = SmallVec::with_capacity(claims.len());
        let mut holders = self.reading_holders()?;
        for claim in claims {
            states.push(self.read_id(&mut holders, &claim.id)?);
        }
        drop(holders);
        if self.rooms.is_empty() && states.iter().all(IdState::is_unused) {
            return Ok(true);
        }
        self.ids.extend(claims.iter().map(|claim| claim.id.clone()).zip(states));
        Ok(false)
    }

    /// Returns the next fence or ticket of the namespace.
    pub(super) fn next_number(&mut self) -> Result<i64, StoreError> {
        let mut next = self.conn.prepare_cached(&self.sql.next_number)?;
        let number = next.query_row([self.ns, self.now.wall], |row| row.get(0)).optional()?;
        number.ok_or(StoreError::Corrupt("the table of namespaces"))
    }

    /// Removes the holders of an id for which `unwanted` holds, and returns whether there were any.
    pub(super) fn remove_where(
        &mut self,
        id: &Key,
        mut unwanted: impl FnMut(&HeldRow) -> bool,
    ) -> Result<bool, StoreError> {
        let removed: Vec<_> = self.load(id)?.holders.extract_if(.., |row| unwanted(row)).collect();
        for row in &removed {
            self.change(&self.sql.remove, id, (row.state, row.number))?;
        }
        Ok(!removed.is_empty())
    }

    /// Removes what a context holds of an id.
    pub(super) fn remove_of(&mut self, id: &Key, context: &Text) -> Result<Option<HeldRow>, StoreError> {
        let own = self.load(id)?.take(context);
        if let Some(own) = &own {
            self.change(&self.sql.remove, id, (own.state, own.number))?;
        }
        Ok(own)
    }

    /// Has a context hold an id, confirmed, for a lease from now.
    pub(super) fn set_lease(&mut self, id: &Key, context: &Text, lease: i64) -> Result<(), StoreError> {
        let (ns, now) = (self.ns, self.now);
        let mut keep = self.conn.prepare_cached(&self.sql.keep)?;
        let own = self.load(id)?.holders.iter_mut().find(|row| row.context == *context);
        let Some(own) = own else { return Ok(()) };
        let HeldRow { state, number, session, detached, .. } = *own;
        keep.execute(params![ns, &id[..], state, number, lease, now.at, session, detached, now.boot])?;
        (own.state, own.lease, own.boot, own.renewed) = (state::HELD, lease, now.boot, now.at);
        Ok(())
    }

    /// Runs a statement on a row of an id, which is named by its state and its number.
    pub(super) fn change(&self, statement: &str, id: &Key, row: (i64, i64)) -> Result<(), StoreError> {
        self.conn.prepare_cached(statement)?.execute(params![self.ns, &id[..], row.0, row.1])?;
        Ok(())
    }

    /// Grants a set of ids of which nothing is known, and notes nothing of them: for the end of a step.
    pub(super) fn grant_unused(&mut self, request: &Request) -> Result<Vec<Granted>, StoreError> {
        let fence = self.next_number()? as u64;
        let mut hold = self.hold_by(request, (state::HELD, request.lease, self.session), (fence, 0))?;
        let mut granted = Vec::with_capacity(request.claims.len());
        for Wanted { id, mode } in &request.claims {
            let permits = rules::lowest_free([], mode.permits());
            let in_use = InUse::default().plus(*mode).units();
            let new = New { fence, mode: *mode, permits, in_use };
            hold_one(&mut hold, id, &new)?;
            granted.push(Granted { mode: new.mode, fence, permits: new.permits, in_use });
        }
        Ok(granted)
    }

    /// Returns the statement `hold`, bound but for what one id has of its own: for a large set binding costs as much as
    /// inserting.
    pub(super) fn hold_by(
        &self,
        request: &Request,
        (state, lease, session): (i64, i64, i64),
        (fence, replaces): (u64, i64),
    ) -> Result<CachedStatement<'a>, StoreError> {
        let mut hold = self.conn.prepare_cached(&self.sql.hold)?;
        hold.raw_bind_parameter(1, self.ns)?;
        hold.raw_bind_parameter(3, state)?;
        hold.raw_bind_parameter(4, fence as i64)?;
        hold.raw_bind_parameter(5, request.context.bytes())?;
        hold.raw_bind_parameter(6, request.attempt)?;
        hold.raw_bind_parameter(12, &*request.owner)?;
        hold.raw_bind_parameter(13, lease)?;
        hold.raw_bind_parameter(14, self.now.boot)?;
        hold.raw_bind_parameter(15, self.now.at)?;
        hold.raw_bind_parameter(16, self.now.wall)?;
        hold.raw_bind_parameter(17, session)?;
        hold.raw_bind_parameter(18, request.detached)?;
        hold.raw_bind_parameter(19, replaces)?;
        Ok(hold)
    }

    /// Returns whether a session lives, as far as it is known.
    pub(super) fn liveness(&mut self, session: i64) -> Result<Liveness, StoreError> {
        if session == self.session {
            return Ok(Liveness::Alive);
        }
        if let Some(liveness) = self.liveness.get(&session) {
            return Ok(*liveness);
        }
        let mut read = self.conn.prepare_cached(&self.sql.session)?;
        let found = read
            .query_row([session], |row| {
                // In a space that cannot be read it is not seen from here.
                let space = row.get(1).unwrap_or_default();
                let process = Process { space, pid: row.get(2)?, start: row.get(3)? };
                Ok((row.get::<_, i64>(0)?, process, row.get::<_, i64>(4)?))
            })
            .optional()?;
        let liveness = match found {
            None => Liveness::Closed,
            Some((boot, process, _)) if self.process.knows_gone(&process) => match boot == self.now.boot {
                true => Liveness::Gone,
                false => Liveness::Closed,
            },
            Some((.., heartbeat))
                if self.now.at.saturating_sub(heartbeat).saturating_abs() > HEARTBEAT_LASTS =>
            {
                Liveness::Silent
            }
            Some(_) => Liveness::Alive,
        };
        self.liveness.insert(session, liveness);
        Ok(liveness)
    }

    /// Reads a waiter by a statement, and keeps it.
    pub(super) fn come_upon(&mut self, statement: &str, by: impl Params) -> Result<Option<Turn>, StoreError> {
        let found = self.conn.prepare_cached(statement)?.query_row(by, Place::read).optional()?;
        Ok(found.map(|(turn, place)| {
            self.places.entry(turn.ticket).or_insert(place);
            turn
        }))
    }

    /// Removes all places of a session.
    pub(super) fn leave_session(&mut self, session: i64) -> Result<(), StoreError> {
        let mut leave = self.conn.prepare_cached(&self.sql.leave_session)?;
        for left in leave.query_map([session], |row| Ok((row.get::<_, Key>(0)?, row.get::<_, i64>(1)?)))? {
            let (id, ticket) = left?;
            self.room(&id, ticket as u64);
        }
        Ok(())
    }

    /// Gives a request a place at the end of all its queues.
    pub(super) fn take_place(&mut self, request: &Request) -> Result<(), StoreError> {
        let ticket = self.next_number()?;
        let queue = if request.nested { state::NESTED } else { state::QUEUED };
        let mut wait = self.conn.prepare_cached(&self.sql.wait)?;
        for claim in &request.claims {
            let (mode, permits, cap) = mode_columns(claim.mode);
            wait.execute(params![
                self.ns,
                &claim.id[..],
                queue,
                ticket,
                request.context.bytes(),
                request.attempt,
                mode,
                permits,
                cap,
                &*request.owner,
                request.lease,
                self.now.wall,
                self.session,
                request.detached,
            ])?;
            if let Some(state) = self.ids.get_mut(&claim.id) {
                state.waiters = true;
            }
        }
        Ok(())
    }

    /// Returns the statement `holders`, bound but for the id.
    fn reading_holders(&self) -> Result<CachedStatement<'a>, StoreError> {
        let mut holders = self.conn.prepare_cached(&self.sql.holders)?;
        holders.raw_bind_parameter(1, self.ns)?;
        Ok(holders)
    }

    /// Reads an id by the statement [`holders`](Self::holders).
    fn read_id(&mut self, holders: &mut Statement<'_>, id: &Key) -> Result<IdState, StoreError> {
        let frozen = self.is_frozen(id)?;
        let mut read = IdState { frozen, ..IdState::default() };
        holders.raw_bind_parameter(2, &id[..])?;
        let mut rows = holders.raw_query();
        let mut ended = Vec::new();
        while let Some(row) = rows.next()? {
            if row.get::<_, i64>(0)? > state::OFFERED {
                read.waiters = true;
                break;
            }
            let mut row = HeldRow::read(row)?;
            match row.lease_at(&self.now) {
                LeaseAt::Ended => ended.push(row),
                _ if row.state == state::REPLACED => {}
                LeaseAt::Lasts(_) => read.holders.push(row),
                LeaseAt::FromTheFuture => {
                    (row.boot, row.renewed) = (self.now.boot, self.now.at);
                    let key = params![self.ns, &id[..], row.state, row.number, row.renewed, row.boot];
                    self.conn.prepare_cached(&self.sql.rebase)?.execute(key)?;
                    read.holders.push(row);
                }
            }
        }
        drop(rows);
        for row in &ended {
            self.change(&self.sql.remove, id, (row.state, row.number))?;
            if row.state != state::REPLACED {
                self.ended.push((id.clone(), row.fence()));
            }
        }
        if read.waiters && !ended.is_empty() {
            self.rooms.push((id.clone(), 0));
        }
        Ok(read)
    }

    fn is_frozen(&mut self, id: &Key) -> Result<bool, StoreError> {
        if self.gate.is_some_and(|gate| !gate.any_frozen) {
            return Ok(false);
        }
        let mut frozen = self.conn.prepare_cached(&self.sql.is_frozen)?;
        Ok(frozen.query_row(params![self.ns, &id[..]], |row| row.get(0))?)
    }
}

/// Inserts one id of a set by the statement [`hold`](Step::hold_by).
pub(super) fn hold_one(hold: &mut Statement<'_>, id: &Key, new: &New) -> Result<(), StoreError> {
    let (code, permits, cap) = mode_columns(new.mode);
    hold.raw_bind_parameter(2, &id[..])?;
    hold.raw_bind_parameter(7, code)?;
    hold.raw_bind_parameter(8, permits)?;
    hold.raw_bind_parameter(9, cap)?;
    hold.raw_bind_parameter(10, &IndexesColumn::encode(&new.permits)[..])?;
    hold.raw_bind_parameter(11, new.in_use)?;
    hold.raw_execute()?;
    Ok(())
}
