//! The usual cases have ways of their own through the script: the same promises on each of them.

use std::{sync::Arc, time::Duration};

use lockcore::{
    BackendErrorKind, BreakMode, Claim, LockDao, Mode,
    backend::{AcquireRequest, Withdraw, Withdrawn},
};
use lockcore_conformance::{
    Caller, Store,
    servers::TestResult,
    store::{exclusive, id, shared, slot},
};
use tokio::runtime::Builder;

use super::{
    place::{Failure, LONG, Place},
    topology::{Raw, server},
};

/// How a client may come to a grant.
#[derive(Clone, Copy, Debug)]
enum Way {
    OneId,
    Several,
    Shared,
    Slots,
    /// Held shared before.
    Changed,
    HandedOver,
    SetHandedOver,
}

const WAYS: [Way; 7] =
    [Way::OneId, Way::Several, Way::Shared, Way::Slots, Way::Changed, Way::HandedOver, Way::SetHandedOver];

impl Way {
    /// Has a client get a grant, right after `before`; gives its fence.
    async fn fence(self, store: &Store<Place>, before: impl AsyncFnOnce()) -> u64 {
        let claims = match self {
            Way::OneId | Way::Changed | Way::HandedOver => vec![exclusive("a")],
            Way::Several | Way::SetHandedOver => vec![exclusive("a"), exclusive("b")],
            Way::Shared => vec![shared("a")],
            Way::Slots => vec![slot("a", 3)],
        };
        let [us, holder] = store.callers();
        let grant = match self {
            Way::OneId | Way::Several | Way::Shared | Way::Slots => {
                before().await;
                us.take(claims).await
            }
            Way::Changed => {
                us.take([shared("a")]).await;
                before().await;
                us.take(claims).await
            }
            Way::HandedOver | Way::SetHandedOver => {
                let held = holder.take(claims.clone()).await;
                let mut waiting = us.queue(claims).await;
                before().await;
                holder.free(&held).await;
                waiting.served().await
            }
        };
        us.free(&grant).await;
        grant.locks[0].granted.fence
    }
}

/// The server's clock, in microseconds.
async fn now(raw: &Raw) -> u64 {
    let (seconds, micros): (u64, u64) = raw.ask("TIME").await.expect("the server answers");
    seconds * 1_000_000 + micros
}

pub(crate) async fn without_a_counter_fences_go_by_the_clock() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw, counter) = (place.store().await, place.raw().await?, place.base("/f"));
    for way in WAYS {
        let began = now(&raw).await;
        let forget = async || _ = raw.send::<i64>(&["DEL", &counter]).await.expect("the server answers");
        let fence = way.fence(&store, forget).await;
        assert!(fence > began, "{way:?}: {fence} after {began}");
        // Should the clock be set back from now on.
        let kept: i64 = raw.send(&["GET", &counter]).await?;
        assert!(kept.unsigned_abs() >= fence, "{way:?}: {kept} after {fence}");
    }
    Ok(())
}

/// As when the clock was set back.
pub(crate) async fn ahead_of_the_clock_fences_go_by_the_counter() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw, counter) = (place.store().await, place.raw().await?, place.base("/f"));
    let mut last = now(&raw).await + 3_600_000_000;
    raw.send::<()>(&["SET", &counter, &last.to_string()]).await?;
    for way in WAYS {
        for again in [false, true] {
            let fence = way.fence(&store, async || {}).await;
            assert!(fence > last && fence < last + 10, "{way:?}, again: {again}: {fence} after {last}");
            last = fence;
            let kept: i64 = raw.send(&["GET", &counter]).await?;
            assert!(kept.unsigned_abs() >= fence, "{way:?}: {kept} after {fence}");
        }
    }
    Ok(())
}

