//! The driver: carries steps out on the table's object.
//!
//! Each step is a pure function of the table, and a write on condition of the version that it was made for. What many tasks
//! request while a write is in flight goes into the next one, in the order of the requests (group commit), and a driver that
//! loses the race applies all of it to the newer table.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::try_join_all;
use lockcore::{
    LossReason,
    backend::{Moment, ServiceTime, Waiters, shared_runtime},
};
use tokio::sync::oneshot;

use crate::{
    cell::{Cell, Found, Version, Written},
    error::StoreError,
    pause::Pause,
    sessions::{Access, Book},
    step::{Hold, Losses, Renewable, Request, Sessions, Step, micros},
    table::{MAX_BYTES, Renewal, Stamp, Table, Write},
    takeover::{Concerned, Scope},
};

/// The most sessions that are read at once.
const READ_AT_ONCE: usize = 16;

/// The pause after a shared write, as a share of how long it took.
const PAUSE_SHARE: u32 = 16;
/// A timer does not measure less.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The most steps in one write.
const MOST: usize = 256;

/// How long the last write of a session is kept in the table: longer than its driver looks for it.
pub(crate) const WRITES_KEPT: u64 = 120_000_000;

/// A namespace in a store.
pub(crate) struct Store<C> {
    pub(crate) cell: C,
    /// The name of this DAO among others.
    pub(crate) session: String,
    /// For one step, with all of its tries.
    pub(crate) timeout: Duration,
    writes: AtomicU64,
    state: Mutex<StoreState>,
    pub(crate) sessions: Book,
    /// The waiters of this process, by attempt, with what they requested.
    pub(crate) waiters: Waiters<u64, Arc<Request>>,
    pub(crate) polling: Mutex<bool>,
}

#[derive(Default)]
struct StoreState {
    queue: VecDeque<Box<dyn Job>>,
    is_driven: bool,
    known: Option<Arc<Known>>,
}

/// A version of the table.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// `None`: there is no object yet.
    version: Option<Version>,
    pub(crate) table: Table,
    /// Before it was read or written.
    read: Moment,
}

/// A step that waits for its turn.
trait Job: Send {
    fn scope(&self) -> &Scope;

    /// Applies it as a part of the write with this number.
    fn apply(&mut self, step: &mut Step<'_>, number: u64);

    /// Answers with what it was in that write.
    fn answer(self: Box<Self>, outcome: Result<u64, StoreError>);
}

struct Of<T, F> {
    scope: Scope,
    apply: F,
    /// By the number of the write: it may be known late which of them was made.
    results: Vec<(u64, T)>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&mut Step<'_>) -> T + Send> Job for Of<T, F> {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn apply(&mut self, step: &mut Step<'_>, number: u64) {
        let result = (self.apply)(step);
        // It may be applied to a newer table before the write.
        self.results.retain(|(of, _)| *of != number);
        self.results.push((number, result));
    }

    fn answer(mut self: Box<Self>, outcome: Result<u64, StoreError>) {
        let result = outcome.map(|number| {
            let position = self.results.iter().position(|(of, _)| *of == number);
            self.results.swap_remove(position.expect("each write is applied before it is sent")).1
        });
        // A caller that was dropped withdraws, or needs no answer.
        let _ = self.answer.send(result);
    }
}

impl<C: Cell> Store<C> {
    pub(crate) fn new(cell: C, session: String, timeout: Duration) -> Self {
        Store {
            cell,
            session,
            timeout,
            writes: AtomicU64::new(0),
            state: Mutex::default(),
            sessions: Book::default(),
            waiters: Waiters::new(),
            polling: Mutex::new(false),
        }
    }

    /// Carries out a step. It is carried out though the caller is dropped.
    pub(crate) async fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        scope: Scope,
        apply: impl FnMut(&mut Step<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let starts = {
            let mut state = self.state();
            state.queue.push_back(Box::new(Of { scope, apply, results: Vec::new(), answer }));
            !std::mem::replace(&mut state.is_driven, true)
        };
        if starts {
            shared_runtime().spawn(self.clone().drive());
        }
        answered.await.unwrap_or(Err(StoreError::Ended))
    }

    /// Renews what a grant still holds: in the object of its session, unless only a part of what is held under a fence is to be
    /// renewed.
    pub(crate) async fn renew(self: &Arc<Self>, hold: Hold) -> Result<Losses, StoreError> {
        let hold = Arc::new(hold);
        let scope = Scope { ids: hold.locks.iter().map(|(id, _)| id.clone()).collect(), ..Scope::default() };
        let looked = hold.clone();
        let look = move |step: &mut Step<'_>| (step.renew(&looked), step.is_whole(&looked), step.now);
        let (Renewable { mut lost, extend }, is_whole, now) = self.submit(scope.clone(), look).await?;
        // What is renewed under a fence is renewed for all ids of it.
        let some_ended = lost.iter().any(|(_, reason)| *reason == LossReason::Expired);
        if !is_whole || some_ended {
            return self.submit(scope, move |step| step.extend(&hold)).await;
        }
        let mut by_session: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (session, fence) in extend {
            by_session.entry(session).or_default().push(fence);
        }
        let known = self.known();
        let live = |fence: u64| known.as_ref().is_none_or(|known| known.table.grants.contains_key(&fence));
        for (session, fences) in by_session {
            let renewal = Renewal { until: now.hi.saturating_add(hold.lease), lease: hold.lease };
            let closed = self
                .sessions
                .extend(&self.access(&|| self.stamp()), &session, fences, renewal, &live)
                .await?;
            let is_closed = |(_, (id, fence)): &(usize, &(String, u64))| {
                closed.get(fence).is_some_and(|ids| ids.contains_key(id))
            };
            let of_closed = hold.locks.iter().enumerate().filter(is_closed);
            lost.extend(of_closed.map(|(position, _)| (position, LossReason::Expired)));
        }
        lost.sort_by_key(|(position, _)| *position);
        lost.dedup_by_key(|(position, _)| *position);
        Ok(lost)
    }

