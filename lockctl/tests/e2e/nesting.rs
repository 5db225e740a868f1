//! A `lockctl` inside the command of another one.

use std::time::Duration;

use crate::{
    store::{Ended, Store, until, until_over},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(an_id_that_an_enclosing_command_holds_is_refused_whatever_the_wait, Nothing),
    test!(what_the_enclosing_command_does_not_keep_out_is_granted_or_waited_for, Nothing),
    test!(what_a_kept_command_left_behind_waits_like_any_other, Nothing),
    test!(an_inherited_context_that_holds_nothing_passes_no_queue, Queue),
    test!(all_enclosing_commands_count, Queue),
    test!(an_environment_of_an_earlier_lockctl_is_understood, Queue),
];

const FOREVER: [&str; 2] = ["--wait", "forever"];

/// Runs `lockctl run` inside the command of others, given from the outside in.
fn nested(store: &Store, claims: &[&[&str]]) -> Ended {
    let mut args: Vec<&str> = Vec::new();
    for claim in claims {
        if !args.is_empty() {
            args.push("lockctl");
        }
        args.push("run");
        args.extend(*claim);
        args.push("--");
    }
    args.push("true");
    store.run(&args)
}

fn path(path: &str) -> [&str; 4] {
    ["--subtree", path, "--top", "/data"]
}

fn an_id_that_an_enclosing_command_holds_is_refused_whatever_the_wait(store: &Store) {
    let again = [&["--id", "a"][..], &FOREVER].concat();
    for (outer, inner, shown) in [
        (&["--id", "a"][..], &["--id", "a"][..], "\"a\""),
        (&["--shared", "a"], &["--id", "a"], "\"a\""),
        (&["--id", "a"], &["--id", "b", "--shared", "a"], "\"a\""),
        (&["--slots", "a=2/3"], &["--slots", "a=2/3"], "\"a\""),
        (&["--global"], &["--global"], "the global lock"),
        (&path("/data/a"), &path("/data/a/"), "\"/data/a/\""),
        (&path("/data/a"), &path("/data/a/b"), "\"/data/a/\""),
        (&path("/data/a/b"), &path("/data/a"), "\"/data/a/\""),
    ] {
        let refused = nested(store, &[outer, &[inner, &FOREVER].concat()]);
        let message = format!(
            "lockctl: {shown} is held by an enclosing call of the same task, or by the lockctl that runs this program\n"
        );
        assert_eq!((refused.code, refused.stderr), (125, message), "{inner:?} in {outer:?}");
    }
    let deeper = nested(store, &[&["--id", "a"], &["--id", "b"], &["--id", "c"], &again]);
    assert_eq!(deeper.code, 125, "{}", deeper.stderr);
    assert_eq!(store.json(&["ls"]), serde_json::json!([]));
}

