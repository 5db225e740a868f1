//! Defaults and bad input: what is copied when nothing is said, and the messages.

use std::fs;

use lockcore_conformance::servers::Trial;

use crate::{
    local::contents,
    tree::{Run, Tree, program},
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    lockcore_conformance::tests![
        "options";
        by_default_the_git_folder_of_the_checkout_without_its_config,
        in_a_linked_worktree_the_main_one,
        an_archive_inside_the_source_is_refused,
        an_archive_has_one_name_however_it_is_given,
        a_run_without_locks_starts_from_nothing_unless_a_place_is_given,
        bad_input_is_named,
    ]
}

fn refusal(tree: &Tree, more: &[&str]) -> String {
    let run = tree.run(more);
    assert_ne!(run.code, Some(0));
    assert!(run.report.is_null(), "{}", run.report);
    run.stderr
}

/// Makes a checkout with a commit's worth of files under `.git`.
fn checkout(tree: &Tree) {
    tree.write("Cargo.toml", b"");
    tree.write(".git/HEAD", b"ref: refs/heads/main\n");
    tree.write(".git/config", b"[remote]\n\turl = https://user:secret@example.org/\n");
    tree.write(".git/objects/ab/cdef", b"object");
    tree.write("src/deep/lib.rs", b"");
}

fn by_default_the_git_folder_of_the_checkout_without_its_config() {
    let tree = Tree::of(0);
    checkout(&tree);
    let run = Run::of(program().arg("--json").current_dir(tree.source().join("src/deep")).output().unwrap());
    run.assert_complete(2);
    let archives = tree.source().join("target/archive");
    let archive =
        fs::read_dir(&archives).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir());
    let archived = contents(&archive.unwrap().join("files"));
    assert_eq!(archived.keys().collect::<Vec<_>>(), ["HEAD", "objects/ab/cdef"]);
}

fn in_a_linked_worktree_the_main_one() {
    let tree = Tree::of(0);
    checkout(&tree);
    tree.write(".git/worktrees/w/commondir", b"../..\n");
    let linked = tree.source().join("linked");
    fs::create_dir(&linked).unwrap();
    fs::write(linked.join(".git"), "gitdir: ../.git/worktrees/w\n").unwrap();
    let to = tree.archive();
    let run = Run::of(program().arg("--json").arg("--to").arg(&to).current_dir(&linked).output().unwrap());
    run.assert_complete(3);
}

fn an_archive_inside_the_source_is_refused() {
    let tree = Tree::of(5);
    let link = tree.room().join("link");
    std::os::unix::fs::symlink(tree.source(), &link).unwrap();
    for inside in [tree.source(), tree.source().join("archive"), link.join("deep/archive")] {
        let run = Run::of(tree.command(&inside, &["--locks", "memory:"]).output().unwrap());
        assert_eq!(run.code, Some(1), "{}", run.report);
        assert!(run.stderr.contains(" is inside the source "), "{}", run.stderr);
    }
    assert_eq!(contents(&tree.source()).len(), 5);
    // Also where the default is.
    tree.write("Cargo.toml", b"");
    tree.write(".git/HEAD", b"");
    let run = Run::of(program().arg(".").arg("--json").current_dir(tree.source()).output().unwrap());
    assert!(run.code == Some(1) && run.stderr.contains("--to"), "{} {}", run.report, run.stderr);
    // What begins with the same letters is not inside.
    let mut beside = tree.source().into_os_string();
    beside.push("-archive");
    Run::of(tree.command(&beside, &["--locks", "memory:"]).output().unwrap()).assert_complete(7);
}

/// Else two names of one archive would be two sets of locks.
fn an_archive_has_one_name_however_it_is_given() {
    let tree = Tree::of(1);
    let names = [
        tree.archive().into_os_string(),
        tree.room().join("source/../archive").into_os_string(),
        format!("file://{}/", tree.archive().display()).into(),
        tree.room().join("link").into_os_string(),
    ];
    let expected = format!("file://{}", tree.room().canonicalize().unwrap().join("archive").display());
    for name in names {
        let run = Run::of(tree.command(&name, &[]).output().unwrap());
        assert_eq!(run.report["archive"], expected.as_str(), "{name:?} {}", run.stderr);
        let _ = std::os::unix::fs::symlink(tree.archive(), tree.room().join("link"));
    }
}

fn a_run_without_locks_starts_from_nothing_unless_a_place_is_given() {
    let tree = Tree::of(0);
    checkout(&tree);
    for _ in 0..2 {
        let run =
            Run::of(program().args(["--json", "--no-locks"]).current_dir(tree.source()).output().unwrap());
        assert!(run.number("written") > 0, "{}", run.report);
    }
}

fn bad_input_is_named() {
    let tree = Tree::of(1);
    for (more, expected) in [
        (
            &["--locks", "memory:", "--processes", "2"][..],
            "--processes 2: what is in memory is seen by one process",
        ),
        (&["--locks", "carrier-pigeon://loft"], "carrier-pigeon"),
        (&["--locks", "sqlite:/nowhere/at/all/locks.db", "--processes", "1"], "locks"),
        (&["--wait", "60"], "60"),
        (&["--workers", "0"], "0 is not in 1..=1024"),
        (&["--no-locks", "--locks", "memory:"], "cannot be used with"),
    ] {
        let stderr = refusal(&tree, more);
        assert!(stderr.contains(expected), "{more:?}: {stderr}");
    }
    let mut archives = vec![("carrier-pigeon://loft/x", "carrier-pigeon")];
    if cfg!(not(feature = "clouds")) {
        archives.push(("gs://bucket/x", "feature for GoogleCloudStorage not enabled"));
    }
    for (to, expected) in archives {
        let output = program().arg(tree.source()).args(["--to", to]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(expected), "{to}: {stderr}");
    }
    let output = program().arg(tree.source().join("missing")).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("missing: No such file"));
    let output = program().arg(tree.source().join("00/file 0.txt")).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("it is not a folder"));
}