    /// Returns the newest table that is known, if any.
    pub(crate) fn known(&self) -> Option<Arc<Known>> {
        self.state().known.clone()
    }

    /// Reads the table, and returns whether it is another one.
    pub(crate) async fn look(&self) -> Result<bool, StoreError> {
        let (before, read) = (self.known(), Moment::now());
        let version = before.as_ref().and_then(|known| known.version.clone());
        let (found, changed) = match (self.cell.read(TABLE, version.as_ref()).await?, before) {
            (Found::Changed(version, content), _) => {
                (Known { version: Some(version), table: Table::read(&content)?, read }, true)
            }
            (Found::Unchanged, Some(before)) => (Known { read, ..(*before).clone() }, false),
            (Found::Unchanged | Found::Absent, before) => {
                let changed = before.is_none_or(|before| before.version.is_some());
                (Known { version: None, table: Table::default(), read }, changed)
            }
        };
        self.learn(found);
        Ok(changed)
    }

    fn access<'a>(&'a self, stamp: &'a (dyn Fn() -> Stamp + Sync)) -> Access<'a, C> {
        Access { cell: &self.cell, stamp, timeout: self.timeout }
    }

    fn stamp(&self) -> Stamp {
        Stamp { session: self.session.clone(), number: self.writes.fetch_add(1, Relaxed) + 1 }
    }

