//! Local time: how much of a lease is certainly left, also across a suspended machine.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use tokio::time::{Instant, Sleep};

use crate::background;

/// A point in local time.
///
/// A moment to measure from. The time elapsed since is the greater of two clocks: tokio's, which tests pause and
/// advance, and the one that goes on while the machine is suspended. A lease is then never taken for longer than it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    instant: Instant,
    suspend_aware: Duration,
}

impl Moment {
    /// Returns this very moment.
    pub fn now() -> Self {
        Moment { instant: Instant::now(), suspend_aware: suspend_aware() }
    }

    /// Returns the moment on tokio's clock.
    pub(crate) fn instant(&self) -> Instant {
        self.instant
    }

    /// Returns how long ago it was.
    pub fn elapsed(&self) -> Duration {
        Moment::now().since(self)
    }

    /// Returns how much later it is than `earlier`; zero if it is not.
    pub fn since(&self, earlier: &Moment) -> Duration {
        let suspend_aware = self.suspend_aware.saturating_sub(earlier.suspend_aware);
        self.instant.saturating_duration_since(earlier.instant).max(suspend_aware)
    }

    /// Returns how much of `span`, counted from this moment, is left.
    pub fn left_of(&self, span: Duration) -> Duration {
        span.saturating_sub(self.elapsed())
    }
}

#[cfg(all(not(test), any(target_os = "linux", target_os = "android")))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;

/// Elsewhere the monotonic clock is the best there is; on Apple systems it goes on during sleep.
#[cfg(all(not(test), not(any(target_os = "linux", target_os = "android"))))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

#[cfg(not(test))]
fn suspend_aware() -> Duration {
    #[cfg(feature = "testing")]
    if let Some(simulated) = crate::simulated::suspend_aware() {
        return simulated;
    }
    let time = rustix::time::clock_gettime(CLOCK);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Only the stops that a test asks for: no real time passes in a test with paused time, however busy the machine is.
#[cfg(test)]
fn suspend_aware() -> Duration {
    stops::next()
}

/// A timer that the library's own thread drives, so that it goes off where no runtime runs, or one without timers, or
/// one whose only thread is blocked.
pub(crate) fn sleep(duration: Duration) -> Sleep {
    let _own = (!background::is_paused()).then(|| background::handle().enter());
    tokio::time::sleep(duration)
}

/// The future's output, or `None` if it takes longer than `limit`. Makes no timer for what is ready at once, and has no
/// room for one before. What is large had better be pinned already: it would have a place here twice.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut timer = None;
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        timer.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// For tests: as if this thread were stopped after each look at the clock.
#[cfg(test)]
pub(crate) mod stops {
    use std::{cell::Cell, time::Duration};

    thread_local! {
        static STOPPED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        static EACH: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// From here on each look is followed by a stop of this length.
    pub(crate) fn after_each_look(stop: Duration) {
        EACH.set(stop);
    }

    /// The machine was suspended for so long before the next look.
    pub(crate) fn once(stop: Duration) {
        STOPPED.set(STOPPED.get() + stop);
    }

    /// Returns how long the thread was stopped before this look.
    pub(super) fn next() -> Duration {
        STOPPED.replace(STOPPED.get() + EACH.get())
    }
}
