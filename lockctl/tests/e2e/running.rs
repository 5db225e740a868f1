//! The command under locks: what it gets, and what comes back.

use std::{
    fs::Permissions,
    io::Write,
    os::unix::fs::PermissionsExt,
    process::Stdio,
    time::{Duration, Instant},
};

use lockcore_conformance::judge::in_time;
use serde_json::Value;

use crate::{
    store::{Ended, Store, until, until_over},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(the_exit_code_is_the_commands, Nothing),
    test!(stdin_stdout_and_stderr_pass_through, Nothing),
    test!(context_and_fences_are_in_the_environment, Nothing),
    test!(the_set_is_held_meanwhile_and_free_afterwards, Nothing),
    test!(modes_exclude_what_they_say, Nothing),
    test!(a_path_excludes_what_is_below, Nothing),
    test!(a_lockctl_inside_the_command_does_not_queue_behind_waiters_for_the_outer_lock, Queue),
    test!(locks_are_renewed_while_the_command_runs, Nothing),
    test!(locks_are_kept_though_lockctl_is_killed, Nothing),
    test!(locks_are_kept_after_a_short_command, Nothing),
    test!(the_crontab_runs_once_however_late_a_host_is, Nothing),
    test!(a_command_that_cannot_be_started_leaves_nothing_locked, Nothing),
    test!(a_set_that_no_environment_has_room_for_is_refused_before_it_is_locked, File),
    test!(a_conflict_has_the_code_that_was_asked_for_and_prints_nothing, File),
    test!(a_lockctl_inside_the_command_finds_the_store_of_the_command_line, File),
    test!(a_lockctl_inside_a_command_whose_url_has_a_secret_says_what_to_set, Server),
    test!(a_command_gets_sockets_and_its_own_pid_as_the_help_says, File),
    test!(as_pid_1_it_reaps_no_orphans_as_the_help_says, File),
];

