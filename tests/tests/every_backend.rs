//! The suite is complete: every check that is written is in its list, and every backend runs the list.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use lockcore_conformance::{
    ALL_CHECKS, SERVICE,
    instances::{INSTANCES, Instance, names_are_known},
    servers::Trial,
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    lockcore_conformance::tests![
        "every_backend";
        every_check_that_is_written_is_in_the_list,
        every_check_names_its_promise,
        every_backend_runs_the_suite,
        no_check_runs_nowhere,
    ]
}

/// A check is a public function of a store; one that is missing from the list would never run.
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

/// Every crate that implements the trait runs the checks of a row of the table, and every row is run: by the one macro that has
/// all checks, or by the list that the table gives.
fn every_backend_runs_the_suite() {
    let members = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let backends: Vec<&str> =
        members.split('"').filter(|member| member.starts_with("backend-") && implements(member)).collect();
    assert!(backends.contains(&"backend-memory") && backends.contains(&"backend-sql"), "{backends:?}");
    let mut unused: BTreeSet<&str> = INSTANCES.iter().map(|instance| instance.name).collect();
    for folder in backends.iter().copied().chain(["lockcore", "lockcore-cell", "backend-dynamo/in_process"]) {
        let texts: Vec<String> = sources(&root().join(folder).join("tests"))
            .iter()
            .map(|file| fs::read_to_string(file).expect("a source file can be read"))
            .collect();
        assert!(!texts.iter().any(|text| text.contains("#[ignore")), "{folder} leaves out checks");
        // By a line of its own, or by a kind of server.
        let runs = |name: &str| {
            let (call, name) = (format!("conformance!({name},"), format!("\"{name}\""));
            texts
                .iter()
                .any(|text| text.contains(&call) || (text.contains("checks(") && text.contains(&name)))
        };
        let ran: Vec<&str> =
            INSTANCES.iter().map(|instance| instance.name).filter(|name| runs(name)).collect();
        assert!(!ran.is_empty(), "{folder} does not run the suite");
        unused.retain(|name| !ran.contains(name));
    }
    assert!(unused.is_empty(), "rows of the table that no test runs: {unused:?}");
}

/// No check runs nowhere, or only where it says little: each has a store in this process and the witness in the network, and each
/// check of a DAO an instance of every backend.
fn no_check_runs_nowhere() {
    assert_eq!(names_are_known(), Ok(()));
    for &check in ALL_CHECKS {
        let of_service = SERVICE.contains(&check.split_once("::").expect("a group and a name").0);
        let everywhere =
            ["memory", "map", "object", "sqlite", "postgres", "mysql", "mariadb", "redis", "dynamodb"];
        let wanted = if of_service { &["memory", "map", "postgres"][..] } else { &everywhere };
        for name in wanted {
            let instance = Instance::named(name);
            assert!(instance.has(check), "{check} does not run on {name}");
        }
    }
}

fn implements(backend: &str) -> bool {
    sources(&root().join(backend).join("src")).iter().any(|file| {
        let text = fs::read_to_string(file).expect("a source file can be read");
        text.lines()
            // Also in a macro that forwards to another DAO.
            .any(|line| {
                let line = line.trim_start_matches(['{', ' ']);
                line.starts_with("impl") && line.contains(" LockDao<") && line.contains(" for ")
            })
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
