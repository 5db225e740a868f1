//! The command's end where `lockctl` itself cannot see to it in time.

use std::time::{Duration, Instant};

use lockcore_conformance::judge::in_time;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{
    store::{Running, Store, is_alive, until, until_over},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(the_command_of_a_stopped_lockctl_ends_before_the_next_holder_starts, Nothing),
    test!(the_command_of_a_killed_lockctl_ends_before_the_next_holder_starts, Nothing),
    test!(a_command_that_stops_or_kills_lockctl_ends_before_the_next_holder_starts, Nothing),
    test!(a_command_that_heeds_term_gets_it_from_the_watchdog_once, File),
    test!(after_break_now_kill_follows_term_at_once, Nothing),
    test!(after_a_break_lockctl_does_not_wait_for_zombies_to_be_reaped, File),
    test!(no_process_is_left_behind, File),
];

/// Two processes in one group, deaf to TERM, that each write the time every 10 ms.
const BEATS: &str = "trap 'echo heard >> heard' TERM
    beat() { while :; do date +%s%N >> $1; sleep 0.01; done; }
    echo $$ > pid.new; mv pid.new pid
    (trap '' TERM; beat inner) & beat outer";

/// Writes the time at which it starts, and lasts for some beats.
const NEXT: &str = "date +%s%N > next; sleep 0.2";

/// So long that a twentieth of it, which is left when the command is killed, outlasts the stalls of a busy machine.
const LEASE: Duration = Duration::from_secs(6);

/// Kills what is left of a test's command.
struct Command<'a>(&'a Store);

