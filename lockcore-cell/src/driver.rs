//! The driver: carries steps out on the cells of the table.
//!
//! Each step is a pure function of the table, and a write on condition of the versions that it was made for. What many tasks
//! request while a write is in flight goes into the next one, in the order of the requests (group commit), and a driver that
//! loses the race applies all of it to the newer table. It reads and writes the table only: see `store` for what precedes a step.
//!
//! Where the table has [parts](crate::parts), a write replaces all that its steps looked at, so that what they decided is true
//! when it is done. Steps that share no part go together as long as no other process is faster; from then on each is tried by itself.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use lockcore::backend::{Moment, ServiceTime, shared_runtime};
use serde_json::Map;
use tokio::sync::oneshot;

use crate::{
    cell::{Cell, Change, Written},
    error::StoreError,
    order,
    parts::Part,
    pause::Pause,
    step::{Step, micros},
    store::Store,
    table::{MAX_BYTES, Stamp, Table, Write},
};

/// The pause after a shared write, as a share of how long it took.
const PAUSE_SHARE: u32 = 16;
/// A timer does not measure less.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The most steps in one write.
const MOST: usize = 256;

/// The most writes at once: with more each would have less to share.
const FLIGHTS: usize = 4;

/// The time for which the last write of a process is kept in the table at least, in microseconds. One that looks for its own for
/// longer has it kept for longer.
pub(crate) const WRITES_KEPT: u64 = 120_000_000;

/// The steps that wait for their turn.
#[derive(Default)]
pub(crate) struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Box<dyn Job>>,
    /// The parts that a flight is about, and how many there are.
    busy: BTreeSet<Part>,
    flights: usize,
}

/// The steps of a write.
type Batch = Vec<Box<dyn Job>>;

/// A step that waits for its turn.
trait Job: Send {
    /// Returns the parts that it is about, in order.
    fn parts(&self) -> &[Part];

    /// Returns whether the table may be longer after it.
    fn grows(&self) -> bool;

    fn submitted(&self) -> Moment;

    /// Applies it as a part of the write with this number.
    fn apply(&mut self, step: &mut Step<'_>, number: u64);

    /// Answers with what it was in that write.
    fn answer(self: Box<Self>, outcome: Result<u64, StoreError>);
}

struct Of<T, F> {
    parts: Vec<Part>,
    grows: bool,
    submitted: Moment,
    apply: F,
    /// By the number of the write: it may be known late which of them was made.
    results: Vec<(u64, T)>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&mut Step<'_>) -> T + Send> Job for Of<T, F> {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

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

    /// Keeps parts from other writes, if none is about them; those that are `reserved` stay so.
    fn reserve(&self, parts: &[Part], reserved: &mut Vec<Part>) -> bool {
        let mut waiting = self.lock();
        let is_free = |part: &Part| reserved.contains(part) || !waiting.busy.contains(part);
        if !parts.iter().all(is_free) {
            return false;
        }
        for part in parts {
            if waiting.busy.insert(part.clone()) {
                reserved.push(part.clone());
            }
        }
        true
    }

    /// Ends a write, or a part of it, about these parts.
    fn free(&self, parts: &[Part]) {
        let mut waiting = self.lock();
        for part in parts {
            waiting.busy.remove(part);
        }
    }

