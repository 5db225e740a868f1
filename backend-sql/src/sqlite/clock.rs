//! The clock that leases are measured by: time since boot, the same for every process of the host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads the host's clocks.
///
/// Leases are stored as (boot, time since boot): setting the wall clock moves no lease, suspended time
/// counts, and a reboot - after which no holder of before can be running - voids all of them. Fences and
/// what people read use the wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    boot: i64,
    /// Added to what the kernel says: time namespaces shift it, and tests.
    offset: i64,
}

/// One reading, all times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// Which boot of the host this is.
    pub(super) boot: i64,
    /// Since that boot.
    pub(super) at: i64,
    /// Since 1970.
    pub(super) wall: i64,
}

/// How a lease stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseAt {
    /// It lasts for that many microseconds more.
    Lasts(i64),
    /// It is over.
    Ended,
    /// It was granted later than now: the clock was set back, and it counts as granted now.
    FromTheFuture,
}

impl Clock {
    pub(super) fn of_this_host() -> Self {
        Clock { boot: platform::boot(), offset: platform::offset() }
    }

    /// For tests: another boot, or a clock that is ahead.
    pub(super) fn pretending(mut self, boot: Option<i64>, ahead: Duration) -> Self {
        self.boot = boot.unwrap_or(self.boot);
        self.offset += micros(ahead);
        self
    }

    pub(super) fn now(&self) -> Now {
        Now { boot: self.boot, at: platform::since_boot() + self.offset, wall: wall() }
    }

    pub(super) fn is_real(&self) -> bool {
        self.boot != 0
    }
}

impl Now {
    /// How a lease of `lease` that began at (`boot`, `renewed`) stands.
    pub(super) fn lease(&self, boot: i64, renewed: i64, lease: i64) -> LeaseAt {
        if boot != self.boot {
            LeaseAt::Ended
        } else if renewed > self.at {
            LeaseAt::FromTheFuture
        } else {
            match renewed.saturating_add(lease) - self.at {
                left if left > 0 => LeaseAt::Lasts(left),
                _ => LeaseAt::Ended,
            }
        }
    }
}

/// A duration in microseconds; what does not fit lasts for 290 000 years.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The duration of so many microseconds.
pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The wall clock's time of so many microseconds since 1970.
pub(super) fn wall_time(micros: i64) -> SystemTime {
    UNIX_EPOCH + duration(micros)
}

fn wall() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

#[cfg(target_os = "linux")]
mod platform {
    use std::fs;

    use rustix::time::{ClockId, clock_gettime};

    /// The first half of the kernel's boot id, which is random; 0 if there is none.
    pub(super) fn boot() -> i64 {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().parse().map_or(0, |id: uuid::Uuid| id.as_u64_pair().0 as i64)
    }

    pub(super) fn since_boot() -> i64 {
        let now = clock_gettime(ClockId::Boottime);
        now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
    }

    /// What undoes the shift of a time namespace (`boottime SECONDS NANOSECONDS`), so that a container
    /// with one of its own agrees with the host.
    pub(super) fn offset() -> i64 {
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        let shift = offsets.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("boottime")).then_some(())?;
            let seconds: i64 = words.next()?.parse().ok()?;
            let nanos: i64 = words.next()?.parse().ok()?;
            Some(seconds * 1_000_000 + nanos / 1_000)
        });
        -shift.unwrap_or(0)
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    //! Elsewhere the wall clock has to do: leases move when it is set, and outlive a reboot.

    pub(super) fn boot() -> i64 {
        0
    }

    pub(super) fn since_boot() -> i64 {
        super::wall()
    }

    pub(super) fn offset() -> i64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_on_time_at_reboot_and_never_before_they_began() {
        let now = Now { boot: 1, at: 1_000, wall: 0 };
        assert_eq!(now.lease(1, 900, 200), LeaseAt::Lasts(100));
        assert_eq!(now.lease(1, 900, 100), LeaseAt::Ended);
        assert_eq!(now.lease(2, 900, 200), LeaseAt::Ended);
        assert_eq!(now.lease(1, 1_001, 1), LeaseAt::FromTheFuture);
        assert_eq!(now.lease(1, 0, i64::MAX), LeaseAt::Lasts(i64::MAX - 1_000));
    }

    #[test]
    fn the_clock_runs() {
        let clock = Clock::of_this_host();
        let (first, second) = (clock.now(), clock.now());
        assert!(second.at >= first.at && first.at > 0 && first.wall > 0);
    }
}
