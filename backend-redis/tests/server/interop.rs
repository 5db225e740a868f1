//! Clients of other libraries on the same keys: who holds keeps the other out, whichever of the two it is.

use std::time::{Duration, Instant};

use lockcore::{BreakMode, Conflict, ConflictReason, LossReason};
use lockcore_conformance::{
    servers::TestResult,
    store::{exclusive, id, shared, slot},
};
use serde_json::json;
use uuid::Uuid;

use super::{place::Place, python::Python};

/// From the release, deletion or expiry of a foreign lock to our waiter's grant; a poll would take seconds. Redis
/// notifies of an expiry up to 100 ms late.
const SOON: Duration = Duration::from_millis(600);

/// That it usually takes no longer than [`SOON`]: the machine may stall now and then.
pub(crate) fn assert_soon(mut took: Vec<Duration>) {
    took.sort();
    assert!(took[took.len() / 2] < SOON, "{took:?}");
}

pub(crate) async fn redis_pys_lock_and_ours_exclude_each_other() -> TestResult {
    let place = Place::shared().await?;
    let (store, mut python) = (place.store().await, Python::start(&place.url).await?);
    let (key, us) = (place.key("a"), store.caller());

    let grant = us.take(["a"]).await;
    assert_eq!(python.call(json!(["locked", key])).await, true);
    assert_eq!(python.call(json!(["acquire", key, 30, null])).await, false);
    us.free(&grant).await;

    assert_eq!(python.call(json!(["acquire", key, 30, null])).await, true);
    let refused = us.refused(["a", "b"]).await;
    assert_foreign(&refused, Some(Duration::from_secs(30)));
    assert_eq!(python.call(json!(["extend", key, 60])).await, true);
    assert_foreign(&us.refused(["a"]).await, Some(Duration::from_secs(60)));
    for claim in [shared("a"), slot("a", 3)] {
        assert_foreign(&us.refused([claim]).await, Some(Duration::from_secs(60)));
    }
    assert_eq!(python.call(json!(["release", key])).await, "released");
    us.free(&us.take(["a", "b"]).await).await;
    Ok(())
}

pub(crate) async fn redlock_pys_lock_and_ours_exclude_each_other() -> TestResult {
    let place = Place::shared().await?;
    let (store, mut python) = (place.store().await, Python::start(&place.url).await?);
    let (key, [us, waiter]) = (place.key("a"), store.callers());
    let mut took = Vec::new();
    for claim in [exclusive("a"), shared("a"), slot("a", 3)] {
        let grant = us.take([claim.clone()]).await;
        // What it does not get it tries to free again.
        assert_eq!(python.call(json!(["redlock_lock", key, 30_000])).await, false);
        let mut waiting = waiter.queue([exclusive("a")]).await;
        us.keep(&grant).await;
        us.free(&grant).await;
        assert_eq!(python.call(json!(["redlock_lock", key, 30_000])).await, false);
        waiter.free(&waiting.served().await).await;

        assert_eq!(python.call(json!(["redlock_lock", key, 30_000])).await, true);
        assert_foreign(&us.refused([claim.clone(), exclusive("b")]).await, Some(Duration::from_secs(30)));
        let mut waiting = waiter.queue([claim]).await;
        waiting.still_waits().await;
        let freed = Instant::now();
        assert_eq!(python.call(json!(["redlock_unlock", key])).await, json!(null));
        let turn = waiting.granted().await;
        took.push(freed.elapsed());
        waiter.free(&turn).await;
    }
    assert_soon(took);
    Ok(())
}

pub(crate) async fn a_set_nx_of_redis_py_and_our_lock_exclude_each_other() -> TestResult {
    let place = Place::shared().await?;
    let (store, mut python) = (place.store().await, Python::start(&place.url).await?);
    let (key, us) = (place.key("a"), store.caller());

    let grant = us.take(["a"]).await;
    assert_eq!(python.call(json!(["set_nx", key, "theirs", 30_000])).await, false);
    assert_eq!(python.call(json!(["delete_if_equal", key, "theirs"])).await, 0, "it frees nothing of ours");
    us.keep(&grant).await;
    us.free(&grant).await;

    assert_eq!(python.call(json!(["set_nx", key, "theirs", 30_000])).await, true);
    assert_foreign(&us.refused(["a"]).await, Some(Duration::from_secs(30)));
    assert!(us.release(&grant).await.lost.len() == 1, "an old grant frees nothing of theirs");
    assert_eq!(python.call(json!(["delete_if_equal", key, "theirs"])).await, 1);
    us.take(["a"]).await;
    Ok(())
}

