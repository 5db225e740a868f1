//! `run --once` and `--once-per`: a command that several hosts start, each a process.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    store::{Ended, PATIENCE, Running, Store, is_alive, until},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(three_processes_run_a_command_once, Nothing),
    test!(a_killed_process_is_followed_after_its_lease, Nothing),
    test!(a_command_that_fails_is_run_by_the_next, Nothing),
    test!(a_waiting_process_ends_when_it_ran, Nothing),
    test!(a_period_runs_a_command_once, Nothing),
    test!(a_fire_needs_one_name, File),
];

const FIRE: [&str; 4] = ["--id", "nightly", "--once", "2026-11-29"];
const ID: &str = "nightly@2026-11-29";

fn run<'a>(options: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [&["run"], &FIRE[..], options, &["--", "sh", "-c", script]].concat()
}

/// What a process says whose command runs or ran elsewhere.
fn answer(ended: &Ended) -> Value {
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let said: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(said["id"], ID);
    let since = said["by"]["since"].as_str().expect("a time");
    let since = humantime::parse_rfc3339(since).expect("a time");
    let age = since.elapsed().unwrap_or_else(|error| error.duration());
    assert!(age < Duration::from_secs(600), "{age:?}");
    said
}

fn three_processes_run_a_command_once(store: &Store) {
    let script = "echo $LOCKCORE_FENCE >> ran; until [ -e go ]; do sleep 0.02; done";
    let hosts: Vec<Running> = (0..3)
        .map(|host| store.start(&run(&["--json", "--owner", &format!("host-{host}")], script)))
        .collect();
    let alive = |host: &&Running| is_alive(&host.pid().to_string());
    until("the others end", || hosts.iter().filter(alive).count() == 1);
    store.until_file("ran");
    let runs = hosts.iter().position(|host| alive(&host)).expect("one runs it");
    let owner = format!("host-{runs}");
    assert_eq!(store.read("ran").trim(), store.fence(ID));
    std::fs::write(store.path("go"), "").expect("written");
    for (host, ended) in hosts.into_iter().map(Running::end).enumerate() {
        if host == runs {
            assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (0, "", ""));
        } else {
            let said = answer(&ended);
            assert_eq!((&said["state"], &said["by"]["owner"]), (&"running".into(), &owner.clone().into()));
        }
    }
    let said = answer(&store.run(&run(&["--json"], script)));
    assert_eq!((&said["state"], &said["by"]["owner"]), (&"ran".into(), &owner.into()));
    assert!(said["by"]["remaining_ms"].as_u64().expect("a number") > 24 * 3600 * 1000, "{said}");
    // Nothing that cron would mail.
    let late = store.run(&run(&[], script));
    assert_eq!((late.code, late.stdout.as_str(), late.stderr.as_str()), (0, "", ""));
    let late = store.run(&run(&["--conflict-exit-code", "75", "--json"], script));
    assert_eq!((late.code, late.stdout.as_str(), late.stderr.as_str()), (75, "", ""));
    assert_eq!(store.read("ran").lines().count(), 1);
    assert_eq!((store.holders(ID), store.holders(&format!("{ID}@running"))), (1, 0));
}

fn a_killed_process_is_followed_after_its_lease(store: &Store) {
    let (lease, text) = store.lease(Duration::from_secs(2));
    let began = Instant::now();
    let options = ["--lease", &text];
    store.start(&run(&options, "echo >> ran; kill -9 $PPID; sleep 600")).killed();
    let said = store.run(&run(&["--json"], "echo >> ran"));
    if began.elapsed() < lease / 2 {
        assert_eq!(answer(&said)["state"], "running");
    }
    let wait = format!("{}s", (PATIENCE + lease).as_secs());
    let next = store.start(&run(&["--wait", &wait, "--owner", "next"], "echo >> ran"));
    let next = next.end_within(PATIENCE + lease);
    assert_eq!((next.code, next.stdout.as_str()), (0, ""), "{}", next.stderr);
    assert_eq!(store.read("ran").lines().count(), 2);
    let late = answer(&store.run(&run(&["--json"], "echo >> ran")));
    assert_eq!((&late["state"], store.read("ran").lines().count()), (&"ran".into(), 2));
}

