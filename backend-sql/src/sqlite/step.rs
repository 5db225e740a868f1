//! One step: what a transaction has read, what it decided, and which waiters are to be notified after the commit.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use lockcore::{
    Granted,
    backend::{List, Moment},
    protocol,
};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Statement, params};
use smallvec::SmallVec;

use super::{
    clock::{Clock, LeaseAt, Now, micros},
    error::StoreError,
    opened::Opened,
    process::Process,
    row::{HeldRow, Key, Set, Text},
    statements::{Statements, state},
};

/// How long a heartbeat counts, in microseconds: the places of a session without one lapse.
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
    /// The ids of which something was freed: those who wait for them are to be served.
    pub(super) freed: HashSet<Key, RandomState>,
    /// What was handed over; its waiters are notified after the commit.
    pub(super) handed: Vec<Handed>,
    /// The ids of which holders or the freeze changed, as far as they have waiters or watchers.
    pub(super) changed: Vec<Key>,
    /// The sessions whose watchers are to be notified after the commit.
    pub(super) watchers: HashSet<i64>,
    /// Ids that are left for another transaction, because this one handed over enough.
    pub(super) unserved: Vec<Key>,
    any_frozen: Option<bool>,
    liveness: HashMap<i64, Liveness>,
}

/// What is known of one id.
#[derive(Debug, Default)]
pub(super) struct IdState {
    /// Holders whose lease lasts.
    pub(super) holders: Vec<HeldRow>,
    /// Whether there are waiters or watchers.
    pub(super) waiters: bool,
    pub(super) frozen: bool,
}

impl IdState {
    /// Whether nothing can be in the way of taking the id.
    pub(super) fn is_unused(&self) -> bool {
        self.holders.is_empty() && !self.waiters && !self.frozen
    }
}

/// A set that was granted to a waiter.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) session: i64,
    pub(super) context: Text,
    pub(super) attempt: i64,
    pub(super) granted: List<Granted>,
    /// How long the offer lasts from `as_of`, in microseconds.
    pub(super) lasts: i64,
    pub(super) as_of: Moment,
}

