//! Process groups, and the processes in them as `/proc` shows them.

use std::{fs, io};

use nix::{
    errno::Errno,
    sys::signal::{kill, killpg},
    unistd::Pid,
};

/// A process, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    group: i32,
    /// In ticks since boot; a later process with the same pid has another.
    pub(crate) started: u64,
    /// Neither a zombie nor dead.
    alive: bool,
}

impl Process {
    /// Reads `/proc/PID/stat`; `None` if the process is gone, or `/proc` is not there.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        Process::read(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        // The name before may hold anything, parentheses included.
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<_> = rest.split_whitespace().collect();
        Some(Process {
            group: fields.get(2)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            alive: !matches!(*fields.first()?, "Z" | "X" | "x"),
        })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive
    }
}

/// Names this process for others that can see it: pid, start, and where these mean something; `None` where that cannot be known.
pub(crate) fn name_of_this() -> Option<String> {
    let pid = Pid::this();
    Some(format!("{pid}/{}/{}", Process::of(pid)?.started, space()?))
}

/// Returns whether the process of this [name](name_of_this) has certainly ended. One that cannot be seen from here
/// counts as running.
pub(crate) fn has_ended(name: &str) -> bool {
    let mut parts = name.splitn(3, '/');
    let mut next = || parts.next();
    let (Some(pid), Some(started), Some(there)) = (next(), next(), next()) else { return false };
    let Ok(pid) = pid.parse().map(Pid::from_raw) else { return false };
    if space().is_none_or(|here| here != there) {
        return false;
    }
    match Process::of(pid) {
        Some(process) => process.started.to_string() != started || !process.is_alive(),
        // `/proc` may hide the processes of other users.
        None => kill(pid, None) == Err(Errno::ESRCH),
    }
}

/// The namespaces of pids and of times.
fn space() -> Option<String> {
    let link = |name: &str| Some(fs::read_link(format!("/proc/{name}")).ok()?.to_string_lossy().into_owned());
    // With `unshare --pid` alone, `/proc` still shows the processes of the namespace outside.
    if link("self")? != Pid::this().to_string() {
        return None;
    }
    Some(format!("{}{}", link("self/ns/pid")?, link("self/ns/time").unwrap_or_default()))
}

/// Finds the process group whose first process was started with this variable in its environment. Of several the oldest: what
/// that one starts inherits the variable.
pub(crate) fn started_with(name: &str, value: &str) -> Option<Pid> {
    let variable = format!("{name}={value}");
    let has_variable = |pid: &Pid| {
        // Of other users' processes nothing can be read.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found == variable.as_bytes())
    };
    let leads = |pid: Pid| Process::of(pid).filter(|process| process.group == pid.as_raw());
    let leaders = all().ok()?.filter(has_variable).filter_map(|pid| Some((leads(pid)?.started, pid)));
    leaders.min().map(|(_, pid)| pid)
}

/// All processes.
fn all() -> io::Result<impl Iterator<Item = Pid>> {
    let pids = |process: io::Result<fs::DirEntry>| process.ok()?.file_name().to_str()?.parse().ok();
    Ok(fs::read_dir("/proc")?.filter_map(pids).map(Pid::from_raw))
}

/// A process of the group that is still running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Member {
    /// This one.
    Known(Pid),
    /// There is one, but it cannot be seen.
    Unknown,
}

impl Member {
    /// Finds a running process of the group. Zombies do not count: it is not known when PID 1 reaps them.
    pub(crate) fn of(group: Pid) -> Option<Self> {
        match killpg(group, None) {
            Err(Errno::ESRCH) => return None,
            // Only processes of other users are left, which `/proc` may hide.
            Err(_) => return Some(Member::Unknown),
            Ok(()) => {}
        }
        let Ok(pids) = all() else { return Some(Member::Unknown) };
        let mut seen = false;
        let running = pids.inspect(|_| seen = true).find(|pid| is_running(*pid, group));
        match running {
            None if !seen => Some(Member::Unknown),
            running => running.map(Member::Known),
        }
    }

    /// Returns whether it is still running as a member of the group.
    pub(crate) fn is_running(self, group: Pid) -> bool {
        match self {
            Member::Known(pid) => is_running(pid, group),
            // Has to be looked for again.
            Member::Unknown => false,
        }
    }
}

fn is_running(pid: Pid, group: Pid) -> bool {
    Process::of(pid).is_some_and(|process| process.alive && process.group == group.as_raw())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        os::unix::process::CommandExt,
        process::{Command, Stdio},
    };

    use nix::sys::signal::{Signal, kill};

    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let rest = "1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000";
        for (name, state, alive) in [("sh", "S", true), ("a) Z 9 (b", "R", true), ("sh", "Z", false)] {
            let process = Process::read(&format!("17 ({name}) {state} {rest}"));
            assert_eq!(process, Some(Process { group: 42, started: 98765, alive }), "{name}");
        }
        assert_eq!(Process::read("17 (sh) S 1"), None);
    }

    #[test]
    fn a_group_is_found_by_a_variable_of_its_first_process() {
        let value = uuid::Uuid::new_v4().to_string();
        assert_eq!(started_with("OURS", &value), None);
        // The second one inherits the variable, in a group of its own.
        let mut first = Command::new("sh")
            .args(["-c", "setsid sleep 600 & echo $!; wait"])
            .env("OURS", &value)
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh is there");
        let mut second = String::new();
        let mut stdout = BufReader::new(first.stdout.take().expect("piped"));
        stdout.read_line(&mut second).expect("it writes");
        let found = started_with("OURS", &value);
        let group = Pid::from_raw(first.id() as i32);
        let second = Pid::from_raw(second.trim().parse().expect("a pid"));
        kill(second, Signal::SIGKILL).expect("it runs");
        first.kill().expect("it is ours");
        first.wait().expect("it is ours");
        assert_eq!(found, Some(group));
    }

    #[test]
    fn this_process_is_found_in_its_group() {
        let own = Process::of(Pid::this()).expect("it runs");
        assert!(own.is_alive() && own.group == nix::unistd::getpgrp().as_raw());
        assert!(Member::of(nix::unistd::getpgrp()).is_some());
    }
}
