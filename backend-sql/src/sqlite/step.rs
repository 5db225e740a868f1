//! One step: what a transaction has read, what it decided, and who is to be told after the commit.

use std::collections::{HashMap, HashSet};

use lockcore::{ConflictReason, Granted, Holder, MAX_HOLDERS_LISTED, Mode, Owner, rules, rules::InUse};
use rusqlite::{Connection, OptionalExtension, params};
use smallvec::SmallVec;

use super::{
    clock::{self, LeaseAt, Now},
    error::StoreError,
    process::Process,
    row::{HeldRow, Indexes, IndexesColumn, Key, Set, Text, mode_columns},
    statements::{Statements, state},
    store::Store,
};

/// How long a sign of life counts, in microseconds: the places of a session that gives none lapse.
pub(super) const SIGN_OF_LIFE: i64 = 3_000_000;

/// A transaction under way.
///
/// Under the write lock nothing moves but by this step, so that what was read stays true until the
/// commit; `ids` is kept current by every change.
pub(super) struct Step<'a> {
    pub(super) conn: &'a Connection,
    pub(super) sql: &'a Statements,
    pub(super) namespace: &'a str,
    pub(super) process: &'a Process,
    pub(super) ns: i64,
    pub(super) session: i64,
    /// Read after the write lock was had: waiting for it takes time.
    pub(super) now: Now,
    /// The ids looked at so far.
    pub(super) ids: HashMap<Key, IdState>,
    /// The ids of which something was freed: whoever waits for them is to be served.
    pub(super) freed: HashSet<Key>,
    /// What was handed over, to be told after the commit.
    pub(super) handed: Vec<Handed>,
    /// Ids that are left for another transaction, because this one handed over enough.
    pub(super) unserved: Vec<Key>,
    any_frozen: Option<bool>,
    signs: HashMap<i64, Sign>,
}

/// What is known of one id.
#[derive(Debug, Default)]
pub(super) struct IdState {
    /// Holders whose lease lasts.
    pub(super) holders: Vec<HeldRow>,
    /// Whether anybody waits.
    pub(super) waiters: bool,
    pub(super) frozen: bool,
}

/// A set that was granted to a waiter.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) session: i64,
    pub(super) context: Text,
    pub(super) attempt: i64,
    pub(super) granted: SmallVec<[Granted; 1]>,
    /// How long the offer lasts, in microseconds.
    pub(super) lasts: i64,
}

/// Who wants a set.
#[derive(Debug)]
pub(super) struct Applicant<'r> {
    pub(super) context: &'r str,
    pub(super) attempt: i64,
    /// Its ticket; `i64::MAX` if it has none yet.
    pub(super) number: i64,
    pub(super) nested: bool,
    pub(super) claims: &'r Set,
}

/// On what terms a set is granted.
#[derive(Debug)]
pub(super) struct Terms<'r> {
    pub(super) state: i64,
    pub(super) lease: i64,
    pub(super) owner: &'r Owner,
    pub(super) session: i64,
    pub(super) detached: bool,
}

/// How one claim relates to what its context holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stance {
    New,
    Keep,
    Change,
}

/// What stands against a set.
#[derive(Debug, Default)]
pub(super) struct Weighed {
    pub(super) stances: SmallVec<[Stance; 1]>,
    /// The context holds an id otherwise than it wants to, which is never queued for.
    pub(super) changes: bool,
    /// By position in the set.
    pub(super) conflicts: Vec<(usize, ConflictReason<String>)>,
}

/// What is known of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sign {
    Alive,
    /// Running or not, it gives no sign of life.
    Silent,
    /// Its process has certainly ended.
    Gone,
    /// It was closed.
    Closed,
}

