//! The job on a generated tree: every object once, whatever races; and what happens without locks.

use std::fs;

use lockcore_conformance::servers::Trial;

use crate::{
    local::contents,
    tree::{Run, Tree},
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    lockcore_conformance::tests![
        "job";
        memory_one_process,
        sqlite_one_process,
        sqlite_several_processes,
        the_embedded_default_is_sqlite_beside_the_archive,
        without_locks_damage_is_detected,
        with_locks_the_same_race_is_none,
        who_waits_too_short_fails_and_says_for_what,
        names_and_sizes_of_all_kinds,
        a_source_that_changed_is_reported_and_the_archive_kept,
        what_a_dead_writer_left_is_completed,
        what_is_not_ours_is_left_as_it_is,
    ]
}

/// What `--processes 2 --workers 8` is together.
const WORKERS: u64 = 16;

fn every_object_once(locks: &str, tree: &Tree, processes: u64) {
    let more = ["--locks", locks, "--processes", &processes.to_string(), "--workers", "8"];
    let first = tree.run(&more);
    first.assert_complete(60);
    assert_eq!(first.number("written"), 60);
    assert_eq!(first.number("skipped"), 60 * processes * 8 - 60, "every other visit found it written");
    tree.assert_archived();

    let manifests = contents(&tree.archive());
    let again = tree.run(&more);
    again.assert_complete(60);
    assert_eq!((again.number("written"), again.number("completed")), (0, 0));
    assert_eq!(again.number("skipped"), 60 * processes * 8);
    assert!(manifests == contents(&tree.archive()), "a second run touches nothing");
}

fn memory_one_process() {
    every_object_once("memory:", &Tree::of(60), 1);
}

fn sqlite_one_process() {
    let tree = Tree::of(60);
    every_object_once(&tree.sqlite(), &tree, 1);
}

fn sqlite_several_processes() {
    let tree = Tree::of(60);
    every_object_once(&tree.sqlite(), &tree, 3);
}

fn the_embedded_default_is_sqlite_beside_the_archive() {
    let tree = Tree::of(10);
    tree.run(&[]).assert_complete(10);
    assert!(tree.archive().with_extension("locks.db").is_file());
    tree.assert_archived();
}

/// All workers for one object, none of which writes it before all have come to it.
fn race_for_one_object(tree: &Tree, more: &[&str]) -> Run {
    tree.write("index", b"the one object");
    let meet = tree.room().join("meeting").display().to_string();
    tree.run(&[&["--meet", &meet, "--workers", "8", "--processes", "2"], more].concat())
}

fn without_locks_damage_is_detected() {
    let tree = Tree::of(0);
    let run = race_for_one_object(&tree, &["--no-locks"]);
    assert_eq!(run.code, Some(3), "{}", run.report);
    assert_eq!(run.number("written"), WORKERS, "all had found it missing");
    assert_eq!(run.names("twice"), ["index"]);
}

fn with_locks_the_same_race_is_none() {
    let tree = Tree::of(0);
    let run = race_for_one_object(&tree, &["--locks", &tree.sqlite()]);
    run.assert_complete(1);
    assert_eq!((run.number("written"), run.number("skipped")), (1, WORKERS - 1));
    assert_eq!(run.number("contended"), WORKERS - 1, "all others had found it locked");
    assert!(run.report["waited_ms"].as_f64().unwrap() > 0.0, "{}", run.report);
}

fn who_waits_too_short_fails_and_says_for_what() {
    let tree = Tree::of(0);
    tree.write("index", b"the one object");
    // Who finds it locked gives up long before it is written, and long after the store has answered.
    let more = ["--pause", "2s", "--wait", "500ms", "--workers", "2", "--locks", &tree.sqlite()];
    let run = tree.run(&more);
    assert_eq!(run.code, Some(1), "{}", run.report);
    assert_eq!((run.number("written"), run.number("verified")), (1, 1), "{}", run.report);
    let told = |message: &&str| message.contains("of waiting") && message.contains("/index\" is held by");
    assert!(run.names("messages").iter().any(told), "{}", run.report);
}

fn names_and_sizes_of_all_kinds() {
    let tree = Tree::of(0);
    tree.write("empty", b"");
    tree.write("one part exactly", &vec![7; 8 << 20]);
    tree.write("three parts", &(0..20 << 20).map(|at: u32| (at / 3) as u8).collect::<Vec<u8>>());
    for name in ["ünï/çødé 🦀", "100%", "a%20b", "a b", "q?x=1&y", "#", "-dash", "...", "UPPER/x", "upper/x"]
    {
        tree.write(name, name.as_bytes());
    }
    let run = tree.run(&["--locks", &tree.sqlite()]);
    run.assert_complete(13);
    assert_eq!(
        run.number("bytes"),
        contents(&tree.source()).values().map(|file| file.len() as u64).sum::<u64>()
    );
}

fn a_source_that_changed_is_reported_and_the_archive_kept() {
    let tree = Tree::of(5);
    tree.run(&[]).assert_complete(5);
    tree.write("00/file 0.txt", b"another");
    let run = tree.run(&[]);
    run.assert_complete(5);
    assert_eq!(run.names("changed"), ["00/file 0.txt"]);
    assert_eq!(fs::read(tree.archive().join("files/00/file 0.txt")).unwrap(), b"");
}

fn what_a_dead_writer_left_is_completed() {
    let tree = Tree::of(5);
    tree.run(&[]).assert_complete(5);
    fs::remove_file(tree.archive().join("manifests/01/file 1.txt.json")).unwrap();
    fs::remove_file(tree.archive().join("files/02/file 2.txt")).unwrap();
    let run = tree.run(&[]);
    run.assert_complete(5);
    assert_eq!((run.number("completed"), run.number("written")), (1, 1));
    tree.assert_archived();
}

fn what_is_not_ours_is_left_as_it_is() {
    let tree = Tree::of(5);
    tree.run(&[]).assert_complete(5);
    let (tampered, foreign) =
        (tree.archive().join("files/01/file 1.txt"), tree.archive().join("files/02/file 2.txt"));
    fs::write(&tampered, "tampered").unwrap();
    fs::write(&foreign, "foreign").unwrap();
    fs::remove_file(tree.archive().join("manifests/02/file 2.txt.json")).unwrap();
    let run = tree.run(&[]);
    assert_eq!(run.code, Some(1), "{}", run.report);
    assert_eq!((run.number("verified"), run.number("written"), run.number("completed")), (3, 0, 0));
    assert_eq!(
        (fs::read(tampered).unwrap(), fs::read(foreign).unwrap()),
        (b"tampered".to_vec(), b"foreign".to_vec())
    );
}