pub(crate) async fn a_held_slot_or_share_keeps_others_out_as_long_as_the_last() -> TestResult {
    let place = Place::shared().await?;
    let (store, mut python) = (place.store().await, Python::start(&place.url).await?);
    let key = place.key("a");
    for claim in [slot("a", 3), shared("a")] {
        let [long, short, third] = store.callers();
        let short = short.with_lease(Duration::from_secs(20));
        let first = long.take([claim.clone()]).await;
        let second = short.take([claim.clone()]).await;
        let last = third.take([claim.clone()]).await;
        assert_eq!(python.call(json!(["acquire", key, 30, null])).await, false);
        short.free(&second).await;
        third.free(&last).await;
        // A client that of us came or went last: the first one's lease is the longest.
        let ttl: i64 = place.raw().await?.send(&["PTTL", &key]).await?;
        assert!(ttl > 60_000, "{ttl}");
        assert_eq!(python.call(json!(["set_nx", key, "theirs", 30_000])).await, false);
        long.free(&first).await;
        assert_eq!(python.call(json!(["acquire", key, 30, null])).await, true);
        assert_eq!(long.refused([claim]).await.len(), 1);
        assert_eq!(python.call(json!(["release", key])).await, "released");
    }
    Ok(())
}

pub(crate) async fn no_other_process_gets_in_between_while_ours_wait() -> TestResult {
    let place = Place::shared().await?;
    let (store, mut python) = (place.store().await, Python::start(&place.url).await?);
    let key = place.key("a");
    for claim in [exclusive("a"), slot("a", 1)] {
        let [first, second, third] = store.callers();
        let grant = first.take([claim.clone()]).await;
        let mut next = second.queue([claim.clone()]).await;
        let mut last = third.queue([claim.clone()]).await;
        // It asks every 2 ms, from before the first hand-off until after the last.
        python.begin(json!(["acquire", key, 30, 60])).await;
        first.free(&grant).await;
        let grant = next.served().await;
        second.free(&grant).await;
        let grant = last.served().await;
        assert_eq!(third.renew(&grant).await.lost.len(), 0);
        third.free(&grant).await;
        assert_eq!(python.result().await, true, "it has its turn when none of ours waits");
        assert_eq!(python.call(json!(["release", key])).await, "released");
    }
    Ok(())
}

pub(crate) async fn no_other_process_gets_in_when_a_lease_ends_while_ours_wait() -> TestResult {
    let place = Place::shared().await?;
    let (store, mut python) = (place.store().await, Python::start(&place.url).await?);
    let key = place.key("a");
    for claim in [exclusive("a"), shared("a")] {
        let [dead, us] = store.callers();
        // Long enough that it is not over before the other one is in line, also if the machine stalls.
        let dead = dead.with_lease(Duration::from_secs(5));
        dead.take([claim.clone()]).await;
        let mut place_in_queue = us.queue([exclusive("a")]).await;
        // The key outlives the lease, so that a client that comes first at its end is one of ours.
        let ttl: i64 = place.raw().await?.send(&["PTTL", &key]).await?;
        assert!(ttl > 2000, "{ttl}");
        python.begin(json!(["acquire", key, 30, 60])).await;
        let grant = place_in_queue.granted().await;
        us.keep(&grant).await;
        us.free(&grant).await;
        assert_eq!(python.result().await, true);
        assert_eq!(python.call(json!(["release", key])).await, "released");
    }
    Ok(())
}

pub(crate) async fn what_others_free_wakes_our_first_waiter() -> TestResult {
    let place = Place::shared().await?;
    let (store, mut python) = (place.store().await, Python::start(&place.url).await?);
    let (key, mut took) = (place.key("a"), Vec::new());
    for how in ["release", "delete_if_equal", "delete", "expiry"] {
        let [head, behind] = store.callers();
        let free = match how {
            "release" => {
                assert_eq!(python.call(json!(["acquire", key, 30, null])).await, true);
                json!(["release", key])
            }
            "expiry" => {
                assert_eq!(python.call(json!(["set_nx", key, "theirs", 5000])).await, true);
                json!(["get", key])
            }
            _ => {
                assert_eq!(python.call(json!(["set_nx", key, "theirs", 30_000])).await, true);
                if how == "delete" { json!([how, key]) } else { json!([how, key, "theirs"]) }
            }
        };
        let mut first = head.queue(["a"]).await;
        let mut second = behind.queue(["a"]).await;
        let ttl: u64 = match how {
            "expiry" => place.raw().await?.send::<i64>(&["PTTL", &key]).await?.try_into().unwrap_or(0),
            _ => 0,
        };
        python.call(free).await;
        let freed = Instant::now() + Duration::from_millis(ttl);
        let grant = first.granted().await;
        took.push(freed.elapsed());
        head.free(&grant).await;
        let grant = second.served().await;
        behind.free(&grant).await;
    }
    assert_soon(took);
    Ok(())
}

