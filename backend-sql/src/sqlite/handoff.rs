//! The hand-off: what is free goes to those whose turn it is, in the step that freed it.

use std::collections::{BTreeMap, HashSet};

use lockcore::{
    Granted, Mode, protocol,
    rules::{Admission, InUse},
};
use rusqlite::{OptionalExtension, params};

use super::{
    clock::{LeaseAt, micros},
    error::StoreError,
    grant::Terms,
    row::{IndexesColumn, Key, Set, Text, WaitRow, Wanted, mode_at},
    statements::state,
    step::{Handed, Step},
    weigh::Asker,
};

/// How long an offer lasts, in microseconds; at most the lease that the waiter asked for.
pub(super) const OFFER: i64 = micros(protocol::OFFER);

/// How many sets one transaction hands over at most, so that it keeps neither the write lock nor its caller for long.
const MOST_HANDED: usize = 64;

/// Contexts and attempts that have places.
pub(super) type Places = HashSet<(Text, i64)>;

/// Where a walk along the queue of an id stands.
#[derive(Debug)]
struct Cursor {
    id: Key,
    /// Along the nested waiters, who obey holders only, or along the others.
    nested: bool,
    admission: Admission,
    row: WaitRow,
}

impl Step<'_> {
    /// Serves those who wait for what was freed, in the order of their tickets, until nothing more fits.
    ///
    /// Only the head part of each queue is looked at: as soon as one has to go on waiting, only who
    /// may pass is looked for, through an index. So a release costs the same with two waiters and with
    /// ten thousand.
    pub(super) fn serve(&mut self) -> Result<(), StoreError> {
        let mut cursors: BTreeMap<(i64, usize), Cursor> = BTreeMap::new();
        let mut opened = 0;
        let mut last = None;
        loop {
            while let Some(id) = self.freed.iter().next().cloned() {
                self.freed.remove(&id);
                // Whatever was decided may be decided differently now.
                last = None;
                cursors.retain(|_, cursor| cursor.id != id);
                if self.handed.len() >= MOST_HANDED {
                    self.unserved.push(id);
                    continue;
                }
                if !self.load(&id)?.waiters {
                    continue;
                }
                self.changed.push(id.clone());
                if self.ids[&id].frozen || self.is_taken(&id)? {
                    continue;
                }
                for nested in [true, false] {
                    if let Some(row) = self.next_waiter(&id, nested, Admission::Open, 0)? {
                        opened += 1;
                        let cursor = Cursor { id: id.clone(), nested, admission: Admission::Open, row };
                        cursors.insert((cursor.row.number, opened), cursor);
                    }
                }
            }
            let Some(((number, place), cursor)) = cursors.pop_first() else {
                return Ok(());
            };
            if last == Some(number) || !self.try_hand_over(&cursor)? {
                last = Some(number);
                if let Some(next) = self.next_cursor(cursor)? {
                    cursors.insert((next.row.number, place), next);
                }
            }
        }
    }

    /// What was handed to the waiters of this session and is not confirmed yet.
    pub(super) fn offers(&mut self) -> Result<Vec<Handed>, StoreError> {
        let mut offers = self.conn.prepare_cached(&self.sql.offers)?;
        let mut rows = offers.query([self.session])?;
        let mut found: Vec<Handed> = Vec::new();
        while let Some(row) = rows.next()? {
            let (context, attempt): (Text, i64) = (row.get(0)?, row.get(1)?);
            let lease = self.now.lease(row.get(10)?, row.get(11)?, row.get(9)?, row.get(12)?);
            let LeaseAt::Lasts(lasts) = lease else {
                continue;
            };
            let (mode, fence) = (mode_at(row, 4)?, row.get::<_, i64>(3)? as u64);
            let permits = row.get::<_, IndexesColumn>(7)?.0;
            let granted = Granted { mode, fence, permits, in_use: row.get(8)? };
            match found.last_mut() {
                Some(last) if last.context == context && last.attempt == attempt => {
                    last.granted.push(granted)
                }
                _ => {
                    let (lasts, as_of) = self.left_of(lasts);
                    let granted = [granted].into_iter().collect();
                    found.push(Handed { session: self.session, context, attempt, granted, lasts, as_of });
                }
            }
        }
        Ok(found)
    }

    /// The attempts of this session that have places, if these places are not for `expected` claims.
    pub(super) fn places_unless(&self, expected: usize) -> Result<Option<Places>, StoreError> {
        let mut count = self.conn.prepare_cached(&self.sql.count_places)?;
        if count.query_row([self.session], |row| row.get::<_, i64>(0))? == expected as i64 {
            return Ok(None);
        }
        let mut places = self.conn.prepare_cached(&self.sql.places)?;
        let places = places.query_map([self.session], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Some(places.collect::<Result<_, _>>()?))
    }

    /// When the first lease on each of these ids ends, in microseconds from now; of those that were read.
    pub(super) fn first_ends(&self, ids: &[Key]) -> Vec<(Key, i64)> {
        let first = |id: &Key| self.ids.get(id)?.holders.iter().map(|row| row.remaining(&self.now)).min();
        ids.iter().filter_map(|id| Some((id.clone(), first(id)?))).collect()
    }

    /// Removes the place of an attempt, if it has one.
    pub(super) fn leave_queue(&mut self, context: &Text, attempt: i64) -> Result<(), StoreError> {
        let mut leave = self.conn.prepare_cached(&self.sql.leave)?;
        for id in
            leave.query_map(params![self.ns, context.0.as_bytes(), attempt], |row| row.get::<_, Key>(0))?
        {
            self.freed.insert(id?);
        }
        Ok(())
    }

    /// Returns whether an exclusive holder, which is not dead, keeps all others out.
    fn is_taken(&mut self, id: &Key) -> Result<bool, StoreError> {
        let is_taken = |step: &Self| step.ids[id].holders.iter().any(|row| row.mode == Mode::Exclusive);
        if is_taken(self) {
            self.remove_dead(id)?;
        }
        Ok(is_taken(self))
    }

    /// Grants a waiter its whole set, or removes it if its place has lapsed. `false`: it has to go on
    /// waiting.
    fn try_hand_over(&mut self, cursor: &Cursor) -> Result<bool, StoreError> {
        let row = &cursor.row;
        if !self.still_waits(row.session)? {
            return Ok(true);
        }
        let claims = self.wanted(row)?;
        let who = Asker {
            context: &row.context,
            attempt: row.attempt,
            number: row.number,
            nested: cursor.nested,
            claims: &claims,
        };
        let weighed = self.weigh(&who)?;
        if !weighed.conflicts.is_empty() {
            return Ok(false);
        }
        let lasts = row.lease.min(OFFER);
        let terms = Terms {
            state: state::OFFERED,
            lease: lasts,
            owner: &row.owner,
            session: row.session,
            detached: row.detached,
        };
        let granted = self.grant(&who, &weighed.stances, &terms)?;
        self.leave_queue(&row.context, row.attempt)?;
        let (session, context, attempt) = (row.session, row.context.clone(), row.attempt);
        let (lasts, as_of) = self.left_of(lasts);
        self.handed.push(Handed { session, context, attempt, granted, lasts, as_of });
        Ok(true)
    }

    fn wanted(&self, row: &WaitRow) -> Result<Set, StoreError> {
        let mut wanted = self.conn.prepare_cached(&self.sql.wanted)?;
        let claims = wanted.query_map(params![self.ns, row.context.0.as_bytes(), row.attempt], |row| {
            Ok(Wanted { id: row.get(0)?, mode: mode_at(row, 1)? })
        })?;
        Ok(claims.collect::<Result<_, _>>()?)
    }

    /// Moves a walk on, behind a waiter that has to go on waiting. `None`: none further back can be served.
    fn next_cursor(&mut self, cursor: Cursor) -> Result<Option<Cursor>, StoreError> {
        let Cursor { id, nested, admission, row } = cursor;
        let in_use = InUse::of(self.load(&id)?.holders.iter().map(|row| row.mode));
        if in_use.exclusive > 0 {
            return Ok(None);
        }
        let admission = match admission.behind(row.mode) {
            _ if nested => Admission::Open,
            // No limit up to what is held fits either.
            Admission::SlotsAbove(limit) => Admission::SlotsAbove(limit.max(in_use.permits)),
            admission => admission,
        };
        let next = self.next_waiter(&id, nested, admission, row.number)?;
        Ok(next.map(|row| Cursor { id, nested, admission, row }))
    }

    /// Reads the first waiter behind the ticket `after` that `admission` admits.
    fn next_waiter(
        &self,
        id: &Key,
        nested: bool,
        admission: Admission,
        after: i64,
    ) -> Result<Option<WaitRow>, StoreError> {
        let (statement, above) = match admission {
            Admission::Open if nested => (&self.sql.next_nested, None),
            Admission::Open => (&self.sql.next_queued, None),
            Admission::Shared => (&self.sql.next_shared, None),
            Admission::SlotsAbove(limit) => (&self.sql.next_slots, Some(limit)),
            Admission::Closed => return Ok(None),
        };
        let mut next = self.conn.prepare_cached(statement)?;
        let row = match above {
            Some(limit) => next.query_row(params![self.ns, &id[..], after, limit], WaitRow::read),
            None => next.query_row(params![self.ns, &id[..], after], WaitRow::read),
        };
        Ok(row.optional()?)
    }
}
