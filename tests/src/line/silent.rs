//! A line whose open connections carry nothing any more although neither end closed them, as behind a router that forgot them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lockcore::{LockDao, LockingService, Page, Severity, Wait};
use tokio::{task::JoinSet, time::timeout};

use super::{Kind, Line, Mode, Remote, TestResult};
use crate::{PATIENCE, eventually, judge::late};

/// What the contenders hold with; a few times as long as a request may take.
const LEASE: Duration = Duration::from_secs(12);

/// Within which hand-overs are as fast as before.
const SOON: Duration = LEASE.saturating_mul(2);

/// Many tasks of two programs take turns on one id. When their connections have fallen silent, be it at once or after an
/// outage that outlasts the leases, they take turns as fast as before.
pub(super) async fn hand_overs_are_as_fast_as_before<R: Remote>(kind: Kind) -> TestResult {
    const PROGRAMS: usize = 2;
    const TASKS: usize = 20;
    let line = Line::<R>::new(kind).await?;
    if !line.store.capabilities().push {
        return Ok(());
    }
    let (done, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (mut programs, mut tasks) = (Vec::new(), JoinSet::new());
    for _ in 0..PROGRAMS {
        let dao = R::open(&line.bad.route).await?;
        let locks = Arc::new(LockingService::builder(dao).lease(LEASE).build()?);
        for _ in 0..TASKS {
            let (locks, done, stop) = (locks.clone(), done.clone(), stop.clone());
            tasks.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let call = locks.wait(Wait::forever());
                    let counted = async || _ = done.fetch_add(1, Ordering::SeqCst);
                    if call.run_locked(["hot"], counted).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            });
        }
        programs.push(locks);
    }
    const HAND_OVERS: u32 = 20;
    let pace = async || {
        let (first, begun) = (done.load(Ordering::SeqCst), Instant::now());
        let enough = async || (done.load(Ordering::SeqCst) >= first + HAND_OVERS).then_some(());
        eventually("they take turns", enough).await;
        begun.elapsed()
    };
    // The first includes the beginning.
    pace().await;
    let before = pace().await.max(pace().await);
    // Other tests may begin beside this one. Polling alone hands over once a second, ten times slower than this.
    let fast = (before * 2).max(HAND_OVERS * Duration::from_millis(100));
    for outage in [Duration::ZERO, LEASE.mul_f64(1.5)] {
        line.proxy.silence();
        if !outage.is_zero() {
            line.proxy.set(Mode::DropRequests).await;
            tokio::time::sleep(outage).await;
            line.proxy.silence();
            line.proxy.set(Mode::Pass).await;
        }
        let mut after = Vec::new();
        let recovered = async {
            while after.last().is_none_or(|&pace| pace > fast) {
                after.push(pace().await);
            }
        };
        if timeout(SOON, recovered).await.is_err() {
            late(format_args!(
                "{outage:?}: {after:?} for as much as took {before:?} before, {fast:?} allowed"
            ));
        }
    }
    for locks in &programs {
        // Not by polling.
        eventually("the doctor says that it listens", || async {
            let findings = locks.dao().doctor().await.ok()?;
            let waking = findings.into_iter().find(|finding| finding.check == "waking")?;
            (waking.severity == Severity::Ok && waking.detail.starts_with("listening for")).then_some(())
        })
        .await;
    }
    stop.store(true, Ordering::SeqCst);
    timeout(PATIENCE, tasks.join_all()).await.expect("they end");
    for locks in programs {
        assert_eq!(locks.shutdown(PATIENCE).await, 0);
    }
    line.store.becomes_free(&["hot"]).await;
    Ok(())
}

/// A program has several connections, none of which carries anything any more: one call goes without an answer, not one
/// for each connection.
pub(super) async fn idle_connections_cost_one_timeout<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::new(kind).await?;
    let dao = line.dao().await?;
    let page = Page::default();
    for listing in join_all((0..line.bad.route.connections).map(|_| dao.list(&page))).await {
        listing?;
    }
    line.proxy.silence();
    let mut unanswered = 0;
    while let Err(error) = dao.list(&page).await {
        unanswered += 1;
        assert!(unanswered < 2, "another call got no answer: {error}");
    }
    Ok(())
}
