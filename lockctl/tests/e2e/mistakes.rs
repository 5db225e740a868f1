//! Bad input and other failures: the code, and one clear line.

use std::{os::unix::process::CommandExt, process::Stdio};

use serde_json::Value;

use crate::{
    store::{Ended, Store},
    stores::{Test, schemes},
};

pub(crate) const TESTS: &[Test] = &[
    test!(bad_usage_names_the_field_and_the_value, File),
    test!(more_ids_than_the_backend_takes_are_refused, File),
    test!(bad_configuration_names_where_it_stands, File),
    test!(the_configuration_file_is_heeded, File),
    test!(not_acquired_timed_out_and_backend_failed_are_distinguished, File),
    test!(a_setting_that_cannot_be_is_no_failure_of_the_backend, File),
    test!(a_process_without_a_name_is_asked_for_a_user, File),
    test!(with_json_what_goes_wrong_is_json_too, File),
    test!(a_closed_stdout_is_no_panic, File),
    test!(mistakes_come_with_advice, File),
    test!(help_documents_every_code, File),
    test!(a_file_with_two_names_is_refused, File),
];

const RUN: [&str; 2] = ["--", "true"];

fn fails(store: &Store, args: &[&str], code: i32, message: &str) {
    let ended = store.run(args);
    assert_eq!(ended.stderr, format!("lockctl: {message}\n"), "{args:?}");
    assert_eq!((ended.code, ended.stdout.as_str()), (code, ""), "{args:?}");
}

fn bad_usage_names_the_field_and_the_value(store: &Store) {
    let long = "x".repeat(1025);
    let long_owner = "x".repeat(1281);
    let claims = "<--id <ID>|--shared <ID>|--slots <ID=LIMIT>|--subtree <PATH>|--global>";
    let cases: &[(&[&str], &str)] = &[
        (&[], &format!("the following required arguments were not provided: {claims}")),
        (&["--id", "a "], "invalid value 'a ' for '--id <ID>': it must not begin or end with white space"),
        (
            &["--slots", " a=3"],
            "invalid value ' a=3' for '--slots <ID=LIMIT>': it must not begin or end with white space",
        ),
        (
            &["--id", "a", "--lease", "5M"],
            "invalid value '5M' for '--lease <LEASE>': M may be minutes or months, such as 5m or 5months",
        ),
        (
            &["--id", "a", "--namespace", "prod "],
            "namespace: \"prod \" is not possible, it must not begin or end with white space",
        ),
        (&["--id", ""], "bad request: id: is empty, it must have 1 to 1024 bytes"),
        (
            &["--id", &long],
            &format!("bad request: id: has 1025 bytes, at most 1024 are possible: {:?}...", &long[..32]),
        ),
        (&["--slots", "a=0"], "bad request: limit: 0 for id \"a\", it must be at least 1"),
        (&["--slots", "a=0/3"], "bad request: permits: 0 for id \"a\", it must be at least 1"),
        (&["--slots", "a=4/3"], "bad request: permits: 4 for id \"a\", more than its limit of 3"),
        (
            &["--slots", "a"],
            "invalid value 'a' for '--slots <ID=LIMIT>': it must be ID=LIMIT or ID=K/LIMIT, such as pool=3 or pool=2/3",
        ),
        (
            &["--slots", "a=x"],
            "invalid value 'a=x' for '--slots <ID=LIMIT>': it must be ID=LIMIT or ID=K/LIMIT, such as pool=3 or pool=2/3",
        ),
        (
            &["--id", "a", "--lease", "60"],
            "invalid value '60' for '--lease <LEASE>': it needs a unit, such as 60s or 60ms",
        ),
        (&["--id", "a", "--lease", "0s"], "lease: 0ns, the sqlite backend needs at least 10ms"),
        (&["--id", "a", "--lease", "1ms"], "lease: 1ms, the sqlite backend needs at least 10ms"),
        (
            &["--id", "a", "--wait", "long"],
            "invalid value 'long' for '--wait <WAIT>': it must be never, forever, or a duration with a unit, such as 30s",
        ),
        (
            &["--id", "a", "--data", "{"],
            "invalid value '{' for '--data <JSON>': no JSON: EOF while parsing an object at line 1 column 1",
        ),
        (&["--id", "a", "--owner", &long_owner], "owner: has 1281 bytes, at most 1280 are possible"),
        (
            &["--id", "a", "--url", "mongodb://x"],
            &format!("url: unknown scheme \"mongodb\"; this build has {}", schemes()),
        ),
        (
            &["--id", "a", "--url", "memory:"],
            "url: no other process sees the locks of memory:, choose a store such as sqlite:/var/lib/locks.db",
        ),
        (
            &["--id", "a", "--config", "nowhere.toml"],
            "nowhere.toml: cannot be read: No such file or directory (os error 2)",
        ),
    ];
    for (args, message) in cases {
        fails(store, &[&["run"], *args, &RUN].concat(), 125, message);
    }
    fails(store, &["frob"], 125, "unrecognized subcommand 'frob'");
    fails(store, &["break", "a"], 125, "the following required arguments were not provided: --fence <FENCE>");
    fails(
        store,
        &["sweep", "--batch", "0"],
        125,
        "bad request: batch: 0 is not possible, it must be at least 1",
    );
    let message = "TOKEN: \"nonsense\" is not the beginning of what `acquire` printed";
    fails(store, &["release", "nonsense"], 125, message);
    fails(store, &["renew", "nonsense"], 125, message);
    fails(store, &["check", "nonsense"], 125, message);
    fails(store, &["run", "--id", "a"], 125, "the following required arguments were not provided: <CMD>...");
    let help = store.run(&[]);
    assert_eq!(help.code, 125);
    assert!(help.stderr.contains("Usage: lockctl"), "{}", help.stderr);
}

