//! Jobs that run once in a fleet: `Call::once` and `Call::once_per`. Each host is a service over a DAO of its own, where the store is
//! shared, as in a process of its own.

use std::{
    future,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, future::join_all};
use lockcore::{
    BackendErrorKind, BadRequest, BreakMode, Interval, LockingError, Once, Ran, Target, Wait, blocking,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Oops, Rig, never_runs};
use crate::{
    Backend, PATIENCE, Store, eventually,
    fault::{Fault, Operation},
    judge::late,
};

const NAME: &str = "nightly";
const FIRE: &str = "2026-11-29";
const ID: &str = "nightly@2026-11-29";
const RUNNING: &str = "nightly@2026-11-29@running";

/// Far longer than a check lasts.
const LONG: Duration = Duration::from_secs(600);

/// Three hosts, `host-0` to `host-2`.
async fn hosts<B: Backend>(store: &Store<B>, lease: Duration) -> [Rig<B>; 3] {
    let hosts = join_all((0..3).map(|number| async move {
        let other = store.reopen().await;
        let store = other.as_ref().unwrap_or(store);
        Rig::with(store, |builder| builder.owner(format!("host-{number}")).lease(lease))
    }));
    hosts.await.try_into().unwrap_or_else(|_| unreachable!("three were made"))
}

/// Runs a short job, and returns the answer.
async fn run<B: Backend>(host: &Rig<B>) -> Once<Ran<()>> {
    host.locks.once(NAME, FIRE).run(async || Ok::<_, Oops>(())).await.expect("the store answers")
}

/// It ran before, by this host.
async fn ran_before<B: Backend>(host: &Rig<B>, by: &str) {
    match host.locks.once(NAME, FIRE).run(never_runs).await.expect("the store answers") {
        Once::RanBefore(holder) => assert_eq!(holder.owner.label(), by),
        other => panic!("not run before: {other:?}"),
    }
}

/// The fire becomes free, and this host runs it.
async fn runs_soon<B: Backend>(host: &Rig<B>) {
    let ran = eventually("the fire is free", || async { run(host).await.here() }).await;
    if !ran.confirmed {
        late("the last renewal took longer than the lease, which is short");
    }
}

fn is_near(time: Option<SystemTime>) -> bool {
    let now = SystemTime::now();
    // The store's clock need not be ours; ten minutes tell the right unit from a wrong one.
    time.is_some_and(|time| {
        time.duration_since(now).unwrap_or_else(|error| error.duration()) < Duration::from_secs(600)
    })
}

/// 3.1: of three hosts that start a job one runs it. The others learn that it runs, by whom and since when, and later that it ran.
pub async fn one_of_three_hosts_runs_it<B: Backend>(store: Store<B>) {
    let hosts = hosts(&store, LONG).await;
    let answered = &AtomicUsize::new(0);
    let calls = hosts.iter().map(|host| async move {
        let job = async || {
            eventually("the others ask", || async { (answered.load(SeqCst) == 2).then_some(()) }).await;
            Ok::<_, Oops>(7)
        };
        let answer = host.locks.once(NAME, FIRE).run(job).await.expect("the store answers");
        answered.fetch_add(1, SeqCst);
        answer
    });
    let answers = join_all(calls).await;
    let ran =
        answers.iter().position(|answer| matches!(answer, Once::Here(Ran { value: 7, confirmed: true })));
    let by = format!("host-{}", ran.expect("one ran it"));
    for (number, answer) in answers.iter().enumerate().filter(|(number, _)| Some(*number) != ran) {
        match answer {
            Once::Running(holder) => {
                assert_eq!(holder.owner.label(), by, "{number}");
                assert!(is_near(holder.since()), "{holder:?}");
                assert!(holder.remaining.is_some_and(|left| left <= LONG), "{holder:?}");
            }
            other => panic!("not running: {other:?}"),
        }
    }
    for host in &hosts {
        match host.locks.once(NAME, FIRE).run(never_runs).await.expect("the store answers") {
            Once::RanBefore(holder) => {
                assert_eq!(holder.owner.label(), by);
                assert!(is_near(holder.since()), "{holder:?}");
                assert!(holder.remaining.is_some_and(|left| left > LONG * 100), "{holder:?}");
            }
            other => panic!("not run before: {other:?}"),
        }
    }
    store.caller().refused([ID]).await;
    assert!(store.is_free(&[RUNNING]).await);
    let other = hosts[0].locks.once(NAME, "2026-11-30").run(async || Ok::<_, Oops>(())).await;
    assert!(other.expect("the store answers").here().is_some_and(|ran| ran.confirmed));
}

