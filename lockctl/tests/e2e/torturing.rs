//! `lockctl torture`: what it finds, and that it leaves nothing.

use std::{fs, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    store::{Ended, Store, is_alive, until},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(a_store_that_keeps_its_promises_passes_and_nothing_is_left, Nothing),
    test!(a_broken_promise_is_found, File),
    test!(two_stores_that_are_taken_for_one_are_found, File),
    test!(an_interrupt_ends_all_processes_and_what_was_done_is_judged, Nothing),
    test!(processes_end_with_a_killed_lockctl, File),
    test!(it_does_nothing_that_was_not_agreed_to, File),
];

/// More than it takes where a lease is ten seconds.
const LONG: Duration = Duration::from_secs(600);

/// Starts it with histories in the folder of the test.
fn start(store: &Store, args: &[&str]) -> crate::store::Running {
    let mut command = store.lockctl(&[&["torture"], args].concat());
    command.env("TMPDIR", store.path(""));
    crate::store::Running::of(command)
}

/// The verdict of a run.
fn verdict(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{} {}", ended.stdout, ended.stderr))
}

/// The pids and command lines of the processes that work in the folder of the test.
fn workers(store: &Store) -> Vec<(String, String)> {
    let folder = store.path("").canonicalize().expect("it is there");
    let processes = fs::read_dir("/proc").expect("Linux").flatten().map(|process| process.path());
    let ours = processes.filter(|process| fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == folder));
    let lines = ours.filter_map(|process| {
        let line = fs::read_to_string(process.join("cmdline")).ok()?;
        let pid = process.file_name()?.to_str()?.to_owned();
        (line.contains("torture-worker") && is_alive(&pid)).then_some((pid, line))
    });
    lines.collect()
}

/// The folders of histories that are there.
fn histories(store: &Store) -> Vec<fs::DirEntry> {
    let all = fs::read_dir(store.path("")).expect("it is there").flatten();
    all.filter(|entry| entry.file_name().to_string_lossy().starts_with("lockctl-torture-")).collect()
}

fn assert_nothing_is_left(store: &Store, verdict: &Value) {
    assert_eq!(workers(store), []);
    assert_eq!(verdict["not_cleaned"], Value::Null);
    let mut list =
        store.lockctl(&["--namespace", verdict["namespace"].as_str().expect("a name"), "ls", "--json"]);
    list.env_remove("LOCKCORE_NAMESPACE");
    assert_eq!(Ended::of(list).stdout, "[]\n");
    if store.url() == "sqlite:locks.db" {
        let database = rusqlite::Connection::open(store.path("locks.db")).expect("the store");
        let rows = "SELECT (SELECT count(*) FROM lockcore_claims) + (SELECT count(*) FROM lockcore_sessions)";
        let rows: i64 = database.query_row(rows, [], |row| row.get(0)).expect("a number");
        assert_eq!(rows, 0, "of killed processes, too");
    }
}

fn a_store_that_keeps_its_promises_passes_and_nothing_is_left(store: &Store) {
    let slow = store.capabilities.min_lease >= Duration::from_secs(5);
    let operations = if slow { "60" } else { "600" };
    let args = ["--operations", operations, "--workers", "3", "--seed", "7", "--yes", "--json"];
    let ended = start(store, &args).end_within(LONG);
    assert_eq!(ended.code, 0, "{} {}", ended.stdout, ended.stderr);
    let verdict = verdict(&ended);
    assert_eq!(verdict["verdict"], "kept", "{verdict}");
    assert!(verdict["operations"].as_u64() >= operations.parse().ok(), "{verdict}");
    assert_ne!(verdict["guarded_writes"]["admitted"], 0, "{verdict}");
    let ended = verdict["outcomes"].as_object().expect("an object").values();
    assert_eq!(ended.filter_map(Value::as_u64).sum::<u64>(), verdict["operations"], "{verdict}");
    assert_nothing_is_left(store, &verdict);
    assert!(histories(store).is_empty());

    let line = verdict["line"].as_str().expect("a line");
    let kind = store.capabilities.backend.replace("mysql", "m");
    assert!(line.starts_with(&format!("torture: {kind}")) && line.ends_with("violations=0"), "{line}");
    let host = nix::unistd::gethostname().expect("a name").to_string_lossy().into_owned();
    let folder = store.path("").display().to_string();
    let namespace = verdict["namespace"].as_str().expect("a name").to_owned();
    for secret in store.address().into_iter().chain([host, folder, namespace]) {
        for part in secret.split([':', '/']).filter(|part| part.len() > 3) {
            assert!(!line.contains(part), "{part} in {line}");
        }
    }
}

