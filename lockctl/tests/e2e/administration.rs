//! Looking, breaking, freezing, sweeping.

use std::time::Duration;

use serde_json::json;

use crate::{
    store::{Store, until, until_over},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(show_and_ls_list_holders_and_waiters, Queue),
    test!(by_default_the_owner_names_user_and_host, Nothing),
    test!(more_ids_than_a_page_are_listed, Nothing),
    test!(only_the_fence_that_is_held_is_broken, Nothing),
    test!(a_frozen_id_is_not_had_until_it_is_thawed, Queue),
    test!(sweep_migrate_and_doctor_answer, Nothing),
    test!(a_script_is_there_for_every_shell, File),
    test!(text_in_a_label_does_not_reach_the_terminal_as_control, Nothing),
];

fn show_and_ls_list_holders_and_waiters(store: &Store) {
    let _holder =
        store.start(&["run", "--id", "a", "--owner", "the first", "--lease", "10m", "--", "sleep", "600"]);
    until("it is held", || store.holders("a") == 1);
    let _waiter =
        store.start(&["run", "--shared", "a", "--owner", "the second", "--wait", "1h", "--", "true"]);
    until("it is waited for", || store.waiters("a") == 1);

    let seen = store.json(&["show", "a"]);
    let holder = &seen["holders"][0];
    assert_eq!((&seen["id"], &seen["frozen"]), (&json!("a"), &json!(false)));
    assert_eq!(
        (&holder["owner"], &holder["mode"], &holder["broken"]),
        (&json!("the first"), &json!("exclusive"), &json!(false))
    );
    assert_eq!(holder["lease_ms"], 600_000);
    assert!(holder["remaining_ms"].as_u64().is_some_and(|left| left > 0 && left <= 600_000), "{holder}");
    assert!(holder["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{holder}");
    assert_eq!(
        (&seen["waiters"][0]["owner"], &seen["waiters"][0]["mode"]),
        (&json!("the second"), &json!("shared"))
    );

    let human = store.run(&["show", "a"]).stdout;
    for part in ["\"a\" is held", "the first", "the second", "exclusive", &holder["fence"].to_string()] {
        assert!(human.contains(part), "{part} in {human}");
    }
    let listed = store.json(&["ls"]);
    assert_eq!((&listed[0]["id"], &listed[0]["holders"][0]["owner"]), (&json!("a"), &json!("the first")));
    let human = store.run(&["ls"]).stdout;
    let lines: Vec<_> = human.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("ID") && lines[1].starts_with("\"a\""), "{human}");
    let shown = store.shown();
    assert_eq!(store.run(&["show", "nothing"]).stdout, format!("\"nothing\" is free in {shown}\n"));
    assert_eq!(store.run(&["show", "--global"]).stdout, format!("the global lock is free in {shown}\n"));
}

fn by_default_the_owner_names_user_and_host(store: &Store) {
    let show = "lockctl show a --json";
    let mut command = store.lockctl(&["run", "--id", "a", "--", "sh", "-c", show]);
    let ended = crate::store::Ended::of({
        command.env("USER", "somebody");
        command
    });
    let seen: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let owner = seen["holders"][0]["owner"].as_str().expect("a label");
    let (user, rest) = owner.split_once('@').expect("user@host:pid");
    let (host, pid) = rest.rsplit_once(':').expect("user@host:pid");
    assert!(user == "somebody" && !host.is_empty() && pid.parse::<u32>().is_ok(), "{owner}");
}

fn more_ids_than_a_page_are_listed(store: &Store) {
    let ids: Vec<String> = (0..250).map(|n| format!("id/{n:03}")).collect();
    for set in ids.chunks(store.capabilities.max_ids.min(250)) {
        let args: Vec<&str> = set.iter().flat_map(|id| ["--id", id.as_str()]).collect();
        assert_eq!(store.run(&[&["acquire"], &args[..]].concat()).code, 0);
    }
    let listed = store.json(&["ls"]);
    let listed: Vec<_> = listed.as_array().expect("an array").iter().map(|id| id["id"].as_str()).collect();
    assert_eq!(listed, ids.iter().map(|id| Some(id.as_str())).collect::<Vec<_>>());
}