/// Another program wrote a number beyond those that a script counts one by one, or no number at all: no two grants get the
/// same fence, and nothing is overwritten.
pub(crate) async fn a_counter_that_cannot_be_counted_on_is_refused() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw, counter) = (place.store().await, place.raw().await?, place.base("/f"));
    let holder = store.caller();
    for value in ["9007199254740993", "-9007199254740993", "1e20", "-1e20", "inf", "nan", "none"] {
        let held = holder.take(["held"]).await;
        raw.send::<()>(&["SET", &counter, value]).await?;
        for claims in [
            vec![exclusive("a")],
            vec![exclusive("a"), exclusive("b")],
            vec![shared("a")],
            vec![slot("a", 1)],
            vec![exclusive("held")],
        ] {
            for queue in [false, true] {
                let request = AcquireRequest { queue, ..store.caller().request(claims.clone()) };
                let error = store.dao().acquire(&request).await.expect_err(value);
                assert_eq!(error.kind(), BackendErrorKind::Corrupt, "{value}: {error:?}");
                assert!(error.to_string().contains(&counter), "{error}");
                assert_eq!(raw.send::<String>(&["GET", &counter]).await?, value, "{claims:?}");
            }
        }
        raw.send::<()>(&["DEL", &counter]).await?;
        holder.free(&held).await;
        holder.free(&holder.take([exclusive("a"), shared("b")]).await).await;
    }
    Ok(())
}

/// What was handed over counts for the fences to come, though the holder never asks for anything again.
pub(crate) async fn a_hand_over_raises_the_counter() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw, counter) = (place.store().await, place.raw().await?, place.base("/f"));
    for ids in [vec![exclusive("a")], vec![exclusive("b"), exclusive("c")], vec![shared("d")]] {
        let [holder, waiter] = store.callers();
        let held = holder.take([exclusive(ids[0].target.id().expect("no global lock"))]).await;
        let mut waiting = waiter.queue(ids.clone()).await;
        holder.free(&held).await;
        let kept: i64 = raw.send(&["GET", &counter]).await?;
        let turn = waiting.offered().await;
        let fence = turn.locks[0].granted.fence;
        assert!(kept.unsigned_abs() >= fence, "{ids:?}: {kept} after {fence}");
        waiter.free(&turn).await;
    }
    Ok(())
}

/// The server tells the microseconds of a second without leading zeros.
pub(crate) async fn early_in_a_second_a_fence_is_no_shorter() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw, counter) = (place.store().await, place.raw().await?, place.base("/f"));
    for way in WAYS {
        loop {
            while now(&raw).await % 1_000_000 > 50_000 {}
            let began = now(&raw).await;
            let forget = async || _ = raw.send::<i64>(&["DEL", &counter]).await.expect("the server answers");
            let fence = way.fence(&store, forget).await;
            assert!(fence > began, "{way:?}: {fence} after {began}");
            if fence % 1_000_000 < 100_000 {
                break;
            }
        }
    }
    Ok(())
}

/// A client that came to an id by waiting, and leaves it when no other waits, leaves nothing of the line.
pub(crate) async fn after_the_last_waiter_nothing_is_left() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    for ids in [vec![exclusive("a")], vec![exclusive("b"), exclusive("c")], vec![shared("d")]] {
        let [holder, first, second] = store.callers();
        let held = holder.take([exclusive(ids[0].target.id().expect("no global lock"))]).await;
        let mut next = first.queue(ids.clone()).await;
        let mut last = second.queue(ids).await;
        holder.free(&held).await;
        first.free(&next.served().await).await;
        second.free(&last.served().await).await;
        let mut keys: Vec<String> = raw.send(&["KEYS", &place.base("*")]).await?;
        keys.retain(|key| !key.starts_with(&place.base("/p:")) && *key != place.base("/f"));
        assert!(keys.is_empty(), "{keys:?}");
    }
    Ok(())
}

/// A main key outlives its lease while a client waits: a release that comes only then frees nothing that was still held.
pub(crate) async fn a_release_after_the_end_of_the_lease_tells_the_loss() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    let ([slow, waiter], key) = (store.callers(), place.key("a"));
    let held = slow.take(["a"]).await;
    let mut waiting = waiter.queue(["a"]).await;
    // As if the lease had been one of 1 ms, and no client had looked since.
    let value: String = raw.send(&["GET", &key]).await?;
    let mut fields: Vec<&str> = value.split('|').collect();
    let granted = (held.locks[0].granted.fence / 1000).to_string();
    assert_eq!((fields[3], fields[4]), ("q", &*granted), "{value}");
    fields[5] = "1";
    while now(&raw).await < held.locks[0].granted.fence + 5_000 {}
    raw.send::<()>(&["SET", &key, &fields.join("|"), "PX", "5000"]).await?;
    assert_eq!(slow.release(&held).await.lost.len(), 1);
    waiter.free(&waiting.served().await).await;
    Ok(())
}