fn a_broken_promise_is_found(store: &Store) {
    let args = ["--operations", "2000", "--cheat", "NoLock", "--yes", "--json"];
    let ended = start(store, &args).end_within(LONG);
    assert_eq!(ended.code, 1, "{} {}", ended.stdout, ended.stderr);
    let verdict = verdict(&ended);
    assert_eq!(verdict["verdict"], "broken");
    let violations = verdict["violations"].as_array().expect("an array");
    let is_exclusion =
        |violation: &Value| violation.as_str().is_some_and(|text| text.starts_with("Exclusion: id-"));
    assert!(violations.iter().any(is_exclusion), "{verdict}");
    assert_eq!(verdict["line"], Value::Null, "a cheat says nothing of the store");
    assert_eq!(histories(store).len(), 1, "to look at");
    assert_nothing_is_left(store, &verdict);
}

/// What excludes no others: the processes lock in two files.
fn two_stores_that_are_taken_for_one_are_found(store: &Store) {
    assert_eq!(store.run(&["--url", "sqlite:other.db", "migrate"]).stderr, "");
    let args = ["sqlite:locks.db", "sqlite:other.db", "--operations", "2000", "--yes"];
    let ended = start(store, &args).end_within(LONG);
    assert_eq!(ended.code, 1, "{} {}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("\n  Exclusion: id-"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("violations=0"), "{}", ended.stdout);
}

fn an_interrupt_ends_all_processes_and_what_was_done_is_judged(store: &Store) {
    let mut args = vec!["--for", "1h", "--workers", "2", "--yes", "--json"];
    if store.address().is_none() {
        args.insert(0, store.url());
    }
    let running = start(store, &args);
    let has_locked = |entry: &fs::DirEntry| {
        let files = fs::read_dir(entry.path()).into_iter().flatten().flatten();
        let worked = |file: fs::DirEntry| {
            fs::read_to_string(file.path()).unwrap_or_default().matches(r#""outcome":"done""#).count()
        };
        files.map(worked).sum::<usize>() > 30
    };
    until("the processes lock", || histories(store).iter().any(has_locked));
    let all = workers(store);
    assert!(
        all.iter().all(|(_, line)| !line.contains(store.url())),
        "its secrets are for no other user: {all:?}"
    );
    // A stopped process has to go on, or it cannot end.
    for (pid, _) in all {
        // It may have been killed by now.
        let _ = kill(Pid::from_raw(pid.parse().expect("a number")), Signal::SIGSTOP);
    }
    running.signal(Signal::SIGINT);
    let ended = running.end_within(LONG);
    assert_eq!(ended.code, 130, "{} {}", ended.stdout, ended.stderr);
    let verdict = verdict(&ended);
    assert_eq!(verdict["verdict"], "kept", "{verdict}");
    assert_nothing_is_left(store, &verdict);
    assert!(histories(store).is_empty());
}

fn processes_end_with_a_killed_lockctl(store: &Store) {
    let running = start(store, &["--for", "1h", "--yes"]);
    until("there are processes", || workers(store).len() == 4);
    running.signal(Signal::SIGKILL);
    running.killed();
    until("they have ended", || workers(store).is_empty());
}

fn it_does_nothing_that_was_not_agreed_to(store: &Store) {
    for (args, code, message) in [
        (&["torture"][..], 125, "lockctl: --yes: needed where no terminal can be asked\n"),
        (&["torture", "sqlite:a.db", "--url", "sqlite:b.db"], 125, "--url: the store is given twice"),
        (&["torture", "--namespace", "a", "--yes"], 125, "--namespace: it makes one of its own"),
        (&["torture", "sqlite:none.db", "--yes"], 123, "none.db"),
    ] {
        let ended = store.run(args);
        assert_eq!((ended.code, ended.stdout.as_str()), (code, ""), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(message), "{args:?}: {}", ended.stderr);
    }
    assert!(!store.path("none.db").exists());
    let said = store.run(&["torture", "--for", "3m"]).stderr;
    for part in ["4 processes of 4 tasks", "for 3m", "namespace \"torture-", "what stays: "] {
        assert!(said.contains(part), "{said}");
    }
}