/// 3.2: a job that fails, panics, is stopped, or whose call is dropped, frees its fire: the next host runs it.
pub async fn a_failed_job_is_run_by_the_next<B: Backend>(store: Store<B>) {
    let [one, two, three] = hosts(&store, LONG).await;
    let failed = one.locks.once(NAME, FIRE).run(async || Err::<(), _>(Oops)).await;
    assert!(matches!(failed, Err(LockingError::Callback { error: Oops })));
    assert!(store.is_free(&[ID, RUNNING]).await);

    let panics = one.locks.once(NAME, FIRE).run(async || -> Result<(), Oops> { panic!("it failed") });
    assert!(std::panic::AssertUnwindSafe(panics).catch_unwind().await.is_err());
    assert!(store.is_free(&[ID, RUNNING]).await);

    let max_hold = Duration::from_millis(50);
    let hangs = two.locks.max_hold(max_hold).once(NAME, FIRE).run(future::pending::<Result<(), Oops>>).await;
    assert!(matches!(hangs, Err(LockingError::HeldTooLong { .. })), "{hangs:?}");
    assert!(store.is_free(&[ID, RUNNING]).await);

    let (started, starts) = tokio::sync::oneshot::channel();
    let call = two.locks.once(NAME, FIRE).run(|| {
        started.send(()).expect("it is waited for");
        future::pending::<Result<(), Oops>>()
    });
    tokio::select! {
        ended = call => panic!("{ended:?}"),
        started = starts => started.expect("it starts"),
    }
    let guard = eventually("it is free", || async {
        three.locks.once(NAME, FIRE).lock().await.expect("the store answers").here()
    });
    guard.await.release().await.expect("nothing was lost");
    assert!(run(&three).await.here().is_some_and(|ran| ran.confirmed));
    ran_before(&one, "host-2").await;
}

/// 2.7: a host that dies in the middle keeps the others from it for a lease. Then another runs it.
pub async fn a_crash_in_the_middle_costs_a_lease<B: Backend>(store: Store<B>) {
    let [dead, two, three] = hosts(&store, store.ending()).await;
    let guard = dead.locks.once(NAME, FIRE).lock().await.expect("the store answers").here();
    for operation in [Operation::Renew, Operation::Release] {
        dead.faults.set(operation, Fault::Fails(BackendErrorKind::Unavailable));
    }
    std::mem::forget(guard.expect("it is the first"));
    match two.locks.once(NAME, FIRE).run(never_runs).await.expect("the store answers") {
        Once::Running(by) => assert_eq!(by.owner.label(), "host-0"),
        other => panic!("not running: {other:?}"),
    }
    store.end_leases().await;
    runs_soon(&two).await;
    ran_before(&three, "host-1").await;
}

/// 2.1 and 2.5: what ran is known for the time that was asked for, longer than the lease, and after the host is gone; then it runs again.
pub async fn what_ran_is_kept_for_its_time<B: Backend>(store: Store<B>) {
    let lease = store.ending();
    let [gone, two, three] = hosts(&store, lease).await;
    let (keep, began) = (lease * 2, Instant::now());
    let ran = gone.locks.once(NAME, FIRE).keep(keep).run(async || Ok::<_, Oops>(())).await;
    assert!(ran.expect("the store answers").here().expect("it is the first").confirmed);
    assert_eq!(gone.locks.shutdown(PATIENCE).await, 0);
    drop(gone);
    store.end_leases().await;
    let answer = two.locks.once(NAME, FIRE).lock().await.expect("the store answers");
    if store.sets_clock() || began.elapsed() < keep {
        assert!(matches!(&answer, Once::RanBefore(by) if by.owner.label() == "host-0"), "{answer:?}");
    }
    drop(answer);
    store.pass(keep).await;
    runs_soon(&three).await;
}

/// 2.5: the last renewal is tried until the store answers, and counts though its answer was lost before.
pub async fn a_store_that_comes_back_keeps_it<B: Backend>(store: Store<B>) {
    let [one, two, _] = hosts(&store, store.lasting()).await;
    for (fire, fault, times) in
        [("a", Fault::Fails(BackendErrorKind::Unavailable), 3), ("b", Fault::LosesAnswer, 1)]
    {
        let asked = one.faults.calls(Operation::Release);
        let job = async || {
            one.faults.set_times(Operation::Release, fault, times);
            Ok::<_, Oops>(())
        };
        let ran = one.locks.once(NAME, fire).run(job).await.expect("the store answers in time");
        assert!(ran.here().expect("it is the first").confirmed, "{fault:?}");
        assert!(one.faults.calls(Operation::Release) > asked + times);
        let answer = two.locks.once(NAME, fire).run(never_runs).await.expect("the store answers");
        assert!(matches!(answer, Once::RanBefore(_)), "{answer:?}");
    }
}

