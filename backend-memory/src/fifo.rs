//! A FIFO queue with removal by number.

use std::collections::VecDeque;

/// Values by ascending numbers. Removal leaves a gap, and gaps are closed before they are more than half of the queue: so every
/// operation costs amortised constant time, or a binary search.
#[derive(Debug)]
pub(crate) struct Fifo<T> {
    /// The first one is never a gap.
    slots: VecDeque<(u64, Option<T>)>,
    live: usize,
}

impl<T> Fifo<T> {
    pub(crate) fn new() -> Self {
        Fifo { slots: VecDeque::new(), live: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Appends a value; its number must be higher than all before it.
    pub(crate) fn push(&mut self, number: u64, value: T) {
        debug_assert!(self.slots.back().is_none_or(|(last, _)| *last < number));
        self.slots.push_back((number, Some(value)));
        self.live += 1;
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.slots.front().and_then(|(_, value)| value.as_ref())
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        let index = self.index_of(number)?;
        self.slots[index].1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let index = self.index_of(number)?;
        self.slots[index].1.as_mut()
    }

    /// Removes a value.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let index = self.index_of(number)?;
        let value = self.slots[index].1.take()?;
        self.live -= 1;
        while self.slots.front().is_some_and(|(_, value)| value.is_none()) {
            self.slots.pop_front();
        }
        if self.slots.len() > 2 * self.live + 16 {
            self.slots.retain(|(_, value)| value.is_some());
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, value)| value.as_ref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    /// Iterates over the values with a lower number, in order.
    pub(crate) fn before(&self, number: u64) -> impl Iterator<Item = &T> {
        self.slots.iter().take_while(move |(at, _)| *at < number).filter_map(|(_, value)| value.as_ref())
    }

    /// Iterates over the values with this number or a higher one, in order.
    pub(crate) fn from(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        let start = self.slots.partition_point(|(at, _)| *at < number);
        self.slots.range(start..).filter_map(|(at, value)| Some((*at, value.as_ref()?)))
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        match self.slots.front() {
            Some((first, _)) if *first == number => Some(0),
            _ => self.slots.binary_search_by_key(&number, |(at, _)| *at).ok(),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn removal_keeps_the_order() {
        let mut fifo = Fifo::new();
        let mut expected = Vec::new();
        let mut random = fastrand::Rng::with_seed(1);
        for number in 0..2000 {
            fifo.push(number, number);
            expected.push(number);
            while random.bool() && !expected.is_empty() {
                let leaves = expected.remove(random.usize(..expected.len()));
                assert_eq!(fifo.remove(leaves), Some(leaves));
                assert_eq!(fifo.remove(leaves), None);
            }
            assert!(fifo.slots.len() <= 2 * expected.len() + 16);
            assert_eq!((fifo.len(), fifo.first()), (expected.len(), expected.first()));
            assert!(fifo.iter().eq(&expected));
            let middle = random.u64(..=number);
            let at = expected.partition_point(|other| *other < middle);
            assert!(fifo.before(middle).eq(&expected[..at]));
            assert!(fifo.from(middle).map(|(_, value)| value).eq(&expected[at..]));
            assert_eq!(fifo.get(middle), expected[at..].first().filter(|first| **first == middle));
        }
    }
}
