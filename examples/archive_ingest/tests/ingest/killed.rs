//! Processes killed with SIGKILL in the middle of their work: the others go on, and running again completes it.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use lockcore_conformance::servers::Trial;

use crate::{
    local::contents,
    tree::{Run, Tree},
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    lockcore_conformance::tests![
        "killed";
        another_invocation_takes_over,
        the_other_processes_of_a_run_take_over,
    ]
}

const OBJECTS: usize = 60;
/// Each write takes twice as long: most of the time the workers are between an object and its manifest.
const SLOWLY: [&str; 4] = ["--pause", "25ms", "--workers", "4"];

/// Waits until the archive has some objects, and asserts that it has not all.
fn wait_until_in_the_middle(tree: &Tree) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let there = contents(&tree.archive().join("manifests")).len();
        assert!(there < OBJECTS, "too fast to be killed in the middle");
        if there > 4 {
            return;
        }
        assert!(Instant::now() < deadline, "nothing is written");
        thread::sleep(Duration::from_millis(5));
    }
}

fn another_invocation_takes_over() {
    let tree = Tree::of(OBJECTS);
    let locks = tree.sqlite();
    let start = |more: &[&str]| {
        let more = [&SLOWLY[..], &["--locks", &locks], more].concat();
        tree.command(tree.archive(), &more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut killed = start(&["--processes", "1"]);
    wait_until_in_the_middle(&tree);
    let other = start(&["--processes", "1"]);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let there = contents(&tree.archive().join("manifests")).len();
    assert!(there < OBJECTS, "too fast to be killed in the middle");

    let other = Run::of(other.wait_with_output().unwrap());
    other.assert_complete(OBJECTS as u64);
    tree.assert_archived();
    let again = tree.run(&["--locks", &locks]);
    again.assert_complete(OBJECTS as u64);
    assert_eq!((again.number("written"), again.number("completed")), (0, 0));
}

fn the_other_processes_of_a_run_take_over() {
    let tree = Tree::of(OBJECTS);
    let locks = tree.sqlite();
    let more = [&SLOWLY[..], &["--locks", &locks, "--processes", "3"]].concat();
    let run =
        tree.command(tree.archive(), &more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_in_the_middle(&tree);
    let killed = children_of(run.id())[1];
    assert!(Command::new("sh").args(["-c", &format!("kill -9 {killed}")]).status().unwrap().success());

    let run = Run::of(run.wait_with_output().unwrap());
    assert_eq!(run.code, Some(1), "a process died: {}", run.report);
    assert_eq!((run.number("verified"), run.number("errors")), (OBJECTS as u64, 1), "{}", run.report);
    assert!(run.names("messages")[0].contains("died before its end"), "{}", run.report);
    tree.assert_archived();
    tree.run(&["--locks", &locks]).assert_complete(OBJECTS as u64);
}

/// From `/proc/PID/stat`, whose second field after the name in brackets is the parent.
fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut children: Vec<u32> = processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let of: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            (of == parent).then_some(pid)
        })
        .collect();
    children.sort();
    children
}
