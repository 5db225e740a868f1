//! Jobs that run once, in a store that fails, under tokio's paused time: when a fire is free again, to the second.

use std::{
    future,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockcore::{
    BackendErrorKind, Event, LockError, LockingError, LockingService, Once, OnceCall, Ran, Target, Wait,
};
use lockcore_memory::{Fault, MemoryLockDao, SimulatedLockDao, Step};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The default of the simulated store.
const LEASE: Duration = Duration::from_secs(30);

type Store = Arc<SimulatedLockDao<String>>;
type Locks = LockingService<String, Uuid, Store>;

fn simulated() -> (Store, Locks) {
    let store = Store::default();
    // Without sweeps: days pass here.
    let locks = LockingService::builder(store.clone()).sweep(None, 1).build().unwrap();
    (store, locks)
}

fn nightly(locks: &Locks) -> OnceCall<'_, Uuid, Store> {
    locks.once("nightly", "2026-11-29")
}

async fn job() -> Result<(), LockError> {
    Ok(())
}

/// Whether it ran now, and not before.
async fn runs(call: OnceCall<'_, Uuid, Store>) -> bool {
    match call.run(job).await.unwrap() {
        Once::Here(Ran { confirmed, .. }) => {
            assert!(confirmed);
            true
        }
        Once::RanBefore(_) => false,
        Once::Running(by) => panic!("running: {by:?}"),
    }
}