/// While a client of ours waits a main key outlives its lease, so that no other client gets in between.
pub(crate) async fn a_waiter_has_a_grace() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    // More than the lease of a caller by some seconds, or more than an offer by as much.
    let outlives = async |ids: &[&str], least: i64| -> TestResult {
        for name in ids {
            let ttl: i64 = raw.send(&["PTTL", &place.key(name)]).await?;
            assert!(ttl > least, "{name}: {ttl}");
        }
        Ok(())
    };
    const LEASE: i64 = 604_000;
    const OFFER: i64 = 4_000;
    for names in [&["a"][..], &["b", "c"]] {
        let [holder, first, second] = store.callers();
        let ids = || names.iter().map(|&name| exclusive(name)).collect::<Vec<Claim<String>>>();
        let held = holder.take(ids()).await;
        let mut next = first.queue(ids()).await;
        outlives(names, LEASE).await?;
        holder.keep(&held).await;
        outlives(names, LEASE).await?;
        let mut last = second.queue(ids()).await;
        holder.free(&held).await;
        outlives(names, OFFER).await?;
        let turn = next.served().await;
        outlives(names, LEASE).await?;
        first.free(&turn).await;
        second.free(&last.served().await).await;
    }
    let [sharing, broken, waiter] = store.callers();
    let share = sharing.take([shared("s")]).await;
    let mut waiting = waiter.queue(["s"]).await;
    outlives(&["s"], LEASE).await?;
    sharing.free(&share).await;
    waiter.free(&waiting.served().await).await;

    let held = broken.take(["d"]).await;
    let fence = held.locks[0].granted.fence;
    store.dao().break_lock(&id("d"), fence, BreakMode::AfterLease, "a test").await?;
    let mut waiting = waiter.queue(["d"]).await;
    outlives(&["d"], LEASE).await?;
    assert_eq!(broken.renew(&held).await.lost.len(), 1);
    broken.free(&held).await;
    waiter.free(&waiting.served().await).await;
    Ok(())
}

/// A waiter without a heartbeat costs those behind it nothing, not even an offer.
pub(crate) async fn a_dead_waiter_is_offered_nothing() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    for ids in [vec![exclusive("a")], vec![exclusive("b"), exclusive("c")], vec![slot("d", 1)]] {
        let [holder, next] = store.callers();
        let held = holder.take(ids.clone()).await;
        let (dies, wanted) = (place.clone(), ids.clone());
        tokio::task::spawn_blocking(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { drop(dies.store().await.caller().queue(wanted).await) });
            Ok::<_, Failure>(()) // the runtime ends, and with it what gives the signs
        })
        .await??;
        for heartbeat in raw.send::<Vec<String>>(&["KEYS", &place.base("/p:*")]).await? {
            raw.send::<()>(&["DEL", &heartbeat]).await?;
        }
        let mut waiting = next.queue(ids.clone()).await;
        holder.free(&held).await;
        next.free(&waiting.served().await).await;
    }
    Ok(())
}

/// 2.7, 3.7: the key of a heartbeat lasts for as long as the clock was set back, and the heartbeat does not: a dead waiter keeps no
/// one from a free id of its set, and is offered nothing.
pub(crate) async fn who_died_before_the_clock_was_set_back_is_passed_over() -> TestResult {
    let place = Place::shared().await?;
    let (dao, dies) = (Arc::new(place.builder().test_clock(Duration::ZERO).open().await?), place.clone());
    // Longer than what the clock is set back by.
    let (holder, next) = (Caller::new(dao.clone(), 12 * LONG), Caller::new(dao, LONG));
    let held = holder.take(["b"]).await;
    tokio::task::spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            // What it writes lasts an hour longer, as if the clock had been set back by an hour since.
            let ahead = Arc::new(dies.builder().test_clock(Duration::from_secs(3600)).open().await?);
            for ids in [&["a", "b"][..], &["b"]] {
                drop(Caller::new(ahead.clone(), LONG).queue(ids.iter().copied()).await);
            }
            Ok::<_, Failure>(())
        })
    })
    .await??;
    next.free(&next.take(["a"]).await).await;
    let mut waiting = next.queue(["b"]).await;
    holder.free(&held).await;
    next.free(&waiting.served().await).await;
    Ok(())
}

