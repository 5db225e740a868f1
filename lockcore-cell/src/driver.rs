//! The driver: carries steps out on the cell of the table.
//!
//! Each step is a pure function of the table, and a write on condition of the version that it was made for. What many tasks
//! request while a write is in flight goes into the next one, in the order of the requests (group commit), and a driver that
//! loses the race applies all of it to the newer table. It reads and writes the table only: see `store` for what precedes a step.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::backend::{Moment, ServiceTime, shared_runtime};
use serde_json::Map;
use tokio::sync::oneshot;

use crate::{
    cell::{Cell, Written},
    error::StoreError,
    order,
    pause::Pause,
    step::{Step, micros},
    store::{Store, TABLE},
    table::{MAX_BYTES, Table, Write},
    takeover::Sessions,
};

/// The pause after a shared write, as a share of how long it took.
const PAUSE_SHARE: u32 = 16;
/// A timer does not measure less.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The most steps in one write.
const MOST: usize = 256;

/// The time for which the last write of a process is kept in the table at least, in microseconds. One that looks for its own for
/// longer has it kept for longer.
pub(crate) const WRITES_KEPT: u64 = 120_000_000;

/// The steps that wait for their turn.
#[derive(Default)]
pub(crate) struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Box<dyn Job>>,
    is_driven: bool,
}

/// A step that waits for its turn.
trait Job: Send {
    /// Returns whether the table may be longer after it.
    fn grows(&self) -> bool;

    fn submitted(&self) -> Moment;

    /// Applies it as a part of the write with this number.
    fn apply(&mut self, step: &mut Step<'_>, number: u64);

    /// Answers with what it was in that write.
    fn answer(self: Box<Self>, outcome: Result<u64, StoreError>);
}

struct Of<T, F> {
    grows: bool,
    submitted: Moment,
    apply: F,
    /// By the number of the write: it may be known late which of them was made.
    results: Vec<(u64, T)>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&mut Step<'_>) -> T + Send> Job for Of<T, F> {
    fn grows(&self) -> bool {
        self.grows
    }

