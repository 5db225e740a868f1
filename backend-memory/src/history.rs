//! The latest events, for tests and debugging.

use std::{collections::VecDeque, time::SystemTime};

use lockcore::Target;

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum What {
    /// The set was granted, at once or when its turn had come.
    Granted,
    /// The locks were released.
    Released,
    /// The set was refused; the ids are those of the whole set.
    Refused,
    /// The set got a place in the queue.
    Queued,
    /// The attempt was withdrawn: it left the queue, or its grant was freed.
    Withdrawn,
    /// The locks were removed after their lease had ended.
    Expired,
    /// An administrator broke the lock.
    Broken,
}

/// An event about some ids of one context.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event<I, C> {
    /// The kind of the event.
    pub what: What,
    /// The context of the request or lock.
    pub context: C,
    /// The ids, with the fence of each that is held.
    pub ids: Vec<(Target<I>, Option<u64>)>,
    /// The time by the store's clock.
    pub at: SystemTime,
}

/// The latest events, oldest first.
#[derive(Debug)]
pub(crate) struct History<I, C> {
    capacity: usize,
    events: VecDeque<Event<I, C>>,
}

impl<I, C: Clone> History<I, C> {
    pub(crate) fn new(capacity: usize) -> Self {
        History { capacity, events: VecDeque::new() }
    }

    pub(crate) fn add(
        &mut self,
        what: What,
        context: &C,
        ids: Vec<(Target<I>, Option<u64>)>,
        at: SystemTime,
    ) {
        if self.events.len() >= self.capacity {
            self.events.pop_front();
        }
        if self.capacity > 0 {
            self.events.push_back(Event { what, context: context.clone(), ids, at });
        }
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = &Event<I, C>> {
        self.events.iter()
    }
}