fn away(store: &Store, steps: &[Step]) {
    for step in steps {
        store.script(*step, [Fault::Fails(BackendErrorKind::Unavailable); 10_000]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fire_is_kept_for_two_days_or_as_long_as_asked_for() {
    let (_, locks) = simulated();
    for (fire, keep) in [("a", None), ("b", Some(HOUR)), ("c", Some(SECOND)), ("d", Some(7 * DAY))] {
        let call = || match keep {
            Some(keep) => locks.once("nightly", fire).keep(keep),
            None => locks.once("nightly", fire),
        };
        assert!(runs(call()).await);
        sleep(keep.unwrap_or(2 * DAY) - Duration::from_millis(500)).await;
        assert!(!runs(call()).await, "{fire}");
        sleep(SECOND).await;
        assert!(runs(call()).await, "{fire}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_job_is_renewed_also_where_locks_have_no_lease() {
    let locks = LockingService::new(MemoryLockDao::<String>::new());
    let long = locks.once("nightly", "a").run(async || {
        sleep(HOUR).await;
        job().await
    });
    let other = async {
        sleep(HOUR - SECOND).await;
        match locks.once("nightly", "a").run(job).await.unwrap() {
            Once::Running(by) => assert!(by.remaining.unwrap() <= LEASE, "{by:?}"),
            other => panic!("not running: {other:?}"),
        }
    };
    let (ran, ()) = tokio::join!(long, other);
    assert!(ran.unwrap().here().unwrap().confirmed);
    match locks.once("nightly", "a").run(job).await.unwrap() {
        Once::RanBefore(by) => assert!(by.remaining.unwrap() > DAY, "{by:?}"),
        other => panic!("not run before: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_never_ends_is_stopped_and_run_again() {
    let (_, locks) = simulated();
    let began = Instant::now();
    let call = locks.max_hold(HOUR).once("nightly", "a").run(future::pending::<Result<(), LockError>>).await;
    assert!(matches!(call, Err(LockingError::HeldTooLong { max_hold: HOUR })), "{call:?}");
    assert_eq!(began.elapsed().as_secs(), HOUR.as_secs());
    assert!(runs(locks.once("nightly", "a")).await);
    // A guard cannot be stopped: it is no longer renewed.
    let guard = locks.max_hold(HOUR).once("nightly", "b").lock().await.unwrap().here().unwrap();
    sleep(HOUR + LEASE).await;
    assert!(runs(locks.once("nightly", "b")).await);
    assert!(matches!(guard.keep().await, Err(LockingError::Lost { .. })));
    assert!(!runs(locks.once("nightly", "b")).await, "the late one took nothing from it");
}

#[tokio::test(start_paused = true)]
async fn the_last_renewal_is_tried_for_a_lease_at_most() {
    let failures = Arc::new(Mutex::new(Vec::new()));
    let seen = failures.clone();
    let store = Store::default();
    let locks = LockingService::builder(store.clone())
        .on_event(move |event: &Event<'_, String, Uuid>| {
            if let Event::RenewalFailed { failures, .. } = event {
                seen.lock().unwrap().push(*failures);
            }
        })
        .build()
        .unwrap();
    // Ten times within a lease, of which a tenth is its margin: each is tried some 0.75 to 1.5 s after the last.
    store.script(Step::Release, [Fault::Fails(BackendErrorKind::Unavailable); 10]);
    assert!(runs(nightly(&locks)).await);
    assert_eq!(*failures.lock().unwrap(), (1..=10).collect::<Vec<u32>>());
    assert!(!runs(nightly(&locks)).await);

    let began = Instant::now();
    let call = locks.once("nightly", "away").run(async || {
        away(&store, &[Step::Renew, Step::Release]);
        job().await
    });
    assert!(!call.await.unwrap().here().unwrap().confirmed);
    let tried = began.elapsed();
    assert!(tried >= LEASE * 8 / 10 && tried <= LEASE, "{tried:?}");
    // Another host may run it once the lease is over, and not before.
    let running = locks.once("nightly", "away").run(job).await.unwrap();
    assert!(matches!(running, Once::Running(_)), "{running:?}");
    sleep(LEASE + SECOND - tried).await;
    for step in [Step::Renew, Step::Release] {
        store.script(step, []);
    }
    assert!(locks.once("nightly", "away").lock().await.unwrap().here().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_come_is_not_waited_for_beyond_the_lease() {
    let (store, locks) = simulated();
    let began = Instant::now();
    let call = nightly(&locks).run(async || {
        store.script(Step::Release, [Fault::AnswersAfter(DAY); 100]);
        job().await
    });
    assert!(!call.await.unwrap().here().unwrap().confirmed);
    assert!(began.elapsed() <= LEASE, "{:?}", began.elapsed());
    // It was done all the same, and so no other runs it.
    sleep(HOUR).await;
    assert!(!runs(nightly(&locks)).await);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_after_the_success_releases_nothing() {
    let (store, locks) = simulated();
    let call = nightly(&locks).run(async || {
        store.script(Step::Release, [Fault::Fails(BackendErrorKind::Unavailable), Fault::AnswersAfter(DAY)]);
        job().await
    });
    assert!(timeout(8 * SECOND, call).await.is_err());
    assert_eq!(locks.shutdown(SECOND).await, 0, "nothing is left to be done");
    let locks = LockingService::new(store.clone());
    sleep(HOUR).await;
    assert!(!runs(nightly(&locks)).await);
    // Without the request it is free when the lease ends.
    let call = locks.once("nightly", "b").run(async || {
        away(&store, &[Step::Release]);
        job().await
    });
    assert!(timeout(SECOND, call).await.is_err());
    let running = locks.once("nightly", "b").run(job).await.unwrap();
    assert!(matches!(running, Once::Running(_)), "{running:?}");
    sleep(LEASE).await;
    assert!(locks.once("nightly", "b").lock().await.unwrap().here().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_id_of_what_runs_is_freed_though_the_first_release_fails() {
    let (store, locks) = simulated();
    store.script(Step::Release, [Fault::Works, Fault::Fails(BackendErrorKind::Unavailable)]);
    assert!(runs(nightly(&locks)).await);
    assert_eq!(locks.shutdown(MINUTE).await, 0);
    let locks = LockingService::new(store);
    let seen = locks.admin().inspect(&Target::Id("nightly@2026-11-29@running".to_owned())).await.unwrap();
    assert!(seen.holders.is_empty(), "{seen:?}");
    assert!(!runs(nightly(&locks)).await);
}

/// Clocks that differ by minutes: hosts start two minutes before, and three minutes after the time; one is an hour late.
#[tokio::test(start_paused = true)]
async fn a_period_runs_a_job_once_whatever_the_clocks_of_the_hosts_say() {
    let (_, locks) = simulated();
    let daily = || locks.once_per("nightly", DAY);
    sleep(DAY - 2 * MINUTE).await;
    for day in 0..3 {
        // Of this day another host is first.
        if day % 2 == 0 {
            assert!(runs(daily()).await, "{day}");
            sleep(5 * MINUTE).await;
            assert!(!runs(daily()).await, "{day}");
        } else {
            sleep(5 * MINUTE).await;
            assert!(runs(daily()).await, "{day}");
        }
        sleep(HOUR).await;
        assert!(!runs(daily()).await, "{day}");
        sleep(DAY - HOUR - 5 * MINUTE).await;
    }
}

/// A host that waits is told that a job ran which took longer than it is kept from its start.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_long_job_of_a_period_does_not_run_it_again() {
    let (_, locks) = simulated();
    let long = async {
        let ran = locks.once_per("nightly", DAY).run(async || {
            sleep(13 * HOUR).await;
            job().await
        });
        assert!(ran.await.unwrap().here().unwrap().confirmed);
    };
    let waiting = async {
        sleep(SECOND).await;
        let call = locks.wait(Wait::up_to(DAY)).once_per("nightly", DAY);
        assert!(!runs(call).await);
    };
    tokio::join!(long, waiting);
}

#[tokio::test(start_paused = true)]
async fn a_period_counts_from_the_start_of_the_job() {
    let (_, locks) = simulated();
    let daily = || locks.once_per("nightly", DAY);
    let long = |length| {
        daily().run(async move || {
            sleep(length).await;
            job().await
        })
    };
    // The next start, a day after the first, runs it, however long it took.
    for length in [HOUR, 11 * HOUR, 13 * HOUR, DAY - MINUTE] {
        assert!(long(length).await.unwrap().here().unwrap().confirmed, "{length:?}");
        if length < DAY / 2 {
            sleep(DAY / 2 - length - SECOND).await;
            assert!(!runs(daily()).await, "{length:?}");
            sleep(DAY / 2 + SECOND).await;
        } else {
            sleep(DAY - length).await;
        }
    }
    assert!(runs(daily()).await);
}