/// 2.5: if the store is away until the lease ends, the answer says that another host may run it, and it may.
pub async fn a_store_that_is_away_at_the_end_is_told<B: Backend>(store: Store<B>) {
    let [one, two, _] = hosts(&store, store.short()).await;
    let job = async || {
        for operation in [Operation::Renew, Operation::Release] {
            one.faults.set(operation, Fault::Fails(BackendErrorKind::Unavailable));
        }
        Ok::<_, Oops>(7)
    };
    let ran = one.locks.once(NAME, FIRE).run(job).await.expect("nothing was lost while it ran").here();
    assert_eq!(ran, Some(Ran { value: 7, confirmed: false }));
    assert!(one.events().contains(&"renewal failed"));
    runs_soon(&two).await;
    one.faults.lift();
    ran_before(&one, "host-1").await;
}

/// 3.6: a call that waits does so while the job runs elsewhere, and no longer: it runs the job if that failed there.
pub async fn a_waiting_host_runs_what_failed<B: Backend>(store: Store<B>) {
    let [one, two, _] = hosts(&store, LONG).await;
    let often = Interval { every: Duration::from_millis(20), jitter: Duration::ZERO };
    for (fire, wait) in
        [("a", Wait::forever()), ("b", Wait::up_to(LONG)), ("c", Wait::retries_forever(often))]
    {
        let first = async || one.locks.once(NAME, fire).lock().await.expect("the store answers").here();
        let guard = first().await.expect("it is the first");
        let short = two.locks.wait(Wait::up_to(store.short())).once(NAME, fire).run(never_runs);
        assert!(matches!(short.await, Ok(Once::Running(by)) if by.owner.label() == "host-0"));
        let waits = async || {
            let call = two.locks.wait(wait.clone()).once(NAME, fire).lock();
            call.await.expect("the store answers")
        };
        let asked = two.faults.calls(Operation::Acquire);
        let fails = async {
            asks_again(&two, asked).await;
            guard.release().await.expect("nothing was lost");
        };
        match tokio::join!(waits(), fails).0 {
            Once::Here(guard) => guard.release().await.expect("nothing was lost"),
            other => panic!("not run after a failure: {other:?}"),
        }
        let guard = first().await.expect("it is free");
        let asked = two.faults.calls(Operation::Acquire);
        let succeeds = async {
            asks_again(&two, asked).await;
            assert!(guard.keep().await.expect("nothing was lost"));
        };
        match tokio::join!(waits(), succeeds).0 {
            Once::RanBefore(by) => assert_eq!(by.owner.label(), "host-0"),
            other => panic!("not run before: {other:?}"),
        }
    }
}

/// Waits until a host has been told that the job runs, and asks again.
async fn asks_again<B: Backend>(host: &Rig<B>, asked: usize) {
    let again = || async { (host.faults.calls(Operation::Acquire) > asked + 1).then_some(()) };
    eventually("it waits", again).await;
}

/// 2.7: with a period the job runs again from half a period after it began, and its clock is that of the store.
pub async fn a_period_runs_it_once<B: Backend>(store: Store<B>) {
    let lease = store.ending();
    let [one, two, three] = hosts(&store, lease).await;
    let period = lease * 4;
    let job = async || Ok::<_, Oops>(());
    let began = Instant::now();
    let ran = one.locks.once_per(NAME, period).run(job).await.expect("the store answers");
    assert!(ran.here().expect("it is the first").confirmed);
    store.pass(lease).await;
    let late = two.locks.once_per(NAME, period).run(job).await.expect("the store answers");
    if store.sets_clock() || began.elapsed() < period / 2 {
        assert!(matches!(&late, Once::RanBefore(by) if by.owner.label() == "host-0"), "{late:?}");
    }
    store.pass(period / 2).await;
    let ran = eventually("half a period is over", || async {
        three.locks.once_per(NAME, period).run(job).await.expect("the store answers").here()
    });
    assert!(ran.await.confirmed);
    let short = one.locks.once_per(NAME, lease * 2 - Duration::from_millis(1)).run(never_runs).await;
    match short {
        Err(LockingError::BadRequest(BadRequest::OutOfBounds { field: "period", .. })) => {}
        other => panic!("not refused: {other:?}"),
    }
}

