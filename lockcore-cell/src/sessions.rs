//! The cells of sessions: renewals, heartbeats, and the locks that are closed to renewal.
//!
//! A session is one DAO of one process. Its cell is written by its heartbeat, and by other processes that take over from it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::backend::ServiceTime;

use crate::{
    cell::{Cell, Found, Written},
    error::StoreError,
    order,
    pause::Pause,
    session::{Close, Session},
    table::{Stamp, Table},
    takeover::{Seen, SeenCell, Sessions},
};

/// The number of sessions that are many.
const MANY: usize = 4096;

/// The known state of the cells of sessions.
#[derive(Debug)]
pub(crate) struct Book<V> {
    entries: Mutex<HashMap<String, Arc<Entry<V>>>>,
    /// The sessions whose cells were there by the table, and when this process learned that: see [`order`].
    marks: Mutex<BTreeMap<String, u64>>,
}

#[derive(Debug)]
struct Entry<V> {
    known: Mutex<Option<Known<V>>>,
    /// Held by the task that writes.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
struct Known<V> {
    /// `None`: there is no cell.
    version: Option<V>,
    seen: Seen,
    /// See [`order`].
    order: u64,
    /// The number at which it was first read as it is.
    first: u64,
}

/// The access that a change of a session needs.
pub(crate) struct Access<'a, C> {
    pub(crate) cell: &'a C,
    /// The next write of this process.
    pub(crate) stamp: &'a (dyn Fn() -> Stamp + Sync),
    pub(crate) timeout: Duration,
}

/// The action of a change where there is no cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IfAbsent {
    /// It makes one: nothing was renewed yet.
    Create,
    /// Nothing: the cell was there and was removed, and must not be made again.
    Gone,
}

/// The outcome of a change of a session.
#[derive(Clone, Debug)]
pub(crate) enum Changed {
    /// The session as it is now.
    To(Arc<Session>),
    /// There is no cell any more.
    Gone,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn name(session: &str) -> String {
    format!("session/{session}")
}

impl<V> Default for Book<V> {
    fn default() -> Self {
        Book { entries: Mutex::default(), marks: Mutex::default() }
    }
}

impl<V: Clone> Book<V> {
    fn entry(&self, session: &str) -> Arc<Entry<V>> {
        let make = || Arc::new(Entry { known: Mutex::default(), turn: tokio::sync::Mutex::default() });
        lock(&self.entries).entry(session.to_owned()).or_insert_with(make).clone()
    }

    /// Notes which sessions were there by a table that was learned just now.
    pub(crate) fn learn(&self, table: &Table) {
        let mut marks = lock(&self.marks);
        if table.of.is_none() {
            marks.retain(|session, _| table.was_there(session));
        } else if marks.len() >= MANY {
            marks.clear();
        }
        for session in table.there.keys() {
            marks.entry(session.clone()).or_insert_with(order::next);
        }
    }

    /// Returns all that is known.
    pub(crate) fn all(&self) -> Sessions {
        let (entries, marks) = (lock(&self.entries), lock(&self.marks));
        let known = |(session, entry): (&String, &Arc<Entry<V>>)| {
            let Known { seen, first, .. } = lock(&entry.known).clone()?;
            let is_after_mark = marks.get(session).is_some_and(|mark| mark < &first);
            Some((session.clone(), Seen { is_after_mark, ..seen }))
        };
        entries.iter().filter_map(known).collect()
    }

    /// Forgets the sessions that have neither a grant nor a place in a table any more, but for `own`. Where each id has a cell of its own
    /// all others, once they are many.
    pub(crate) fn keep(&self, own: &str, table: &Table) {
        let mut entries = lock(&self.entries);
        let live = match table.of {
            Some(_) if entries.len() < MANY => return,
            Some(_) => BTreeSet::new(),
            None if entries.keys().all(|session| session == own) => return,
            None => table.sessions(),
        };
        entries.retain(|session, entry| {
            session == own || live.contains(session.as_str()) || Arc::strong_count(entry) > 1
        });
    }

    /// Reads a session. That it was absent before the table said that it was there is forgotten.
    pub(crate) async fn read<C: Cell<Version = V>>(&self, cell: &C, session: &str) -> Result<(), StoreError> {
        let (entry, mark) = (self.entry(session), lock(&self.marks).get(session).copied());
        let is_old = |known: &mut Known<V>| {
            known.seen.cell == SeenCell::Absent && mark.is_some_and(|mark| known.first <= mark)
        };
        lock(&entry.known).take_if(is_old);
        entry.read(cell, session).await.map(drop)
    }

    /// Closes locks of a session to renewal, as they are now.
    pub(crate) async fn close<C: Cell<Version = V>>(
        &self,
        access: &Access<'_, C>,
        session: &str,
        if_absent: IfAbsent,
        locks: &[Close],
    ) -> Result<(), StoreError> {
        let change = |session: &mut Session, now: ServiceTime| session.close(locks, now);
        self.change(access, session, if_absent, change).await.map(drop)
    }

