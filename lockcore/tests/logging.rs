//! What is logged of an outage: each state once, not each try. In a process of its own: a thread without a subscriber
//! that is first at a log line could decide for all that it is not wanted.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockcore::{BackendErrorKind, BreakMode};
use lockcore_conformance::own_process;
use tokio::time::sleep;
use tracing::subscriber::DefaultGuard;

use crate::service::rigged::{Fault, Rigged, Step};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What this thread logs until the guard is dropped.
fn logged() -> (Lines, DefaultGuard) {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    (lines, tracing::subscriber::set_default(subscriber))
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_logged_with_its_reason() {
    if !own_process::is_own() {
        return;
    }
    let (lines, _default) = logged();
    let locks = Rigged::new().service();
    let guard = locks.lock(["a", "b"]).await.unwrap();
    for lock in guard.locks() {
        locks.admin().break_lock(&lock.target, lock.granted.fence, BreakMode::Now).await.unwrap();
    }
    assert!(guard.release().await.is_err());
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let lost = text.lines().find(|line| line.contains("locks lost")).unwrap();
    assert_eq!(lost.matches("it was broken by an administrator").count(), 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_renewal_is_logged_once_with_a_count_at_recovery() {
    if !own_process::is_own() {
        return;
    }
    let (lines, _default) = logged();
    let dao = Rigged::new();
    let guard = dao.service().lock(["a"]).await.unwrap();
    for outage in 1..=2 {
        for _ in 0..3 {
            dao.once(Step::Renew, Fault::Fails(BackendErrorKind::Unavailable));
        }
        sleep(Duration::from_secs(40)).await;
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("renewal failed").count(), outage, "{text}");
        assert_eq!(text.matches("renewed again").count(), outage, "{text}");
        assert_eq!(text.matches("failures=3").count(), outage, "{text}");
    }
    guard.release().await.unwrap();
}
