//! The simulated process that a thread plays: a hook for this workspace's simulation, outside the stability promise.
//!
//! A simulated process has a runtime of its own with one thread and a paused clock, in which all of a service runs. One thread
//! plays many of them in turn.

use std::{cell::Cell, time::Duration};

thread_local! {
    static PLAYED: Cell<Option<Played>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Played {
    process: u32,
    #[cfg_attr(test, expect(dead_code, reason = "the tests of this crate have another clock"))]
    boot: Duration,
}

/// Plays a process from now on: `process` takes the place of the id of the operating system's, and `boot` that of the clock that
/// goes on during suspend. That clock advances by a nanosecond with each look, so that two moments differ.
pub fn play(process: u32, boot: Duration) {
    PLAYED.set(Some(Played { process, boot }));
}

/// Plays none any more.
pub fn stop() {
    PLAYED.set(None);
}

/// Returns the time since 1970 at which every simulated process starts, while one is played.
pub fn calendar() -> Option<Duration> {
    PLAYED.get().map(|_| Duration::from_secs(1_700_000_000))
}

/// The process that is played.
pub(crate) fn process() -> Option<u32> {
    PLAYED.get().map(|played| played.process)
}

/// Its clock that goes on during suspend.
#[cfg(not(test))]
pub(crate) fn suspend_aware() -> Option<Duration> {
    let played = PLAYED.get()?;
    let boot = played.boot + Duration::from_nanos(1);
    PLAYED.set(Some(Played { boot, ..played }));
    Some(boot)
}