    /// Changes a session on condition that it is the one that is known; `change` returns whether there is anything to write.
    pub(crate) async fn change<C: Cell<Version = V>>(
        &self,
        access: &Access<'_, C>,
        session: &str,
        if_absent: IfAbsent,
        change: impl Fn(&mut Session, ServiceTime) -> bool + Sync,
    ) -> Result<Changed, StoreError> {
        let entry = self.entry(session);
        let _turn = entry.turn.lock().await;
        entry.change(access, session, if_absent, change).await
    }
}

impl<V: Clone> Entry<V> {
    async fn read<C: Cell<Version = V>>(&self, cell: &C, session: &str) -> Result<Known<V>, StoreError> {
        let before = lock(&self.known).clone();
        let (now, order) = (cell.now().await?, order::next());
        let version = before.as_ref().and_then(|known| known.version.clone());
        let answer = cell.read(&name(session), version.as_ref()).await?;
        let (version, cell_seen) = match (answer, &before) {
            // Content that cannot be read concerns no other session; this program changes nothing of it.
            (Found::Changed(version, content), _) => {
                let read = Session::read(&content);
                (
                    Some(version),
                    read.map_or(SeenCell::Unreadable, |session| SeenCell::There(Arc::new(session))),
                )
            }
            (Found::Unchanged, Some(before)) => (before.version.clone(), before.seen.cell.clone()),
            (Found::Unchanged | Found::Absent, _) => (None, SeenCell::Absent),
        };
        // Since the answer: until then it may have been another. A time of before the clock was set back is none.
        let latest = cell.now().await?.hi;
        let same = before.filter(|before| before.seen.cell == cell_seen && before.seen.since <= latest);
        let (since, first) = same.map_or((latest, order), |before| (before.seen.since, before.first));
        let seen = Seen { cell: cell_seen, at: now.lo, since, is_after_mark: false };
        let known = Known { version, seen, order, first };
        let mut newest = lock(&self.known);
        // A write that was done meanwhile is newer.
        if newest.as_ref().is_none_or(|newest| newest.order < order) {
            *newest = Some(known.clone());
        }
        Ok(newest.clone().unwrap_or(known))
    }

    async fn change<C: Cell<Version = V>>(
        &self,
        access: &Access<'_, C>,
        session: &str,
        if_absent: IfAbsent,
        change: impl Fn(&mut Session, ServiceTime) -> bool + Sync,
    ) -> Result<Changed, StoreError> {
        let mut pause = Pause::new(access.timeout);
        let (mut sent, mut in_doubt, mut is_stale) = (Vec::new(), false, false);
        loop {
            let known = lock(&self.known).clone().filter(|_| !is_stale);
            let tried = async {
                let known = match known {
                    Some(known) => known,
                    None => self.read(access.cell, session).await?,
                };
                let old = match &known.seen.cell {
                    SeenCell::There(session) => session.clone(),
                    SeenCell::Absent if if_absent == IfAbsent::Gone => return Ok(Some(Changed::Gone)),
                    SeenCell::Absent => Arc::new(Session::default()),
                    SeenCell::Unreadable => return Err(StoreError::Session(name(session))),
                };
                if sent.contains(&old.stamp) {
                    return Ok(Some(Changed::To(old)));
                }
                let now = access.cell.now().await?;
                let mut new = (*old).clone();
                if !change(&mut new, now) {
                    return Ok(Some(Changed::To(old)));
                }
                new.stamp = (access.stamp)();
                let stamp = new.stamp.clone();
                let content = new.write().into();
                match access.cell.replace(&name(session), known.version.as_ref(), content).await {
                    Ok(Written::Done(version)) => {
                        let new = Arc::new(new);
                        let (cell, at) = (SeenCell::There(new.clone()), now.lo);
                        let seen = Seen { cell, at, since: now.hi, is_after_mark: false };
                        let order = order::next();
                        *lock(&self.known) =
                            Some(Known { version: Some(version), seen, order, first: order });
                        Ok(Some(Changed::To(new)))
                    }
                    Ok(Written::Refused) => {
                        sent.push(stamp);
                        Ok(None)
                    }
                    Err(error) => {
                        sent.push(stamp);
                        in_doubt |= error.in_doubt();
                        Err(error.into())
                    }
                }
            };
            let error = match tried.await {
                Ok(Some(changed)) => return Ok(changed),
                Ok(None) => StoreError::Contended { in_doubt: false },
                Err(error) if error.again() => error,
                Err(error) => return Err(error.or_done_before(in_doubt)),
            };
            is_stale = true;
            pause.rest(error, in_doubt).await?;
        }
    }
}
