//! One file under two names, by several processes: SQLite keeps a log beside each name, and programs with different logs do not see
//! each other.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use lockcore::{BackendErrorKind, LockDao, Severity};
use lockcore_conformance::{
    judge::in_time,
    servers::{Completion, Trial},
};
use tempfile::TempDir;

use crate::child::{Child, Dao, PATIENCE, open, request};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = tests![
        "names",
        a_file_with_two_names_is_refused_until_it_has_one,
        links_to_the_file_and_to_its_folder_are_no_names,
        a_log_that_was_removed_never_makes_two_holders,
        while_a_program_has_a_log_without_a_name_no_other_opens_the_file,
        a_program_that_lost_its_log_goes_on
    ];
    trials.push(Trial::ignorable_test("sqlite::names::a_file_that_is_mounted_by_itself_is_refused", || {
        let allowed = Command::new("unshare").args(["--mount", "true"]).output();
        if !allowed.is_ok_and(|output| output.status.success()) {
            return Ok(Completion::ignored_with("this user may not mount"));
        }
        a_file_that_is_mounted_by_itself_is_refused();
        Ok(Completion::Completed)
    }));
    trials
}

async fn a_file_with_two_names_is_refused_until_it_has_one() {
    let (folder, file) = database();
    let holder = Child::start("hold a 3600 attached", &file);
    holder.says("held");
    let doctor = open(&file).await;
    let other = folder.path().join("other.db");
    fs::hard_link(&file, &other).expect("a link");
    for name in [&other, &file] {
        let said = Child::start("try a", name).line();
        assert!(
            said.starts_with("failed Misconfigured: ") && said.contains("it has 2 names (hard links)"),
            "{said}"
        );
    }
    let findings = doctor.doctor().await.expect("it can be looked at");
    let found = findings.iter().find(|finding| finding.check == "file").expect("it is about the file");
    assert!(found.severity == Severity::Error && found.detail.contains("2 names"), "{found:?}");
    fs::remove_file(&other).expect("it is there");
    assert_eq!(Child::start("try a", &file).line(), "refused");
    assert_eq!(Child::start("try b", &file).line(), "granted");
}

fn a_file_that_is_mounted_by_itself_is_refused() {
    let (folder, file) = database();
    let holder = Child::start("hold a 3600 attached", &file);
    holder.says("held");
    let within = |name: &str| folder.path().join(name);
    fs::create_dir(within("elsewhere")).expect("a folder");
    fs::write(within("elsewhere/locks.db"), "").expect("a file");
    symlink("elsewhere/locks.db", within("link.db")).expect("a link");
    // As a container has it whose volume is the file.
    for name in ["elsewhere/locks.db", "link.db"] {
        let child = Child::start_beside_mount(&file, &within("elsewhere/locks.db"), "try a", &within(name));
        let said = child.line();
        assert!(said.starts_with("failed Misconfigured: ") && said.contains("mount the folder"), "{said}");
    }
    // And one whose volume is the folder.
    fs::create_dir(within("mounted")).expect("a folder");
    let mounted = within("mounted/locks.db");
    for (id, expected) in [("a", "refused"), ("b", "granted")] {
        let role = format!("try {id}");
        let child = Child::start_beside_mount(folder.path(), &within("mounted"), &role, &mounted);
        assert_eq!(child.line(), expected);
    }
}

async fn links_to_the_file_and_to_its_folder_are_no_names() {
    let (folder, file) = database();
    let holder = Child::start("hold a 3600 attached", &file);
    holder.says("held");
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let link = elsewhere.path().join("link.db");
    symlink(&file, &link).expect("a link");
    symlink(folder.path(), elsewhere.path().join("folder")).expect("a link");
    for (name, free) in [(link, "try b"), (elsewhere.path().join("folder/locks.db"), "try c")] {
        assert_eq!(Child::start("try a", &name).line(), "refused", "{name:?}");
        assert_eq!(Child::start(free, &name).line(), "granted", "{name:?}");
    }
}

async fn a_log_that_was_removed_never_makes_two_holders() {
    for removed in [&["-wal", "-shm"][..], &["-shm"], &["-wal"]] {
        let (_folder, file) = database();
        let mut holder = Child::start("hold a 3600 attached", &file);
        holder.says("held");
        remove(&file, removed);
        let begun = Instant::now();
        loop {
            let said = Child::start("try a", &file).line();
            in_time(begun.elapsed(), PATIENCE);
            match said.as_str() {
                "refused" => break,
                "granted" => panic!("{removed:?}: two holders"),
                // Until the holder sees it.
                _ => {}
            }
        }
        holder.go_on();
        holder.says("released");
        assert_eq!(Child::start("try a", &file).line(), "granted", "{removed:?}");
    }
}

async fn while_a_program_has_a_log_without_a_name_no_other_opens_the_file() {
    let (_folder, file) = database();
    // It holds nothing, and so does not look at its file.
    let idle = open(&file).await;
    remove(&file, &["-wal", "-shm"]);
    let impatient = Dao::builder().path(&file).busy_timeout(Duration::from_millis(50));
    let error = impatient.open().await.expect_err("another log");
    assert_eq!(error.kind(), BackendErrorKind::Busy);
    assert!(error.to_string().contains("the log was removed, or the file has a second name"), "{error}");
    drop(idle);
    // Which it closes on a thread of its own.
    open(&file).await;
}

async fn a_program_that_lost_its_log_goes_on() {
    let (_folder, file) = database();
    let dao = open(&file).await;
    let held = request("a", Duration::from_secs(3600), false);
    let grant = crate::child::granted(&held, dao.acquire(&held).await.expect("an answer"));
    remove(&file, &["-wal", "-shm"]);
    let begun = Instant::now();
    while !file.with_extension("db-shm").exists() {
        in_time(begun.elapsed(), PATIENCE);
        // Whatever becomes of it: a call fails that finds the log gone.
        if let Err(error) = dao.renew(&grant).await {
            assert_eq!(
                (error.kind(), error.is_retryable()),
                (BackendErrorKind::Unavailable, true),
                "{error}"
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let other = open(&file).await;
    let refused = other.acquire(&request("a", Duration::from_secs(60), false)).await.expect("an answer");
    assert!(matches!(refused, lockcore::backend::Acquired::Refused(_)), "{refused:?}");
    assert_eq!(dao.renew(&grant).await.expect("an answer").lost, []);
    assert_eq!(dao.release(&grant).await.expect("an answer").lost, []);
}

fn database() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    (folder, file)
}

fn remove(file: &Path, of_the_log: &[&str]) {
    for suffix in of_the_log {
        fs::remove_file(format!("{}{suffix}", file.display())).expect("it is there");
    }
}
