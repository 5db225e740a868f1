//! Random numbers that a fork does not repeat.

use std::cell::RefCell;

use fastrand::Rng;

use crate::process;

/// Returns 64 random bits: unlike those of any other process, also where this one was forked after it drew some. For names, revisions
/// and idempotency keys; not for secrets.
pub fn unique() -> u64 {
    // A simulation repeats by its seed.
    #[cfg(feature = "testing")]
    if crate::simulated::process().is_some() {
        return fastrand::u64(..);
    }
    let process = process::current();
    thread_local! {
        static SOURCE: RefCell<Source> = RefCell::new(Source::of(process::current()));
    }
    SOURCE
        .try_with(|source| source.borrow_mut().next(process))
        // The thread is ending and has no source any more.
        .unwrap_or_else(|_ended| Source::of(process).rng.u64(..))
}

/// Returns a name of 32 hexadecimal digits, as unlike any other.
pub fn unique_name() -> String {
    format!("{:016x}{:016x}", unique(), unique())
}

#[derive(Clone)]
struct Source {
    rng: Rng,
    /// The process that it was seeded in.
    process: u32,
}

impl Source {
    fn of(process: u32) -> Self {
        let mut seed = [0; 8];
        // Of the kernel: a generator in this process would be in the same state on both sides of a fork.
        let rng = match getrandom::fill(&mut seed) {
            Ok(()) => Rng::with_seed(u64::from_ne_bytes(seed)),
            Err(_) => Rng::new(),
        };
        Source { rng, process }
    }

    fn next(&mut self, process: u32) -> u64 {
        if self.process != process {
            *self = Source::of(process);
        }
        self.rng.u64(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_of_a_fork_draw_different_numbers() {
        let parent = Source::of(1);
        let [mut parent, mut one, mut other] = [parent.clone(), parent.clone(), parent];
        let [parent, one, other] = [parent.next(1), one.next(2), other.next(3)];
        assert!(parent != one && one != other && other != parent, "{parent} {one} {other}");
    }

    #[test]
    fn a_process_goes_on_with_its_source() {
        let mut source = Source::of(1);
        let mut same = source.clone();
        assert_eq!([source.next(1), source.next(1)], [same.next(1), same.next(1)]);
    }
}
