//! Which store is meant, and what configuration is refused.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    process::Command,
};

use nix::unistd::geteuid;

use crate::{
    store::{Ended, Store},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(a_file_that_another_user_may_have_written_is_refused, File),
    test!(a_misspelt_variable_is_refused, File),
    test!(a_relative_path_in_a_file_is_one_store_in_every_folder, File),
    test!(administration_creates_no_store, File),
    test!(answers_say_which_store_they_are_of, File),
    test!(a_store_in_memory_is_refused, File),
    test!(no_part_of_a_password_is_shown, File),
];

fn fails(ended: &Ended, code: i32, message: &str) {
    assert_eq!((ended.code, ended.stderr.as_str()), (code, format!("lockctl: {message}\n").as_str()));
}

fn a_file_that_another_user_may_have_written_is_refused(store: &Store) {
    let file = store.path("lockcore.toml");
    fs::write(&file, "url = 'sqlite:planted.db'").expect("written");
    let ls = |with: fn(&mut Command)| {
        let mut command = store.lockctl(&["acquire", "--id", "a"]);
        command.env_remove("LOCKCORE_URL");
        with(&mut command);
        Ended::of(command)
    };
    let advice = "name it in LOCKCORE_CONFIG if it is meant";
    for mode in [0o666, 0o664, 0o646] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).expect("it is ours");
        let reason = format!("other users may write it (mode {mode:03o})");
        fails(&ls(|_| {}), 125, &format!("lockcore.toml: not used, {reason}; {advice}"));
    }
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
    if geteuid().is_root() {
        chown(&file, Some(65534), None).expect("root may");
        let reason = "it belongs to user 65534, who is neither root nor the caller";
        fails(&ls(|_| {}), 125, &format!("lockcore.toml: not used, {reason}; {advice}"));
    }
    assert!(!store.path("planted.db").exists());
    let named = ls(|command| {
        command.env("LOCKCORE_CONFIG", "lockcore.toml");
    });
    assert_eq!(named.code, 0, "{}", named.stderr);
    assert!(store.path("planted.db").exists());
}

fn a_misspelt_variable_is_refused(store: &Store) {
    let mut command = store.lockctl(&["run", "--id", "a", "--", "true"]);
    command.env("LOCKCORE_NAMESPCE", "prod");
    let message = "LOCKCORE_NAMESPCE: unknown variable; the nearest known one is LOCKCORE_NAMESPACE";
    fails(&Ended::of(command), 125, message);
}

fn a_relative_path_in_a_file_is_one_store_in_every_folder(store: &Store) {
    fs::write(store.path("lockcore.toml"), "url = 'sqlite:shared.db'").expect("written");
    let from = |folder: &str, args: &[&str]| {
        fs::create_dir_all(store.path(folder)).expect("made");
        let mut command = store.lockctl(args);
        command.env_remove("LOCKCORE_URL").env("LOCKCORE_CONFIG", "../lockcore.toml");
        command.current_dir(store.path(folder));
        Ended::of(command)
    };
    assert_eq!(from("x", &["acquire", "--id", "a"]).code, 0);
    assert_eq!(from("y", &["run", "--id", "a", "--", "true"]).code, 120);
    let doctor = from("y", &["doctor"]);
    // Whatever the spelling, it is one that works from everywhere.
    let line = doctor.stdout.lines().find(|line| line.contains("shared.db")).expect("the store");
    let path = line.rsplit_once("sqlite:").expect("a URL").1.trim();
    assert!(path.starts_with('/'), "{path}");
    let same = fs::canonicalize(path).expect("it exists");
    assert_eq!(same, fs::canonicalize(store.path("shared.db")).expect("it exists"));
}

fn administration_creates_no_store(store: &Store) {
    let token = store.run(&["acquire", "--id", "a"]).stdout;
    let url = ["--url", "sqlite:mistyped.db"];
    for args in [
        &["ls"][..],
        &["show", "a"],
        &["break", "a", "--fence", "1"],
        &["freeze", "a"],
        &["sweep"],
        &["doctor"],
        &["release", token.trim()],
        &["renew", token.trim()],
    ] {
        let ended = store.run(&[args, &url].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (123, ""), "{args:?}: {}", ended.stderr);
        let path = store.path("mistyped.db");
        let shown = format!(
            "sqlite:{}",
            fs::canonicalize(path.parent().expect("in a folder")).expect("it is there").display()
        );
        assert!(ended.stderr.contains(&format!("{shown}/mistyped.db")), "{args:?}: {}", ended.stderr);
        assert!(!path.exists(), "{args:?}");
    }
    assert_eq!(store.run(&[&["migrate"], &url[..]].concat()).code, 0);
    assert_eq!(store.run(&[&["ls"], &url[..]].concat()).code, 0);
}

fn answers_say_which_store_they_are_of(store: &Store) {
    let folder = fs::canonicalize(store.path(".")).expect("it is there");
    let shown = format!("sqlite:{}/locks.db, namespace \"n\"", folder.display());
    let run = |args: &[&str]| store.run(&[args, &["--namespace", "n"]].concat());
    assert_eq!(run(&["ls"]).stdout, format!("nothing is locked in {shown}\n"));
    assert_eq!(run(&["show", "a"]).stdout, format!("\"a\" is free in {shown}\n"));
    let message = format!("--fence: \"a\" is not held under fence 7 in {shown}, so nothing was done");
    fails(&run(&["break", "a", "--fence", "7"]), 122, &message);
    let findings = store.json(&["doctor", "--namespace", "n"]);
    assert_eq!((&findings[0]["check"], &findings[0]["detail"]), (&"store".into(), &shown.as_str().into()));
}

fn a_store_in_memory_is_refused(store: &Store) {
    let message = "url: no other process sees the locks of sqlite::memory:, choose a store such as \
                   sqlite:/var/lib/locks.db";
    for args in [&["run", "--id", "a", "--", "true"][..], &["acquire", "--id", "a"], &["ls"]] {
        let mut command = store.lockctl(args);
        command.env("LOCKCORE_URL", "sqlite::memory:");
        fails(&Ended::of(command), 125, message);
    }
}

fn no_part_of_a_password_is_shown(store: &Store) {
    for url in ["redis://user:p@ss?x=y@127.0.0.1:1", "redis:user:secret?x=y@127.0.0.1:1"] {
        let message = "url: a ? in a password must be written %3F, an @ in an option %40";
        fails(&store.run(&["ls", "--url", url]), 125, message);
    }
    let message = "invalid value 'inf' for '--lease <LEASE>': it must be a duration with a unit, such as 30s";
    fails(&store.run(&["run", "--id", "a", "--lease", "inf", "--", "true"]), 125, message);
}