    /// Takes the steps that can be carried out now, with at most so many parts. The order of those that share one stays.
    fn take(&self, most: usize) -> Option<Batch> {
        let mut waiting = self.lock();
        if waiting.flights >= FLIGHTS {
            return None;
        }
        let (mut taken, mut rest, mut blocked) = (Vec::new(), VecDeque::new(), waiting.busy.clone());
        let mut parts = BTreeSet::new();
        for job in std::mem::take(&mut waiting.jobs) {
            let new = job.parts().iter().filter(|part| !parts.contains(*part)).count();
            // What is said of no id is not in the table of several parts.
            let goes_with = || parts.contains(&Part::rest()) == job.parts().contains(&Part::rest());
            let fits = taken.len() < MOST && (parts.is_empty() || (parts.len() + new <= most && goes_with()));
            if fits && !job.parts().iter().any(|part| blocked.contains(part)) {
                parts.extend(job.parts().iter().cloned());
                taken.push(job);
            } else {
                blocked.extend(job.parts().iter().cloned());
                rest.push_back(job);
            }
        }
        waiting.jobs = rest;
        if taken.is_empty() {
            return None;
        }
        waiting.busy.append(&mut parts);
        waiting.flights += 1;
        Some(taken)
    }
}

/// Returns the parts that steps are about.
fn parts_of(batch: &[Box<dyn Job>]) -> Vec<Part> {
    let all: BTreeSet<Part> = batch.iter().flat_map(|job| job.parts().iter().cloned()).collect();
    all.into_iter().collect()
}

/// Returns whether there are steps that share no part with others.
fn has_groups(batch: &[Box<dyn Job>]) -> bool {
    let mut parts: BTreeSet<&Part> = BTreeSet::new();
    let mut left: Vec<&[Part]> = batch.iter().map(|job| job.parts()).collect();
    parts.extend(left.pop().into_iter().flatten());
    loop {
        let before = left.len();
        for own in left.extract_if(.., |own| own.iter().any(|part| parts.contains(part))).collect::<Vec<_>>()
        {
            parts.extend(own);
        }
        if left.len() == before {
            return before > 0;
        }
    }
}

/// Divides steps into groups of which no two share a part.
fn groups(batch: Batch) -> Vec<Batch> {
    let mut groups: Vec<(BTreeSet<Part>, Batch)> = Vec::new();
    for job in batch {
        let shares = |parts: &BTreeSet<Part>| job.parts().iter().any(|part| parts.contains(part));
        let mut own = (job.parts().iter().cloned().collect::<BTreeSet<_>>(), Vec::new());
        for (parts, jobs) in groups.extract_if(.., |(parts, _)| shares(parts)) {
            own.0.extend(parts);
            own.1.extend(jobs);
        }
        own.1.push(job);
        groups.push(own);
    }
    groups.into_iter().map(|(_, jobs)| jobs).collect()
}

impl<C: Cell> Store<C> {
    /// Carries out a step on these parts, after which they may be longer if it `grows`. It is carried out though the caller is
    /// dropped.
    pub(crate) async fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        parts: Vec<Part>,
        grows: bool,
        apply: impl FnMut(&mut Step<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Of { parts, grows, submitted: Moment::now(), apply, results: Vec::new(), answer };
        self.queue.lock().jobs.push_back(Box::new(job));
        self.drive();
        answered.await.unwrap_or(Err(StoreError::Ended))
    }

    /// Sends off what can be carried out now.
    fn drive(self: &Arc<Self>) {
        while let Some(batch) = self.queue.take(self.cell.at_once()) {
            let tries = Tries {
                begun: order::next(),
                look: false,
                alone: false,
                reserved: Vec::new(),
                sent: Vec::new(),
                in_doubt: false,
            };
            // Also if it is never polled, as its runtime ends.
            let flight = Flight { store: self.clone(), parts: parts_of(&batch), is_done: false };
            shared_runtime().spawn(flight.fly(batch, tries));
        }
    }

