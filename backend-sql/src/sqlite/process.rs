//! The identity of a process, to tell whether one that holds or waits still exists.

/// One process, so that another one with the same number is not taken for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Process {
    /// The namespaces in which the two numbers mean something; `None` where that cannot be known.
    pub(super) space: Option<String>,
    /// Its number.
    pub(super) pid: i64,
    /// The time at which it started, in the kernel's ticks; 0 where that cannot be known.
    pub(super) start: i64,
}

impl Process {
    /// This process.
    pub(super) fn this() -> Self {
        let pid = i64::from(std::process::id());
        Process { space: platform::space(), pid, start: platform::start(pid).unwrap_or(0) }
    }

    /// Returns whether `other` has certainly ended. A process that cannot be seen from here, because it is in another
    /// namespace or the kernel hides it, counts as running.
    pub(super) fn knows_gone(&self, other: &Process) -> bool {
        if self.space.is_none() || other.space != self.space || other == self {
            return false;
        }
        platform::is_absent(other.pid)
            || match platform::start(other.pid) {
                Some(start) => (other.start != 0 && start != other.start) || platform::is_dead(other.pid),
                None => false,
            }
    }
}

#[cfg(target_os = "linux")]
mod platform {
    use std::{fs, io, path::Path, process};

    pub(super) use super::unix::is_absent;

    pub(super) fn space() -> Option<String> {
        space_by(Path::new("/proc"))
    }

    /// Start times are shown shifted by the reader's time namespace, so that it belongs to the key. Kernels before 5.6
    /// have none.
    pub(super) fn space_by(proc: &Path) -> Option<String> {
        let link = |name| fs::read_link(proc.join(name)).map(|link| link.to_string_lossy().into_owned());
        // With `unshare --pid` alone, `/proc` still shows the processes of the namespace outside.
        if link("self").ok()? != process::id().to_string() {
            return None;
        }
        let time = match link("self/ns/time") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => "?".to_owned(),
            time => time.ok()?,
        };
        Some(format!("{} {time}", link("self/ns/pid").ok()?))
    }

    pub(super) fn start(pid: i64) -> Option<i64> {
        field(pid, 22)?.parse().ok()
    }

    /// A zombie: it waits for its parent to notice. With threads left it is only the first of them that
    /// has ended.
    pub(super) fn is_dead(pid: i64) -> bool {
        let state = field(pid, 3);
        let threads: Option<u32> = field(pid, 20).and_then(|threads| threads.parse().ok());
        matches!(state.as_deref(), Some("X" | "x")) || (state.as_deref() == Some("Z") && threads <= Some(1))
    }

    /// A field of `/proc/PID/stat`, counted from 1. The second is a name that may hold anything, so that
    /// counting starts behind the last parenthesis.
    fn field(pid: i64, number: usize) -> Option<String> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        after_name.split_whitespace().nth(number - 3).map(str::to_owned)
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
mod platform {
    pub(super) use super::unix::is_absent;

    pub(super) fn space() -> Option<String> {
        Some("host".to_owned())
    }

    pub(super) fn start(_pid: i64) -> Option<i64> {
        None
    }

    pub(super) fn is_dead(_pid: i64) -> bool {
        false
    }
}

#[cfg(not(unix))]
mod platform {
    pub(super) fn space() -> Option<String> {
        Some("host".to_owned())
    }

    pub(super) fn start(_pid: i64) -> Option<i64> {
        None
    }

    pub(super) fn is_absent(_pid: i64) -> bool {
        false
    }

    pub(super) fn is_dead(_pid: i64) -> bool {
        false
    }
}

#[cfg(unix)]
mod unix {
    use rustix::{io::Errno, process};

    /// Asked of the kernel, not of `/proc`, which may hide other users' processes.
    pub(super) fn is_absent(pid: i64) -> bool {
        match i32::try_from(pid).ok().and_then(process::Pid::from_raw) {
            Some(pid) => process::test_kill_process(pid) == Err(Errno::SRCH),
            None => false,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    fn of(pid: u32) -> Process {
        let pid = i64::from(pid);
        Process { pid, start: platform::start(pid).expect("it runs"), ..Process::this() }
    }

    #[test]
    fn a_process_is_gone_when_it_was_killed_even_before_its_parent_noticed() {
        let this = Process::this();
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let other = of(child.id());
        assert!(!this.knows_gone(&this) && !this.knows_gone(&other));
        child.kill().expect("it can be killed");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !this.knows_gone(&other) {
            assert!(std::time::Instant::now() < deadline, "a zombie counts as running");
            std::thread::yield_now();
        }
        child.wait().expect("it ended");
        assert!(this.knows_gone(&other));
    }

    #[test]
    fn another_process_with_the_same_number_is_not_taken_for_it() {
        let this = Process::this();
        let mut parent = of(std::os::unix::process::parent_id());
        assert!(!this.knows_gone(&parent));
        parent.start += 1;
        assert!(this.knows_gone(&parent));
        parent.space = Some("elsewhere".to_owned());
        assert!(!this.knows_gone(&parent));
    }

    #[test]
    fn processes_whose_namespaces_are_unknown_are_not_of_the_same() {
        let unmounted = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(platform::space_by(unmounted.path()), None);
        // That of another process namespace.
        std::os::unix::fs::symlink("1", unmounted.path().join("self")).expect("a link");
        assert_eq!(platform::space_by(unmounted.path()), None);
        let this = Process { space: None, ..Process::this() };
        let gone = Process { pid: i64::from(i32::MAX), ..this.clone() };
        assert!(!this.knows_gone(&gone));
        assert!(Process::this().knows_gone(&Process { space: Process::this().space, ..gone }));
    }
}
