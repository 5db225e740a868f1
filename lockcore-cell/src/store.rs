//! A namespace in a store, as one process sees it: what it knows, and what it does beside the driver.
//!
//! The rule: a step reads and writes the table, and nothing else. What it needs of sessions is fetched before, by the caller who wants
//! it, bounded in number and time, and a failure of that concerns only the ids that it is about. Renewals and heartbeats wait for
//! no step.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use lockcore::{
    BackendError, BackendErrorKind,
    backend::{Moment, Waiters, shared_runtime},
};
use tokio::sync::Notify;

use crate::{
    cell::{Cell, Found},
    error::StoreError,
    order,
    own::OwnSession,
    parts::{Known, Part, View},
    pause::Pause,
    progress::{Cursor, Polling, Shared, Sweeping},
    queue::Queue,
    request::{Hold, Request},
    sessions::{Access, Book, IfAbsent},
    table::{Held, Place, Stamp, Table},
    takeover::{Needs, Scope, SeenCell},
};

/// The most cells that are read or written at once.
pub(crate) const AT_ONCE: usize = 16;

/// The most sessions of a preparation that are read, or closed, before the table is looked at again.
const AT_A_TIME: usize = 64;

/// The number of known parts from which on old ones are forgotten. What is needed again is read again.
const PARTS: usize = 8192;

/// The time after which a part that is known is old: longer than a step takes that looked at it.
const OLD_PART: Duration = Duration::from_secs(30);

/// A namespace in a store.
pub(crate) struct Store<C: Cell> {
    pub(crate) cell: C,
    /// The name of this process among those that write the table.
    pub(crate) writer: String,
    /// For one step, with all of its tries.
    pub(crate) timeout: Duration,
    writes: AtomicU64,
    known: Mutex<HashMap<Part, Arc<Known<C::Version>>>>,
    /// The number of known parts at which it is looked for old ones next.
    most_known: AtomicUsize,
    /// See [`Step::fences`].
    pub(crate) fences: AtomicU64,
    pub(crate) sweeping: tokio::sync::Mutex<Sweeping>,
    pub(crate) queue: Queue,
    pub(crate) own: OwnSession,
    pub(crate) sessions: Book<C::Version>,
    /// The waiters of this process, by attempt, with what they requested.
    pub(crate) waiters: Waiters<u64, Arc<Request>>,
    pub(crate) polling: Mutex<Polling>,
    pub(crate) collected: tokio::sync::Mutex<Option<Cursor>>,
    /// Held by a look that several callers share.
    looking: Shared,
    /// Notified after each look at the table: there may be something to take over.
    pub(crate) looked: Notify,
    /// Notified of each waiter that comes while the poll runs.
    pub(crate) joined: Notify,
    /// See [`CellSettings::way`](crate::CellSettings::way).
    pub(crate) way: String,
}

/// The outcome of a preparation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prepared {
    /// The sessions that could not be read or closed, and why: they count as they were known.
    pub(crate) failed: BTreeMap<String, StoreError>,
    /// It ended though there is more to read or to close.
    pub(crate) more: bool,
}

impl Prepared {
    fn note(&mut self, outcomes: impl Iterator<Item = (String, Result<(), StoreError>)>) {
        self.failed.extend(outcomes.filter_map(|(session, outcome)| Some((session, outcome.err()?))));
    }
}

impl<C: Cell> Store<C> {
    pub(crate) fn new(cell: C, writer: String, timeout: Duration, way: String) -> Self {
        Store {
            cell,
            writer,
            timeout,
            writes: AtomicU64::new(0),
            known: Mutex::default(),
            most_known: AtomicUsize::new(PARTS),
            fences: AtomicU64::new(0),
            sweeping: tokio::sync::Mutex::default(),
            queue: Queue::default(),
            own: OwnSession::new(),
            sessions: Book::default(),
            waiters: Waiters::new(),
            polling: Mutex::default(),
            collected: tokio::sync::Mutex::default(),
            looking: Shared::default(),
            looked: Notify::new(),
            joined: Notify::new(),
            way,
        }
    }

    /// Returns whether each id has a cell of its own.
    pub(crate) fn is_apart(&self) -> bool {
        self.cell.at_once() > 1
    }

