//! Many processes at once.

use std::fs;

use crate::{
    store::{PATIENCE, Running, Store},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(sixteen_processes_lose_no_increment, Nothing),
    test!(three_slots_are_never_held_by_four, Nothing),
];

fn sixteen_processes_lose_no_increment(store: &Store) {
    fs::write(store.path("counter"), "0").expect("written");
    // One store of many is enough for the long run.
    let each = if store.capabilities.backend == "sqlite" { 60 } else { 12 };
    let script = format!(
        "i=0
        while [ $i -lt {each} ]; do
            lockctl run --id counter --wait 10m -- sh -c 'read n < counter; echo $((n + 1)) > counter' || exit 1
            i=$((i + 1))
        done"
    );
    let workers: Vec<_> = (0..16)
        .map(|_| {
            let mut command = store.command("sh");
            command.args(["-c", &script]);
            Running::of(command)
        })
        .collect();
    for worker in workers {
        let ended = worker.end_within(PATIENCE * 10);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    assert_eq!(store.read("counter").trim(), (16 * each).to_string());
    store.assert_nothing_is_locked();
}

fn three_slots_are_never_held_by_four(store: &Store) {
    fs::create_dir(store.path("in")).expect("made");
    let inside =
        r#"touch in/$$; n=$(ls in | wc -l); [ $n -le 3 ] || echo $n >> too_many; sleep 0.01; rm in/$$"#;
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8; do lockctl run --slots pool=3 --wait 10m -- sh -c '{inside}' || exit 1; done"
    );
    let workers: Vec<_> = (0..10)
        .map(|_| {
            let mut command = store.command("sh");
            command.args(["-c", &script]);
            Running::of(command)
        })
        .collect();
    for worker in workers {
        let ended = worker.end_within(PATIENCE * 10);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    assert_eq!(store.read("too_many"), "");
}
