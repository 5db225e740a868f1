//! Stores that lose what they knew: fences go on, losses are reported, no client is stuck.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use lockcore::{BackendErrorKind, Failure, Grant, LockDao, LockError, LossReason, Wait};
use lockcore_conformance::{
    PATIENCE, Store, eventually,
    judge::in_time,
    servers::{Proxy, Server, TestResult, Watched},
    store::{exclusive, shared, slot},
};
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    place::{Failure as Error, Place},
    topology::{Raw, part, replica_of, server},
};

fn fence(grant: &Grant<String, Uuid>) -> u64 {
    grant.locks[0].granted.fence
}

/// A server behind an address that stays.
async fn steady(server: &Server) -> std::io::Result<(Proxy, Place)> {
    let proxy = Proxy::start(server.address()).await?;
    let place = Place::at(server.url_through(proxy.address())).patient_for(Duration::from_secs(1));
    Ok((proxy, place))
}

async fn restarted(server: &Server, proxy: &Proxy) -> TestResult {
    server.restart().await?;
    proxy.redirect(server.address());
    Ok(())
}

/// A set taken by a store that may just have lost its connection.
async fn take(store: &Store<Place>, id: &str) -> Grant<String, Uuid> {
    let caller = store.caller();
    let request = caller.request([id]);
    eventually("it is taken", || async {
        match store.dao().acquire(&request).await {
            Ok(lockcore::backend::Acquired::Granted(granted)) => {
                Some(lockcore_conformance::store::grant(&request, granted))
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                None
            }
        }
    })
    .await
}

pub(crate) async fn fences_go_on_after_a_restart_without_persistence() -> TestResult {
    let server = server("").await?;
    let (proxy, place) = steady(&server).await?;
    let store = place.store().await;
    let before = take(&store, "a").await;
    restarted(&server, &proxy).await?;
    let after = take(&store, "a").await;
    assert!(fence(&after) > fence(&before));
    // The former holder is notified, and can do no harm.
    let lost = store.dao().renew(&before).await?.lost;
    assert_eq!(lost.iter().map(|lost| lost.reason).collect::<Vec<_>>(), [LossReason::Vanished]);
    assert_eq!(store.dao().release(&before).await?.lost.len(), 1);
    assert_eq!(store.dao().renew(&after).await?.lost, []);
    Ok(())
}

pub(crate) async fn fences_go_on_after_flushall() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let mut last = 0;
    for _ in 0..50 {
        let us = store.caller();
        let held = us.take(["a", "b"]).await;
        assert!(fence(&held) > last);
        last = fence(&held);
        raw.ask::<()>("FLUSHALL").await?;
        let next = store.caller().take(["a"]).await;
        assert!(fence(&next) > last);
        last = fence(&next);
        assert_eq!(us.release(&held).await.lost.len(), 2, "nothing of the later one");
        raw.ask::<()>("FLUSHALL").await?;
    }
    Ok(())
}

pub(crate) async fn fences_go_on_in_a_burst() -> TestResult {
    let place = Place::shared().await?;
    let store = place.store().await;
    let mut last = 0;
    for number in 0..300 {
        let us = store.caller();
        let held = us.take([format!("id {}", number % 3)]).await;
        assert!(fence(&held) > last, "one high-water mark for the namespace");
        last = fence(&held);
        us.free(&held).await;
    }
    Ok(())
}

pub(crate) async fn waiters_survive_a_restart() -> TestResult {
    let server = server("").await?;
    let (proxy, place) = steady(&server).await?;
    let (store, locks) = (place.store().await, place.locks().await?);
    take(&store, "a").await;
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(
                async move { locks.wait(Wait::forever()).with_locks(["a"], async || ()).await.is_ok() },
            )
        })
        .collect();
    eventually("all wait", || async {
        let seen = store.dao().inspect(&lockcore_conformance::store::id("a")).await.ok()?;
        (seen.waiters.len() == 5).then_some(())
    })
    .await;
    restarted(&server, &proxy).await?;
    // The holder's lock is gone with the data: the waiters ask again and get it one by one, within no lease.
    let begun = Instant::now();
    for waiter in waiting {
        assert!(timeout(PATIENCE, waiter).await.expect("its turn comes")?);
    }
    in_time(begun.elapsed(), Duration::from_secs(15));
    Ok(())
}