fn only_the_fence_that_is_held_is_broken(store: &Store) {
    assert_eq!(store.run(&["acquire", "--id", "a", "--lease", "10m"]).code, 0);
    let fence = store.fence("a");
    let wrong = store.run(&["break", "a", "--fence", "7"]);
    assert_eq!(wrong.code, 122);
    let message = format!("\"a\" is not held under fence 7 in {}, so nothing was done", store.shown());
    assert_eq!(wrong.stderr, format!("lockctl: --fence: {message}\n"));
    assert_eq!(store.holders("a"), 1);

    let later = store.json(&["break", "a", "--fence", &fence, "--owner", "the admin"]);
    assert_eq!(later["outcome"], "broken");
    assert!(later["within_ms"].as_u64().is_some_and(|left| left > 0 && left <= 600_000), "{later}");
    let seen = store.json(&["show", "a"]);
    assert_eq!(
        (&seen["holders"][0]["broken"], &seen["breaks"][0]["by"]),
        (&json!(true), &json!("the admin"))
    );

    let now = store.run(&["break", "a", "--fence", &fence, "--now"]);
    assert_eq!(
        (now.code, now.stdout.as_str()),
        (0, "\"a\" is free; its former holder may still be at work\n")
    );
    assert_eq!(store.run(&["run", "--id", "a", "--", "true"]).code, 0);
}

fn a_frozen_id_is_not_had_until_it_is_thawed(store: &Store) {
    let frozen = store.run(&["freeze", "a"]);
    assert_eq!((frozen.code, frozen.stdout.as_str()), (0, "\"a\" is frozen\n"));
    let refused = store.run(&["run", "--id", "a", "--", "true"]);
    assert_eq!(refused.code, 120);
    assert_eq!(refused.stderr, "lockctl: not locked: \"a\" is frozen by an administrator\n");
    assert!(store.run(&["ls"]).stdout.contains("frozen"));
    let waiter = store.start(&["run", "--id", "a", "--wait", "1h", "--", "echo", "thawed"]);
    until("it waits", || store.waiters("a") == 1);
    assert_eq!(store.json(&["freeze", "a", "--thaw"]), json!({ "frozen": false }));
    assert_eq!(waiter.end().stdout, "thawed\n");
}

fn sweep_migrate_and_doctor_answer(store: &Store) {
    assert_eq!(store.json(&["migrate"]), json!({ "current": true }));
    let (lasts, lease) = store.lease(Duration::from_secs(10));
    assert_eq!(store.run(&["acquire", "--id", "a", "--lease", &lease]).code, 0);
    until_over(lasts, "the lease is over", || store.holders("a") == 0);
    if store.capabilities.sweeping {
        // Only what has ended for certain is removed, which may be a moment later.
        let removes_some = || store.json(&["sweep", "--batch", "1"])["removed"].as_u64() > Some(0);
        until("a sweep removes it", removes_some);
        assert_eq!(store.json(&["sweep"])["removed"].as_u64().map(|removed| removed < 3), Some(true));
    } else {
        // The store does it by itself.
        let refused = store.run(&["sweep"]);
        assert_eq!((refused.code, refused.stdout.as_str()), (125, ""), "{}", refused.stderr);
    }
    let findings = store.json(&["doctor"]);
    let findings = findings.as_array().expect("an array");
    assert!(findings.iter().all(|finding| finding["severity"] != "error"), "{findings:?}");
    let human = store.run(&["doctor"]);
    assert!(human.code == 0 && human.stdout.contains("CHECK"), "{}", human.stdout);
    let tried = store.run(&["doctor", "--verify", "300ms"]);
    match tried.code {
        0 => assert!(tried.stdout.contains("no other process took part"), "{}", tried.stdout),
        // A server decides.
        code => {
            assert_eq!((code, tried.stdout.as_str()), (125, ""), "{}", tried.stderr);
            assert!(tried.stderr.contains("verify"), "{}", tried.stderr);
        }
    }
    let refused = store.run(&["doctor", "--verify", "2h"]);
    assert!(refused.code == 125 && refused.stderr.contains("at most an hour"), "{}", refused.stderr);
}

fn a_script_is_there_for_every_shell(store: &Store) {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = store.run(&["completions", shell]);
        assert!(ended.code == 0 && ended.stdout.contains("lockctl"), "{shell}");
    }
}

fn text_in_a_label_does_not_reach_the_terminal_as_control(store: &Store) {
    assert_eq!(store.run(&["acquire", "--id", "a\u{1b}[2J", "--owner", "x\u{1b}[2J\ny\u{202e}z"]).code, 0);
    for args in [&["ls"][..], &["show", "a\u{1b}[2J"]] {
        let shown = store.run(args).stdout;
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
    }
}