fn more_ids_than_the_backend_takes_are_refused(store: &Store) {
    let ids: Vec<String> = (0..1001).map(|n| n.to_string()).collect();
    let args: Vec<&str> = ids.iter().flat_map(|id| ["--id", id.as_str()]).collect();
    let message = "bad request: ids: 1001 in one set, the sqlite backend can take at most 1000 in one step";
    fails(store, &[&["run"], &args[..], &RUN].concat(), 125, message);
}

fn bad_configuration_names_where_it_stands(store: &Store) {
    let with = |name: &str, value: &str| {
        let mut command = store.lockctl(&["ls"]);
        command.env(name, value);
        Ended::of(command)
    };
    for (name, value, message) in [
        (
            "LOCKCORE_LEASE",
            "60",
            "LOCKCORE_LEASE: \"60\" is not possible, it needs a unit, such as 60s or 60ms",
        ),
        (
            "LOCKCORE_WAIT",
            "always",
            "LOCKCORE_WAIT: \"always\" is not possible, it must be never, forever, or a duration with a unit, such as 30s",
        ),
        (
            "LOCKCORE_URL",
            "hunter2",
            "LOCKCORE_URL: must begin with a scheme, such as sqlite:/var/lib/locks.db",
        ),
    ] {
        let ended = with(name, value);
        assert_eq!((ended.code, ended.stderr), (125, format!("lockctl: {message}\n")));
    }
    std::fs::write(store.path("lockcore.toml"), "url = 'sqlite:x.db'\nleese = '3s'").expect("written");
    let message = format!(
        "lockcore.toml: unknown key \"leese\"; known are url, namespace, owner, lease, wait, {}",
        schemes()
    );
    fails(store, &["ls"], 125, &message);
    std::fs::write(store.path("lockcore.toml"), "").expect("written");
    let nothing = with("LOCKCORE_URL", "");
    assert_eq!(nothing.code, 125);
    assert!(
        nothing.stderr.starts_with("lockctl: url: not given; set it in lockcore.toml"),
        "{}",
        nothing.stderr
    );
}

