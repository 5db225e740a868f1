//! The driver: carries steps out on the cells of the table.
//!
//! Each step is a pure function of the table, and a write on condition of the versions that it was made for. What many tasks
//! request while a write is in flight goes into the next one, in the order of the requests (group commit), and a driver that
//! loses the race applies all of it to the newer table. It reads and writes the table only: see `store` for what precedes a step.
//!
//! Where the table has [parts](crate::parts), a write replaces all that its steps looked at, so that what they decided is true
//! when it is done. Steps that share no part go together as long as no other process is faster; from then on each is tried by itself.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use lockcore::backend::{Moment, ServiceTime, shared_runtime};
use serde_json::Map;

use crate::{
    cell::{Cell, Change, Written},
    error::StoreError,
    order,
    parts::Part,
    pause::Pause,
    queue::{Batch, Job, Rests, answer_longest, can_go, groups, has_groups, parts_of},
    step::Step,
    store::Store,
    table::{Stamp, Table, Write, micros},
};

/// The pause after a shared write, as a share of how long it took.
const PAUSE_SHARE: u32 = 16;
/// A timer does not measure less.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The time for which the last write of a process is kept in the table at least, in microseconds. One that looks for its own for
/// longer has it kept for longer.
pub(crate) const WRITES_KEPT: u64 = 120_000_000;

impl<C: Cell> Store<C> {
    /// Carries out a step on these parts that makes them hardly longer. It is carried out though the caller is dropped.
    pub(crate) async fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        parts: Vec<Part>,
        apply: impl FnMut(&mut Step<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit_up_to(usize::MAX, parts, apply).await
    }

    /// Carries out a step on these parts, after which each may have `most` bytes.
    pub(crate) async fn submit_up_to<T: Send + 'static>(
        self: &Arc<Self>,
        most: usize,
        parts: Vec<Part>,
        apply: impl FnMut(&mut Step<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let answered = self.queue.add(parts, most, apply);
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
            self.notify(&parts, false).await;
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
        let After { now, table, is_new, .. } = after;
        let is_same = !is_new && known.has_whole_places(own);
        if is_same && !tries.in_doubt {
            self.notify(&parts, false).await;
            return Ok(Tried::Done(number));
        }
        let (mut tables, mut changes) = (Vec::new(), Vec::new());
        let (mut lengths, mut bytes, most) = (Vec::new(), 0, self.cell.most_bytes());
        let most_of_one = batch.iter().map(|job| job.most()).min().unwrap_or(usize::MAX);
        let grows = most_of_one < usize::MAX;
        for (part, at, mut table) in known.split(table, own) {
            self.sign(&mut table, &stamp, now);
            let content = table.write();
            bytes += content.len();
            // Leaves room for what the waiters will hold.
            lengths.push((part, content.len() + if grows { table.reserved() } else { 0 }));
            tables.push((part.clone(), table));
            changes.push(Change { name: part.name().to_owned(), at: at.cloned(), content: content.into() });
            if bytes > most && !is_same {
                // The rest of a large set may be a hundred times as much.
                break;
            }
        }
        let longest = lengths.iter().map(|(_, length)| *length).max().unwrap_or(0);
        if (longest > most_of_one || bytes > most) && !is_same {
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
            let going = can_go(batch, &lengths, bytes > most && parts.len() > 1);
            let (bytes, max) = if longest > most_of_one { (longest, most_of_one) } else { (bytes, most) };
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
                self.notify(&parts, false).await;
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
        for job in batch {
            job.apply(&mut step, number);
        }
        let more = if step.missing.is_empty() { Vec::new() } else { self.parts(&step.missing) };
        let is_new = step.is_written || table != *before;
        Ok(After { now, table, is_new, more })
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
    /// The parts to look at in order to serve all who wait.
    more: Vec<Part>,
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
            self.store.queue.divide();
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
        self.store.queue.end(&self.parts, !self.is_done);
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
