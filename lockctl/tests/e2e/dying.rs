//! Holders and waiters that are killed without a chance to clean up.

use std::time::{Duration, Instant};

use lockcore_conformance::judge::in_time;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{
    store::{Running, Store, until},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(a_killed_holders_lock_is_taken_over_after_its_lease, Nothing),
    test!(a_killed_holders_slot_wakes_the_next_waiter, Queue),
    test!(a_killed_waiter_does_not_stop_the_one_behind_it, Queue),
    test!(the_command_outlives_a_killed_lockctl, Nothing),
];

/// A killed `lockctl` leaves its command at work; this ends that too.
struct Orphan<'a>(&'a Store);

impl Drop for Orphan<'_> {
    fn drop(&mut self) {
        if let Ok(pid) = self.0.read("pid").trim().parse() {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// So long that a few processes may start, run and end in a third of it on a busy machine.
const LEASE: Duration = Duration::from_secs(6);

fn killed_holder(store: &Store, claim: [&str; 2]) -> (Instant, Duration) {
    let (lease, text) = store.lease(LEASE);
    let run = ["run", claim[0], claim[1], "--lease", &text, "--"];
    let holder =
        store.start(&[&run[..], &["sh", "-c", "echo $$ > pid.new; mv pid.new pid; exec sleep 600"]].concat());
    store.until_file("pid");
    let id = claim[1].split('=').next().expect("an id");
    holder.signal(Signal::SIGKILL);
    let killed = Instant::now();
    holder.killed();
    assert_eq!(store.holders(id), 1, "the command still runs, so its lock stands");
    (killed, lease)
}

fn a_killed_holders_lock_is_taken_over_after_its_lease(store: &Store) {
    let _orphan = Orphan(store);
    let (killed, lease) = killed_holder(store, ["--id", "a"]);
    let next = store.run(&["run", "--id", "a", "--wait", "30s", "--", "true"]);
    let waited = killed.elapsed();
    assert_eq!(next.code, 0, "{}", next.stderr);
    // Renewed at a third at the latest, so two thirds of the lease are left; and woken, not polled, at its end.
    assert!(waited > lease / 2, "{waited:?}");
    in_time(waited, lease + Duration::from_secs(3));
}

fn a_killed_holders_slot_wakes_the_next_waiter(store: &Store) {
    let _orphan = Orphan(store);
    let other = store.start(&["run", "--slots", "pool=2", "--", "sleep", "600"]);
    until("the other slot is held", || store.holders("pool") == 1);
    let (lease, text) = store.lease(LEASE);
    let run = ["run", "--slots", "pool=2", "--lease", &text, "--"];
    let holder =
        store.start(&[&run[..], &["sh", "-c", "echo $$ > pid.new; mv pid.new pid; exec sleep 600"]].concat());
    store.until_file("pid");
    let waiter = store.start(&["run", "--slots", "pool=2", "--wait", "30s", "--", "echo", "mine"]);
    until("the waiter waits", || store.waiters("pool") == 1);
    holder.signal(Signal::SIGKILL);
    let killed = Instant::now();
    holder.killed();
    let ended = waiter.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "mine\n"), "{}", ended.stderr);
    in_time(killed.elapsed(), lease + Duration::from_secs(3));
    drop(other);
}

fn a_killed_waiter_does_not_stop_the_one_behind_it(store: &Store) {
    let holder =
        store.start(&["run", "--id", "a", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"]);
    until("it is held", || store.holders("a") == 1);
    let wait = ["run", "--id", "a", "--wait", "60s", "--"];
    let first = store.start(&[&wait[..], &["echo", "first"]].concat());
    until("the first waits", || store.waiters("a") == 1);
    let second = store.start(&[&wait[..], &["echo", "second"]].concat());
    until("the second waits", || store.waiters("a") == 2);
    first.signal(Signal::SIGKILL);
    first.killed();
    std::fs::write(store.path("go"), "").expect("written");
    let freed = Instant::now();
    assert_eq!(holder.end().code, 0);
    let ended = second.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "second\n"), "{}", ended.stderr);
    in_time(freed.elapsed(), Duration::from_secs(8));
}

fn the_command_outlives_a_killed_lockctl(store: &Store) {
    let _orphan = Orphan(store);
    let (_, lease) = store.lease(LEASE);
    let holder: Running = store.start(&[
        "run",
        "--id",
        "a",
        "--lease",
        &lease,
        "--",
        "sh",
        "-c",
        "echo $$ > pid.new; mv pid.new pid; while [ ! -e go ]; do sleep 0.02; done; touch done",
    ]);
    store.until_file("pid");
    holder.signal(Signal::SIGKILL);
    holder.killed();
    std::fs::write(store.path("go"), "").expect("written");
    store.until_file("done");
}