pub(crate) async fn a_lock_of_ours_that_others_delete_is_reported_as_vanished() -> TestResult {
    let place = Place::shared().await?;
    let (store, mut python) = (place.store().await, Python::start(&place.url).await?);
    let [us, other] = store.callers();
    let grant = us.take(["a"]).await;
    python.call(json!(["delete", place.key("a")])).await;
    let lost = us.renew(&grant).await.lost;
    assert_eq!(lost.iter().map(|lost| lost.reason).collect::<Vec<_>>(), [LossReason::Vanished]);
    let next = other.take(["a"]).await;
    assert!(next.locks[0].granted.fence > grant.locks[0].granted.fence);
    assert_eq!(us.release(&grant).await.lost.len(), 1);
    other.keep(&next).await;
    Ok(())
}

pub(crate) async fn who_comes_late_frees_nothing_of_ours() -> TestResult {
    let place = Place::shared().await?;
    let (store, mut python) = (place.store().await, Python::start(&place.url).await?);
    let (key, us) = (place.key("a"), store.caller());
    assert_eq!(python.call(json!(["acquire", key, 5, null])).await, true);
    let grant = us.queue(["a"]).await.granted().await;
    assert_eq!(python.call(json!(["extend", key, 30])).await, false);
    assert_eq!(python.call(json!(["release", key])).await, "not owned");
    us.free(&grant).await;
    Ok(())
}

pub(crate) async fn a_foreign_lock_without_an_end_is_shown_and_broken() -> TestResult {
    let place = Place::shared().await?;
    let (store, locks) = (place.store().await, place.locks().await?);
    let (key, us, raw) = (place.key("a"), store.caller(), place.raw().await?);
    let mut took = Vec::new();
    for _ in 0..3 {
        raw.send::<()>(&["SET", &key, "theirs", "NX"]).await?;
        assert_foreign(&us.refused(["a"]).await, None);
        let seen = locks.admin().inspect(&id("a")).await?;
        assert_eq!((seen.holders.len(), seen.holders[0].fence, seen.holders[0].remaining), (1, 0, None));
        assert_eq!(locks.admin().list(&lockcore::Page::default()).await?.ids.len(), 1);
        let mut waiter = us.queue(["a"]).await;
        let begun = Instant::now();
        locks.admin().break_lock(&id("a"), 0, BreakMode::Now).await?;
        let grant = waiter.granted().await;
        took.push(begun.elapsed());
        us.free(&grant).await;
    }
    assert_soon(took);
    Ok(())
}

pub(crate) async fn a_counter_that_both_increment_loses_nothing() -> TestResult {
    const EACH: i64 = 40;
    let place = Place::shared().await?;
    let (locks, mut python) = (place.locks().await?, Python::start(&place.url).await?);
    let (key, counter) = (place.key("a"), format!("counter-{}", Uuid::new_v4()));
    python.begin(json!(["count", key, counter, EACH])).await;
    let raw = place.raw().await?;
    for _ in 0..EACH {
        let add = || async {
            let value: Option<i64> = raw.send(&["GET", &counter]).await?;
            raw.send::<()>(&["SET", &counter, &(value.unwrap_or(0) + 1).to_string()]).await
        };
        locks.wait(lockcore::Wait::forever()).with_locks(["a"], add).await?;
    }
    assert_eq!(python.result().await, EACH);
    assert_eq!(raw.send::<i64>(&["GET", &counter]).await?, 2 * EACH);
    raw.send::<()>(&["DEL", &counter]).await?;
    Ok(())
}

/// One id is in the way, held by a client that has no fence, for about `lease`.
pub(crate) fn assert_foreign(conflicts: &[Conflict<String, Uuid>], lease: Option<Duration>) {
    let [Conflict { reason: ConflictReason::Held { holders, count: 1, .. }, .. }] = conflicts else {
        panic!("not one holder of one id: {conflicts:?}")
    };
    assert_eq!((holders.len(), holders[0].fence), (1, 0), "{holders:?}");
    match (holders[0].remaining, lease) {
        (None, None) => {}
        (Some(left), Some(lease)) => assert!(left <= lease && left > lease / 2, "{left:?} of {lease:?}"),
        other => panic!("{other:?}"),
    }
}