pub(crate) async fn a_callback_learns_that_its_lock_went_with_the_data() -> TestResult {
    let server = server("").await?;
    let (proxy, place) = steady(&server).await?;
    let locks = place.locks().await?;
    let (inside, is_inside) = tokio::sync::oneshot::channel();
    let call = locks.lease(Duration::from_secs(3)).with_locks(["a"], async move || {
        let _ = inside.send(());
        std::future::pending::<()>().await
    });
    let restart = async {
        is_inside.await.expect("it runs");
        restarted(&server, &proxy).await
    };
    let (ended, done) = tokio::join!(timeout(PATIENCE, call), restart);
    done?;
    match ended.expect("it is stopped") {
        Err(LockError::Lost { lost, .. }) => assert_eq!(lost[0].reason, LossReason::Vanished),
        other => panic!("{other:?}"),
    }
    Ok(())
}

/// The lease of a holder of ours that died: Redis notifies of its end, which a poll would find seconds later.
pub(crate) async fn the_end_of_a_lease_wakes_the_first_waiter() -> TestResult {
    let place = Place::shared().await?;
    let store = place.store().await;
    for claim in [exclusive("a"), shared("a"), slot("a", 1)] {
        let [dead, head, behind] = store.callers();
        let lease = Duration::from_secs(1);
        let begun = Instant::now();
        dead.with_lease(lease).take([claim]).await;
        let mut first = head.queue([exclusive("a")]).await;
        let mut second = behind.queue([exclusive("a")]).await;
        let turn = first.granted().await;
        let waited = begun.elapsed();
        assert!(waited >= lease - Duration::from_millis(5), "{waited:?}");
        in_time(waited, lease + Duration::from_millis(600));
        head.free(&turn).await;
        behind.free(&second.served().await).await;
    }
    Ok(())
}

pub(crate) async fn a_flushed_script_cache_is_no_failure() -> TestResult {
    // Its own: other libraries fail where a script is gone again just when they sent it along.
    let server = server("").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let [us, them] = store.callers();
    for _ in 0..20 {
        raw.ask::<()>("SCRIPT FLUSH").await?;
        let held = us.take(["a", "b"]).await;
        raw.ask::<()>("SCRIPT FLUSH").await?;
        us.keep(&held).await;
        let mut waiting = them.queue(["a"]).await;
        raw.ask::<()>("SCRIPT FLUSH").await?;
        us.free(&held).await;
        them.free(&waiting.served().await).await;
        let waiting = us.take(["a"]).await;
        let leaving = them.queue(["a"]).await;
        raw.ask::<()>("SCRIPT FLUSH").await?;
        leaving.leave().await;
        us.free(&waiting).await;
    }
    Ok(())
}

pub(crate) async fn a_replicated_lock_survives_a_failover() -> TestResult {
    let watched = Watched::start().await?;
    let place = Place::at(watched.url()).patient_for(Duration::from_secs(1));
    let locks = place.locks_on(place.builder().replicas(1, Duration::from_millis(500)).open().await?)?;
    let store = place.store().await;
    // A machine that is busy may take longer than 500 ms to have it confirmed.
    let guard = locks.lease(Duration::from_secs(60)).wait(Wait::up_to(PATIENCE)).lock(["a"]).await?;
    let held = guard.leave();
    watched.master.kill().await?;
    watched.promoted(&watched.replica).await?;
    // By which its connection comes back.
    take(&store, "b").await;
    assert_eq!(store.caller().refused(["a"]).await.len(), 1, "it is held at the new master");
    // There is no replica any more that could confirm a renewal, so that it is asked of a DAO that wants none.
    assert_eq!(store.dao().renew(&held).await?.lost, []);
    assert_eq!(store.dao().release(&held).await?.lost.len(), 0);
    let next = take(&store, "a").await;
    assert!(fence(&next) > fence(&held));
    Ok(())
}

/// As documented: what no replica had is lost with the master; its holder is notified, and the next fence is higher.
pub(crate) async fn a_lock_that_was_not_replicated_is_reported_as_lost() -> TestResult {
    let watched = Watched::start().await?;
    let place = Place::at(watched.url()).patient_for(Duration::from_secs(1));
    let store = place.store().await;
    part(&watched).await?;
    let held = take(&store, "a").await;
    watched.master.kill().await?;
    watched.promoted(&watched.replica).await?;
    let next = take(&store, "a").await;
    assert!(fence(&next) > fence(&held));
    let lost = store.dao().renew(&held).await?.lost;
    assert_eq!(lost.iter().map(|lost| lost.reason).collect::<Vec<_>>(), [LossReason::Vanished]);
    assert_eq!(store.dao().renew(&next).await?.lost, []);
    Ok(())
}

