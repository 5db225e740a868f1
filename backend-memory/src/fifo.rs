//! A line of people from whose middle one can leave.

use std::collections::VecDeque;

/// Values under ascending numbers. Leaving leaves a gap, and gaps are closed before they are more than
/// half of the line: so everything costs constant time on average, or a binary search.
#[derive(Debug)]
pub(crate) struct Line<T> {
    /// The first one is never a gap.
    spots: VecDeque<(u64, Option<T>)>,
    live: usize,
}

impl<T> Line<T> {
    pub(crate) fn new() -> Self {
        Line { spots: VecDeque::new(), live: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Joins the line at its end; the number is higher than all before it.
    pub(crate) fn push(&mut self, number: u64, value: T) {
        debug_assert!(self.spots.back().is_none_or(|(last, _)| *last < number));
        self.spots.push_back((number, Some(value)));
        self.live += 1;
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.spots.front().and_then(|(_, value)| value.as_ref())
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        let index = self.index_of(number)?;
        self.spots[index].1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let index = self.index_of(number)?;
        self.spots[index].1.as_mut()
    }

    /// Leaves the line.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let index = self.index_of(number)?;
        let value = self.spots[index].1.take()?;
        self.live -= 1;
        while self.spots.front().is_some_and(|(_, value)| value.is_none()) {
            self.spots.pop_front();
        }
        if self.spots.len() > 2 * self.live + 16 {
            self.spots.retain(|(_, value)| value.is_some());
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.spots.iter().filter_map(|(_, value)| value.as_ref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.spots.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    /// Those with a lower number, in order.
    pub(crate) fn before(&self, number: u64) -> impl Iterator<Item = &T> {
        self.spots.iter().take_while(move |(at, _)| *at < number).filter_map(|(_, value)| value.as_ref())
    }

    /// Those with this number or a higher one, in order.
    pub(crate) fn from(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        let start = self.spots.partition_point(|(at, _)| *at < number);
        self.spots.range(start..).filter_map(|(at, value)| Some((*at, value.as_ref()?)))
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        match self.spots.front() {
            Some((first, _)) if *first == number => Some(0),
            _ => self.spots.binary_search_by_key(&number, |(at, _)| *at).ok(),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn whoever_stays_keeps_the_order() {
        let mut line = Line::new();
        let mut expected = Vec::new();
        let mut random = fastrand::Rng::with_seed(1);
        for number in 0..2000 {
            line.push(number, number);
            expected.push(number);
            while random.bool() && !expected.is_empty() {
                let leaves = expected.remove(random.usize(..expected.len()));
                assert_eq!(line.remove(leaves), Some(leaves));
                assert_eq!(line.remove(leaves), None);
            }
            assert!(line.spots.len() <= 2 * expected.len() + 16);
            assert_eq!((line.len(), line.first()), (expected.len(), expected.first()));
            assert!(line.iter().eq(&expected));
            let middle = random.u64(..=number);
            let at = expected.partition_point(|other| *other < middle);
            assert!(line.before(middle).eq(&expected[..at]));
            assert!(line.from(middle).map(|(_, value)| value).eq(&expected[at..]));
            assert_eq!(line.get(middle), expected[at..].first().filter(|first| **first == middle));
        }
    }
}
