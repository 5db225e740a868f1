//! The attempts that were refused last.

use std::collections::HashSet;

/// The number of refusals of a generation: at least this many and at most twice as many are kept.
const GENERATION: usize = 4096;

/// Refused attempts in two generations: the older one is dropped as a whole when the younger one is full, so that a refusal
/// costs the same however many there are.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Refused {
    pub(crate) fn contains(&self, attempt: u64) -> bool {
        self.young.contains(&attempt) || self.old.contains(&attempt)
    }

    pub(crate) fn insert(&mut self, attempt: u64) {
        if self.young.len() >= GENERATION && !self.young.contains(&attempt) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(attempt);
    }

    pub(crate) fn remove(&mut self, attempt: u64) {
        self.young.remove(&attempt);
        self.old.remove(&attempt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_refusals_are_remembered_and_a_bounded_number_of_them() {
        let mut refused = Refused::default();
        for attempt in 0..10 * GENERATION as u64 {
            refused.insert(attempt);
            let latest = attempt.saturating_sub(GENERATION as u64 - 1)..=attempt;
            assert!(
                latest.clone().step_by(997).chain([*latest.start()]).all(|attempt| refused.contains(attempt))
            );
            assert!(refused.young.len() + refused.old.len() <= 2 * GENERATION);
        }
        assert!(!refused.contains(0));
        refused.remove(10 * GENERATION as u64 - 1);
        assert!(!refused.contains(10 * GENERATION as u64 - 1));
    }

    #[test]
    fn an_attempt_that_is_refused_again_and_again_is_remembered() {
        let mut refused = Refused::default();
        for attempt in 1..10 * GENERATION as u64 {
            refused.insert(attempt);
            if attempt % 1000 == 0 {
                refused.insert(0);
            }
            assert!(attempt < 1000 || refused.contains(0), "after {attempt}");
        }
    }
}