fn what_the_enclosing_command_does_not_keep_out_is_granted_or_waited_for(store: &Store) {
    for (outer, inner) in [
        (&["--shared", "a"][..], &["--shared", "a"][..]),
        (&["--slots", "a=3"], &["--slots", "a=2/3"]),
        (&["--id", "a"], &["--id", "b"]),
        (&["--global"], &["--id", "a"]),
        (&path("/data/a"), &path("/data/ab")),
    ] {
        let ended = nested(store, &[outer, &[inner, &FOREVER].concat()]);
        assert_eq!(ended.code, 0, "{inner:?} in {outer:?}: {}", ended.stderr);
    }
    let other = store.namespace("m");
    assert_eq!(nested(store, &[&["--id", "a"], &["--id", "a", "--namespace", &other]]).code, 0);

    // Others are in the way of a slot that would fit beside the caller's.
    let holding = "touch held; while [ ! -e go ]; do sleep 0.02; done";
    let holder = store.start(&["run", "--slots", "pool=2", "--", "sh", "-c", holding]);
    store.until_file("held");
    let inside = "touch inside; exec lockctl run --slots pool=2 --wait forever -- true";
    let outer = store.start(&["run", "--slots", "pool=2", "--", "sh", "-c", inside]);
    store.until_file("inside");
    std::fs::write(store.path("go"), "").expect("written");
    assert_eq!(holder.end().code, 0);
    let ended = outer.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

fn what_a_kept_command_left_behind_waits_like_any_other(store: &Store) {
    let (lease, text) = store.lease(Duration::from_secs(2));
    let keep_for = lease * 2;
    let kept = ["--id", "a", "--lease", &text, "--keep-for", &format!("{}ms", keep_for.as_millis())];
    let inside = nested(store, &[&kept[..], &[&["--id", "a"][..], &FOREVER].concat()]);
    assert_eq!(inside.code, 125, "it is inside as long as the command runs: {}", inside.stderr);
    until_over(keep_for, "a is free", || store.holders("a") == 0);
    let left_behind = "(while [ ! -e go ]; do sleep 0.02; done; lockctl run --id a --wait forever -- true; \
         echo $? > code.part; mv code.part code) > out 2>&1 &";
    // A lease that may have ended is shown no more, and one that has not ended for certain still keeps others out.
    let run = ["run", "--wait", "30s"];
    assert_eq!(store.run(&[&run[..], &kept[..], &["--", "sh", "-c", left_behind]].concat()).code, 0);
    assert_eq!(store.holders("a"), 1);
    std::fs::write(store.path("go"), "").expect("written");
    until_over(keep_for, "the command ends", || store.path("code").exists());
    assert_eq!(store.read("code"), "0\n", "{}", store.read("out"));
}

fn an_inherited_context_that_holds_nothing_passes_no_queue(store: &Store) {
    // As a daemon that the command started has it, after the command's end.
    let inherited = store.run(&["run", "--id", "a", "--", "env"]).stdout;
    let inherited = inherited.lines().filter_map(|line| line.split_once('=')).filter(|(name, _)| {
        ["LOCKCORE_CONTEXT", "LOCKCORE_FENCE", "LOCKCORE_FENCES", "LOCKCORE_ENCLOSING"].contains(name)
    });
    let holding = "while [ ! -e go ]; do sleep 0.02; done";
    let holder = store.start(&["run", "--shared", "b", "--", "sh", "-c", holding]);
    until("b is held", || store.holders("b") == 1);
    let waiter = store.start(&["run", "--id", "b", "--wait", "1h", "--", "true"]);
    until("b is waited for", || store.waiters("b") == 1);
    let mut daemon = store.lockctl(&["run", "--shared", "b", "--", "true"]);
    daemon.envs(inherited);
    let refused = Ended::of(daemon);
    assert_eq!(refused.code, 120, "it is behind the waiter: {}", refused.stderr);
    std::fs::write(store.path("go"), "").expect("written");
    assert_eq!((holder.end().code, waiter.end().code), (0, 0));
}

/// A script that goes on when another process waits for `y` behind what the outermost command holds.
fn behind_a_waiter(inner: &str) -> String {
    format!("touch inside; while [ ! -e go ]; do sleep 0.02; done; exec {inner} lockctl run --id y -- true")
}

/// The command in between holds nothing in the namespace of the outermost.
fn all_enclosing_commands_count(store: &Store) {
    let back = store.own_namespace().map_or_else(
        || "env -u LOCKCORE_NAMESPACE".to_owned(),
        |own| format!("env LOCKCORE_NAMESPACE={own}"),
    );
    let other = store.namespace("m");
    let middle = ["lockctl", "--namespace", &other, "run", "--id", "z", "--"];
    let inner = ["sh", "-c", &behind_a_waiter(&back)];
    passes_the_waiter(store, &[&["run", "--id", "x", "--"], &middle[..], &inner].concat());
}

fn an_environment_of_an_earlier_lockctl_is_understood(store: &Store) {
    let inner = behind_a_waiter("env LOCKCORE_ENCLOSING=$LOCKCORE_CONTEXT");
    passes_the_waiter(store, &["run", "--id", "x", "--", "sh", "-c", &inner]);
}

/// While the outermost holds `x`, a waiter that wants `x` and `y` waits for it.
fn passes_the_waiter(store: &Store, command: &[&str]) {
    let outer = store.start(command);
    store.until_file("inside");
    let waiter = store.start(&["run", "--id", "x", "--id", "y", "--wait", "1h", "--", "true"]);
    until("y is waited for", || store.waiters("y") == 1);
    std::fs::write(store.path("go"), "").expect("written");
    let ended = outer.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(waiter.end().code, 0);
}