    fn state(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a version of the table unless a newer one is known.
    fn learn(&self, found: Known) {
        let mut state = self.state();
        let is_newer = state.known.as_ref().is_none_or(|known| !found.read.since(&known.read).is_zero());
        if is_newer {
            state.known = Some(Arc::new(found));
        }
    }

    async fn drive(self: Arc<Self>) {
        let _driving = Driving(&self);
        loop {
            let batch: Vec<_> = {
                let mut state = self.state();
                let most = state.queue.len().min(MOST);
                if most == 0 {
                    state.is_driven = false;
                    return;
                }
                state.queue.drain(..most).collect()
            };
            let (begun, is_shared) = (Moment::now(), batch.len() > 1);
            self.carry_out(batch).await;
            // Those that were answered may request again at once: with a short pause all of them share the next write, and without
            // one two halves take turns.
            let pause = begun.elapsed() / PAUSE_SHARE;
            if is_shared && pause >= SHORTEST_PAUSE {
                tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            }
        }
    }

    /// Carries out steps until one write has all of them, or there is no time left.
    async fn carry_out(&self, mut batch: Vec<Box<dyn Job>>) {
        let begun = Moment::now();
        let mut pause = Pause::new(self.timeout);
        let mut tries = Tries { begun, look: self.known().is_none(), sent: Vec::new(), in_doubt: false };
        loop {
            let error = match self.try_once(&mut batch, &mut tries).await {
                Ok(Some(number)) => {
                    for job in batch {
                        job.answer(Ok(number));
                    }
                    return;
                }
                // Some were answered, or another process was faster.
                Ok(None) => StoreError::Contended { in_doubt: false },
                Err(error) => error,
            };
            if batch.is_empty() {
                return;
            }
            let is_contended = matches!(error, StoreError::Contended { .. });
            tries.look = true;
            let rested = match is_contended || error.again() {
                true => pause.rest(error, tries.in_doubt).await,
                false => Err(error.or_done_before(tries.in_doubt)),
            };
            if let Err(error) = rested {
                for job in batch {
                    job.answer(Err(error.clone()));
                }
                return;
            }
        }
    }

    /// Tries once to carry out steps; returns the number of the write that has them.
    async fn try_once(
        &self,
        batch: &mut Vec<Box<dyn Job>>,
        tries: &mut Tries,
    ) -> Result<Option<u64>, StoreError> {
        if tries.look {
            self.look().await?;
            tries.look = false;
        }
        let mut known = self.known().expect("it was looked at");
        let own = known.table.writes.get(&self.session).map(|write| write.number);
        if let Some(number) = own.filter(|number| tries.sent.contains(number)) {
            self.notify().await;
            return Ok(Some(number));
        }
        let scopes: Vec<Scope> = batch.iter().map(|job| job.scope().clone()).collect();
        let mut now = self.cell.now().await?;
        if self.settle(&known.table, &scopes, tries.begun, now).await? {
            now = self.cell.now().await?;
        }
        let mut sessions = self.sessions.all();
        let stamp = self.stamp();
        let number = stamp.number;
        let mut at = At { now, least_fence: self.cell.least_fence(now), session: &self.session, number };
        let (mut table, mut full) = apply(&known.table, batch, &sessions, &at);
        if table == known.table && known.read.since(&tries.begun).is_zero() {
            // What is answered without a write has to be true now.
            self.look().await?;
            known = self.known().expect("it was looked at");
            now = self.cell.now().await?;
            if self.settle(&known.table, &scopes, tries.begun, now).await? {
                now = self.cell.now().await?;
            }
            sessions = self.sessions.all();
            at = At { now, least_fence: self.cell.least_fence(now), ..at };
            (table, full) = apply(&known.table, batch, &sessions, &at);
        }
        if table == known.table {
            self.notify().await;
            return Ok(Some(number));
        }
        table.prune(now.lo, WRITES_KEPT);
        table.writes.insert(self.session.clone(), Write { number, at: now.lo });
        table.stamp = stamp;
        let content = table.write();
        if content.len() > MAX_BYTES && full {
            let (grows, rest) = std::mem::take(batch).into_iter().partition(|job| job.scope().grows);
            *batch = rest;
            let grows: Vec<_> = grows;
            for job in grows {
                job.answer(Err(StoreError::Full { bytes: content.len(), max: MAX_BYTES }));
            }
            return Ok(None);
        }
        let read = Moment::now();
        match self.cell.replace(TABLE, known.version.as_ref(), content.into()).await {
            Ok(Written::Done(version)) => {
                self.learn(Known { version: Some(version), table, read });
                self.notify().await;
                Ok(Some(number))
            }
            Ok(Written::Lost) => {
                tries.sent.push(number);
                Ok(None)
            }
            Err(error) => {
                tries.sent.push(number);
                tries.in_doubt |= error.in_doubt();
                Err(error)
            }
        }
    }

    /// Reads the sessions of the holders in the way whose lease seems to be over, and closes to renewal what is taken over from
    /// them; returns whether anything was asked.
    async fn settle(
        &self,
        table: &Table,
        scopes: &[Scope],
        begun: Moment,
        now: ServiceTime,
    ) -> Result<bool, StoreError> {
        let concerned = Concerned::of(table, scopes);
        let stamp = || self.stamp();
        let access = self.access(&stamp);
        let unsure: Vec<_> = concerned.unsure(&self.sessions.all(), now).into_iter().collect();
        let mut asked = !unsure.is_empty();
        for some in unsure.chunks(READ_AT_ONCE) {
            let mut reads = Vec::new();
            for session in some {
                reads.push(self.sessions.refresh(&access, session, begun));
            }
            try_join_all(reads).await?;
        }
        for (session, locks) in concerned.to_close(&self.sessions.all(), now) {
            self.sessions.close(&access, session, &locks).await?;
            asked = true;
        }
        let live = table.grants.values().map(|grant| grant.session.as_str()).collect();
        self.sessions.keep(&self.session, &live);
        Ok(asked)
    }
}

/// The driver at work. If it panics, the steps that wait are answered, and the next one starts another driver.
struct Driving<'a, C>(&'a Store<C>);

impl<C> Drop for Driving<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_driven = false;
            state.queue.clear();
        }
    }
}

/// The object with the table.
pub(crate) const TABLE: &str = "table";

/// What is known of the tries of a batch.
struct Tries {
    begun: Moment,
    /// The table that is known may be old.
    look: bool,
    /// The numbers of the writes that were not answered as done.
    sent: Vec<u64>,
    /// One of them may still be on its way.
    in_doubt: bool,
}

/// When and as what steps are applied.
struct At<'a> {
    now: ServiceTime,
    least_fence: u64,
    session: &'a str,
    number: u64,
}

/// Applies all steps to a copy of the table; returns also whether a step may have made it longer.
fn apply(
    table: &Table,
    batch: &mut [Box<dyn Job>],
    sessions: &Sessions,
    &At { now, least_fence, session, number }: &At<'_>,
) -> (Table, bool) {
    let mut table = table.clone();
    let mut step = Step { table: &mut table, sessions, now, least_fence, session };
    let mut grows = false;
    for job in batch {
        grows |= job.scope().grows;
        job.apply(&mut step, number);
    }
    (table, grows)
}

impl<C> fmt::Debug for Store<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Known {
    /// Returns how much is left of a lease that ends at `until`, in microseconds.
    pub(crate) fn left(until: u64, now: ServiceTime) -> Duration {
        Duration::from_micros(until.saturating_sub(now.hi))
    }
}

/// Runs what does requests where no caller's end stops it: callers may have no runtime.
pub(crate) async fn hosted<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    shared_runtime().spawn(work).await.unwrap_or(Err(StoreError::Ended))
}

/// Converts a lease. `permanent` is not declared, so that every lease that arrives here is finite.
pub(crate) fn lease(lease: Option<Duration>) -> u64 {
    micros(lease.unwrap_or(Duration::MAX))
}
