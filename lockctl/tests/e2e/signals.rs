//! Signals to `lockctl`, while it waits and while the command runs.

use std::time::{Duration, Instant};

use lockcore_conformance::judge::in_time;
use nix::sys::signal::Signal;

use crate::{
    store::{Running, Store, is_alive, until},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(a_signal_ends_the_waiting_at_once_and_leaves_no_place_in_the_queue, Queue),
    test!(signals_go_to_the_whole_process_group_of_the_command, Nothing),
    test!(a_command_that_dies_of_the_signal_gives_its_code, Nothing),
    test!(what_was_ignored_from_the_start_stays_ignored, Nothing),
];

fn a_signal_ends_the_waiting_at_once_and_leaves_no_place_in_the_queue(store: &Store) {
    let _holder = store.start(&["run", "--id", "a", "--", "sleep", "600"]);
    until("it is held", || store.holders("a") == 1);
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let waiter = store.start(&["run", "--id", "a", "--wait", "forever", "--", "touch", "ran"]);
        until("it waits", || store.waiters("a") == 1);
        waiter.signal(signal);
        let sent = Instant::now();
        let ended = waiter.end();
        assert_eq!((ended.code, ended.stderr.as_str()), (code, ""), "{signal}");
        in_time(sent.elapsed(), Duration::from_secs(2));
        assert_eq!(store.waiters("a"), 0, "{signal}");
    }
    let waiter = store.start(&["acquire", "--id", "a", "--wait", "forever"]);
    until("it waits", || store.waiters("a") == 1);
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.end().code, 143);
    assert!(!store.path("ran").exists());
}

fn signals_go_to_the_whole_process_group_of_the_command(store: &Store) {
    let signals = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"];
    for name in signals {
        // In a pipeline, as a shell's `&` would have the inner one ignore INT and QUIT.
        let command = format!(
            "trap 'echo outer {name} >> heard; exit 3' {name}; \
             sh -c 'trap \"echo inner {name} >> heard; exit\" {name}; touch started; \
                    while :; do sleep 0.02; done' | cat"
        );
        let holder = store.start(&["run", "--id", "a", "--", "sh", "-c", &command]);
        store.until_file("started");
        holder.signal(format!("SIG{name}").parse().expect("a signal"));
        assert_eq!(holder.end().code, 3, "{name}");
        for who in ["outer", "inner"] {
            until("it was heard", || store.read("heard").contains(&format!("{who} {name}\n")));
        }
        std::fs::remove_file(store.path("started")).expect("it is there");
    }
    assert_eq!(store.holders("a"), 0);
}

fn a_command_that_dies_of_the_signal_gives_its_code(store: &Store) {
    let holder =
        store.start(&["run", "--id", "a", "--", "sh", "-c", "echo $$ > pid; touch started; exec sleep 600"]);
    store.until_file("started");
    holder.signal(Signal::SIGTERM);
    let ended = holder.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (143, ""));
    assert!(!is_alive(&store.read("pid")));
    assert_eq!(store.holders("a"), 0);
}

fn what_was_ignored_from_the_start_stays_ignored(store: &Store) {
    let mut command = store.command("sh");
    let run = "trap '' HUP; exec lockctl run --id a -- \
               sh -c 'touch started; while [ ! -e go ]; do sleep 0.02; done; kill -HUP $$; exit 4'";
    command.args(["-c", run]);
    let holder = Running::of(command);
    store.until_file("started");
    holder.signal(Signal::SIGHUP);
    std::fs::write(store.path("go"), "").expect("written");
    assert_eq!(holder.end().code, 4);
}
