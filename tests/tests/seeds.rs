//! The list of what the predecessors did (`SEEDS.md`) is true: each of its lines names tests, and all of them exist.

use std::{fs, path::Path};

use lockcore_conformance::{ALL_CHECKS, servers::Trial};

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    lockcore_conformance::tests![
        "seeds";
        every_test_that_the_list_names_exists,
        every_test_of_a_bug_exists,
    ]
}

/// How many lines the list has: what must work, known faults, cases.
const LINES: usize = 28 + 16 + 27;

fn every_test_that_the_list_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = fs::read_to_string(root.join("tests/SEEDS.md")).unwrap();
    let mut lines = 0;
    for line in list.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [what, tests, asserted] = cells[..] else { panic!("not of three cells: {line}") };
        if tests == "tests" {
            continue; // the head of a table
        }
        lines += 1;
        assert!(!what.is_empty() && !asserted.is_empty(), "{line}");
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test is named for: {what}");
        for test in named {
            assert!(exists(&root, test), "{test} does not exist, named for: {what}");
        }
    }
    assert_eq!(lines, LINES, "a line more or less: say so above");
}

/// The first commit with the backend for buckets: its bugs were repaired before it.
const FIRST_OF_OBJECT: &str = "5482bf4";

fn every_test_of_a_bug_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/src/reliability.md")).unwrap();
    let (_, bugs) = page.split_once("## Bugs").unwrap();
    let mut bugs = bugs.lines().filter(|line| line.starts_with("| ")).skip(2).peekable();
    assert!(bugs.peek().is_some());
    let shown = fs::read_to_string(root.join("tests/bugs/list")).unwrap();
    for bug in bugs {
        let mut cells = bug.trim_matches('|').rsplit(" | ").map(|cell| cell.trim().trim_matches('`'));
        let (test, commit) = (cells.next().unwrap(), cells.next().unwrap());
        assert!(exists(&root, test), "{test} does not exist: {bug}");
        let can_be_shown = commit != FIRST_OF_OBJECT;
        assert_eq!(
            shown.lines().any(|line| line.starts_with(commit)),
            can_be_shown,
            "tests/bugs/list: {bug}"
        );
    }
}

fn exists(root: &Path, test: &str) -> bool {
    match test.split_once(".rs::") {
        Some((file, name)) => {
            let text = fs::read_to_string(root.join(format!("{file}.rs"))).unwrap_or_default();
            ["(", "<"].iter().any(|after| text.contains(&format!("fn {name}{after}")))
        }
        None => ALL_CHECKS.contains(&test),
    }
}
