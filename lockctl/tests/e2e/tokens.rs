//! Locks that outlive the process that took them.

use std::{
    fs::File,
    process::Stdio,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

use crate::{
    store::{Ended, Store, until, until_over},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(a_token_is_acquired_and_released, Nothing),
    test!(a_token_is_renewed_and_its_lease_ends_without, Nothing),
    test!(a_token_whose_lock_was_taken_over_releases_nothing, Nothing),
    test!(a_token_is_checked_and_renewed_for_another_time, Nothing),
    test!(a_part_that_is_lost_is_reported_and_the_rest_released, Nothing),
    test!(json_tells_all_of_it, Nothing),
    test!(a_token_that_cannot_be_written_leaves_nothing_locked, Nothing),
    test!(a_lease_that_the_store_cannot_keep_is_not_renewed, Nothing),
    test!(a_token_that_was_waited_for_has_the_whole_lease, Queue),
    test!(a_token_that_fits_into_no_command_line_comes_from_standard_input, File),
];

fn a_token_that_fits_into_no_command_line_comes_from_standard_input(store: &Store) {
    // One argument takes 128 KiB.
    let ids: Vec<String> = (0..150).map(|number| format!("{number:01000}")).collect();
    let args: Vec<&str> = ids.iter().flat_map(|id| ["--id", id]).collect();
    let ended = store.run(&[&["acquire"], &args[..]].concat());
    let token = ended.stdout;
    assert!(token.len() > 128 * 1024, "{}", token.len());
    assert!(ended.stderr.contains("`lockctl release -` reads it"), "{}", ended.stderr);
    std::fs::write(store.path("token"), token).expect("written");
    for command in ["check", "renew", "release"] {
        let mut reads = store.lockctl(&[command, "-"]);
        reads.stdin(File::open(store.path("token")).expect("written"));
        let ended = Ended::from(reads.output().expect("it runs"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{command}");
    }
    store.assert_nothing_is_locked();
}

fn acquire(store: &Store, args: &[&str]) -> String {
    let ended = store.run(&[&["acquire"], args].concat());
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    ended.stdout.trim().to_owned()
}

fn a_token_is_acquired_and_released(store: &Store) {
    let token =
        acquire(store, &["--id", "a", "--id", "b c", "--slots", "pool=2", "--global", "--lease", "10m"]);
    assert!(!token.contains(char::is_whitespace));
    assert_eq!(store.run(&["run", "--id", "b c", "--", "true"]).code, 120);
    let released = store.run(&["release", &token]);
    assert_eq!((released.code, released.stdout.as_str(), released.stderr.as_str()), (0, "", ""));
    store.assert_nothing_is_locked();

    let again = store.run(&["release", &token]);
    assert_eq!(again.code, 122);
    assert!(
        again.stderr.starts_with("lockctl: not held any more: the global lock: it vanished"),
        "{}",
        again.stderr
    );
}

fn a_token_is_renewed_and_its_lease_ends_without(store: &Store) {
    let (lease, text) = store.lease(Duration::from_secs(6));
    let half = u64::try_from(lease.as_millis()).expect("short") / 2;
    let token = acquire(store, &["--id", "a", "--lease", &text]);
    let acquired = Instant::now();
    let remaining = || store.json(&["show", "a"])["holders"][0]["remaining_ms"].as_u64();
    until_over(lease, "half of the lease is over", || remaining().is_some_and(|left| left < half));
    assert_eq!(store.run(&["renew", &token]).code, 0);
    assert!(remaining().is_some_and(|left| left > half), "{:?}", remaining());
    until_over(lease, "the lease is over", || store.holders("a") == 0);
    assert!(acquired.elapsed() > lease * 29 / 20, "{:?}", acquired.elapsed());
    let late = store.run(&["renew", &token]);
    assert_eq!(late.code, 122);
    assert!(late.stderr.starts_with("lockctl: not held any more: \"a\": "), "{}", late.stderr);
}

fn a_token_whose_lock_was_taken_over_releases_nothing(store: &Store) {
    let (_, lease) = store.lease(Duration::from_secs(4));
    let stale = acquire(store, &["--id", "a", "--id", "b", "--lease", &lease]);
    // Where leases are long it prints for what it waits.
    let fresh = store.run(&["acquire", "--id", "a", "--wait", "30s", "--lease", "10m"]);
    assert_eq!(fresh.code, 0, "{}", fresh.stderr);
    let fresh = fresh.stdout.trim();
    for command in ["release", "renew"] {
        let ended = store.run(&[command, &stale]);
        assert_eq!(ended.code, 122, "{command}");
        assert_eq!(store.holders("a"), 1, "{command} did not touch the new holder");
    }
    assert_eq!(store.run(&["release", fresh]).code, 0);
    assert_eq!(store.holders("a"), 0);
}

fn a_token_is_checked_and_renewed_for_another_time(store: &Store) {
    let token = acquire(store, &["--id", "a", "--shared", "b", "--lease", "10m"]);
    let held = store.run(&["check", &token]);
    assert_eq!((held.code, held.stdout.as_str(), held.stderr.as_str()), (0, "", ""));
    assert_eq!(store.json(&["check", &token])["held"], serde_json::json!(["a", "b"]));
    assert_eq!(store.run(&["renew", &token, "--lease", "20m"]).code, 0);
    let left = store.json(&["show", "b"])["holders"][0]["remaining_ms"].as_u64();
    assert!(left.is_some_and(|left| left > 900_000), "{left:?}");
    assert_eq!(store.run(&["release", &token]).code, 0);
    let gone = store.run(&["check", &token]);
    assert_eq!(gone.code, 122);
    assert!(gone.stderr.starts_with("lockctl: not held any more: \"a\": "), "{}", gone.stderr);
}

fn a_part_that_is_lost_is_reported_and_the_rest_released(store: &Store) {
    let token = acquire(store, &["--id", "a", "--id", "b", "--lease", "10m"]);
    let fence = store.fence("a");
    assert_eq!(store.run(&["break", "a", "--fence", &fence, "--now"]).code, 0);
    let ended = store.run(&["release", &token]);
    assert_eq!(ended.code, 122);
    assert_eq!(ended.stderr, "lockctl: not all held any more: \"a\": it was broken by an administrator\n");
    assert_eq!(store.holders("b"), 0);
}

fn json_tells_all_of_it(store: &Store) {
    let taken = store.json(&["acquire", "--id", "a", "--slots", "pool=2/5", "--lease", "10m"]);
    assert_eq!(taken["lease_ms"], 600_000);
    assert_eq!(taken["locks"][0]["id"], "a");
    assert_eq!(taken["locks"][0]["mode"], "exclusive");
    assert_eq!(taken["locks"][1]["indexes"], serde_json::json!([0, 1]));
    assert_eq!(taken["locks"][1]["in_use"], 2);
    let token = taken["token"].as_str().expect("a token");
    assert_eq!(store.json(&["renew", token])["renewed"], serde_json::json!(["a", "pool"]));
    assert_eq!(store.json(&["release", token])["released"], serde_json::json!(["a", "pool"]));
}

fn a_token_that_cannot_be_written_leaves_nothing_locked(store: &Store) {
    let mut full = store.lockctl(&["acquire", "--id", "a", "--lease", "10m"]);
    full.stdout(File::create("/dev/full").expect("Linux has it")).stderr(Stdio::piped());
    let ended = Ended::from(full.spawn().expect("it starts").wait_with_output().expect("it ends"));
    assert_eq!(ended.code, 1);
    assert_eq!(ended.stderr, "lockctl: stdout: No space left on device (os error 28)\n");
    assert_eq!(store.holders("a"), 0);
}

fn a_lease_that_the_store_cannot_keep_is_not_renewed(store: &Store) {
    let token = acquire(store, &["--id", "a", "--lease", "10m"]);
    let encoded = token.strip_prefix("lock1_").expect("the prefix of tokens");
    let content = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).expect("base64")).expect("JSON");
    let lease = "\"lease_micros\":600000000,";
    assert!(content.contains(lease), "{content}");
    for other in ["\"lease_micros\":18446744073709551615,", "\"lease_micros\":0,", ""] {
        let content = content.replace(lease, other);
        let token = format!("lock1_{}", BASE64_URL_SAFE_NO_PAD.encode(&content));
        let refused = store.run(&["renew", &token]);
        assert_eq!(refused.code, 125, "{content}: {}", refused.stderr);
    }
    let seen = store.json(&["show", "a"]);
    assert_eq!(seen["holders"][0]["lease_ms"], 600_000);
}

/// A store hands a lock over for two seconds, and this process ends before it would renew that.
fn a_token_that_was_waited_for_has_the_whole_lease(store: &Store) {
    let first = acquire(store, &["--id", "a", "--lease", "10m"]);
    let second = store.start(&["acquire", "--id", "a", "--wait", "1m", "--lease", "10m"]);
    until("it waits", || store.waiters("a") == 1);
    assert_eq!(store.run(&["release", &first]).code, 0);
    let second = second.end();
    assert_eq!((second.code, second.stderr.as_str()), (0, ""));
    let holder = &store.json(&["show", "a"])["holders"][0];
    assert!(holder["remaining_ms"].as_u64().is_some_and(|left| left > 60_000), "{holder}");
}
