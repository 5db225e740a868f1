//! A clock that goes on while the machine is suspended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// Elsewhere the monotonic clock is the best there is; on Apple systems it goes on during sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The longest sleep while a lease runs: timers stand still during suspend, so the clock is read this often.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The time since the machine was started, which is the same in all processes.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(CLOCK);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