/// What is known of a session.
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
            freed: HashSet::default(),
            handed: Vec::new(),
            changed: Vec::new(),
            watchers: HashSet::new(),
            unserved: Vec::new(),
            any_frozen: None,
            liveness: HashMap::new(),
        }
    }

    /// How much is left of what lasts for `lasts` from `now`, in microseconds, and of which moment that is true: one before
    /// the look at the clock that says so (lockcore's L1).
    pub(super) fn left_of(&self, lasts: i64) -> (i64, Moment) {
        let as_of = Moment::now();
        (lasts - (self.clock.now().at - self.now.at), as_of)
    }

    /// Returns whether the attempt has a tombstone; looks in passing whether anything is frozen.
    pub(super) fn is_withdrawn(&mut self, context: &Text, attempt: i64) -> Result<bool, StoreError> {
        let mut gate = self.conn.prepare_cached(&self.sql.gate)?;
        let (withdrawn, frozen) = gate.query_row(params![self.ns, context.0.as_bytes(), attempt], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        self.any_frozen = Some(frozen);
        Ok(withdrawn)
    }

    /// Reads an id unless that was done. Holders whose lease is over are removed in passing.
    pub(super) fn load(&mut self, id: &Key) -> Result<&mut IdState, StoreError> {
        if !self.ids.contains_key(id) {
            let mut holders = self.holders()?;
            let read = self.read_id(&mut holders, id)?;
            self.ids.insert(id.clone(), read);
        }
        Ok(self.ids.get_mut(id).expect("it was inserted above if it was missing"))
    }

    /// Reads all ids of a set, and says whether nothing can be in the way of taking any of them: then nothing is noted of
    /// them. For a step that has read none before.
    pub(super) fn load_all(&mut self, claims: &Set) -> Result<bool, StoreError> {
        let mut states: SmallVec<[IdState; 1]> = SmallVec::with_capacity(claims.len());
        let mut holders = self.holders()?;
        for claim in claims {
            states.push(self.read_id(&mut holders, &claim.id)?);
        }
        drop(holders);
        if self.freed.is_empty() && states.iter().all(IdState::is_unused) {
            return Ok(true);
        }
        self.ids.extend(claims.iter().map(|claim| claim.id.clone()).zip(states));
        Ok(false)
    }

    /// The next fence or ticket of the namespace.
    pub(super) fn next_number(&mut self) -> Result<i64, StoreError> {
        let mut next = self.conn.prepare_cached(&self.sql.next_number)?;
        let number = next.query_row([self.ns, self.now.wall], |row| row.get(0)).optional()?;
        number.ok_or(StoreError::Corrupt("the table of namespaces"))
    }

    /// Removes the holders of an id for which `unwanted` holds, and gives them.
    pub(super) fn remove_where(
        &mut self,
        id: &Key,
        mut unwanted: impl FnMut(&HeldRow) -> bool,
    ) -> Result<Vec<HeldRow>, StoreError> {
        let removed: Vec<_> = self.load(id)?.holders.extract_if(.., |row| unwanted(row)).collect();
        let mut remove = self.conn.prepare_cached(&self.sql.remove)?;
        for row in &removed {
            remove.execute(params![self.ns, &id[..], row.state, row.number])?;
            self.freed.insert(id.clone());
        }
        Ok(removed)
    }

    /// Removes the holders whose processes have ended, and says whether there were any.
    pub(super) fn remove_dead(&mut self, id: &Key) -> Result<bool, StoreError> {
        let mut gone = HashSet::new();
        let sessions: HashSet<i64> = self.ids[id].holders.iter().map(|row| row.session).collect();
        for session in sessions {
            if self.liveness(session)? == Liveness::Gone {
                gone.insert(session);
            }
        }
        if gone.is_empty() {
            return Ok(false);
        }
        self.remove_where(id, |row| !row.detached && gone.contains(&row.session))?;
        Ok(true)
    }

    /// Has this session notified when the id changes next.
    pub(super) fn watch(&mut self, id: &Key) -> Result<(), StoreError> {
        let mut watch = self.conn.prepare_cached(&self.sql.watch)?;
        watch.execute(params![self.ns, &id[..], self.session, self.now.wall])?;
        Ok(())
    }

    /// Ends the watches of what has changed; their sessions are to be notified after the commit.
    pub(super) fn end_watches(&mut self) -> Result<(), StoreError> {
        for id in std::mem::take(&mut self.changed) {
            let mut stop = self.conn.prepare_cached(&self.sql.stop_watching)?;
            for session in stop.query_map(params![self.ns, &id[..]], |row| row.get(0))? {
                self.watchers.insert(session?);
            }
        }
        Ok(())
    }

    /// Writes the heartbeat of this session.
    pub(super) fn heartbeat(&self) -> Result<(), StoreError> {
        self.conn.prepare_cached(&self.sql.heartbeat)?.execute([self.session, self.now.at])?;
        Ok(())
    }

    /// What is known of a session.
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

    /// Whether the place of a waiter still counts; otherwise all places of its session are removed.
    pub(super) fn still_waits(&mut self, session: i64) -> Result<bool, StoreError> {
        if self.liveness(session)? == Liveness::Alive {
            return Ok(true);
        }
        let mut leave = self.conn.prepare_cached(&self.sql.leave_session)?;
        for id in leave.query_map([session], |row| row.get::<_, Key>(0))? {
            self.freed.insert(id?);
        }
        Ok(false)
    }

    /// The statement `holders`, bound but for the id.
    fn holders(&self) -> Result<CachedStatement<'a>, StoreError> {
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
            let key = params![self.ns, &id[..], row.state, row.number];
            self.conn.prepare_cached(&self.sql.remove)?.execute(key)?;
            self.freed.insert(id.clone());
        }
        Ok(read)
    }

    fn is_frozen(&mut self, id: &Key) -> Result<bool, StoreError> {
        if self.any_frozen == Some(false) {
            return Ok(false);
        }
        let mut frozen = self.conn.prepare_cached(&self.sql.is_frozen)?;
        Ok(frozen.query_row(params![self.ns, &id[..]], |row| row.get(0))?)
    }
}