    fn submitted(&self) -> Moment {
        self.submitted
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

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Cell> Store<C> {
    /// Carries out a step, after which the table may be longer if it `grows`. It is carried out though the caller is dropped.
    pub(crate) async fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        grows: bool,
        apply: impl FnMut(&mut Step<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Of { grows, submitted: Moment::now(), apply, results: Vec::new(), answer };
        let starts = {
            let mut waiting = self.queue.lock();
            waiting.jobs.push_back(Box::new(job));
            !std::mem::replace(&mut waiting.is_driven, true)
        };
        if starts {
            // Also if it is never polled, as its runtime ends.
            let driving = Driving { store: self.clone(), is_done: false };
            shared_runtime().spawn(driving.drive());
        }
        answered.await.unwrap_or(Err(StoreError::Ended))
    }

    /// Carries out steps until one write has all of them. A step that has no time left is answered, also what waited in the queue.
    async fn carry_out(&self, mut batch: Vec<Box<dyn Job>>) {
        let mut pause = Pause::new(self.timeout);
        let mut tries =
            Tries { begun: order::next(), look: self.known().is_none(), sent: Vec::new(), in_doubt: false };
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
            let is_over = |job: &mut Box<dyn Job>| job.submitted().elapsed() >= self.timeout;
            for job in batch.extract_if(.., is_over) {
                job.answer(Err(error.clone().or_done_before(tries.in_doubt)));
            }
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
        let own = known.table.writes.get(&self.writer).map(|write| write.number);
        if let Some(number) = own.filter(|number| tries.sent.contains(number)) {
            self.notify().await;
            return Ok(Some(number));
        }
        self.own.retire(|name| known.table.sessions().contains(name));
        let stamp = self.stamp();
        let number = stamp.number;
        let mut now = self.cell.now().await?;
        let (mut table, mut full) = self.apply(&known.table, batch, now, number);
        if table == known.table && known.begun < tries.begun {
            // An answer without a write has to be true now.
            self.look().await?;
            known = self.known().expect("it was looked at");
            now = self.cell.now().await?;
            (table, full) = self.apply(&known.table, batch, now, number);
        }
        // Not while an earlier write may still arrive, which may have another answer: this one keeps it out.
        let is_same = table == known.table;
        if is_same && !tries.in_doubt {
            self.notify().await;
            return Ok(Some(number));
        }
        table.prune(now.lo, WRITES_KEPT);
        let (own, exists) = self.own.name();
        if exists {
            table.mark(&own);
        }
        let kept = 2 * micros(self.timeout);
        let kept = if kept > WRITES_KEPT { kept } else { 0 };
        table.writes.insert(self.writer.clone(), Write { number, at: now.lo, kept, rest: Map::new() });
        table.stamp = stamp;
        if table.probed != self.way {
            table.probed.clone_from(&self.way);
        }
        let content = table.write();
        if content.len() > MAX_BYTES && full && !is_same {
            let full = StoreError::Full { bytes: content.len(), max: MAX_BYTES, in_doubt: tries.in_doubt };
            for job in batch.extract_if(.., |job| job.grows()) {
                job.answer(Err(full.clone()));
            }
            return Ok(None);
        }
        let begun = (order::next(), Moment::now());
        match self.cell.replace(TABLE, known.version.as_ref(), content.into()).await {
            Ok(Written::Done(version)) => {
                self.written(version, table, begun);
                self.notify().await;
                Ok(Some(number))
            }
            Ok(Written::Refused) => {
                tries.sent.push(number);
                Ok(None)
            }
            Err(error) => {
                tries.sent.push(number);
                tries.in_doubt |= error.in_doubt();
                Err(error.into())
            }
        }
    }

    /// Applies all steps to a copy of the table; returns also whether a step may have made it longer.
    fn apply(
        &self,
        table: &Table,
        batch: &mut [Box<dyn Job>],
        now: ServiceTime,
        number: u64,
    ) -> (Table, bool) {
        let (mut table, sessions): (Table, Sessions) = (table.clone(), self.sessions.all());
        let (own, _) = self.own.name();
        let mut step = Step::new(&mut table, &sessions, now, self.cell.least_fence(now), &own);
        let mut grows = false;
        for job in batch {
            grows |= job.grows();
            job.apply(&mut step, number);
        }
        (table, grows)
    }
}

/// The driver at work. If it panics, or its runtime ends, the steps that wait are answered, and the next one starts another driver.
struct Driving<C: Cell> {
    store: Arc<Store<C>>,
    is_done: bool,
}

impl<C: Cell> Driving<C> {
    async fn drive(mut self) {
        loop {
            let batch: Vec<_> = {
                let mut waiting = self.store.queue.lock();
                let most = waiting.jobs.len().min(MOST);
                if most == 0 {
                    waiting.is_driven = false;
                    self.is_done = true;
                    return;
                }
                waiting.jobs.drain(..most).collect()
            };
            let (begun, is_shared) = (Moment::now(), batch.len() > 1);
            self.store.carry_out(batch).await;
            // Those that were answered may request again at once: with a short pause all of them share the next write, and without
            // one two halves take turns.
            let pause = begun.elapsed() / PAUSE_SHARE;
            if is_shared && pause >= SHORTEST_PAUSE {
                tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            }
        }
    }
}

impl<C: Cell> Drop for Driving<C> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut waiting = self.store.queue.lock();
            waiting.is_driven = false;
            waiting.jobs.clear();
        }
    }
}

/// The state of the tries of a batch.
struct Tries {
    /// See [`order`].
    begun: u64,
    /// The table that is known may be old.
    look: bool,
    /// The numbers of the writes that were not answered as done.
    sent: Vec<u64>,
    /// One of them may still be on its way.
    in_doubt: bool,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}
