//! Locks that are lost while the command runs.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use lockcore::{LockingService, protocol::OFFER};
use lockcore_conformance::judge::in_time;
use nix::sys::signal::Signal;
use tokio::runtime;

use crate::{
    store::{PATIENCE, Store, is_alive, until},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(a_holder_stopped_past_its_lease_writes_nothing_and_ends_as_lost, Nothing),
    test!(a_broken_lock_ends_the_whole_process_group, Nothing),
    test!(a_command_that_does_not_heed_term_is_killed_before_the_lease_ends, Nothing),
    test!(what_is_lost_only_at_the_release_is_reported_with_the_commands_code, Nothing),
    test!(a_store_that_does_not_answer_until_the_lease_ends_is_a_loss, File),
    test!(a_command_is_started_under_a_whole_lease, File),
    test!(a_release_goes_on_until_the_store_takes_it, File),
];

/// Writes its argument to `data` unless a later holder was there before.
const GUARDED_WRITE: &str = r#"
    exec flock guard sh -c '
        highest=$(cat highest 2> /dev/null || echo 0)
        if [ "$LOCKCORE_FENCE" -lt "$highest" ]; then echo "$0 refused" >> log; exit 1; fi
        echo "$LOCKCORE_FENCE" > highest
        echo "$0" >> data' "$1"
"#;

/// Two processes in one group, both of which say who they are.
const GROUP: &str = "sleep 600 & echo $! > inner; echo $$ > outer; touch started; wait";

/// Whether the process of the file `pid` is there and no zombie.
const STILL_THERE: &str =
    "grep -q '^State:[[:space:]]*[^ZX]' /proc/$(cat pid)/status 2> /dev/null && exit 0; exit 1";

fn a_holder_stopped_past_its_lease_writes_nothing_and_ends_as_lost(store: &Store) {
    fs::write(store.path("write"), GUARDED_WRITE).expect("written");
    // The watchdog does not reach what left the command's process group: only the fence stops its late write.
    let command = "setsid sh -c 'while [ ! -e go ]; do sleep 0.02; done; sh write stale; touch tried' & \
                   echo $$ > pid; touch started; while [ ! -e go ]; do sleep 0.02; done; \
                   sh write stale; sleep 600";
    let (_, lease) = store.lease(Duration::from_secs(4));
    let stale = store.start(&["run", "--id", "a", "--lease", &lease, "--", "sh", "-c", command]);
    store.until_file("started");
    stale.signal(Signal::SIGSTOP);

    let next = store.run(&["run", "--id", "a", "--wait", "30s", "--", "sh", "write", "new"]);
    assert_eq!(next.code, 0, "{}", next.stderr);
    fs::write(store.path("go"), "").expect("written");
    store.until_file("tried");
    assert_eq!((store.read("data"), store.read("log")), ("new\n".to_owned(), "stale refused\n".to_owned()));

    let pid = store.read("pid");
    assert!(!is_alive(&pid), "it ended before the next holder came");
    stale.signal(Signal::SIGCONT);
    let ended = stale.end();
    assert_eq!(ended.code, 121, "{}", ended.stderr);
    assert_eq!(
        ended.own_lines(),
        "lockctl: stopped because locks were lost: \"a\": its lease ended, CMD was stopped\n"
    );
}

fn a_broken_lock_ends_the_whole_process_group(store: &Store) {
    let (_, lease) = store.lease(Duration::from_secs(3));
    let holder = store.start(&["run", "--id", "a", "--lease", &lease, "--", "sh", "-c", GROUP]);
    store.until_file("started");
    let fence = store.fence("a");
    let answer = store.run(&["break", "a", "--fence", &fence]);
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    let ended = holder.end();
    assert_eq!(ended.code, 121);
    assert_eq!(
        ended.stderr,
        "lockctl: stopped because locks were lost: \"a\": it was broken by an administrator, CMD was stopped\n"
    );
    for process in ["inner", "outer"] {
        until("the group has ended", || !is_alive(&store.read(process)));
    }
    assert_eq!(store.holders("a"), 0, "the holder has acknowledged");
}

