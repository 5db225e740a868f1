//! The clock that leases are measured by: time since boot, the same for every process of the host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads the host's clocks.
///
/// Leases are stored as (boot, time since boot): setting the wall clock moves no lease, suspended time
/// counts, and a reboot, after which no earlier holder can be running, voids all of them. Fences and
/// what people read use the wall clock.
///
/// Containers may have boot ids of their own (systemd-nspawn, LXC, Incus), but the time since boot is that
/// of the kernel. So another boot id alone proves no reboot; see [`Now::lease`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    boot: i64,
    /// Added to what the kernel says: time namespaces shift it, and tests.
    offset: i64,
}

/// The most that the wall clock and the time since boot, which are read one after the other, may be apart, in
/// microseconds.
const CLOCKS_APART: i64 = 1_000_000;

/// One reading, all times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// The id of the current boot of the host.
    pub(super) boot: i64,
    /// Since that boot.
    pub(super) at: i64,
    /// Since 1970.
    pub(super) wall: i64,
}

/// The state of a lease.
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
    /// The clock of this host; `None` if it cannot be known whether other processes see the same time since boot, unless
    /// none of them uses the store (`private`).
    pub(super) fn of_this_host(private: bool) -> Option<Self> {
        Some(Clock { boot: platform::boot(), offset: platform::offset().or(private.then_some(0))? })
    }

    /// For tests: another boot id, a clock that is ahead, or one that starts now, as after a reboot.
    pub(super) fn pretending(mut self, boot: Option<i64>, ahead: Duration, rebooted: bool) -> Self {
        self.boot = boot.unwrap_or(self.boot);
        self.offset = if rebooted { -platform::since_boot() } else { self.offset } + micros(ahead);
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
    /// Returns how a lease of `lease` stands that was granted when the wall clock said `since`, and began, or was
    /// renewed last, at (`boot`, `renewed`).
    ///
    /// Another boot id is either that of an earlier boot or that of a container on the same kernel, and only the second
    /// one's leases count. A reboot is taken for certain if the time since boot is lower than it was, and the wall clock
    /// says that the grant is older than this boot. Otherwise the times since boot are compared, as of one kernel; if
    /// they cannot be of one kernel, because the grant is younger than its time since boot says, the lease counts from
    /// now. In doubt a lease of an earlier boot thus lasts for its length once more.
    pub(super) fn lease(&self, boot: i64, renewed: i64, lease: i64, since: i64) -> LeaseAt {
        if boot != self.boot {
            let granted = since.saturating_sub(self.booted());
            if granted < 0 && renewed > self.at {
                return LeaseAt::Ended;
            }
            if granted > renewed.saturating_add(CLOCKS_APART) {
                return LeaseAt::FromTheFuture;
            }
        }
        if renewed > self.at {
            return LeaseAt::FromTheFuture;
        }
        match renewed.saturating_add(lease).saturating_sub(self.at) {
            left if left > 0 => LeaseAt::Lasts(left),
            _ => LeaseAt::Ended,
        }
    }

    /// Returns when the kernel started, by the wall clock.
    fn booted(&self) -> i64 {
        self.wall - self.at
    }
}

/// A duration in microseconds; what does not fit lasts for 290 000 years.
pub(super) const fn micros(duration: Duration) -> i64 {
    let micros = duration.as_micros();
    if micros > i64::MAX as u128 { i64::MAX } else { micros as i64 }
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
    use std::{fs, io, path::Path};

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

    pub(super) fn offset() -> Option<i64> {
        offset_by(Path::new("/proc"))
    }

    /// Returns what undoes the shift of a time namespace (`boottime SECONDS NANOSECONDS`), so that a container
    /// with one of its own agrees with the host. `None` without `/proc`.
    pub(super) fn offset_by(proc: &Path) -> Option<i64> {
        let process = proc.join("self");
        let offsets = match fs::read_to_string(process.join("timens_offsets")) {
            Ok(offsets) => offsets,
            // A kernel without time namespaces.
            Err(error) if error.kind() == io::ErrorKind::NotFound && process.join("stat").exists() => {
                String::new()
            }
            Err(_) => return None,
        };
        let shift = offsets.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("boottime")).then_some(())?;
            let seconds: i64 = words.next()?.parse().ok()?;
            let nanos: i64 = words.next()?.parse().ok()?;
            Some(seconds * 1_000_000 + nanos / 1_000)
        });
        Some(-shift.unwrap_or(0))
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

    pub(super) fn offset() -> Option<i64> {
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn leases_end_on_time_and_never_before_they_began() {
        let now = Now { boot: 1, at: 1_000, wall: 0 };
        assert_eq!(now.lease(1, 900, 200, 0), LeaseAt::Lasts(100));
        assert_eq!(now.lease(1, 900, 100, 0), LeaseAt::Ended);
        assert_eq!(now.lease(1, 1_001, 1, 0), LeaseAt::FromTheFuture);
        assert_eq!(now.lease(1, 0, i64::MAX, 0), LeaseAt::Lasts(i64::MAX - 1_000));
    }

    #[test]
    fn another_boot_id_voids_a_lease_only_after_a_reboot() {
        // The kernel started when the wall clock said 1000 s.
        let now = Now { boot: 1, at: 100 * SECOND, wall: 1_100 * SECOND };
        let lease = |renewed: i64, since: i64| now.lease(2, renewed * SECOND, 30 * SECOND, since * SECOND);
        // A container: its time since boot is that of the kernel.
        assert_eq!(lease(90, 1_090), LeaseAt::Lasts(20 * SECOND));
        assert_eq!(lease(90, 1_010), LeaseAt::Lasts(20 * SECOND), "renewed since");
        assert_eq!(lease(60, 1_060), LeaseAt::Ended);
        // The wall clock was set forward after the grant, as at the first look at a time server.
        assert_eq!(lease(90, 0), LeaseAt::Lasts(20 * SECOND));
        // An earlier boot.
        assert_eq!(lease(500, 990), LeaseAt::Ended);
        assert_eq!(lease(95, 990), LeaseAt::Lasts(25 * SECOND), "in doubt it lasts once more");
        // A clock of its own: the lease counts from now.
        assert_eq!(lease(500, 1_090), LeaseAt::FromTheFuture);
        assert_eq!(lease(3, 1_090), LeaseAt::FromTheFuture);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn without_proc_the_clock_is_unknown() {
        let proc = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(platform::offset_by(proc.path()), None);
        std::fs::create_dir(proc.path().join("self")).expect("a folder");
        std::fs::write(proc.path().join("self/stat"), "").expect("a file");
        assert_eq!(platform::offset_by(proc.path()), Some(0), "a kernel without time namespaces");
        let offsets = "monotonic           0         0\nboottime        -5     250000\n";
        std::fs::write(proc.path().join("self/timens_offsets"), offsets).expect("a file");
        assert_eq!(platform::offset_by(proc.path()), Some(4_999_750));
    }

    #[test]
    fn the_clock_runs() {
        let clock = Clock::of_this_host(false).expect("there is /proc");
        let (first, second) = (clock.now(), clock.now());
        assert!(second.at >= first.at && first.at > 0 && first.wall > 0);
    }
}