pub(crate) async fn with_replicas_required_nothing_is_granted_without_them() -> TestResult {
    let watched = Watched::start().await?;
    let place = Place::at(watched.url());
    let dao = place.builder().replicas(1, Duration::from_millis(300)).open().await?;
    let store = place.store().await;
    let locks = place.locks_on(dao)?;
    // A machine that is busy may take longer than 300 ms to have it confirmed.
    locks.wait(Wait::up_to(PATIENCE)).with_locks(["a", "b"], async || ()).await?;
    watched.replica.pause().await?;
    match locks.with_locks(["a", "b"], async || ()).await {
        Err(LockError::NotLocked { failures, .. }) => match &failures[..] {
            [Failure::Backend(error)] => assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error:?}"),
            other => panic!("{other:?}"),
        },
        other => panic!("granted though no replica has it: {other:?}"),
    }
    assert!(store.is_free(&["a", "b"]).await, "nothing of it is left");
    watched.replica.resume().await?;
    Ok(())
}

/// A waiter runs no sooner than a direct caller: once the replicas have its grant. Until they do it goes on waiting, also if
/// nothing else was in the way.
pub(crate) async fn with_replicas_required_a_waiter_waits_for_them_too() -> TestResult {
    let master = server("").await?;
    let replica = replica_of(&master, "").await?;
    let place = Place::at(master.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let locks = place.locks_on(place.builder().replicas(1, Duration::from_millis(50)).open().await?)?;
    let asked = || async {
        let info: String = raw.send(&["INFO", "commandstats"]).await?;
        let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls=")?.split(',').next());
        Ok::<u64, Error>(calls.unwrap_or("0").parse()?)
    };
    for (is_held, claims) in [
        (true, vec![exclusive("a")]),
        (true, vec![exclusive("b"), shared("c"), slot("d", 1)]),
        (false, vec![exclusive("e"), exclusive("f")]),
    ] {
        replica.pause().await?;
        let holder = store.caller();
        let held = if is_held { Some(holder.take(claims.clone()).await) } else { None };
        let before = asked().await?;
        let ran = Arc::new(AtomicBool::new(false));
        let waiting = tokio::spawn({
            let (locks, runs) = (locks.clone(), ran.clone());
            async move {
                let call = locks.wait(Wait::forever());
                let ended = call.with_locks(claims, async || runs.store(true, SeqCst)).await;
                ended.map_err(|error| format!("{error:?}"))
            }
        });
        if let Some(held) = held {
            eventually("it waits", || async {
                let seen = store.dao().inspect(&held.locks[0].target).await.ok()?;
                (seen.waiters.len() == 1).then_some(())
            })
            .await;
            assert_eq!(asked().await?, before, "there is nothing yet that replicas could have");
            holder.free(&held).await;
        }
        eventually("replicas were asked for it twice, or it ended", || async {
            (asked().await.ok()? >= before + 2 || waiting.is_finished()).then_some(())
        })
        .await;
        assert!(!ran.load(SeqCst) && !waiting.is_finished(), "no replica has it, held: {is_held}");
        replica.resume().await?;
        timeout(PATIENCE, waiting).await.expect("its turn comes")??;
        assert!(ran.load(SeqCst));
    }
    Ok(())
}

/// The failover comes while a client waits: the new master knows the place or the waiter asks again.
pub(crate) async fn waiters_survive_a_failover() -> TestResult {
    let watched = Watched::start().await?;
    let place = Place::at(watched.url()).patient_for(Duration::from_secs(1));
    let (store, locks) = (place.store().await, place.locks().await?);
    let us = store.caller().with_lease(Duration::from_secs(8));
    us.take(["a"]).await;
    let waiting = tokio::spawn(async move {
        locks.wait(Wait::forever()).with_locks(["a"], async || ()).await.map_err(|error| format!("{error:?}"))
    });
    eventually("it waits", || async {
        let seen = store.dao().inspect(&lockcore_conformance::store::id("a")).await.ok()?;
        (seen.waiters.len() == 1).then_some(())
    })
    .await;
    watched.master.kill().await?;
    watched.promoted(&watched.replica).await?;
    timeout(PATIENCE, waiting).await.expect("its turn comes")??;
    Ok(())
}

/// Scripts are cached nowhere on a server that has just become the master.
pub(crate) async fn a_new_master_knows_no_script_and_answers_all_the_same() -> TestResult {
    let server = server("").await?;
    let (proxy, place) = steady(&server).await?;
    let store = place.store().await;
    let held = take(&store, "a").await;
    restarted(&server, &proxy).await?;
    let raw = Raw::to(&server.url()).await?;
    for _ in 0..3 {
        raw.ask::<()>("SCRIPT FLUSH").await?;
        let released = eventually("released", || async { store.dao().release(&held).await.ok() }).await;
        assert_eq!(released.lost.len(), 1);
    }
    Ok(())
}