fn a_command_that_does_not_heed_term_is_killed_before_the_lease_ends(store: &Store) {
    let command =
        "trap 'echo heard >> heard' TERM; echo $$ > pid; touch started; while :; do sleep 0.02; done";
    let (_, lease) = store.lease(Duration::from_secs(5));
    let holder = store.start(&["run", "--id", "a", "--lease", &lease, "--", "sh", "-c", command]);
    store.until_file("started");
    let fence = store.fence("a");
    let broken = store.json(&["break", "a", "--fence", &fence]);
    let (asked, within) = (Instant::now(), broken["within_ms"].as_u64().expect("a lease"));
    // The next one may start when the lease is over; by then nothing of the first is left.
    let next = store.run(&["run", "--id", "a", "--wait", "30s", "--", "sh", "-c", STILL_THERE]);
    assert_eq!(next.code, 1, "the former command is still there: {}", next.stderr);
    in_time(asked.elapsed(), Duration::from_millis(within) + Duration::from_secs(3));
    let ended = holder.end();
    assert_eq!(ended.code, 121, "{}", ended.stderr);
    assert_eq!(store.read("heard"), "heard\n");
}

fn what_is_lost_only_at_the_release_is_reported_with_the_commands_code(store: &Store) {
    let command = "fence=$LOCKCORE_FENCE; lockctl break a --fence $fence --now > /dev/null; exit 5";
    let ended = store.run(&["run", "--id", "a", "--lease", "60s", "--", "sh", "-c", command]);
    assert_eq!(ended.code, 121);
    assert_eq!(
        ended.stderr,
        "lockctl: CMD ended with 5, but locks were lost: \"a\": it was broken by an administrator\n"
    );
}

fn a_store_that_does_not_answer_until_the_lease_ends_is_a_loss(store: &Store) {
    let url = "sqlite:locks.db?busy_timeout=100ms";
    let args = ["run", "--id", "a", "--lease", "4s", "--url", url, "--", "sh", "-c", GROUP];
    let holder = store.start(&args);
    store.until_file("started");
    // Another program that writes to the file, and does not end.
    let other = rusqlite::Connection::open(store.path("locks.db")).expect("a database");
    other.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    let refused = store.run(&["run", "--id", "b", "--url", url, "--", "true"]);
    assert_eq!(refused.code, 123, "{}", refused.stderr);
    let ended = holder.end();
    assert_eq!(ended.code, 121, "{}", ended.stderr);
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert!(lines[0].starts_with("lockctl: renewal failed, trying on: "), "{lines:?}");
    // Which of the two depends on who looks first when the lease is over.
    let last = lines.last().expect("lines");
    let reasons = ["its lease ended", "it could not be renewed until its lease ended"];
    let expected =
        |reason| format!("lockctl: stopped because locks were lost: \"a\": {reason}, CMD was stopped");
    assert!(reasons.into_iter().any(|reason| **last == expected(reason)), "{lines:?}");
    for process in ["inner", "outer"] {
        until("the group has ended", || !is_alive(&store.read(process)));
    }
}

/// A hand-over is an offer, which ends long before a lease. Here the store does not answer from then on until it has ended.
fn a_command_is_started_under_a_whole_lease(store: &Store) {
    let file = store.path("locks.db");
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let guard = runtime.block_on(async {
        let dao = lockcore_any::connect(&format!("sqlite:{}", file.display())).await.expect("a store");
        LockingService::new(dao).lock(["a"]).await.expect("the lock")
    });
    let command = "sleep 4; touch finished";
    let waiting = store.start(&["run", "--id", "a", "--wait", "1m", "--", "sh", "-c", command]);
    until("it waits", || store.waiters("a") == 1);
    let other = rusqlite::Connection::open(&file).expect("a database");
    other.busy_timeout(PATIENCE).expect("set");

    runtime.block_on(guard.release()).expect("released");
    other.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    thread::sleep(OFFER + Duration::from_secs(1));
    other.execute_batch("ROLLBACK").expect("ended");

    let ended = waiting.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(store.path("finished").exists());
}

/// The store takes no writes when the command ends, and for longer than the end of a process waits for anything else.
fn a_release_goes_on_until_the_store_takes_it(store: &Store) {
    let url = "sqlite:locks.db?busy_timeout=100ms";
    let command = "touch started; while [ ! -e go ]; do sleep 0.02; done; exit 7";
    let args = ["run", "--id", "a", "--lease", "10m", "--url", url, "--", "sh", "-c", command];
    let holder = store.start(&args);
    store.until_file("started");
    let other = rusqlite::Connection::open(store.path("locks.db")).expect("a database");
    other.busy_timeout(PATIENCE).expect("set");
    other.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    fs::write(store.path("go"), "").expect("written");
    thread::sleep(Duration::from_secs(5));
    other.execute_batch("ROLLBACK").expect("ended");
    let ended = holder.end();
    assert_eq!(ended.code, 7, "{}", ended.stderr);
    assert!(ended.stderr.starts_with("lockctl: the release failed, trying on; "), "{}", ended.stderr);
    store.assert_nothing_is_locked();
}
