//! `three_slots_are_never_held_by_four` failed once, when the store did not answer just after a hand-over. Here it never does.

use std::{process::Command, time::Duration};

use lockcore::{LockingService, Target};

#[tokio::test]
async fn a_command_is_started_under_a_whole_lease() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let url = format!("sqlite:{}", file.display());
    let locks = LockingService::new(lockcore_any::connect(&url).await.unwrap());
    let guard = locks.lock(["a"]).await.unwrap();
    let mut waiting = Command::new(assert_cmd::cargo::cargo_bin("lockctl"))
        .current_dir(&folder)
        .env("LOCKCORE_URL", &url)
        .args(["run", "--id", "a", "--wait", "1m", "--", "sh", "-c", "sleep 4; touch done"])
        .spawn()
        .unwrap();
    let target = Target::Id("a".to_owned());
    while locks.admin().inspect(&target).await.unwrap().waiters.is_empty() {
        assert!(waiting.try_wait().unwrap().is_none(), "it ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let writer = rusqlite::Connection::open(&file).unwrap();
    writer.busy_timeout(Duration::from_secs(10)).unwrap();
    guard.release().await.unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    // For longer than an offer lasts.
    std::thread::sleep(Duration::from_millis(3500));
    writer.execute_batch("ROLLBACK").unwrap();
    assert!(waiting.wait().unwrap().success(), "the command was stopped");
    assert!(folder.path().join("done").exists());
}
