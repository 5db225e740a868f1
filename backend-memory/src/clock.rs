//! The store's clock: monotonic, tied to the calendar once, and driven by tokio's paused time in tests.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A point in time, in nanoseconds since the store was made; the greatest value is never.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StoreTime(u64);

impl StoreTime {
    pub(crate) const NEVER: StoreTime = StoreTime(u64::MAX);

    /// This much later; for ever stays for ever.
    pub(crate) fn after(self, lease: Lease) -> StoreTime {
        StoreTime(self.0.saturating_add(lease.0))
    }

    /// Returns the time from `now` until this, `None` for ever.
    pub(crate) fn remaining(self, now: StoreTime) -> Option<Duration> {
        (self != StoreTime::NEVER).then(|| Duration::from_nanos(self.0.saturating_sub(now.0)))
    }
}

/// The length of a lease in nanoseconds; the greatest value (584 years) is for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Lease(u64);

impl Lease {
    pub(crate) const FOREVER: Lease = Lease(u64::MAX);

    pub(crate) fn of(lease: Option<Duration>) -> Lease {
        match lease {
            None => Lease::FOREVER,
            Some(lease) => {
                let nanos = lease.as_secs().saturating_mul(1_000_000_000);
                Lease(nanos.saturating_add(u64::from(lease.subsec_nanos())))
            }
        }
    }

    pub(crate) fn duration(self) -> Option<Duration> {
        (self != Lease::FOREVER).then(|| Duration::from_nanos(self.0))
    }
}

/// The store's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_nanos_since_1970: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        // The calendar last, so that a thread that is paused in between makes fences run ahead of it, never behind.
        let started = Instant::now();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        #[cfg(feature = "testing")]
        let since_1970 = lockcore::simulated::calendar().unwrap_or(since_1970);
        Clock { started, started_nanos_since_1970: Lease::of(Some(since_1970)).0 }
    }

    pub(crate) fn now(&self) -> StoreTime {
        let elapsed = self.started.elapsed();
        #[cfg(test)]
        stops::stop();
        StoreTime(elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos()))
    }

    /// Converts a time to microseconds since 1970, the unit of fences.
    pub(crate) fn micros(&self, moment: StoreTime) -> u64 {
        (self.started_nanos_since_1970 + moment.0) / 1000
    }

    /// Converts a time to the calendar's, as if that had not been set since the start.
    pub(crate) fn calendar(&self, moment: StoreTime) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.started_nanos_since_1970.saturating_add(moment.0))
    }
}

/// For tests: this thread is stopped after each look at the clock.
#[cfg(test)]
pub(crate) mod stops {
    use std::{cell::Cell, thread, time::Duration};

    thread_local! {
        static EACH: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// From here on each look is followed by a stop of this length.
    pub(crate) fn after_each_look(stop: Duration) {
        EACH.set(stop);
    }

    pub(super) fn stop() {
        if !EACH.get().is_zero() {
            thread::sleep(EACH.get());
        }
    }
}