impl Drop for Command<'_> {
    fn drop(&mut self) {
        if let Ok(pid) = self.0.read("pid").trim().parse() {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// The times in a file, in nanoseconds.
fn times(store: &Store, name: &str) -> Vec<u128> {
    store.read(name).lines().filter_map(|line| line.parse().ok()).collect()
}

fn start(store: &Store, lease: Duration, command: &str) -> Running {
    let (_, lease) = store.lease(lease);
    let holder = store.start(&["run", "--id", "a", "--lease", &lease, "--", "sh", "-c", command]);
    store.until_file("pid");
    holder
}

fn start_beating(store: &Store, lease: Duration) -> Running {
    start_with(store, lease, BEATS)
}

fn start_with(store: &Store, lease: Duration, beats: &str) -> Running {
    let holder = start(store, lease, beats);
    for name in ["inner", "outer"] {
        until("the command beats", || times(store, name).len() > 2);
    }
    holder
}

/// Waits for the next holder to come and go, and compares when the two commands ran.
fn assert_no_overlap(store: &Store) {
    let next = store.run(&["run", "--id", "a", "--wait", "50s", "--", "sh", "-c", NEXT]);
    assert_eq!(next.code, 0, "{}", next.stderr);
    let next = times(store, "next")[0];
    for name in ["inner", "outer"] {
        let last = *times(store, name).last().expect("it beat");
        assert!(last < next, "{name} ran for {:?} beside the next holder", {
            Duration::from_nanos(u64::try_from(last - next).expect("short"))
        });
    }
}

fn the_command_of_a_stopped_lockctl_ends_before_the_next_holder_starts(store: &Store) {
    let _command = Command(store);
    let holder = start_beating(store, LEASE);
    holder.signal(Signal::SIGSTOP);
    assert_no_overlap(store);
    holder.signal(Signal::SIGCONT);
    let ended = holder.end();
    assert_eq!(ended.code, 121, "{}", ended.stderr);
    assert_eq!(
        ended.own_lines(),
        "lockctl: stopped because locks were lost: \"a\": its lease ended, CMD was stopped\n"
    );
}

fn the_command_of_a_killed_lockctl_ends_before_the_next_holder_starts(store: &Store) {
    let _command = Command(store);
    let holder = start_beating(store, LEASE);
    holder.signal(Signal::SIGKILL);
    holder.killed();
    assert_no_overlap(store);
}

/// The command is faster than what `lockctl` does next.
fn a_command_that_stops_or_kills_lockctl_ends_before_the_next_holder_starts(store: &Store) {
    for signal in ["STOP", "KILL"] {
        let _command = Command(store);
        let holder = start_with(store, LEASE, &format!("kill -{signal} $PPID; {BEATS}"));
        assert_no_overlap(store);
        holder.signal(Signal::SIGKILL);
        holder.killed();
        for name in ["pid", "inner", "outer", "next"] {
            std::fs::remove_file(store.path(name)).expect("it is there");
        }
    }
}

fn a_command_that_heeds_term_gets_it_from_the_watchdog_once(store: &Store) {
    let _command = Command(store);
    let heeding = "trap 'echo heard >> heard; sleep 0.2; echo done >> heard; exit' TERM
        echo $$ > pid.new; mv pid.new pid; while :; do sleep 0.01; done";
    // A tenth of it is between TERM and KILL.
    let holder = start(store, LEASE * 3, heeding);
    holder.signal(Signal::SIGKILL);
    holder.killed();
    until_over(store.lease(LEASE * 3).0, "the lease is over", || store.holders("a") == 0);
    assert_eq!(store.read("heard"), "heard\ndone\n");
}

fn after_break_now_kill_follows_term_at_once(store: &Store) {
    let _command = Command(store);
    // Noticed within a third of it; by the lease alone there would then be half of it left.
    let lease = LEASE * 4;
    let holder = start_beating(store, lease);
    let fence = store.fence("a");
    assert_eq!(store.run(&["break", "a", "--fence", &fence, "--now"]).code, 0);
    until("TERM was sent", || !store.read("heard").is_empty() || !is_alive(&store.read("pid")));
    let termed = Instant::now();
    let ended = holder.end();
    assert_eq!(ended.code, 121, "{}", ended.stderr);
    in_time(termed.elapsed(), lease / 8);
}

fn after_a_break_lockctl_does_not_wait_for_zombies_to_be_reaped(store: &Store) {
    // The test's process adopts orphans and reaps none, so that the inner one stays as a zombie of the group.
    let _command = Command(store);
    let group = "(sleep 600 & echo $! > inner); echo $$ > pid.new; mv pid.new pid; exec sleep 600";
    let lease = LEASE * 4;
    let holder = start(store, lease, group);
    let fence = store.fence("a");
    assert_eq!(store.run(&["break", "a", "--fence", &fence]).code, 0);
    until("the command has ended", || !is_alive(&store.read("pid")));
    let ended_at = Instant::now();
    let ended = holder.end();
    assert_eq!(ended.code, 121, "{}", ended.stderr);
    in_time(ended_at.elapsed(), lease / 8);
    assert!(!is_alive(&store.read("inner")));
}

fn no_process_is_left_behind(store: &Store) {
    let holder = store.start(&["run", "--id", "a", "--", "sh", "-c", "exit 3"]);
    let pid = holder.pid();
    assert_eq!(holder.end().code, 3);
    until("the watchdog has ended", || watchdogs_of(pid) == 0);

    // Also if lockctl was killed: the watchdog ends with the command, not with the lease.
    let command = "echo $$ > pid.new; mv pid.new pid; while [ ! -e go ]; do sleep 0.02; done";
    let holder = start(store, Duration::from_secs(3600), command);
    let pid = holder.pid();
    assert_eq!(watchdogs_of(pid), 1);
    holder.signal(Signal::SIGKILL);
    holder.killed();
    assert_eq!(watchdogs_of(pid), 1);
    std::fs::write(store.path("go"), "").expect("written");
    until("the watchdog has ended", || watchdogs_of(pid) == 0);
}

/// How many processes watch over the command of the `lockctl` with this pid.
fn watchdogs_of(lockctl: u32) -> usize {
    let start = format!("lockctl\0watchdog\0{lockctl}\0");
    let processes = std::fs::read_dir("/proc").expect("Linux has it").filter_map(Result::ok);
    let commands =
        processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    commands.filter(|command| command.starts_with(&start)).count()
}
