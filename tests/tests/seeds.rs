//! The lists of what was done wrong are true: each line of what the predecessors did (`SEEDS.md`) and of the bugs names tests that
//! exist, and each fault of `faults` can be made.

use std::{fs, path::Path};

use lockcore_conformance::{ALL_CHECKS, servers::Trial};

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    lockcore_conformance::tests![
        "seeds";
        every_test_that_the_list_names_exists,
        every_test_of_a_bug_exists,
        every_fault_can_be_made,
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

/// A change of the code moves what a fault replaces: the fault has to move with it.
fn every_fault_can_be_made() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut areas = 0;
    for entry in fs::read_dir(root.join("tests/faults")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        areas += 1;
        let area: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        for fault in area["fault"].as_array().unwrap() {
            let [name, file, find] = ["name", "file", "find"].map(|field| fault[field].as_str().unwrap());
            let code = fs::read_to_string(root.join(file)).unwrap();
            let times = code.matches(find).count();
            assert_eq!(times, 1, "{}: what {name} replaces in {file}", path.display());
        }
    }
    assert!(areas > 0);
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