/// 2.7: a host whose clock is ahead by minutes is told the same, and tells it.
pub async fn clocks_that_differ_change_nothing<B: Backend>(store: Store<B>) {
    let Some(ahead) = store.reopen_ahead(Duration::from_secs(300)).await else { return };
    let [one, two] = [Rig::new(&store), Rig::new(&ahead)];
    for (fire, first, second) in [("a", &one, &two), ("b", &two, &one)] {
        for host in [first, second] {
            let call = host.locks.once(NAME, fire).run(async || Ok::<_, Oops>(())).await;
            match call.expect("the store answers") {
                Once::Here(ran) => assert!(ran.confirmed && std::ptr::eq(host, first)),
                Once::RanBefore(_) => assert!(std::ptr::eq(host, second)),
                Once::Running(by) => panic!("running: {by:?}"),
            }
        }
    }
}

/// 3.3: a fire that was lost while the job ran is an error, also if the job succeeded, and the rest of it is free.
pub async fn a_lost_fire_is_reported<B: Backend>(store: Store<B>) {
    if !store.capabilities().breaking {
        return;
    }
    let rig = Rig::with(&store, |builder| builder.lease(store.lasting()));
    for id in [ID, RUNNING] {
        let guard = rig.locks.once(NAME, FIRE).lock().await.expect("the store answers").here();
        let guard = guard.expect("it is free");
        let target = Target::Id(id.to_owned());
        let fence = guard.fence(id);
        rig.locks.admin().break_lock(&target, fence, BreakMode::Now).await.expect("the store answers");
        if id == RUNNING {
            eventually("the loss is known", || async { guard.check().err() }).await;
        }
        match guard.keep().await {
            Err(LockingError::Lost { lost, .. }) => assert_eq!((lost.len(), &lost[0].target), (1, &target)),
            other => panic!("not lost: {other:?}"),
        }
        store.becomes_free(&[ID, RUNNING]).await;
    }
}

/// 7: no two fires have an id in common, and what would have one is refused, as are options that contradict.
pub async fn fires_are_apart<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let fires = [
        ("a", "b"),
        ("a@b", "c"),
        ("a", "c"),
        ("a@b@running", "c"),
        ("a@latest", "running-late"),
        ("@", "b"),
    ];
    for (name, fire) in fires {
        let ran = rig.locks.once(name, fire).run(async || Ok::<_, Oops>(())).await;
        assert!(ran.expect("the store answers").here().is_some_and(|ran| ran.confirmed), "{name} {fire}");
    }
    let day = Duration::from_secs(24 * 60 * 60);
    let locks = &rig.locks;
    let refused = [
        ("name", locks.once("", "b")),
        ("fire", locks.once("a", "")),
        ("fire", locks.once("a", "b@c")),
        ("fire", locks.once("a", "running")),
        ("fire", locks.once("a", "latest")),
        ("keep", locks.once("a", "d").keep(Duration::ZERO)),
        ("keep", locks.once("a", "d").keep(day * 366)),
        ("period", locks.once_per("a", day * 731)),
        ("context", locks.context(Uuid::new_v4()).once("a", "d")),
        ("keep_for", locks.keep_for(LONG).once("a", "d")),
    ];
    for (expected, call) in refused {
        match call.run(never_runs).await {
            Err(LockingError::BadRequest(BadRequest::OutOfBounds { field, .. })) => {
                assert_eq!(field, expected)
            }
            other => panic!("{expected} is not refused: {other:?}"),
        }
    }
}

/// 3.11: plain code runs once too.
pub async fn plain_code_runs_once<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let locks = blocking::LockingService::from(rig.locks.clone());
    let thread = std::thread::spawn(move || {
        let failed = locks.once(NAME, FIRE).run(|| Err::<(), _>(Oops));
        assert!(matches!(failed, Err(LockingError::Callback { error: Oops })));
        let ran = locks.once(NAME, FIRE).keep(LONG).run(|| Ok::<_, Oops>(7)).expect("the store answers");
        assert_eq!(ran.here(), Some(Ran { value: 7, confirmed: true }));
        let again = locks.once(NAME, FIRE).run(|| -> Result<(), Oops> { panic!("it does not run") });
        assert!(matches!(again, Ok(Once::RanBefore(_))));
        let ran = locks.once_per(NAME, LONG * 2).run(|| Ok::<_, Oops>(8)).expect("the store answers");
        assert_eq!(ran.here(), Some(Ran { value: 8, confirmed: true }));
    });
    tokio::task::spawn_blocking(move || thread.join()).await.expect("no panic").expect("no panic");
}
