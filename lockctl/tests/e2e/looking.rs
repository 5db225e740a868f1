//! Looking at what is locked: why, watch, and how long the store takes.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use serde_json::Value;

use crate::{
    store::{Ended, Store, until},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(holders_are_followed_to_what_they_wait_for, Queue),
    test!(changes_are_watched_as_lines_of_json, Nothing),
    test!(each_change_of_an_id_is_watched, Nothing),
    test!(waiting_until_an_id_is_free_takes_nothing, Nothing),
    test!(an_interval_of_zero_is_refused, Nothing),
    test!(the_store_is_measured, Nothing),
    test!(manual_pages_are_written, File),
];

fn waiting_until_an_id_is_free_takes_nothing(store: &Store) {
    let wait = ["wait", "a", "b", "--every", "50ms"];
    assert_eq!(store.run(&wait).code, 0);
    let holder = store.start(&[
        "run",
        "--id",
        "a",
        "--",
        "sh",
        "-c",
        "touch in; until [ -e end ]; do sleep 0.05; done",
    ]);
    store.until_file("in");
    let late = store.run(&[&wait[..], &["--timeout", "200ms"]].concat());
    assert_eq!(late.code, 124, "{}", late.stderr);
    let waiting = store.start(&wait);
    std::fs::write(store.path("end"), "").expect("written");
    assert_eq!((holder.end().code, waiting.end().code), (0, 0));
    store.assert_nothing_is_locked();
}

fn holders_are_followed_to_what_they_wait_for(store: &Store) {
    let first = store.start(&["run", "--id", "a", "--owner", "one", "--", "sh", "-c", &inside("one", "b")]);
    store.until_file("one");
    let second = store.start(&[
        "run",
        "--id",
        "b",
        "--owner",
        "two",
        "--",
        "sh",
        "-c",
        "touch two; until [ -e end ]; do sleep 0.05; done",
    ]);
    store.until_file("two");
    std::fs::write(store.path("one.go"), "").expect("written");
    until("it waits", || store.waiters("b") == 1);
    let shown = store.run(&["why", "a"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (0, ""));
    assert!(shown.stdout.contains("by one, exclusive"), "{}", shown.stdout);
    assert!(shown.stdout.contains("which waits for \"b\""), "{}", shown.stdout);
    assert!(shown.stdout.contains("by two, exclusive"), "{}", shown.stdout);
    let why = store.json(&["why", "a"]);
    assert_eq!((why["ids"][1]["id"].as_str(), &why["cycle"]), (Some("b"), &Value::Null));
    let dot = store.run(&["why", "a", "--dot"]).stdout;
    assert!(dot.starts_with("digraph why {") && dot.contains("id0h0 -> id1"), "{dot}");
    std::fs::write(store.path("end"), "").expect("written");
    assert_eq!((first.end().code, second.end().code), (0, 0));
}

/// A script that waits for another id while it is inside, with the same owner label.
fn inside(name: &str, wanted: &str) -> String {
    format!(
        "touch {name}; until [ -e {name}.go ]; do sleep 0.05; done
        lockctl run --id {wanted} --wait 1m --owner {name} -- true"
    )
}

fn changes_are_watched_as_lines_of_json(store: &Store) {
    let mut watching = store.lockctl(&["watch", "--every", "50ms"]);
    // Administration creates nothing, so the store has to be there.
    assert_eq!(store.run(&["run", "--id", "before", "--", "true"]).code, 0);
    let mut watching = watching.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let mut next =
        || -> Value { serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON") };
    assert_eq!(next()["ids"], Value::Array(Vec::new()));
    let token = store.run(&["acquire", "--id", "a"]).stdout;
    let seen = next();
    assert_eq!(
        (seen["ids"][0]["id"].as_str(), seen["ids"][0]["holders"].as_array().map(Vec::len)),
        (Some("a"), Some(1))
    );
    assert_eq!(store.run(&["release", token.trim()]).code, 0);
    assert_eq!(next()["ids"], Value::Array(Vec::new()));
    watching.kill().expect("it runs");
    watching.wait().expect("it ends");
}

fn each_change_of_an_id_is_watched(store: &Store) {
    assert_eq!(store.run(&["run", "--id", "before", "--", "true"]).code, 0);
    let mut watching = store.lockctl(&["watch", "a", "--every", "50ms"]);
    let mut watching = watching.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let mut next =
        || -> Value { serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON") };
    let token = store.run(&["acquire", "--id", "a", "--owner", "me", "--lease", "10m"]).stdout;
    let taken = next();
    assert_eq!(
        (taken["change"].as_str(), taken["owner"].as_str()),
        (Some("acquired"), Some("me")),
        "{taken}"
    );
    assert_eq!(store.run(&["freeze", "a"]).code, 0);
    assert_eq!(next()["change"], "frozen");
    assert_eq!(store.run(&["freeze", "a", "--thaw"]).code, 0);
    assert_eq!(next()["change"], "thawed");
    assert_eq!(store.run(&["release", token.trim()]).code, 0);
    let ended = next();
    assert_eq!((ended["change"].as_str(), ended["by"].as_str()), (Some("ended"), Some("release")), "{ended}");
    assert_eq!((&ended["fence"], &ended["id"]), (&taken["fence"], &taken["id"]));
    watching.kill().expect("it runs");
    watching.wait().expect("it ends");
}

/// Each look would follow the last one at once.
fn an_interval_of_zero_is_refused(store: &Store) {
    for args in [&["watch"][..], &["watch", "a"], &["wait", "a"]] {
        let mut watching = store.command("timeout");
        watching.arg("20").arg("lockctl").args(args).args(["--every", "0s"]);
        let refused = Ended::of(watching);
        let message = "lockctl: bad request: every: 0s is not possible, it must be longer than zero\n";
        assert_eq!((refused.code, refused.stderr.as_str()), (125, message), "{args:?}");
    }
}

fn the_store_is_measured(store: &Store) {
    let measured = store.json(&["bench", "--ids", "3", "--tasks", "2", "--time", "300ms"]);
    assert!(measured["pairs"].as_u64().is_some_and(|pairs| pairs >= 2), "{measured}");
    assert!(measured["p50_us"].as_u64() <= measured["p99_us"].as_u64(), "{measured}");
    assert_eq!((measured["ids"].as_u64(), measured["tasks"].as_u64()), (Some(3), Some(2)));
    store.assert_nothing_is_locked();
}

fn manual_pages_are_written(store: &Store) {
    let folder = store.path("man");
    std::fs::create_dir(&folder).expect("made");
    assert_eq!(store.run(&["man", folder.to_str().expect("text")]).code, 0);
    let run = std::fs::read_to_string(folder.join("lockctl-run.1")).expect("a page for each command");
    assert!(run.contains("LOCKCORE_FENCE"), "{run}");
    assert!(folder.join("lockctl.1").exists());
    assert_eq!(store.run(&["man", "no/such/folder"]).code, 1);
}