impl<'a> Step<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Step {
            conn: &store.conn,
            sql: &store.sql,
            namespace: &store.settings.namespace,
            process: &store.process,
            ns: store.ns,
            session: store.session,
            now: store.now(),
            ids: HashMap::new(),
            freed: HashSet::new(),
            handed: Vec::new(),
            unserved: Vec::new(),
            any_frozen: None,
            signs: HashMap::new(),
        }
    }

    /// Whether the attempt was withdrawn; looks in passing whether anything is frozen.
    pub(super) fn is_withdrawn(&mut self, context: &str, attempt: i64) -> Result<bool, StoreError> {
        let mut gate = self.conn.prepare_cached(&self.sql.gate)?;
        let (withdrawn, frozen) = gate
            .query_row(params![self.ns, context.as_bytes(), attempt], |row| Ok((row.get(0)?, row.get(1)?)))?;
        self.any_frozen = Some(frozen);
        Ok(withdrawn)
    }

    /// Reads an id unless that was done. Holders whose lease is over are removed in passing.
    pub(super) fn load(&mut self, id: &Key) -> Result<&mut IdState, StoreError> {
        if !self.ids.contains_key(id) {
            let read = self.read_id(id)?;
            self.ids.insert(id.clone(), read);
        }
        Ok(self.ids.get_mut(id).expect("it was inserted above if it was missing"))
    }

    /// What stands against granting the set now. Ids that dead holders or dead waiters were in the way
    /// of are `freed` in passing: then others may come first, and the question has to be asked again.
    pub(super) fn weigh(&mut self, who: &Applicant<'_>) -> Result<Weighed, StoreError> {
        let mut weighed = Weighed::default();
        for (position, claim) in who.claims.iter().enumerate() {
            self.load(&claim.id)?;
            let stance = self.stance(who, &claim.id, claim.mode);
            weighed.stances.push(stance);
            let conflict = match stance {
                Stance::Keep => self.broken_own(who, &claim.id),
                _ => self.against(who, &claim.id, claim.mode, stance)?,
            };
            weighed.changes |= stance == Stance::Change || (stance == Stance::Keep && conflict.is_some());
            weighed.conflicts.extend(conflict.map(|reason| (position, reason)));
        }
        Ok(weighed)
    }

    /// Grants the set, against which nothing may stand.
    pub(super) fn grant(
        &mut self,
        who: &Applicant<'_>,
        stances: &[Stance],
        terms: &Terms<'_>,
    ) -> Result<SmallVec<[Granted; 1]>, StoreError> {
        let fence = match stances.iter().all(|stance| *stance == Stance::Keep) {
            true => 0,
            false => self.next_number()?,
        };
        let mut granted = SmallVec::with_capacity(stances.len());
        for (claim, stance) in who.claims.iter().zip(stances) {
            granted.push(match stance {
                Stance::Keep => self.keep(who.context, &claim.id, terms)?,
                Stance::Change => {
                    self.remove_where(&claim.id, |row| &*row.context.0 == who.context)?;
                    self.hold(who, &claim.id, claim.mode, fence, terms)?
                }
                Stance::New => self.hold(who, &claim.id, claim.mode, fence, terms)?,
            });
        }
        Ok(granted)
    }

    /// The next fence or ticket of the namespace.
    pub(super) fn next_number(&mut self) -> Result<i64, StoreError> {
        let mut next = self.conn.prepare_cached(&self.sql.next_number)?;
        let number = next.query_row([self.ns, self.now.wall], |row| row.get(0)).optional()?;
        number.ok_or(StoreError::Corrupt("the table of namespaces"))
    }

    /// Removes the holders of an id for which `unwanted` holds, and returns how many there were.
    pub(super) fn remove_where(
        &mut self,
        id: &Key,
        mut unwanted: impl FnMut(&HeldRow) -> bool,
    ) -> Result<usize, StoreError> {
        let (conn, sql, ns) = (self.conn, self.sql, self.ns);
        let state = self.load(id)?;
        let mut removed = 0;
        for row in state.holders.extract_if(.., |row| unwanted(row)) {
            conn.prepare_cached(&sql.remove)?.execute(params![ns, &id[..], row.state, row.number])?;
            removed += 1;
        }
        Ok(removed)
    }

    /// What is known of a session.
    pub(super) fn sign(&mut self, session: i64) -> Result<Sign, StoreError> {
        if session == self.session {
            return Ok(Sign::Alive);
        }
        if let Some(sign) = self.signs.get(&session) {
            return Ok(*sign);
        }
        let mut read = self.conn.prepare_cached(&self.sql.session)?;
        let found = read
            .query_row([session], |row| {
                let process = Process { space: row.get(1)?, pid: row.get(2)?, start: row.get(3)? };
                Ok((row.get::<_, i64>(0)?, process, row.get::<_, i64>(4)?))
            })
            .optional()?;
        let sign = match found {
            None => Sign::Closed,
            Some((boot, ..)) if boot != self.now.boot => Sign::Gone,
            Some((_, process, _)) if self.process.knows_gone(&process) => Sign::Gone,
            Some((.., beat)) if (self.now.at - beat).abs() > SIGN_OF_LIFE => Sign::Silent,
            Some(_) => Sign::Alive,
        };
        self.signs.insert(session, sign);
        Ok(sign)
    }

    /// Whether the place of a waiter still counts; otherwise all places of its session are removed.
    pub(super) fn still_waits(&mut self, session: i64) -> Result<bool, StoreError> {
        if self.sign(session)? == Sign::Alive {
            return Ok(true);
        }
        let mut leave = self.conn.prepare_cached(&self.sql.leave_session)?;
        for id in leave.query_map([session], |row| row.get::<_, Key>(0))? {
            self.freed.insert(id?);
        }
        Ok(false)
    }

    fn read_id(&mut self, id: &Key) -> Result<IdState, StoreError> {
        let frozen = self.is_frozen(id)?;
        let mut read = IdState { frozen, ..IdState::default() };
        let mut holders = self.conn.prepare_cached(&self.sql.holders)?;
        let mut rows = holders.query(params![self.ns, &id[..]])?;
        let mut ended = Vec::new();
        while let Some(row) = rows.next()? {
            if row.get::<_, i64>(0)? > state::OFFERED {
                read.waiters = true;
                break;
            }
            let mut row = HeldRow::read(row)?;
            match row.lease_at(&self.now) {
                LeaseAt::Lasts(_) => read.holders.push(row),
                LeaseAt::Ended => ended.push(row),
                LeaseAt::FromTheFuture => {
                    row.renewed = self.now.at;
                    let key = params![self.ns, &id[..], row.state, row.number, row.renewed];
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

    fn stance(&self, who: &Applicant<'_>, id: &Key, wanted: Mode) -> Stance {
        let own = self.ids[id].holders.iter().find(|row| &*row.context.0 == who.context);
        match own.map(|row| rules::again(row.mode, wanted)) {
            None => Stance::New,
            Some(rules::Again::Keep) => Stance::Keep,
            Some(rules::Again::Change) => Stance::Change,
        }
    }

    /// A lock of one's own that was broken is not extended, so that it stands in the way.
    fn broken_own(&self, who: &Applicant<'_>, id: &Key) -> Option<ConflictReason<String>> {
        let own = |row: &HeldRow| &*row.context.0 == who.context && row.broken;
        self.ids[id].holders.iter().any(own).then(|| self.held(id, own))
    }

    fn against(
        &mut self,
        who: &Applicant<'_>,
        id: &Key,
        mode: Mode,
        stance: Stance,
    ) -> Result<Option<ConflictReason<String>>, StoreError> {
        if self.ids[id].frozen {
            return Ok(Some(ConflictReason::Frozen));
        }
        let other = |row: &HeldRow| &*row.context.0 != who.context;
        let fits = |step: &Self| {
            InUse::of(step.ids[id].holders.iter().filter(|row| other(row)).map(|row| row.mode)).fits(mode)
        };
        if !fits(self) && !(self.remove_dead(id)? && fits(self)) {
            return Ok(Some(self.held(id, other)));
        }
        // Who holds the id already, or holds others, obeys no queue: nesting would deadlock.
        if stance == Stance::Change || who.nested || !self.ids[id].waiters {
            return Ok(None);
        }
        self.queued(id, who.number, mode)
    }

    /// Removes the holders whose processes have ended, and says whether there were any.
    pub(super) fn remove_dead(&mut self, id: &Key) -> Result<bool, StoreError> {
        let mut gone = HashSet::new();
        let sessions: HashSet<i64> =
            self.ids[id].holders.iter().filter(|row| !row.detached).map(|row| row.session).collect();
        for session in sessions {
            if self.sign(session)? == Sign::Gone {
                gone.insert(session);
            }
        }
        if gone.is_empty() {
            return Ok(false);
        }
        self.remove_where(id, |row| !row.detached && gone.contains(&row.session))?;
        self.freed.insert(id.clone());
        Ok(true)
    }

    fn held(&self, id: &Key, among: impl Fn(&HeldRow) -> bool) -> ConflictReason<String> {
        let mut rows: Vec<&HeldRow> = self.ids[id].holders.iter().filter(|row| among(row)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.remaining(&self.now)));
        let in_use = InUse::of(self.ids[id].holders.iter().map(|row| row.mode)).units();
        let listed = rows.iter().take(MAX_HOLDERS_LISTED).map(|row| Holder {
            context: row.context.stored(),
            owner: row.owner.clone(),
            mode: row.mode,
            fence: row.number as u64,
            remaining: Some(clock::duration(row.remaining(&self.now))),
        });
        ConflictReason::Held { holders: listed.collect(), count: rows.len(), in_use }
    }

    /// The earlier waiters that this claim may not pass.
    fn queued(
        &mut self,
        id: &Key,
        number: i64,
        mode: Mode,
    ) -> Result<Option<ConflictReason<String>>, StoreError> {
        let (code, _, cap) = mode_columns(mode);
        let ns = self.ns;
        let key = params![ns, &id[..], number, code, cap];
        let mut blocker = self.conn.prepare_cached(&self.sql.blocker)?;
        loop {
            let first = blocker.query_row(key, |row| Ok((row.get::<_, Text>(1)?, row.get(2)?))).optional()?;
            let Some((head, session)) = first else {
                return Ok(None);
            };
            if self.still_waits(session)? {
                let mut blockers = self.conn.prepare_cached(&self.sql.blockers)?;
                let count: i64 = blockers.query_row(key, |row| row.get(0))?;
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                return Ok(Some(ConflictReason::QueuedBehind { head: head.stored(), count }));
            }
        }
    }

    /// Takes an id anew.
    fn hold(
        &mut self,
        who: &Applicant<'_>,
        id: &Key,
        mode: Mode,
        fence: i64,
        terms: &Terms<'_>,
    ) -> Result<Granted, StoreError> {
        let (conn, sql, ns, now) = (self.conn, self.sql, self.ns, self.now);
        let holders = &mut self.load(id)?.holders;
        let taken = holders.iter().flat_map(|row| row.indexes.iter().copied());
        let indexes: Indexes = rules::lowest_free(taken, mode.permits());
        let in_use = InUse::of(holders.iter().map(|row| row.mode)).plus(mode).units();
        let (code, permits, cap) = mode_columns(mode);
        conn.prepare_cached(&sql.hold)?.execute(params![
            ns,
            &id[..],
            terms.state,
            fence,
            who.context.as_bytes(),
            who.attempt,
            code,
            permits,
            cap,
            &IndexesColumn::encode(&indexes)[..],
            in_use,
            &**terms.owner,
            terms.lease,
            now.boot,
            now.at,
            now.wall,
            terms.session,
            terms.detached,
        ])?;
        holders.push(HeldRow {
            state: terms.state,
            number: fence,
            context: Text(who.context.into()),
            attempt: who.attempt,
            mode,
            indexes: indexes.clone(),
            owner: terms.owner.clone(),
            lease: terms.lease,
            boot: now.boot,
            renewed: now.at,
            since: now.wall,
            session: terms.session,
            detached: terms.detached,
            broken: false,
        });
        Ok(Granted { mode, fence: fence as u64, permits: indexes, in_use })
    }

    /// Goes on holding what the context holds. A longer lease of an earlier grant is not cut short: it
    /// relies on it. In an offer, what is kept stays as it is until the offer is confirmed.
    fn keep(&mut self, context: &str, id: &Key, terms: &Terms<'_>) -> Result<Granted, StoreError> {
        let (conn, sql, ns, now) = (self.conn, self.sql, self.ns, self.now);
        let holders = &mut self.load(id)?.holders;
        let in_use = InUse::of(holders.iter().map(|row| row.mode)).units();
        let row = holders
            .iter_mut()
            .find(|row| &*row.context.0 == context)
            .expect("only what the context holds is kept");
        if terms.state == state::HELD {
            let lease = terms.lease.max(row.remaining(&now));
            let keep =
                params![ns, &id[..], row.state, row.number, lease, now.at, terms.session, terms.detached];
            conn.prepare_cached(&sql.keep)?.execute(keep)?;
            (row.state, row.lease, row.renewed) = (state::HELD, lease, now.at);
            (row.session, row.detached) = (terms.session, terms.detached);
        }
        Ok(Granted { mode: row.mode, fence: row.number as u64, permits: row.indexes.clone(), in_use })
    }
}
