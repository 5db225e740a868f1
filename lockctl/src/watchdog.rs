//! The watchdog: a process beside `lockctl run` that ends the command in time when `lockctl` is stopped, killed or slow.
//!
//! It is `lockctl` itself in a hidden mode. `lockctl` writes to its stdin until when the command may run, and writes again
//! when the lease was renewed; what was written last counts, also after `lockctl` is gone. The watchdog ends with the
//! command's first process: what a command leaves running in the background goes on without the locks.
//!
//! `lockctl` may also be stopped or killed between the start of the command and the [`Order`] that names its process group.
//! The watchdog then finds the group by the context in the environment of its first process.

use std::{
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::{SigSet, Signal, killpg},
    unistd::Pid,
};
use uuid::Uuid;

use crate::{
    clock::{self, LONGEST_SLEEP},
    environment::CONTEXT,
    exit::Failure,
    group::{self, Process},
    output::say,
};

/// The interval at which it is looked whether the command has ended when `lockctl` cannot tell.
const LOOK: Duration = Duration::from_millis(100);

/// The orders to the watchdog. Times are those of [`clock::now`]; `None` is never.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Order {
    /// The command's process group, once it was started.
    pub(crate) group: Option<Pid>,
    /// The time to send TERM.
    pub(crate) term: Option<Duration>,
    /// The time to send KILL.
    pub(crate) kill: Option<Duration>,
}

impl Order {
    const BYTES: usize = 24;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let micros = |time: Option<Duration>| time.map_or(u64::MAX, |time| time.as_micros() as u64);
        let group = self.group.map_or(0, |group| u64::from(group.as_raw().unsigned_abs()));
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip([group, micros(self.term), micros(self.kill)]) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut numbers = bytes.chunks_exact(8).map(|chunk| {
            let mut number = [0; 8];
            number.copy_from_slice(chunk);
            u64::from_ne_bytes(number)
        });
        let group = numbers.next().and_then(|group| i32::try_from(group).ok()).filter(|group| *group > 0);
        let mut time = || numbers.next().filter(|micros| *micros != u64::MAX).map(Duration::from_micros);
        Order { group: group.map(Pid::from_raw), term: time(), kill: time() }
    }
}

/// The step that an [`Order`] demands now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    Kill,
    Term,
    /// Nothing for this long, or until another look at the clock.
    Nothing(Duration),
}

impl Due {
    fn is_something(self) -> bool {
        !matches!(self, Due::Nothing(_))
    }
}

impl Order {
    fn due(&self, now: Duration, warned: bool) -> Due {
        let term = self.term.filter(|_| !warned);
        if self.kill.is_some_and(|kill| kill <= now) {
            return Due::Kill;
        }
        if term.is_some_and(|term| term <= now) {
            return Due::Term;
        }
        let next = term.into_iter().chain(self.kill).min();
        Due::Nothing(next.map_or(LONGEST_SLEEP, |next| (next - now).min(LONGEST_SLEEP)))
    }
}

