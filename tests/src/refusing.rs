//! A store that refuses for a while, as a server does before and after a fail-over, and one that refuses for good.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::{
    BackendErrorKind, Event, Failure, LockDao, LockError, LockingError, LockingService, Wait,
    election::Election,
};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::{
    PATIENCE, eventually,
    judge::in_time,
    servers::TestResult,
    store::{ended, id},
};

/// Renewed at a third of it, while the store refuses; and long enough for what has to be done in the rest.
const LEASE: Duration = Duration::from_secs(15);

/// One that does not end during a check.
const LONG: Duration = Duration::from_secs(600);

/// Whatever waits goes on while the store takes no writes, and what is held stays held: waits that began before and during that
/// time, a candidacy, a release, renewals. A call that does not wait is refused as one to be tried again. `refuse` has the
/// store refuse writes from now on, or take them.
///
/// # Errors
/// Of `refuse`.
pub async fn a_store_that_refuses_for_a_while_ends_no_wait<D: LockDao<String, Uuid>>(
    dao: D,
    mut refuse: impl AsyncFnMut(bool) -> TestResult,
) -> TestResult {
    let failed = Arc::new(AtomicU32::new(0));
    let counted = failed.clone();
    let builder = LockingService::builder(dao).lease(LEASE).on_event(move |event| {
        if matches!(event, Event::RenewalFailed { .. }) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let locks = builder.build()?;
    let election = Arc::new(Election::new(&locks, "leader"));
    let held = locks.lock(["held"]).await?;
    let (wanted, released) =
        (locks.lease(LONG).lock(["wanted"]).await?, locks.lease(LONG).lock(["released"]).await?);
    let leader = election.campaign("the first").await?;
    let wait = |name: &'static str| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.wait(Wait::up_to(2 * PATIENCE)).lock([name]).await })
    };
    let waiting = wait("wanted");
    let candidate = election.clone();
    let candidate = tokio::spawn(async move { candidate.campaign("the second").await });
    for name in ["wanted", "leader"] {
        eventually("it waits", || async {
            let seen = locks.admin().inspect(&id(name)).await.ok()?;
            (!seen.waiters.is_empty() || !locks.dao().capabilities().fifo).then_some(())
        })
        .await;
    }

    refuse(true).await?;
    // A session may learn of it a moment later.
    let error = eventually("it refuses", || async {
        match locks.lock(["another"]).await {
            Ok(guard) => guard.release().await.err(),
            Err(error) => Some(error),
        }
    })
    .await;
    assert_eq!(kind(&error), Some(BackendErrorKind::Unavailable), "{error:?}");
    assert!(error.is_retryable() && error.to_string().contains("unavailable, try again"), "{error}");
    let begun = wait("begun");
    let looking = locks.clone();
    let free =
        tokio::spawn(async move { looking.admin().until_free(["wanted"], Duration::from_millis(100)).await });
    released.release().await?;
    eventually("a renewal was refused", || async { (failed.load(Ordering::SeqCst) > 0).then_some(()) }).await;
    assert!(!waiting.is_finished() && !begun.is_finished() && !candidate.is_finished());

    refuse(false).await?;
    ended(begun).await?.release().await?;
    // Long before its lease ends.
    let again = locks.wait(Wait::up_to(PATIENCE)).lock(["released"]).await?;
    again.release().await?;
    wanted.release().await?;
    ended(waiting).await?.release().await?;
    ended(free).await?;
    leader.resign().await?;
    ended(candidate).await?.resign().await?;
    held.held().check()?;
    held.release().await?;
    assert_eq!(locks.shutdown(PATIENCE).await, 0);
    Ok(())
}

/// What does not pass ends a wait soon: not when it asks again by itself, after ten seconds and more, but with the next
/// heartbeat. `refuse` has the store refuse everything from now on.
///
/// # Errors
/// Of `refuse`.
pub async fn a_store_that_refuses_for_good_ends_a_sleeping_wait<D: LockDao<String, Uuid>>(
    dao: D,
    refuse: impl AsyncFnOnce() -> TestResult,
) -> TestResult {
    let locks = LockingService::builder(dao).lease(LONG).build()?;
    let held = locks.lock(["a"]).await?;
    let waiter = locks.clone();
    let waiting = tokio::spawn(async move { waiter.wait(Wait::up_to(2 * PATIENCE)).lock(["a"]).await });
    eventually("it waits", || async {
        let seen = locks.admin().inspect(&id("a")).await.ok()?;
        (!seen.waiters.is_empty()).then_some(())
    })
    .await;
    refuse().await?;
    let refused = Instant::now();
    let error = timeout(PATIENCE, waiting).await.expect("it ends")?.expect_err("all is refused");
    assert!(!error.is_retryable() && !error.is_contention(), "{error:?}");
    in_time(refused.elapsed(), Duration::from_secs(8));
    // It cannot be released either.
    drop(held.leave());
    Ok(())
}

fn kind(error: &LockError) -> Option<BackendErrorKind> {
    match error {
        LockingError::NotLocked { failures, .. } => match &failures[..] {
            [Failure::Backend(error)] => Some(error.kind()),
            _ => None,
        },
        _ => None,
    }
}