    /// Carries out steps until one write has all of them. A step that has no time left is answered, also what waited in the queue.
    /// Returns groups that are to go on each by itself.
    async fn carry_out(self: &Arc<Self>, mut batch: Batch, tries: &mut Tries) -> Vec<Batch> {
        let mut pause = Pause::new(self.timeout);
        loop {
            let error = match self.try_once(&mut batch, tries).await {
                Ok(Tried::Done(number)) => {
                    for job in batch {
                        job.answer(Ok(number));
                    }
                    return Vec::new();
                }
                Ok(Tried::Fewer) if !batch.is_empty() => continue,
                Ok(Tried::Fewer | Tried::Refused) => StoreError::Contended { in_doubt: false },
                Err(error) => error,
            };
            // It waits now, and others may go meanwhile.
            self.queue.free(&std::mem::take(&mut tries.reserved));
            let (is_contended, is_content) =
                (matches!(error, StoreError::Contended { .. }), error.is_of_content());
            // Beside a store that is away there is no other one.
            let rests = is_contended.then(|| Rests::begin(&self.queue));
            self.drive();
            let is_over = |job: &mut Box<dyn Job>| job.submitted().elapsed() >= self.timeout;
            for job in batch.extract_if(.., is_over) {
                job.answer(Err(error.clone().or_done_before(tries.in_doubt)));
            }
            if batch.is_empty() {
                return Vec::new();
            }
            tries.look = true;
            let rested = match is_contended || error.again() {
                true => pause.rest(error, tries.in_doubt).await,
                false => Err(error.or_done_before(tries.in_doubt)),
            };
            drop(rests);
            if let Err(error) = &rested
                && self.is_apart()
                && is_content
                && batch.len() > 1
            {
                // It is about those that look at that cell. The others go on together, as they may share a part.
                let Ok(readable) = self.readable(parts_of(&batch)).await else {
                    // The next try tells what the store has.
                    tokio::time::sleep(LONGEST_PAUSE).await;
                    continue;
                };
                let fails = |job: &mut Box<dyn Job>| job.parts().iter().any(|part| !readable.contains(part));
                for job in batch.extract_if(.., fails) {
                    job.answer(Err(error.clone()));
                }
                if batch.is_empty() {
                    return Vec::new();
                }
                continue;
            }
            if rested.is_err() && self.is_apart() && has_groups(&batch) {
                // It may be about some of them only.
                return groups(batch);
            }
            if let Err(error) = rested {
                for job in batch {
                    job.answer(Err(error.clone()));
                }
                return Vec::new();
            }
            if self.is_apart() && is_contended {
                let mut all = groups(batch);
                if all.len() > 1 {
                    return all;
                }
                batch = all.pop().unwrap_or_default();
            }
        }
    }

    /// Tries once to carry out steps.
    async fn try_once(&self, batch: &mut Batch, tries: &mut Tries) -> Result<Tried, StoreError> {
        let mut parts = parts_of(batch);
        self.look(&self.missing(&parts, batch, tries.look)).await?;
        let has_looked = std::mem::take(&mut tries.look);
        let mut known = self.view(&parts);
        if let Some(number) = known.last_write(&self.writer, &tries.sent) {
            self.notify(&parts).await;
            return Ok(Tried::Done(number));
        }
        if self.own.retire(|name| known.table.sessions().contains(name)) {
            // Their places move to the other name when they ask again.
            self.waiters.wake_all();
        }
        let own = &match self.is_apart() && batch.iter().any(|job| job.grows()) {
            true => self.begin().await?,
            false => self.own.name().0,
        };
        let stamp = self.stamp();
        let number = stamp.number;
        let mut after = self.apply(&known.table, batch, number, own).await?;
        if !after.is_new && known.begun < tries.begun {
            // An answer without a write has to be true now.
            self.look(&parts).await?;
            known = self.view(&parts);
            if known.begun < tries.begun {
                return Ok(Tried::Refused);
            }
            after = self.apply(&known.table, batch, number, own).await?;
        }
        // Those who wait for other ids as well are served by the step that frees one, as all others are; where that would be too
        // many at once, or another write of this process is about them, they serve themselves.
        while !after.more.is_empty()
            && !tries.alone
            && parts.len() + after.more.len() <= self.cell.at_once()
            && self.queue.reserve(&after.more, &mut tries.reserved)
        {
            let is_unknown = |part: &&Part| has_looked || self.known_of(part).is_none();
            let unknown: Vec<Part> = after.more.iter().filter(is_unknown).cloned().collect();
            match self.look(&unknown).await {
                // It is about a waiter, and not about these steps.
                Err(error) if error.is_of_content() => {
                    tries.alone = true;
                    break;
                }
                looked => looked.map(drop)?,
            }
            parts.append(&mut after.more);
            known = self.view(&parts);
            after = self.apply(&known.table, batch, number, own).await?;
        }
        // Not while an earlier write may still arrive, which may have another answer: this one keeps it out.
        let After { now, table, is_new, grows, .. } = after;
        let is_same = !is_new && known.has_whole_places();
        if is_same && !tries.in_doubt {
            self.notify(&parts).await;
            return Ok(Tried::Done(number));
        }
        let (mut tables, mut changes) = (Vec::new(), Vec::new());
        let (mut bytes, mut longest, mut at_longest) = (0, 0, 0);
        for (part, at, mut table) in known.split(&table) {
            self.sign(&mut table, &stamp, now);
            let content = table.write();
            bytes += content.len();
            if content.len() > longest {
                (longest, at_longest) = (content.len(), tables.len());
            }
            tables.push((part.clone(), table));
            changes.push(Change { name: part.name().to_owned(), at: at.cloned(), content: content.into() });
        }
        let most = self.cell.most_bytes();
        if (longest > MAX_BYTES || bytes > most) && !is_same {
            // With less beside it, as far as that goes.
            tries.alone = true;
            let others = parts.len() > parts_of(batch).len();
            if others || (self.is_apart() && has_groups(batch)) {
                return Ok(Tried::Refused);
            }
            if grows && known.begun < tries.begun {
                // Others may have left since then.
                return Ok(Tried::Refused);
            }
            let most_of_one = MAX_BYTES.min(most);
            let is_long = (longest > most_of_one).then(|| &tables[at_longest].0);
            let going = can_go(batch, is_long, bytes > most && parts.len() > 1);
            let (bytes, max) = if is_long.is_some() { (longest, most_of_one) } else { (bytes, most) };
            let full = StoreError::Full { bytes, max, in_doubt: tries.in_doubt };
            if !going.is_empty() {
                if batch.len() == 1 && !batch[0].grows() {
                    return Err(full);
                }
                answer_longest(batch, going, &full);
                return Ok(Tried::Fewer);
            }
        }
        let begun = (order::next(), Moment::now());
        match self.cell.replace_all(&changes).await {
            Ok(Written::Done(versions)) => {
                for ((part, table), version) in tables.into_iter().zip(versions) {
                    self.written(part, version, table, begun);
                }
                self.notify(&parts).await;
                Ok(Tried::Done(number))
            }
            Ok(Written::Refused) => {
                tries.sent.push(number);
                Ok(Tried::Refused)
            }
            Err(error) => {
                tries.sent.push(number);
                tries.in_doubt |= error.in_doubt();
                Err(error.into())
            }
        }
    }