/// The running watchdog, as `lockctl run` has it. Dropping it ends it.
pub(crate) struct Watchdog {
    process: Child,
    /// `None` once it failed.
    orders: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts it, in a process group of its own: what stops or ends the job of `lockctl` passes it by.
    pub(crate) fn start(context: &Uuid) -> Result<Self, Failure> {
        let start = |program: &str| {
            Command::new(program)
                .arg0("lockctl")
                .args(["watchdog", &std::process::id().to_string(), &context.to_string()])
                .current_dir("/")
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        };
        let by_name = || start(&std::env::args().next().unwrap_or_default());
        // The link works also if the program was replaced since it was started.
        let started = start("/proc/self/exe").or_else(|_| by_name()).and_then(|mut process| {
            let orders = process.stdin.take();
            // A watchdog that does not read must not stop this process.
            if let Some(orders) = &orders {
                fcntl(orders, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
            }
            Ok(Watchdog { process, orders })
        });
        started.map_err(|error| Failure::other(format!("cannot start the watchdog: {error}")))
    }

    /// Gives it another order in place of the last.
    pub(crate) fn order(&mut self, order: Order) {
        let Some(orders) = &mut self.orders else { return };
        let Err(error) = orders.write_all(&order.to_bytes()) else { return };
        // It ends by itself when the command has ended, also if that was its work.
        let done = error.kind() == io::ErrorKind::BrokenPipe
            && self.process.wait().is_ok_and(|status| status.success());
        if !done {
            say(&format!("the watchdog failed, CMD is stopped in time only while lockctl runs: {error}"));
            // Before its stdin is closed: its last order is out of date.
            self.end();
        }
        self.orders = None;
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs as the watchdog of the command that is started with this context, until its work is done.
pub(crate) fn watch(context: &Uuid) {
    // The signals that end or stop a service or a session as a whole must not end the watchdog before the command.
    // Threads that are started later block the same.
    let _ = SigSet::all().thread_block();
    let (sender, orders) = mpsc::channel();
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut bytes = [0; Order::BYTES];
        while stdin.read_exact(&mut bytes).is_ok() && sender.send(Order::from_bytes(bytes)).is_ok() {}
    });
    let mut watch = Watch { order: Order::default(), leader: None, warned: false, alone: false };
    while let Some(pause) = watch.look(context) {
        watch.wait(&orders, pause);
    }
}

/// The state of the watchdog: what it knows and has done.
struct Watch {
    order: Order,
    /// The first process of the command's group, once it was seen.
    leader: Option<Process>,
    /// TERM was sent.
    warned: bool,
    /// `lockctl` is gone, and no more orders come.
    alone: bool,
}

impl Watch {
    /// Does what is due; gives the time until the next look, or `None` when the work is done.
    fn look(&mut self, context: &Uuid) -> Option<Duration> {
        let due = self.order.due(clock::now(), self.warned);
        if self.order.group.is_none() && (self.alone || due.is_something()) {
            self.order.group = group::started_with(CONTEXT, &context.to_string());
        }
        let Some(group) = self.order.group else {
            // The command may be about to start, as long as it may run.
            return match due {
                Due::Kill => None,
                _ if self.alone && self.order.kill.is_none() => None,
                Due::Term => Some(LOOK),
                Due::Nothing(pause) => Some(pause),
            };
        };
        // After TERM the first process may be gone before the rest of its group.
        if !self.warned && !self.is_led(group) {
            return None;
        }
        // The group may have ended meanwhile, so that signals may fail.
        match due {
            Due::Kill => {
                let _ = killpg(group, Signal::SIGKILL);
                None
            }
            Due::Term => {
                let _ = killpg(group, Signal::SIGTERM);
                // A stopped process ends only when it goes on.
                let _ = killpg(group, Signal::SIGCONT);
                self.warned = true;
                Some(Duration::ZERO)
            }
            Due::Nothing(pause) => Some(if self.alone { pause.min(LOOK) } else { pause }),
        }
    }

    /// Returns whether the group's first process is running.
    fn is_led(&mut self, group: Pid) -> bool {
        match Process::of(group) {
            Some(process) => {
                process.is_alive() && self.leader.get_or_insert(process).started == process.started
            }
            // It is gone, or there is no `/proc` to see it in.
            None => self.leader.is_none() && killpg(group, None) != Err(Errno::ESRCH),
        }
    }

    /// Waits for an order, but not longer than `pause`.
    fn wait(&mut self, orders: &Receiver<Order>, pause: Duration) {
        match orders.recv_timeout(pause) {
            Ok(order) => self.order = orders.try_iter().last().unwrap_or(order),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if self.alone => thread::sleep(pause),
            Err(RecvTimeoutError::Disconnected) => self.alone = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_order_reads_what_it_writes() {
        let group = Some(Pid::from_raw(4711));
        for order in [
            Order::default(),
            Order { group, term: None, kill: Some(seconds(7)) },
            Order { group: None, term: Some(Duration::from_micros(1)), kill: None },
        ] {
            assert_eq!(Order::from_bytes(order.to_bytes()), order);
        }
    }

    #[test]
    fn term_and_kill_are_due_once_and_the_clock_is_read_every_second() {
        let order = Order { group: None, term: Some(seconds(10)), kill: Some(seconds(12)) };
        assert_eq!(order.due(seconds(1), false), Due::Nothing(seconds(1)));
        assert_eq!(order.due(Duration::from_millis(9900), false), Due::Nothing(Duration::from_millis(100)));
        assert_eq!(order.due(seconds(10), false), Due::Term);
        assert_eq!(order.due(seconds(10), true), Due::Nothing(seconds(1)));
        assert_eq!(order.due(seconds(12), true), Due::Kill);
        assert_eq!(order.due(seconds(500), false), Due::Kill, "there is no time left after a suspend");
        assert_eq!(Order::default().due(seconds(500), false), Due::Nothing(seconds(1)));
    }
}