fn a_command_that_fails_is_run_by_the_next(store: &Store) {
    assert_eq!(store.run(&run(&[], "exit 3")).code, 3);
    assert_eq!((store.holders(ID), store.holders(&format!("{ID}@running"))), (0, 0));
    let missing = [&["run"], &FIRE[..], &["--", "/nowhere/command"]].concat();
    assert_eq!((store.run(&missing).code, store.holders(ID)), (127, 0));
    // A signal that ends it is a failure too.
    assert_eq!(store.run(&run(&[], "kill -TERM $$")).code, 143);
    // Within its own command it would be waited for in vain.
    let inner = "lockctl run --id nightly --once 2026-11-29 --wait forever -- true";
    let inside = store.run(&run(&[], inner));
    assert_eq!(inside.code, 125, "{}", inside.stderr);
    assert!(inside.stderr.contains("held by an enclosing call"), "{}", inside.stderr);
    let ended = store.run(&run(&["--keep", "7d"], "echo >> ran"));
    assert_eq!((ended.code, ended.stderr.as_str(), store.holders(ID)), (0, "", 1));
    assert!(store.json(&["show", ID])["holders"][0]["remaining_ms"].as_u64() > Some(6 * 24 * 3600 * 1000));
    assert_eq!((store.run(&run(&[], "echo >> ran")).code, store.read("ran").lines().count()), (0, 1));
}

fn a_waiting_process_ends_when_it_ran(store: &Store) {
    let runs = store.start(&run(&[], "echo >> ran; until [ -e go ]; do sleep 0.02; done"));
    store.until_file("ran");
    assert_eq!(answer(&store.run(&run(&["--json"], "echo >> ran")))["state"], "running");
    let waits = store.start(&run(&["--json", "--wait", "forever"], "echo >> ran"));
    std::fs::write(store.path("go"), "").expect("written");
    assert_eq!(runs.end().code, 0);
    assert_eq!(answer(&waits.end())["state"], "ran");
    assert_eq!(store.read("ran").lines().count(), 1);
}

fn a_period_runs_a_command_once(store: &Store) {
    let run = |period: &str, script: &str| {
        let ended = store.run(&["run", "--id", "nightly", "--once-per", period, "--", "sh", "-c", script]);
        (ended.code, ended.stdout, ended.stderr)
    };
    let quiet = |code| (code, String::new(), String::new());
    assert_eq!(run("24h", "exit 3"), quiet(3));
    for _host in 0..3 {
        assert_eq!(run("24h", "echo >> ran"), quiet(0));
    }
    assert_eq!(store.read("ran").lines().count(), 1);
    let left = store.json(&["show", "nightly@latest"])["holders"][0]["remaining_ms"].as_u64();
    let half = 12 * 3600 * 1000;
    assert!(left > Some(half - 600_000) && left <= Some(half), "{left:?}");
    let (code, _, message) = run("1s", "true");
    assert_eq!(code, 125, "{message}");
    assert_eq!(
        message,
        "lockctl: bad request: period: 1s is not possible, it must be at least twice the lease, and at most 730 days\n"
    );
}

fn a_fire_needs_one_name(store: &Store) {
    let fails = |options: &[&str], message: &str| {
        let ended = store.run(&[&["run"], options, &["--", "true"]].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (125, ""));
        assert!(ended.stderr.contains(message), "{}", ended.stderr);
    };
    let needs = "--once: it needs one --id, the name of the job, and no other locks";
    fails(&["--id", "a", "--id", "b", "--once", "c"], needs);
    fails(&["--id", "a", "--global", "--once", "c"], needs);
    fails(&["--shared", "a", "--once-per", "24h"], &needs.replace("--once", "--once-per"));
    fails(&["--id", "a", "--once", "b@c"], "bad request: fire: \"b@c\" is not possible, it must not be");
    fails(&["--id", "a", "--once", "b", "--once-per", "24h"], "cannot be used with");
    fails(&["--id", "a", "--once", "b", "--keep-for", "1m"], "cannot be used with");
    fails(&["--id", "a", "--keep", "1m"], "--once <FIRE>");
    fails(&["--id", "a", "--once", "b", "--keep", "0s"], "keep: 0ns is not possible");
}
