//! The rows of claims in their table, and the plain forms of requests that cross to the database's thread.

use std::{ops::Deref, rc::Rc, sync::Arc};

use bytes::Bytes;
use lockcore::{
    Ident, Mode, Owner, StoredContext, Target,
    backend::AttemptId,
    engine::{self, Held, Own, Turn},
};
use rusqlite::{
    Row,
    types::{FromSql, FromSqlResult, ValueRef},
};
use smallvec::SmallVec;

use super::{
    clock::{self, LeaseAt, Now},
    statements::state,
};

/// The stored form of an id; empty for the global lock. Those of a set share their memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Key(Bytes);

impl Key {
    /// The stored forms of these ids, in one piece of memory: with one for each, they would cost as much as all the rest
    /// that a large set needs here.
    pub(super) fn all<'t, I: Ident>(
        targets: impl Iterator<Item = &'t Target<I>>,
    ) -> impl Iterator<Item = Self> {
        let mut all = Vec::new();
        let lengths: SmallVec<[usize; 4]> = targets
            .map(|target| {
                let stored = target.stored();
                all.extend_from_slice(stored.as_bytes());
                stored.len()
            })
            .collect();
        let mut all = Bytes::from(all);
        lengths.into_iter().map(move |length| Key(all.split_to(length)))
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Key {
    fn from(stored: &[u8]) -> Self {
        Key(Bytes::copy_from_slice(stored))
    }
}

impl FromSql for Key {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(value.as_blob()?.into())
    }
}

/// One id and how it is wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) id: Key,
    pub(super) mode: Mode,
}

/// A set, ordered by id.
pub(super) type Set = SmallVec<[Wanted; 1]>;

/// Permit indexes.
pub(super) type Indexes = Vec<u32>;

/// A held or offered claim. The columns are those of the statements `holders` and `replaced`.
#[derive(Clone, Debug)]
pub(super) struct HeldRow {
    pub(super) state: i64,
    pub(super) number: i64,
    pub(super) context: Text,
    pub(super) attempt: i64,
    pub(super) mode: Mode,
    pub(super) indexes: Indexes,
    pub(super) owner: Owner,
    pub(super) lease: i64,
    pub(super) boot: i64,
    pub(super) renewed: i64,
    pub(super) since: i64,
    pub(super) session: i64,
    pub(super) detached: bool,
    pub(super) broken: bool,
    /// The fence of the lock that the context held before in another mode; 0 for none.
    pub(super) replaces: i64,
}

impl HeldRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(HeldRow {
            state: row.get(0)?,
            number: row.get(1)?,
            context: row.get(2)?,
            attempt: row.get(3)?,
            mode: mode_at(row, 4)?,
            indexes: row.get::<_, IndexesColumn>(7)?.0,
            owner: owner_at(row, 8)?,
            lease: time_at(row, 9)?,
            boot: row.get(10)?,
            renewed: time_at(row, 11)?,
            since: time_at(row, 12)?,
            session: row.get(13)?,
            detached: row.get(14)?,
            broken: row.get(15)?,
            replaces: row.get(16)?,
        })
    }

    pub(super) fn lease_at(&self, now: &Now) -> LeaseAt {
        now.lease(self.boot, self.renewed, self.lease, self.since)
    }

    /// Returns how much is left of the lease, in microseconds.
    pub(super) fn remaining(&self, now: &Now) -> i64 {
        match self.lease_at(now) {
            LeaseAt::Lasts(left) => left,
            LeaseAt::FromTheFuture => self.lease,
            LeaseAt::Ended => 0,
        }
    }

    pub(super) fn fence(&self) -> u64 {
        self.number as u64
    }

    /// Returns the holder as others see it.
    pub(super) fn held(&self, now: &Now) -> Held<'_, Text> {
        Held {
            context: &self.context,
            owner: &self.owner,
            mode: self.mode,
            permits: &self.indexes,
            fence: self.fence(),
            remaining: Some(clock::duration(self.remaining(now))),
        }
    }

    /// Returns the lock as its context has it, whose lease lasts.
    pub(super) fn own(&self) -> Own {
        Own {
            attempt: AttemptId(self.attempt as u64),
            mode: self.mode,
            permits: self.indexes.clone(),
            fence: self.fence(),
            lasts: true,
            broken: self.broken,
        }
    }
}

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