    /// Returns the parts that have to be looked at: all, or those that are not known. A set that is taken for the first time is free, as
    /// a rule: to guess that costs nothing where it is true.
    fn missing(&self, parts: &[Part], batch: &[Box<dyn Job>], all: bool) -> Vec<Part> {
        let is_guess = |part: &Part| {
            let mut of = batch.iter().filter(|job| job.parts().contains(part));
            self.is_apart() && of.all(|job| job.grows())
        };
        let is_missing = |part: &&Part| all || (self.known_of(part).is_none() && !is_guess(part));
        parts.iter().filter(is_missing).cloned().collect()
    }

    /// Makes a table what a write has of it.
    fn sign(&self, table: &mut Table, stamp: &Stamp, now: ServiceTime) {
        table.prune(now.lo, WRITES_KEPT);
        let (own, exists) = self.own.name();
        if exists {
            table.mark(&own);
        }
        let kept = 2 * micros(self.timeout);
        let kept = if kept > WRITES_KEPT { kept } else { 0 };
        let write = Write { number: stamp.number, at: now.lo, kept, rest: Map::new() };
        table.writes.insert(self.writer.clone(), write);
        table.stamp = stamp.clone();
        if table.probed != self.way && !self.is_apart() {
            table.probed.clone_from(&self.way);
        }
    }

