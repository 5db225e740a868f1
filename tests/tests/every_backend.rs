//! The suite is complete: every check that is written is in its list, and every backend runs the list.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use lockcore_conformance::ALL_CHECKS;

/// A check is a public function of a store; one that is missing from the list would never run.
#[test]
fn every_check_that_is_written_is_in_the_list() {
    let mut written = BTreeSet::new();
    for folder in ["checks", "service"] {
        for file in sources(&root().join("tests/src").join(folder)) {
            let group = file.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            let text = fs::read_to_string(&file).expect("a source file can be read");
            for line in text.lines() {
                let Some(name) = line.strip_prefix("pub async fn ") else { continue };
                if let Some((name, _)) = name.split_once("<B: Backend>(store: Store<B>)") {
                    written.insert(format!("{group}::{name}"));
                }
            }
        }
    }
    let listed: BTreeSet<String> = ALL_CHECKS.iter().map(|&check| check.to_owned()).collect();
    assert_eq!(written, listed);
    assert_eq!(listed.len(), ALL_CHECKS.len(), "each once");
}

/// Every check says in its first line of documentation which promise it guards.
#[test]
fn every_check_names_its_promise() {
    for folder in ["checks", "service"] {
        for file in sources(&root().join("tests/src").join(folder)) {
            let text = fs::read_to_string(&file).expect("a source file can be read");
            let lines: Vec<&str> = text.lines().collect();
            for (number, line) in lines.iter().enumerate() {
                if !(line.starts_with("pub async fn ") && line.contains("<B: Backend>(store: Store<B>)")) {
                    continue;
                }
                let above = lines[..number].iter().rev().take_while(|line| line.starts_with("///"));
                let first = above.last().unwrap_or_else(|| panic!("{line} has no documentation"));
                let promise = first.trim_start_matches("/// ");
                let named =
                    promise.starts_with("Seed case") || promise.starts_with(|c: char| c.is_ascii_digit());
                assert!(named, "{line} names no promise: {first}");
            }
        }
    }
}

/// Every database for which this repository implements a backend has a test that instantiates the suite, by the one macro
/// or the one list that has all of it.
#[test]
fn every_backend_runs_the_suite() {
    let members = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let backends: Vec<&str> =
        members.split('"').filter(|member| member.starts_with("backend-") && implements(member)).collect();
    assert!(backends.contains(&"backend-memory") && backends.contains(&"backend-sql"), "{backends:?}");
    for backend in backends {
        let tests: &[&str] = match backend {
            "backend-sql" => &["sqlite", "postgres", "mysql"],
            _ => &["conformance"],
        };
        for test in tests {
            let file = root().join(backend).join(format!("tests/{test}.rs"));
            let text =
                fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            // The macro, or the whole list for a harness that shows tests without a server as ignored.
            let whole = text.contains("conformance!(") || text.contains("all::<");
            assert!(whole, "{} does not instantiate the suite", file.display());
            assert!(!text.contains("#[ignore"), "{} leaves out checks", file.display());
        }
    }
}

fn implements(backend: &str) -> bool {
    sources(&root().join(backend).join("src")).iter().any(|file| {
        let text = fs::read_to_string(file).expect("a source file can be read");
        text.lines()
            .any(|line| line.starts_with("impl") && line.contains(" LockDao<") && line.contains(" for "))
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder exists") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