impl engine::Request for Request {
    type Id = Key;
    type Context = Text;

    fn context(&self) -> &Text {
        &self.context
    }

    fn attempt(&self) -> AttemptId {
        AttemptId(self.attempt as u64)
    }

    fn nested(&self) -> bool {
        self.nested
    }

    fn queue(&self) -> bool {
        self.queue
    }

    fn claims(&self) -> impl Iterator<Item = (&Key, Mode)> {
        self.claims.iter().map(|claim| (&claim.id, claim.mode))
    }
}

/// A waiter that a step came upon in the queue of an id.
#[derive(Debug)]
pub(super) struct Place {
    /// The session that is to be notified.
    pub(super) session: i64,
    /// Its request; without the claims, as long as these were not asked for.
    pub(super) request: Rc<Request>,
}

impl Place {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(Turn, Self)> {
        let request = Request {
            context: row.get(2)?,
            attempt: row.get(3)?,
            claims: Set::new(),
            owner: owner_at(row, 7)?,
            lease: time_at(row, 8)?,
            queue: true,
            nested: row.get::<_, i64>(0)? == state::NESTED,
            detached: row.get(10)?,
        };
        let turn = Turn { ticket: row.get::<_, i64>(1)? as u64, mode: mode_at(row, 4)? };
        Ok((turn, Place { session: row.get(9)?, request: Rc::new(request) }))
    }
}

/// Text that is stored as bytes, so that a NUL is a character like any other.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Text(pub(super) Arc<str>);

impl Text {
    /// Returns the context of which this is the stored form.
    pub(super) fn stored(&self) -> StoredContext<String> {
        StoredContext::Known(self.0.to_string())
    }

    /// Returns what stands in the column.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromSql for Text {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Text(String::from_utf8_lossy(value.as_blob()?).into()))
    }
}

/// Permit indexes as they are stored: 32 bits each, little end first.
pub(super) struct IndexesColumn(pub(super) Indexes);

impl IndexesColumn {
    pub(super) fn encode(indexes: &[u32]) -> SmallVec<[u8; 8]> {
        indexes.iter().flat_map(|index| index.to_le_bytes()).collect()
    }
}

impl FromSql for IndexesColumn {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let (words, _) = value.as_blob()?.as_chunks::<4>();
        Ok(IndexesColumn(words.iter().map(|word| u32::from_le_bytes(*word)).collect()))
    }
}

/// The time or duration that stands in a column, in microseconds. No program of ours writes one below zero.
fn time_at(row: &Row<'_>, column: usize) -> rusqlite::Result<i64> {
    match row.get(column)? {
        time if time >= 0 => Ok(time),
        other => Err(rusqlite::Error::IntegralValueOutOfRange(column, other)),
    }
}

/// The label that stands in a column.
pub(super) fn owner_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Owner> {
    Ok(row.get_ref(column)?.as_str()?.into())
}

/// The columns `mode`, `permits`, `cap` of a mode. The numbers of the modes are part of the schema.
pub(super) fn mode_columns(mode: Mode) -> (i64, u32, u32) {
    match mode {
        Mode::Shared => (0, 0, 0),
        Mode::Slots { permits, limit } => (1, permits, limit),
        Mode::Exclusive => (2, 0, 0),
    }
}

/// The mode that stands in three columns from `first`. What is unknown excludes everything.
pub(super) fn mode_at(row: &Row<'_>, first: usize) -> rusqlite::Result<Mode> {
    Ok(match row.get(first)? {
        0_i64 => Mode::Shared,
        1 => Mode::Slots { permits: row.get(first + 1)?, limit: row.get(first + 2)? },
        _ => Mode::Exclusive,
    })
}