fn the_configuration_file_is_heeded(store: &Store) {
    let file = "url = 'sqlite:other.db'\nnamespace = 'n'\nowner = 'me'\nlease = '7m'\nwait = '1s'";
    std::fs::write(store.path("lockcore.toml"), file).expect("written");
    let lockctl = |args: &[&str]| {
        let mut command = store.lockctl(args);
        command.env_remove("LOCKCORE_URL");
        Ended::of(command)
    };
    assert_eq!(lockctl(&["acquire", "--id", "a"]).code, 0);
    let seen: Value = serde_json::from_str(&lockctl(&["show", "a", "--json"]).stdout).expect("JSON");
    assert_eq!(
        (&seen["holders"][0]["owner"], &seen["holders"][0]["lease_ms"]),
        (&"me".into(), &420_000.into())
    );
    assert_eq!(lockctl(&["run", "--id", "a", "--", "true"]).code, 124, "the file says to wait");
    assert_eq!(lockctl(&["run", "--id", "a", "--wait", "never", "--", "true"]).code, 120);
    assert_eq!(lockctl(&["run", "--id", "a", "--namespace", "m", "--", "true"]).code, 0);
    store.assert_nothing_is_locked();
    assert!(store.path("other.db").exists());
}

fn not_acquired_timed_out_and_backend_failed_are_distinguished(store: &Store) {
    assert_eq!(store.run(&["acquire", "--id", "a", "--owner", "somebody", "--lease", "10m"]).code, 0);
    let refused = store.run(&["run", "--id", "a", "--id", "b", "--", "true"]);
    assert_eq!(refused.code, 120);
    assert!(refused.stderr.starts_with("lockctl: not locked: \"a\" is held by "), "{}", refused.stderr);
    assert!(refused.stderr.contains("(somebody)"), "{}", refused.stderr);

    let late = store.run(&["run", "--id", "a", "--wait", "1s", "--", "true"]);
    assert_eq!(late.code, 124);
    assert!(late.stderr.starts_with("lockctl: not locked after "), "{}", late.stderr);

    let failed = store.run(&["run", "--id", "a", "--url", "sqlite:/nowhere/x.db", "--", "true"]);
    assert_eq!(failed.code, 123);
    assert!(failed.stderr.contains("/nowhere/x.db"), "{}", failed.stderr);

    std::fs::write(store.path("not.db"), "This is not a database at all. ".repeat(100)).expect("written");
    let failed = store.run(&["ls", "--url", "sqlite:not.db"]);
    assert_eq!((failed.code, failed.stderr.lines().count()), (123, 1), "{}", failed.stderr);
}

/// No client should try again what never can be.
fn a_setting_that_cannot_be_is_no_failure_of_the_backend(store: &Store) {
    for url in
        ["sqlite:", "sqlite:x.db?busy_timeout=0s", "redis://h/x", "postgres://h/d?sslmode=bogus", "mysql://h"]
    {
        let refused = store.run(&["ls", "--url", url]);
        assert_eq!(refused.code, 125, "{url}: {}", refused.stderr);
    }
}

/// As in a container that runs under a number that no list of users has.
fn a_process_without_a_name_is_asked_for_a_user(store: &Store) {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let mut command = store.lockctl(&["ls", "--url", "postgres://127.0.0.1:1/app"]);
    command.current_dir("/").uid(1_000_710_000).gid(1_000_710_000);
    command.env_remove("USER").env_remove("LOGNAME").env_remove("PGUSER");
    let refused = Ended::of(command);
    assert_eq!(refused.code, 125, "{}", refused.stderr);
    let told = "it must name a user, as this process has no name: postgres://user@host:5432/database";
    assert!(refused.stderr.contains(told), "{}", refused.stderr);
}