    /// Returns the parts with all that is known of these ids.
    pub(crate) fn parts<'a>(&self, ids: impl IntoIterator<Item = &'a String>) -> Vec<Part> {
        if !self.is_apart() {
            return vec![Part::rest()];
        }
        let mut parts: Vec<Part> = ids.into_iter().map(|id| Part::of(id)).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// Returns what is known of some parts; those that were never looked at count as absent.
    pub(crate) fn view(&self, parts: &[Part]) -> View<C::Version> {
        let known: Vec<_> = parts.iter().map(|part| (part.clone(), self.known_of(part))).collect();
        let table = match &known[..] {
            [(_, Some(known))] => known.table.clone(),
            all => {
                let mut table = self.empty(None);
                for (part, known) in all {
                    match known {
                        Some(known) => table.add(&known.table),
                        None => table.add(&self.empty(Some(part))),
                    }
                }
                table.drop_withdrawn();
                Arc::new(table)
            }
        };
        let begun = known.iter().map(|(_, known)| known.as_ref().map_or(0, |known| known.begun)).min();
        // Of nothing all is known.
        View { parts: known, table, begun: begun.unwrap_or(u64::MAX) }
    }

    /// Returns the table of a part that has no cell.
    pub(crate) fn empty(&self, part: Option<&Part>) -> Table {
        let (ids, mut table) = (part.and_then(Part::id), Table::default());
        table.of = self.is_apart().then(|| ids.into_iter().collect());
        table
    }

    fn state(&self) -> MutexGuard<'_, HashMap<Part, Arc<Known<C::Version>>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the newest version of a part that is known, if any.
    pub(crate) fn known_of(&self, part: &Part) -> Option<Arc<Known<C::Version>>> {
        self.state().get(part).cloned()
    }

    /// Returns what is known of some parts, if all of them were looked at.
    pub(crate) fn known(&self, parts: &[Part]) -> Option<View<C::Version>> {
        Some(self.view(parts)).filter(|view| view.begun > 0)
    }

    /// Keeps a version of a part that was read.
    fn read(&self, part: Part, version: Option<C::Version>, table: Arc<Table>, (begun, at): (u64, Moment)) {
        self.learn(part, Known { version, table, order: begun, begun, at });
    }

    /// Keeps a version of a part that was written.
    pub(crate) fn written(&self, part: Part, version: C::Version, table: Table, (begun, at): (u64, Moment)) {
        let table = Arc::new(table);
        self.learn(part, Known { version: Some(version), table, order: order::next(), begun, at });
    }

    /// Keeps a version of a part unless a newer one is known.
    fn learn(&self, part: Part, known: Known<C::Version>) {
        let mut state = self.state();
        if state.get(&part).is_none_or(|newest| newest.order < known.order) {
            self.sessions.learn(&known.table);
            if state.len() >= self.most_known.load(Relaxed) {
                state.retain(|_, known| known.at.elapsed() < OLD_PART);
                self.most_known.store((2 * state.len()).max(PARTS), Relaxed);
            }
            state.insert(part, Arc::new(known));
        }
    }

    /// Reads some parts, and returns whether one of them is another one.
    pub(crate) async fn look(&self, parts: &[Part]) -> Result<bool, StoreError> {
        let before: Vec<_> = parts.iter().map(|part| self.known_of(part)).collect();
        let (begun, mut has_changed) = ((order::next(), Moment::now()), false);
        let version_of =
            |known: &Option<Arc<Known<_>>>| known.as_ref().and_then(|known| known.version.clone());
        let cells =
            parts.iter().zip(&before).map(|(part, known)| (part.name().to_owned(), version_of(known)));
        let found = match &cells.collect::<Vec<_>>()[..] {
            [] => return Ok(false),
            [(name, known)] => vec![self.cell.read(name, known.as_ref()).await?],
            cells => self.cell.read_all(cells).await?,
        };
        // One that cannot be read keeps the others from nothing.
        let mut failed = None;
        for ((part, before), found) in parts.iter().zip(before).zip(found) {
            let (version, table, changed) = match (found, before) {
                (Found::Changed(version, content), _) => match self.read_part(part, &content) {
                    Ok(table) => (Some(version), Arc::new(table), true),
                    Err(error) => {
                        failed = Some(error);
                        continue;
                    }
                },
                (Found::Unchanged, Some(before)) => (before.version.clone(), before.table.clone(), false),
                (Found::Unchanged | Found::Absent, before) => {
                    let changed = before.is_none_or(|before| before.version.is_some());
                    (None, Arc::new(self.empty(Some(part))), changed)
                }
            };
            has_changed |= changed;
            self.read(part.clone(), version, table, begun);
        }
        failed.map_or(Ok(has_changed), Err)
    }

    fn read_part(&self, part: &Part, content: &[u8]) -> Result<Table, StoreError> {
        let mut table = Table::read(content).map_err(|error| error.of_cell(part.name()))?;
        let of = self.empty(Some(part)).of;
        let is_own = |id: &String| of.as_ref().is_none_or(|of| of.contains(id));
        let is_claimed = |place: &Place| place.claims.iter().any(|claim| is_own(&claim.id));
        let is_ours = table.ids.keys().all(is_own) && table.places.values().all(is_claimed);
        match is_ours {
            true => {
                table.of = of;
                Ok(table)
            }
            false => Err(StoreError::corrupt("the cell of another id").of_cell(part.name())),
        }
    }

    /// Returns the table of some parts that is known, read now if there is none that `suits`; tries again while the store is away.
    async fn table(
        &self,
        parts: &[Part],
        suits: impl Fn(&View<C::Version>) -> bool,
    ) -> Result<View<C::Version>, StoreError> {
        if let Some(known) = self.known(parts).filter(|known| suits(known)) {
            return Ok(known);
        }
        let mut pause = Pause::new(self.timeout);
        loop {
            let is_done = async || Ok(self.known(parts).filter(|known| suits(known)));
            let look = async {
                self.look(parts).await?;
                // A part that was forgotten since then is looked at again.
                self.known(parts).ok_or(StoreError::Contended { in_doubt: false })
            };
            let looked = match self.is_apart() {
                true => look.await,
                false => self.looking.once(is_done, look).await,
            };
            match looked {
                Ok(known) => return Ok(known),
                Err(error) if error.again() || matches!(error, StoreError::Contended { .. }) => {
                    pause.rest(error, false).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { session: self.writer.clone(), number: self.writes.fetch_add(1, Relaxed) + 1 }
    }

    pub(crate) fn access<'a>(&'a self, stamp: &'a (dyn Fn() -> Stamp + Sync)) -> Access<'a, C> {
        Access { cell: &self.cell, stamp, timeout: self.timeout }
    }

    /// Reads the sessions that matter to a step, and closes to renewal what it may take over. Ends when nothing is left to do, or no
    /// time, or after as many as the scope says.
    pub(crate) async fn prepare(&self, scope: &Scope) -> Result<Prepared, StoreError> {
        let (begun, mut done, mut read) = (Moment::now(), Prepared::default(), BTreeSet::new());
        let (stamp, parts) = (|| self.stamp(), self.parts(&scope.ids));
        let access = &self.access(&stamp);
        let (mut reads_left, mut closes_left) = (scope.most, scope.most);
        // The newest table decides what is shown or broken.
        let mut least = if scope.shows || scope.closes.is_some() { order::next() } else { 0 };
        loop {
            let known = self.table(&parts, |known| known.begun > least).await?;
            let now = self.cell.now().await?;
            let Needs { read: to_read, close } = Needs::of(&known.table, &self.sessions.all(), now, scope);
            let reads: Vec<String> = to_read.into_iter().filter(|session| !read.contains(session)).collect();
            // A session that is not read yet is not closed yet.
            let mut closes: Vec<_> = close
                .into_iter()
                .filter(|(session, _)| !done.failed.contains_key(session) && !reads.contains(session))
                .collect();
            done.more = !(reads.is_empty() && closes.is_empty());
            let reads: Vec<String> = reads.into_iter().take(AT_A_TIME.min(reads_left)).collect();
            closes.truncate(AT_A_TIME.min(closes_left));
            let left = begun.left_of(self.timeout);
            if (reads.is_empty() && closes.is_empty()) || left.is_zero() {
                self.sessions.keep(&self.own.name().0, &known.table);
                return Ok(done);
            }
            reads_left -= reads.len();
            closes_left -= closes.len();
            let asked = reads.clone();
            let reading = reads.into_iter().map(|session| async move {
                let outcome = self.sessions.read(&self.cell, &session).await;
                (session, outcome)
            });
            read.extend(asked.iter().cloned());
            let closing_of: Vec<String> = closes.iter().map(|(session, _)| session.clone()).collect();
            let closing = closes.into_iter().map(|(session, locks)| {
                let was_there = known.table.was_there(&session);
                let if_absent = if was_there { IfAbsent::Gone } else { IfAbsent::Create };
                async move {
                    let outcome = self.sessions.close(access, &session, if_absent, &locks).await;
                    (session, outcome)
                }
            });
            let work = async {
                let read: Vec<_> = stream::iter(reading).buffered(AT_ONCE).collect().await;
                let closed: Vec<_> = stream::iter(closing).buffered(AT_ONCE).collect().await;
                read.into_iter().chain(closed)
            };
            // A write that is given up may still be done: nothing is lost by that.
            match tokio::time::timeout(left, work).await {
                Ok(outcomes) => done.note(outcomes),
                Err(_elapsed) => {
                    // A session without an answer in time counts as it was known.
                    let late =
                        StoreError::Cell(BackendError::new(BackendErrorKind::Timeout, "no answer in time"));
                    done.failed.extend(
                        asked.iter().cloned().chain(closing_of).map(|session| (session, late.clone())),
                    );
                    return Ok(Prepared { more: true, ..done });
                }
            }
            // Only a table that was read after that says whether an absent session was there before.
            let sessions = self.sessions.all();
            let is_absent =
                |session: &String| sessions.get(session).is_some_and(|seen| seen.cell == SeenCell::Absent);
            if asked.iter().any(is_absent) {
                least = order::next();
            }
        }
    }

    /// Prepares on the library's runtime.
    pub(crate) async fn prepared(self: &Arc<Self>, scope: &Scope) -> Result<Prepared, StoreError> {
        let (store, scope) = (self.clone(), scope.clone());
        hosted(async move { store.prepare(&scope).await }).await
    }

    /// Returns whether a step would find more now than what it was prepared for.
    pub(crate) async fn is_unprepared(&self, scope: &Scope, prepared: &Prepared) -> Result<bool, StoreError> {
        let Some(known) = self.known(&self.parts(&scope.ids)) else { return Ok(true) };
        let now = self.cell.now().await?;
        let sessions = self.sessions.all();
        let Needs { read, close } = Needs::of(&known.table, &sessions, now, scope);
        let unread = read.into_iter().filter(|session| !sessions.contains_key(session));
        Ok(close.into_keys().chain(unread).any(|session| !prepared.failed.contains_key(&session)))
    }

    /// Returns a table that `suits` and is from after the grant, whose sessions are known as far as they matter to it: a process may
    /// release and renew what another one took, and of its own session it knows all.
    pub(crate) async fn table_with(
        &self,
        hold: &Hold,
        suits: impl Fn(&View<C::Version>) -> bool,
    ) -> Result<View<C::Version>, StoreError> {
        let highest = hold.locks.iter().map(|(_, fence)| *fence).max().unwrap_or(0);
        let parts = self.parts(hold.ids());
        let known = self.table(&parts, |known| suits(known) && known.table.high >= highest).await?;
        let own = self.own.name().0;
        let mut of_others = Vec::new();
        for (id, fence) in &hold.locks {
            let held = known.table.ids.get(id).into_iter().flat_map(|state| &state.held);
            let of_other = |held: &&Held| held.fence == *fence && held.grant.session != own;
            of_others.extend(held.filter(of_other).map(|held| (id, held)));
        }
        if of_others.is_empty() {
            return Ok(known);
        }
        let (now, sessions) = (self.cell.now().await?, self.sessions.all());
        let is_unsure = |(id, held): &(&String, &Held)| known.table.until(id, held, &sessions, now) < now.hi;
        let unsure: BTreeSet<&String> =
            of_others.into_iter().filter(is_unsure).map(|(_, held)| &held.grant.session).collect();
        for session in unsure {
            self.sessions.read(&self.cell, session).await?;
        }
        Ok(known)
    }
}

/// Runs `work` on the library's runtime: it completes even if the caller is dropped, and the caller needs no runtime.
pub(crate) async fn hosted<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    shared_runtime().spawn(work).await.unwrap_or(Err(StoreError::Ended))
}

impl<C: Cell> fmt::Debug for Store<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("writer", &self.writer).finish_non_exhaustive()
    }
}