/// Of a set that waits one id is another client's by now: what the rest is freed, or looked at, changes nothing.
pub(crate) async fn nothing_is_handed_over_that_is_foreign() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    for claims in [vec![exclusive("a"), exclusive("b")], vec![exclusive("a"), shared("b")]] {
        let [holder, waiter, third] = store.callers();
        let held = holder.take(["a"]).await;
        let mut waiting = waiter.queue(claims).await;
        raw.send::<()>(&["SET", &place.key("b"), "theirs", "NX", "PX", "60000"]).await?;
        holder.free(&held).await;
        // Who leaves frees as well.
        third.queue(["b"]).await.leave().await;
        waiting.still_waits().await;
        assert_eq!(raw.send::<String>(&["GET", &place.key("b")]).await?, "theirs");
        raw.send::<()>(&["DEL", &place.key("b")]).await?;
        waiter.free(&waiting.granted().await).await;
    }
    Ok(())
}

/// A server without memory grants nothing; what is held is kept, freed and handed over all the same, and a client that waits can
/// leave.
pub(crate) async fn a_full_server_keeps_frees_and_hands_over() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let sets = [
        vec![exclusive("a")],
        vec![exclusive("b"), exclusive("c")],
        vec![shared("d")],
        vec![slot("e", 2), exclusive("f")],
    ];
    for (claims, mode) in
        sets.into_iter().flat_map(|set| [(set.clone(), Mode::Exclusive), (set, Mode::Shared)])
    {
        let [holder, waiter, behind, broken] = store.callers();
        let held = holder.take(claims.clone()).await;
        let other = broken.take(["x", "y"]).await;
        // One of each set is held alone, so that either has to wait, but what is shared.
        let wanted: Vec<_> =
            claims.iter().map(|claim| Claim { target: claim.target.clone(), mode }).collect();
        let waits = claims.iter().any(|claim| mode == Mode::Exclusive || claim.mode != Mode::Shared);
        full(&raw, true).await?;
        holder.keep(&held).await;
        full(&raw, false).await?;
        if !waits {
            holder.free(&held).await;
            broken.free(&other).await;
            continue;
        }
        let mut waiting = waiter.queue(wanted.clone()).await;
        let leaves = behind.queue(wanted).await;
        full(&raw, true).await?;
        for claim in [shared("free"), slot("free", 2)] {
            let request = store.caller().request([claim]);
            store.dao().acquire(&request).await.expect_err("there is no memory for it");
        }
        let request = store.caller().request(["free"]);
        let error = store.dao().acquire(&request).await.expect_err("there is no memory for it");
        assert!(error.to_string().to_lowercase().contains("memory") && !error.in_doubt(), "{error:?}");
        assert_eq!(store.dao().withdraw(&request, Withdraw::Undo).await?, Withdrawn::Left);
        holder.keep(&held).await;
        leaves.leave().await;
        if claims.len() == 1 {
            holder.free(&held).await;
        } else {
            assert_eq!(store.dao().release_context(&holder.context).await?.len(), claims.len());
        }
        // By asking nothing, which would be refused.
        let turn = waiting.offered().await;
        waiter.keep(&turn).await;
        waiter.free(&turn).await;
        let fence = other.locks[0].granted.fence;
        store.dao().break_lock(&id("x"), fence, BreakMode::Now, "a test").await?;
        assert_eq!(broken.release(&other).await.lost.len(), 1);
        full(&raw, false).await?;
        assert!(store.is_free(&["a", "b", "c", "d", "e", "f", "x", "y", "free"]).await);
    }
    Ok(())
}

/// Heartbeats work on a full server too.
pub(crate) async fn on_a_full_server_a_place_is_kept() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let [holder, waiter] = store.callers();
    let held = holder.take(["a"]).await;
    let mut waiting = waiter.queue(["a"]).await;
    full(&raw, true).await?;
    // Longer than a heartbeat counts.
    tokio::time::sleep(Duration::from_secs(4)).await;
    holder.free(&held).await;
    waiter.free(&waiting.offered().await).await;
    Ok(())
}

/// The server has no memory for anything new, or all it wants.
async fn full(raw: &Raw, full: bool) -> TestResult {
    Ok(raw.ask::<()>(&format!("CONFIG SET maxmemory {}", u8::from(full))).await?)
}