fn with_json_what_goes_wrong_is_json_too(store: &Store) {
    assert_eq!(store.run(&["acquire", "--id", "a", "--lease", "10m"]).code, 0);
    let refused = store.run(&["run", "--json", "--id", "a", "--", "true"]);
    let error: Value = serde_json::from_str(&refused.stderr).expect("JSON");
    assert_eq!((&error["error"]["kind"], &error["error"]["code"]), (&"not_acquired".into(), &120.into()));
    assert!(
        error["error"]["message"].as_str().is_some_and(|text| text.starts_with("not locked: ")),
        "{error}"
    );
    let conflict = &error["error"]["conflicts"][0];
    assert_eq!((conflict["id"].as_str(), conflict["reason"].as_str()), (Some("a"), Some("held")), "{error}");
    let holder = &conflict["holders"][0];
    assert_eq!(holder["mode"].as_str(), Some("exclusive"), "{error}");
    assert!(holder["remaining_ms"].as_u64().is_some_and(|left| left > 60_000), "{error}");

    let mistaken = store.run(&["run", "--json", "--id", "a", "--lease", "60", "--", "true"]);
    let error: Value = serde_json::from_str(&mistaken.stderr).expect("JSON");
    assert_eq!((&error["error"]["kind"], &error["error"]["code"]), (&"usage".into(), &125.into()));
    let own = store.run(&["run", "--id", "a", "--lease", "60", "--", "true", "--json"]);
    assert!(own.stderr.starts_with("lockctl: invalid value '60'"), "that is the command's: {}", own.stderr);
}

fn mistakes_come_with_advice(store: &Store) {
    let advice = |args: &[&str]| {
        let refused = store.run(args);
        assert_eq!((refused.code, refused.stderr.lines().count()), (125, 1), "{}", refused.stderr);
        refused.stderr
    };
    let text = advice(&["run", "--id", "a", "true"]);
    assert!(text.ends_with("; a command stands behind `--`: lockctl run --id ID -- CMD\n"), "{text}");
    let text = advice(&["shwo", "a"]);
    assert!(text.contains("; tip: a similar subcommand exists: 'show'"), "{text}");
    let text = advice(&["run", "--slot", "a=1", "--", "true"]);
    assert!(text.contains("; tip: a similar argument exists: '--slots'"), "{text}");
}

fn a_closed_stdout_is_no_panic(store: &Store) {
    let mut command = store.command("sh");
    command.args(["-c", "{ lockctl doctor; echo $? >&2; } | true"]);
    // `true` may read nothing and end before or after; either way lockctl ends quietly.
    let ended = Ended::of(command);
    assert!(["0\n", "141\n"].contains(&ended.stderr.as_str()), "{}", ended.stderr);

    for args in [&["--help"][..], &["ls"], &["completions", "bash"], &["doctor", "--json"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = store.lockctl(args);
        command.stdout(writer).stderr(Stdio::piped());
        let ended = Ended::from(command.spawn().expect("it starts").wait_with_output().expect("it ends"));
        let expected = if args == ["--help"] { 0 } else { 141 };
        assert_eq!((ended.code, ended.stderr.as_str()), (expected, ""), "{args:?}");
    }
}

fn help_documents_every_code(store: &Store) {
    let help = store.run(&["--help"]).stdout;
    for code in ["1 ", "120", "121", "122", "123", "124", "125", "126", "127", "128+n", "else"] {
        assert!(help.contains(&format!("\n  {code}")), "{code} in {help}");
    }
}

fn a_file_with_two_names_is_refused(store: &Store) {
    let holder = store.start(&["run", "--id", "a", "--", "sh", "-c", "touch held; exec sleep 60"]);
    store.until_file("held");
    std::fs::hard_link(store.path("locks.db"), store.path("other.db")).expect("a link");
    for args in [
        &["run", "--url", "sqlite:other.db", "--id", "a", "--", "echo", "BOTH"][..],
        &["doctor", "--url", "sqlite:other.db"],
        &["doctor"],
    ] {
        let ended = store.run(args);
        assert_ne!(ended.code, 0, "{args:?}");
        assert_eq!(ended.stdout, "", "{args:?}");
        assert!(ended.stderr.contains("it has 2 names (hard links)"), "{args:?}: {}", ended.stderr);
    }
    drop(holder);
}