fn help_of_run(store: &Store) -> String {
    store.run(&["run", "--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn a_command_gets_sockets_and_its_own_pid_as_the_help_says(store: &Store) {
    let documented = "LISTEN_PID=$$ WATCHDOG_PID=$$ exec PROGRAM";
    let help = help_of_run(store);
    assert!(help.contains(&format!("sh -c '{documented}'")), "{help}");
    let program = "#!/bin/sh\ncat <&3; echo $$ $LISTEN_PID $WATCHDOG_PID $LISTEN_FDS\n";
    std::fs::write(store.path("program"), program).expect("written");
    std::fs::set_permissions(store.path("program"), Permissions::from_mode(0o755)).expect("it is ours");
    std::fs::write(store.path("socket"), "").expect("written");
    // As systemd starts a unit: the pids are those of its first process, which lockctl is.
    let started = |command: &[&str]| {
        let script = "exec 3<socket; export LISTEN_FDS=1 LISTEN_PID=$$ WATCHDOG_PID=$$; exec lockctl run --id a -- \"$@\"";
        let mut unit = store.command("sh");
        unit.args(["-c", script, "unit"]).args(command);
        let ended = Ended::of(unit);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
        ended.stdout.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let own = started(&["sh", "-c", &documented.replace("PROGRAM", "./program")]);
    assert_eq!(own, [&own[0], &own[0], &own[0], "1"]);
    let lockctls = started(&["./program"]);
    assert_ne!(lockctls[0], lockctls[1], "it would need no help");
    assert_eq!(lockctls[1], lockctls[2]);
}

fn as_pid_1_it_reaps_no_orphans_as_the_help_says(store: &Store) {
    let help = help_of_run(store);
    assert!(help.contains("put an init before it, such as `docker run --init`"), "{help}");
    let as_pid_1 = |command: &[&str]| {
        let mut unshare = store.command("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).args(command);
        Ended::of(unshare)
    };
    if as_pid_1(&["true"]).code != 0 {
        println!("this machine gives no namespace of pids");
        return;
    }
    let script = "for orphan in 1 2 3; do (true &); done
        until [ $(grep -ls '^State:.Z' /proc/[0-9]*/status | wc -l) = 3 ]; do sleep 0.02; done; exit 7";
    let ended = as_pid_1(&["lockctl", "run", "--id", "a", "--", "timeout", "60", "sh", "-c", script]);
    assert_eq!((ended.code, ended.stderr.as_str()), (7, ""));
    store.assert_nothing_is_locked();
}

fn a_conflict_has_the_code_that_was_asked_for_and_prints_nothing(store: &Store) {
    let inner = |options: &str, command: &str| {
        let script = format!("lockctl run --id a {options} -- {command}; echo $?");
        // Not nested: another program that asks for the same id.
        let script = format!("unset LOCKCORE_ENCLOSING; {script}");
        store.run(&["run", "--id", "a", "--", "sh", "-c", &script])
    };
    for (options, code) in [("--conflict-exit-code 0", "0"), ("--conflict-exit-code 75 --wait 50ms", "75")] {
        let ended = inner(options, "false");
        assert_eq!((ended.stdout.trim_end(), ended.stderr.as_str()), (code, ""), "{options}");
    }
    let ended = inner("", "false");
    assert_eq!(ended.stdout.trim_end(), "120");
    assert!(ended.stderr.contains("held by"), "{}", ended.stderr);
    // It is no other failure's code.
    let wrong = store.run(&["run", "--id", "a", "--lease", "1ms", "--conflict-exit-code", "0", "--", "true"]);
    assert_eq!(wrong.code, 125, "{}", wrong.stderr);
    let own = store.run(&["run", "--id", "a", "--conflict-exit-code", "0", "--", "sh", "-c", "exit 3"]);
    assert_eq!(own.code, 3);
}

fn a_lockctl_inside_the_command_finds_the_store_of_the_command_line(store: &Store) {
    let folder = store.path("elsewhere");
    std::fs::create_dir(&folder).expect("a folder");
    let mut outer = store.command(assert_cmd::cargo::cargo_bin("lockctl"));
    // A path that is relative to the folder of the outer one.
    outer.env_remove("LOCKCORE_URL").args([
        "--url",
        "sqlite:inner.db",
        "--namespace",
        "n",
        "run",
        "--id",
        "a",
        "--",
    ]);
    outer.args(["sh", "-c", "cd elsewhere && lockctl ls && lockctl show a --json"]);
    let ended = Ended::from(outer.output().expect("it runs"));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("\"holders\""), "{}", ended.stdout);
    let mut secret = store.command(assert_cmd::cargo::cargo_bin("lockctl"));
    secret.env_remove("LOCKCORE_URL").args([
        "--url",
        "sqlite:inner.db?namespace=n",
        "run",
        "--id",
        "a",
        "--",
        "env",
    ]);
    let environment = Ended::from(secret.output().expect("it runs")).stdout;
    assert!(environment.contains("LOCKCORE_URL=sqlite:/"), "{environment}");
}

/// It finds neither a store that is inherited in place of the one that is withheld, nor one of a file that lies there.
fn a_lockctl_inside_a_command_whose_url_has_a_secret_says_what_to_set(store: &Store) {
    if !store.url().contains('@') && !store.url().contains("secret") {
        return;
    }
    std::fs::write(store.path("lockcore.toml"), "url = 'sqlite:other.db'").expect("written");
    let inner = |inherited: &str, inner: &str| {
        let mut outer = store.lockctl(&["run", "--id", "a", "--url", store.url(), "--", "sh", "-c", inner]);
        outer.env("LOCKCORE_URL", inherited);
        Ended::of(outer)
    };
    for inherited in ["", "sqlite:other.db"] {
        for command in ["lockctl ls", "lockctl run --id b -- true"] {
            let refused = inner(inherited, command);
            assert_eq!(refused.code, 125, "{command}: {}", refused.stderr);
            assert!(refused.stderr.starts_with("lockctl: LOCKCORE_URL: "), "{}", refused.stderr);
            assert!(refused.stderr.contains("in LOCKCORE_URL and not by --url"), "{}", refused.stderr);
        }
        let named = inner(inherited, "lockctl --url sqlite:named.db run --id a -- true");
        assert_eq!(named.code, 0, "{}", named.stderr);
    }
    // What the command has already is not taken away.
    let same = inner(store.url(), "lockctl run --id b -- true");
    assert_eq!(same.code, 0, "{}", same.stderr);
}

fn the_exit_code_is_the_commands(store: &Store) {
    for code in ["0", "1", "7", "120", "255"] {
        let ended = store.run(&["run", "--id", "a", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((ended.code.to_string().as_str(), ended.stderr.as_str()), (code, ""));
    }
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("PIPE", 141)] {
        let command = format!("kill -{signal} $$; exit 3");
        assert_eq!(store.run(&["run", "--id", "a", "--", "sh", "-c", &command]).code, code, "{signal}");
    }
    store.assert_nothing_is_locked();
}

fn stdin_stdout_and_stderr_pass_through(store: &Store) {
    let mut command = store.lockctl(&["run", "--id", "a", "--", "sh", "-c", "tr a-z A-Z; echo beside >&2"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let text = "all of it\n".repeat(20_000);
    let mut stdin = child.stdin.take().expect("piped");
    let writer = std::thread::spawn({
        let text = text.clone();
        move || stdin.write_all(text.as_bytes())
    });
    let ended = Ended::from(child.wait_with_output().expect("it ends"));
    writer.join().expect("no panic").expect("it was read");
    assert_eq!((ended.code, ended.stderr.as_str()), (0, "beside\n"));
    assert!(ended.stdout == text.to_uppercase());
}

fn context_and_fences_are_in_the_environment(store: &Store) {
    let print = "echo \"$LOCKCORE_CONTEXT|$LOCKCORE_FENCE|$LOCKCORE_FENCES|$LOCKCORE_PERMITS\"";
    let one = store.run(&["run", "--id", "a", "--", "sh", "-c", &format!("{print}; lockctl show a --json")]);
    let (fields, shown) = one.stdout.split_once('\n').expect("two lines");
    let fields: Vec<_> = fields.split('|').collect();
    let holder = serde_json::from_str::<Value>(shown).expect("JSON")["holders"][0].clone();
    assert_eq!(holder["context"], fields[0]);
    assert_eq!(holder["fence"].to_string(), fields[1]);
    assert_eq!((fields[2], fields[3]), (format!("{{\"a\":{}}}", fields[1]).as_str(), ""));

    let args =
        ["run", "--id", "b", "--shared", "c", "--slots", "pool=2/3", "--global", "--", "sh", "-c", print];
    let many = store.run(&args);
    let fields: Vec<_> = many.stdout.trim().split('|').collect();
    let fences: Value = serde_json::from_str(fields[2]).expect("JSON");
    let ids: Vec<_> = fences.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(ids, ["", "b", "c", "pool"]);
    assert_eq!((fields[1], fields[3]), ("", r#"{"pool":[0,1]}"#));

    let nested = format!("lockctl run --id e --id f -- sh -c '{print}'");
    let inner = store.run(&["run", "--slots", "pool=3", "--", "sh", "-c", &nested]);
    let fields: Vec<_> = inner.stdout.trim().split('|').collect();
    assert_eq!((fields[1], fields[3]), ("", ""), "nothing is left of what the outer one said");
}

fn a_path_excludes_what_is_below(store: &Store) {
    const TOP: &str = "/data";
    let outside = "env -u LOCKCORE_CONTEXT -u LOCKCORE_ENCLOSING lockctl run";
    // One outer lock for all inner ones.
    let codes = |outer: &str, inner: &[&str]| {
        let take = |path| format!("{outside} --subtree {path} --top {TOP} -- true; echo $?\n");
        let script: String = inner.iter().map(take).collect();
        let ended = store.run(&["run", "--subtree", outer, "--top", TOP, "--", "sh", "-c", &script]);
        ended.stdout.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let inner = ["/data/a", "/data/a/", "/data/a/b", "/data/", "/data/ab", "/data/b/c"];
    for outer in ["/data/a", "/data/a/"] {
        assert_eq!(codes(outer, &inner), ["120", "120", "120", "120", "0", "0"], "{outer}");
    }
    assert_eq!(codes("/data/a/b", &["/data/a", "/data/a/", "/data/ab"]), ["120", "120", "0"]);
    for (wrong, expected) in [
        ("/x", "it must be the top or lie below it"),
        ("/data//a", "a path has no empty part, as in //"),
        ("/data/../x", "a path has no part .."),
        ("/data/./a", "a path has no part ."),
    ] {
        let ended = store.run(&["run", "--subtree", wrong, "--top", TOP, "--", "true"]);
        let message = format!("lockctl: path: {wrong:?} is not possible, {expected}\n");
        assert_eq!((ended.code, ended.stderr), (125, message));
    }
}

fn the_set_is_held_meanwhile_and_free_afterwards(store: &Store) {
    let ids =
        ["run", "--id", "b", "--id", "a", "--id", "a", "--shared", "c", "--slots", "pool=3", "--global"];
    let ended = store.run(&[&ids[..], &["--", "lockctl", "ls", "--json"]].concat());
    let seen: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let seen: Vec<_> = seen.as_array().expect("an array").iter().collect();
    let held: Vec<_> = seen
        .iter()
        .map(|id| (id["id"].as_str(), id["holders"][0]["mode"].as_str().expect("a mode")))
        .collect();
    let expected = [
        (None, "exclusive"),
        (Some("a"), "exclusive"),
        (Some("b"), "exclusive"),
        (Some("c"), "shared"),
        (Some("pool"), "slots"),
    ];
    assert_eq!(held, expected);
    store.assert_nothing_is_locked();
}

fn modes_exclude_what_they_say(store: &Store) {
    let inside = |outer: &[&str], inner: &[&str]| {
        // As a process beside the outer one, not as one inside it.
        let beside = ["env", "-u", "LOCKCORE_CONTEXT", "-u", "LOCKCORE_ENCLOSING", "lockctl", "run"];
        let command = [&beside, inner, &["--", "true"]].concat();
        store.run(&[&["run"], outer, &["--"], &command[..]].concat()).code
    };
    assert_eq!(inside(&["--shared", "a"], &["--shared", "a"]), 0);
    assert_eq!(inside(&["--shared", "a"], &["--id", "a"]), 120);
    assert_eq!(inside(&["--slots", "a=2"], &["--slots", "a=2"]), 0);
    assert_eq!(inside(&["--slots", "a=2/2"], &["--slots", "a=2"]), 120);
    assert_eq!(inside(&["--slots", "a=2/2"], &["--slots", "a=3"]), 0, "the limit is as each caller sees it");
    assert_eq!(inside(&["--global"], &["--id", "a"]), 0);
    assert_eq!(inside(&["--global"], &["--global"]), 120);
    let other = store.namespace("m");
    assert_eq!(inside(&["--id", "a"], &["--id", "a", "--namespace", &other]), 0);
}

fn a_lockctl_inside_the_command_does_not_queue_behind_waiters_for_the_outer_lock(store: &Store) {
    let inside = "while [ ! -e go ]; do sleep 0.02; done; exec lockctl run --id b -- true";
    let outer = store.start(&["run", "--id", "a", "--", "sh", "-c", inside]);
    until("a is held", || store.holders("a") == 1);
    let waiter = store.start(&["run", "--id", "a", "--id", "b", "--wait", "1h", "--", "true"]);
    until("both are waited for", || store.waiters("b") == 1);
    assert_eq!(store.run(&["run", "--id", "b", "--", "true"]).code, 120, "others are behind the waiter");
    std::fs::write(store.path("go"), "").expect("written");
    let ended = outer.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(waiter.end().code, 0);
}

fn locks_are_renewed_while_the_command_runs(store: &Store) {
    let (lease, text) = store.lease(Duration::from_secs(6));
    let pause = lease.as_secs_f64() * 0.3;
    let command = format!(
        "for i in 1 2 3 4 5 6 7 8; do sleep {pause}; lockctl run --id a -- true && exit 9; done; exit 0"
    );
    let ended = store.run(&["run", "--id", "a", "--lease", &text, "--", "sh", "-c", &command]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

fn locks_are_kept_after_a_short_command(store: &Store) {
    let (lease, text) = store.lease(Duration::from_secs(2));
    // Longer than the lease: the store ends the locks, without this process.
    let keep_for = lease * 2;
    let began = Instant::now();
    let kept = ["run", "--id", "a", "--lease", &text, "--keep-for", &format!("{}ms", keep_for.as_millis())];
    assert_eq!(store.run(&[&kept[..], &["--", "true"]].concat()).code, 0);
    in_time(began.elapsed(), keep_for);
    assert_eq!(store.run(&["run", "--id", "a", "--", "true"]).code, 120);
    until_over(keep_for, "the time is over", || store.holders("a") == 0);
    assert!(began.elapsed() >= keep_for, "{:?}", began.elapsed());
    // Shorter: the release cuts the lease short, where the store can.
    let began = Instant::now();
    let kept = ["run", "--id", "a", "--lease", "10m", "--keep-for", "1s", "--", "sh", "-c", "exit 3"];
    assert_eq!(store.run(&kept).code, 3);
    if store.capabilities.shortening {
        until("the time is over", || store.holders("a") == 0);
        assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    }
}

fn locks_are_kept_though_lockctl_is_killed(store: &Store) {
    let (lease, text) = store.lease(Duration::from_secs(2));
    let keep_for = lease * 2;
    let began = Instant::now();
    let kept = ["run", "--id", "a", "--lease", &text, "--keep-for", &format!("{}ms", keep_for.as_millis())];
    store.start(&[&kept[..], &["--", "sh", "-c", "kill -9 $PPID"]].concat()).killed();
    assert_eq!(store.holders("a"), 1);
    until_over(keep_for, "the time is over", || store.holders("a") == 0);
    assert!(began.elapsed() >= keep_for, "{:?}", began.elapsed());
}

/// The shipped line itself, by hosts that start one after the other has ended: as far apart as they can be.
fn the_crontab_runs_once_however_late_a_host_is(store: &Store) {
    let crontab = include_str!("../../examples/nightly.cron");
    let lines: Vec<_> = crontab.lines().filter(|line| line.contains("lockctl run")).collect();
    let [line] = lines[..] else { panic!("{crontab}") };
    let (_when, job) = line.split_at(line.find("lockctl").expect("it has it"));
    let job = job.replace("/usr/local/bin/report.sh", "sh -c 'echo ran >>report'");
    for host in 1..=3 {
        let mut cron = store.command("sh");
        cron.args(["-c", &job]);
        let ended = Ended::of(cron);
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (0, "", ""), "host {host}");
        assert_eq!(store.read("report"), "ran\n", "host {host}");
    }
}

fn a_command_that_cannot_be_started_leaves_nothing_locked(store: &Store) {
    let missing = store.run(&["run", "--id", "a", "--", "/nowhere/command"]);
    assert_eq!(missing.code, 127);
    assert_eq!(
        missing.stderr,
        "lockctl: CMD: \"/nowhere/command\" cannot be started: No such file or directory (os error 2)\n"
    );
    let kept = ["run", "--id", "a", "--keep-for", "10m", "--", "/nowhere/command"];
    assert_eq!((store.run(&kept).code, store.holders("a")), (127, 0), "it did not take place");
    std::fs::write(store.path("plain"), "no program").expect("written");
    let plain = store.run(&["run", "--id", "a", "--", "./plain"]);
    assert_eq!(plain.code, 126);
    assert_eq!(
        plain.stderr,
        "lockctl: CMD: \"./plain\" cannot be started: Permission denied (os error 13)\n"
    );
    assert_eq!(store.holders("a"), 0);
}

fn a_set_that_no_environment_has_room_for_is_refused_before_it_is_locked(store: &Store) {
    let ids: Vec<String> = (0..160).map(|number| format!("{number:0850}")).collect();
    let ids: Vec<&str> = ids.iter().flat_map(|id| ["--id", id.as_str()]).collect();
    for (claims, variable) in
        [(&ids[..], "LOCKCORE_FENCES"), (&["--slots", "a=65536/4294967295"], "LOCKCORE_PERMITS")]
    {
        let ended = store.run(&[&["run", "--url", "sqlite:fresh.db"], claims, &["--", "true"]].concat());
        assert_eq!(ended.code, 125, "{}", ended.stderr);
        let expected = format!("lockctl: {variable}: may need ");
        assert!(ended.stderr.starts_with(&expected), "{}", ended.stderr);
        assert!(!store.path("fresh.db").exists(), "nothing was asked for");
    }
    // What fits is passed on.
    let ids: Vec<String> = (0..150).map(|number| format!("{number:0800}")).collect();
    let ids: Vec<&str> = ids.iter().flat_map(|id| ["--id", id.as_str()]).collect();
    let ended = store.run(&[&["run"], &ids[..], &["--", "true"]].concat());
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
}
