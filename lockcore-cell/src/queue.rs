//! The steps that wait for their turn, and which of them go together.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use lockcore::backend::Moment;
use tokio::sync::oneshot;

use crate::{error::StoreError, parts::Part, step::Step};

/// The most steps in one write.
const MOST: usize = 256;

/// The most writes at once: with more each would have less to share.
const FLIGHTS: usize = 4;

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
pub(crate) type Batch = Vec<Box<dyn Job>>;

/// A step that waits for its turn.
pub(crate) trait Job: Send {
    /// Returns the parts that it is about, in order.
    fn parts(&self) -> &[Part];

    /// Returns the bytes that each of its parts may have after it, if it makes them longer.
    fn most(&self) -> usize;

    /// Returns whether it makes its parts longer.
    fn grows(&self) -> bool {
        self.most() < usize::MAX
    }

    fn submitted(&self) -> Moment;

    /// Applies it as a part of the write with this number.
    fn apply(&mut self, step: &mut Step<'_>, number: u64);

    /// Answers with what it was in that write.
    fn answer(self: Box<Self>, outcome: Result<u64, StoreError>);
}

struct Of<T, F> {
    parts: Vec<Part>,
    most: usize,
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

    fn most(&self) -> usize {
        self.most
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
    /// Adds a step on these parts, after which each may have `most` bytes; returns where it is answered.
    pub(crate) fn add<T: Send + 'static>(
        &self,
        parts: Vec<Part>,
        most: usize,
        apply: impl FnMut(&mut Step<'_>) -> T + Send + 'static,
    ) -> oneshot::Receiver<Result<T, StoreError>> {
        let (answer, answered) = oneshot::channel();
        let job = Of { parts, most, submitted: Moment::now(), apply, results: Vec::new(), answer };
        self.lock().jobs.push_back(Box::new(job));
        answered
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps parts from other writes, if none is about them; those that are `reserved` stay so.
    pub(crate) fn reserve(&self, parts: &[Part], reserved: &mut Vec<Part>) -> bool {
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
    pub(crate) fn free(&self, parts: &[Part]) {
        let mut waiting = self.lock();
        for part in parts {
            waiting.busy.remove(part);
        }
    }

    /// Takes the steps that can be carried out now, with at most so many parts. The order of those that share one stays.
    pub(crate) fn take(&self, most: usize) -> Option<Batch> {
        let mut waiting = self.lock();
        if waiting.flights >= FLIGHTS {
            return None;
        }
        let (mut taken, mut rest, mut blocked) = (Vec::new(), VecDeque::new(), waiting.busy.clone());
        let mut parts = BTreeSet::new();
        for job in std::mem::take(&mut waiting.jobs) {
            let new = job.parts().iter().filter(|part| !parts.contains(*part)).count();
            // The part that is about no id is not in the table of several parts.
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

    /// Counts one more flight: a part of one that goes on by itself.
    pub(crate) fn divide(&self) {
        self.lock().flights += 1;
    }

    /// Ends a flight on these parts. If it `was_lost`, so is what waits: its callers are answered, and nothing is busy any more.
    pub(crate) fn end(&self, parts: &[Part], was_lost: bool) {
        self.free(parts);
        let mut waiting = self.lock();
        waiting.flights = waiting.flights.saturating_sub(1);
        if was_lost {
            waiting.jobs.clear();
            // With what it had reserved, too. Those of other writes meet each other by their versions.
            waiting.busy.clear();
        }
    }
}

/// Returns the parts that steps are about.
pub(crate) fn parts_of(batch: &[Box<dyn Job>]) -> Vec<Part> {
    let all: BTreeSet<Part> = batch.iter().flat_map(|job| job.parts().iter().cloned()).collect();
    all.into_iter().collect()
}

/// Returns whether there are steps that share no part with others.
pub(crate) fn has_groups(batch: &[Box<dyn Job>]) -> bool {
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
pub(crate) fn groups(batch: Batch) -> Vec<Batch> {
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

/// Returns the positions of steps without which a write may be short enough. `lengths` has those of the parts.
///
/// These are the steps on a part that is longer than they may make it. Where there are none and all parts together are too long, they are
/// the steps on several parts: one on a single part fits by itself. Of these, the ones with the least `most` go first, so that those that
/// make nothing longer are the last.
pub(crate) fn can_go(batch: &[Box<dyn Job>], lengths: &[(&Part, usize)], are_long: bool) -> Vec<usize> {
    let is_long = |job: &dyn Job| {
        lengths.iter().any(|(part, length)| *length > job.most() && job.parts().contains(part))
    };
    let all = |can: &dyn Fn(&dyn Job) -> bool| -> Vec<usize> {
        (0..batch.len()).filter(|position| can(&*batch[*position])).collect()
    };
    let mut going = all(&is_long);
    if going.is_empty() && are_long {
        going = all(&|job| job.parts().len() > 1);
    }
    let least = going.iter().map(|position| batch[*position].most()).min();
    going.retain(|position| Some(batch[*position].most()) == least);
    going
}

/// Answers the longer half of these steps; of those with as many parts, the later ones.
pub(crate) fn answer_longest(batch: &mut Batch, mut going: Vec<usize>, error: &StoreError) {
    going.sort_by_key(|position| (batch[*position].parts().len(), *position));
    let mut going = going.split_off(going.len() / 2);
    going.sort_unstable();
    for position in going.into_iter().rev() {
        batch.remove(position).answer(Err(error.clone()));
    }
}

/// A flight that pauses, and is none of those that are counted. When it is dropped it goes on.
pub(crate) struct Rests<'a>(&'a Queue);

impl<'a> Rests<'a> {
    pub(crate) fn begin(queue: &'a Queue) -> Self {
        queue.lock().flights -= 1;
        Rests(queue)
    }
}

impl Drop for Rests<'_> {
    fn drop(&mut self) {
        self.0.lock().flights += 1;
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that is given more room than others fits, perhaps, when they have gone.
    #[test]
    fn steps_with_the_least_room_go_first() {
        let (queue, a) = (Queue::default(), Part::of("a"));
        let _answers = [20, 10, usize::MAX, 10].map(|most| queue.add(vec![a.clone()], most, |_| ()));
        let mut batch = queue.take(1).expect("none of them is busy");
        assert_eq!(can_go(&batch, &[(&a, 30)], false), [1, 3]);
        assert_eq!(can_go(&batch, &[(&a, 10)], false), [0; 0]);
        batch.retain(|job| job.most() != 10);
        assert_eq!(can_go(&batch, &[(&a, 30)], false), [0]);
        assert_eq!(can_go(&batch, &[(&Part::of("b"), 30)], false), [0; 0]);
    }
}