    /// Applies all steps to a copy of the table.
    async fn apply(
        &self,
        table: &Table,
        batch: &mut [Box<dyn Job>],
        number: u64,
        own: &str,
    ) -> Result<After, StoreError> {
        let now = self.cell.now().await?;
        let (before, mut table, sessions) = (table, table.clone(), self.sessions.all());
        let mut step = Step::new(&mut table, &sessions, now, self.cell.least_fence(now), own);
        step.fences = self.is_apart().then_some(&self.fences);
        let mut grows = false;
        for job in batch {
            grows |= job.grows();
            job.apply(&mut step, number);
        }
        let more = if step.missing.is_empty() { Vec::new() } else { self.parts(&step.missing) };
        let is_new = step.is_written || table != *before;
        Ok(After { now, table, is_new, grows, more })
    }
}

/// Returns the positions of steps without which a write may be short enough: those that make longer what `is_long`, else those of several
/// parts where all together are too long. A step of one part that is not too long fits by itself.
fn can_go(batch: &[Box<dyn Job>], is_long: Option<&Part>, are_long: bool) -> Vec<usize> {
    let all = |can: &dyn Fn(&dyn Job) -> bool| -> Vec<usize> {
        (0..batch.len()).filter(|position| can(&*batch[*position])).collect()
    };
    let of_long = all(&|job| job.grows() && is_long.is_some_and(|part| job.parts().contains(part)));
    let of_several = |growing: bool| all(&|job| are_long && job.parts().len() > 1 && job.grows() == growing);
    [of_long, of_several(true), of_several(false)]
        .into_iter()
        .find(|going| !going.is_empty())
        .unwrap_or_default()
}

/// Answers the longer half of these steps; of those with as many parts, the later ones.
fn answer_longest(batch: &mut Batch, mut going: Vec<usize>, error: &StoreError) {
    going.sort_by_key(|position| (batch[*position].parts().len(), *position));
    let mut going = going.split_off(going.len() / 2);
    going.sort_unstable();
    for position in going.into_iter().rev() {
        batch.remove(position).answer(Err(error.clone()));
    }
}

/// The outcome of a try.
enum Tried {
    /// All steps are in the write with this number, or were true without one.
    Done(u64),
    /// Some steps were answered, as the write was too long: the others are tried at once.
    Fewer,
    /// Another process was faster, or the steps have to be divided, or made of a newer table.
    Refused,
}

/// The table after the steps of a batch.
struct After {
    /// The time by which they were applied.
    now: ServiceTime,
    table: Table,
    /// Set if it has to be written.
    is_new: bool,
    /// Set if a step may have made it longer.
    grows: bool,
    /// The parts to look at in order to serve all who wait.
    more: Vec<Part>,
}

/// A flight that pauses, and is none of those that are counted. When it is dropped it goes on.
struct Rests<'a>(&'a Queue);

impl<'a> Rests<'a> {
    fn begin(queue: &'a Queue) -> Self {
        queue.lock().flights -= 1;
        Rests(queue)
    }
}

impl Drop for Rests<'_> {
    fn drop(&mut self) {
        self.0.lock().flights += 1;
    }
}

/// A batch on its way. If it panics, or its runtime ends, the steps that wait are answered, and the next one is sent off again.
struct Flight<C: Cell> {
    store: Arc<Store<C>>,
    parts: Vec<Part>,
    is_done: bool,
}

impl<C: Cell> Flight<C> {
    fn fly(self, batch: Batch, tries: Tries) -> BoxFuture<'static, ()> {
        Box::pin(self.carry(batch, tries))
    }

    async fn carry(mut self, batch: Batch, mut tries: Tries) {
        let (begun, is_shared) = (Moment::now(), batch.len() > 1);
        let groups = self.store.carry_out(batch, &mut tries).await;
        self.store.queue.free(&std::mem::take(&mut tries.reserved));
        for group in groups {
            let parts = parts_of(&group);
            self.parts.retain(|part| !parts.contains(part));
            self.store.queue.lock().flights += 1;
            let flight = Flight { store: self.store.clone(), parts, is_done: false };
            shared_runtime().spawn(flight.fly(group, tries.clone()));
        }
        // Those that were answered may request again at once: with a short pause all of them share the next write, and without
        // one two halves take turns.
        let pause = begun.elapsed() / PAUSE_SHARE;
        if is_shared && pause >= SHORTEST_PAUSE {
            tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
        }
        self.is_done = true;
        let store = self.store.clone();
        drop(self);
        store.drive();
    }
}

impl<C: Cell> Drop for Flight<C> {
    fn drop(&mut self) {
        self.store.queue.free(&self.parts);
        let mut waiting = self.store.queue.lock();
        waiting.flights = waiting.flights.saturating_sub(1);
        if !self.is_done {
            waiting.jobs.clear();
            // With what it had reserved, too. Those of other writes meet each other by their versions.
            waiting.busy.clear();
        }
    }
}

/// The state of the tries of a batch.
#[derive(Clone)]
struct Tries {
    /// See [`order`].
    begun: u64,
    /// The table that is known may be old.
    look: bool,
    /// Nothing is looked at beside what the steps are about: the write would be too long.
    alone: bool,
    /// The parts that were looked at beside those of the steps.
    reserved: Vec<Part>,
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
