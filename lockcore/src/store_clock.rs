//! The local knowledge of a store's clock: enough to say how long an offer certainly lasts.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::clock::Moment;

/// The most that the rates of two clocks are taken to differ: one part in a thousand. The margin of every lease
/// covers a hundred times that; an old sample should not cost more.
const DRIFT: u64 = 1000;

/// A bound on what a store's clock showed, from below or from above, at a local moment, in microseconds. It ages: what
/// has passed since counts by the rates that may differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) at: Moment,
    pub(crate) micros: u64,
}

impl Bound {
    /// Returns what the clock shows at least at the local moment `now`.
    pub(crate) fn at_least(&self, now: Moment) -> u64 {
        let passed = micros(now.since(&self.at));
        self.micros.saturating_add(passed - passed / DRIFT)
    }

    /// Returns what the clock shows at most at the local moment `now`.
    pub(crate) fn at_most(&self, now: Moment) -> u64 {
        let passed = micros(now.since(&self.at));
        self.micros.saturating_add(passed.saturating_add(passed / DRIFT))
    }
}

fn micros(passed: Duration) -> u64 {
    u64::try_from(passed.as_micros()).unwrap_or(u64::MAX)
}

/// An upper bound of a store's clock, from answers that carry its time.
///
/// A store that read `S` for an answer read it after the request was sent; at any later local moment its clock shows at
/// most `S` and what has passed since the sending. Of all samples the one is kept that bounds the clock most tightly,
/// with an allowance for rates that differ. A sample that contradicts it - the store's clock was set forward - replaces it.
#[derive(Debug, Default)]
pub struct StoreClock {
    kept: Mutex<Option<Bound>>,
}

impl StoreClock {
    /// Creates an estimate that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes what the store's clock showed, in microseconds of any epoch, at some time between `sent` - just before
    /// the request was sent - and `received`, just after its answer came.
    pub fn sample(&self, sent: Moment, received: Moment, store_micros: u64) {
        let new = Bound { at: sent, micros: store_micros };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let replace = kept.is_none_or(|kept| {
            let tighter = new.micros <= kept.at_most(sent);
            let contradicts = new.micros > kept.at_most(received);
            tighter || contradicts
        });
        if replace {
            *kept = Some(new);
        }
    }

    /// Returns what the store's clock shows at most at the local moment `at`, in microseconds; `None` while nothing is known
    /// of it. It shows less by the way of the best sample's request, and by a thousandth of that sample's age.
    pub fn at_most(&self, at: Moment) -> Option<u64> {
        let kept = *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.map(|kept| kept.at_most(at))
    }

    /// Returns how long an offer certainly lasts from the local moment `at`, if the store made it at `made_micros` by its
    /// clock, to last for `offered` from then; `None` while nothing is known of that clock. Never too long: `at` must be
    /// taken before this is called, and what has passed since must be deducted by the caller, as [`Moment::left_of`] does.
    pub fn remaining(&self, made_micros: u64, offered: Duration, at: Moment) -> Option<Duration> {
        let age = Duration::from_micros(self.at_most(at)?.saturating_sub(made_micros));
        Some(offered.saturating_sub(age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERED: Duration = Duration::from_secs(2);

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The store's clock in microseconds, `ahead` milliseconds ahead of the test's, at `at`.
    fn store(start: Moment, at: Moment, ahead: u64) -> u64 {
        u64::try_from(at.since(&start).as_micros()).expect("a short test") + ahead * 1000
    }

    #[tokio::test(start_paused = true)]
    async fn an_offer_never_lasts_longer_here_than_in_the_store() {
        for (there, back) in [(1, 1), (0, 300), (300, 0), (40, 3)] {
            let clock = StoreClock::new();
            assert_eq!(clock.remaining(5, OFFERED, Moment::now()), None);
            let start = Moment::now();
            tokio::time::advance(ms(there)).await;
            let read = store(start, Moment::now(), 5_000_000);
            tokio::time::advance(ms(back)).await;
            clock.sample(start, Moment::now(), read);
            tokio::time::advance(ms(10_000)).await;
            let made = store(start, Moment::now(), 5_000_000);
            for late in [0, 10, 500, 3000] {
                tokio::time::advance(ms(late)).await;
                let at = Moment::now();
                let truly = OFFERED.saturating_sub(Duration::from_micros(store(start, at, 5_000_000) - made));
                let known = clock.remaining(made, OFFERED, at).expect("a sample");
                assert!(known <= truly, "{known:?} of {truly:?}");
                // At most the way there is lost, and a thousandth of the sample's age.
                assert!(known + ms(there + 20) >= truly, "{known:?} of {truly:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_tightest_sample_counts() {
        let clock = StoreClock::new();
        let start = Moment::now();
        let mut made = 0;
        // The way there takes a second, a millisecond, a second.
        for there in [1000, 1, 1000] {
            let sent = Moment::now();
            tokio::time::advance(ms(there)).await;
            made = store(start, Moment::now(), 0);
            clock.sample(sent, Moment::now(), made);
        }
        let known = clock.remaining(made, OFFERED, Moment::now()).expect("a sample");
        assert!(known <= OFFERED && known >= OFFERED - ms(3), "{known:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_either_way_is_believed() {
        let clock = StoreClock::new();
        let start = Moment::now();
        for ahead in [1000, 61_000, 0, 30_000] {
            tokio::time::advance(ms(10)).await;
            let now = Moment::now();
            clock.sample(now, now, store(start, now, ahead));
            tokio::time::advance(ms(500)).await;
            let made = store(start, Moment::now(), ahead) - 100_000;
            let known = clock.remaining(made, OFFERED, Moment::now()).expect("a sample");
            assert!(known <= OFFERED - ms(100) && known >= OFFERED - ms(110), "{known:?}");
        }
    }

    /// A real sample was taken before "now": the allowance for the way there shortens, never lengthens.
    #[test]
    fn an_offer_from_the_future_lasts_no_longer_than_offered() {
        let clock = StoreClock::new();
        let now = Moment::now();
        clock.sample(now, now, 1_000_000);
        assert_eq!(clock.remaining(9_000_000, OFFERED, now), Some(OFFERED));
    }
}
