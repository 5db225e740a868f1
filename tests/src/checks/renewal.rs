//! Renewals keep what is held and bring nothing back: section 2.5.

use std::time::Duration;

use lockcore::{Claim, Grant, LockDao, LossReason, Mode, protocol::HEARTBEAT};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    Backend, Store, eventually,
    judge::late,
    store::{exclusive, id, shared, slot},
};

/// 2.5: a lock that is renewed outlives several of its leases.
pub async fn renewal_outlives_the_lease<B: Backend>(store: Store<B>) {
    let lease = store.renewable();
    let (holder, other) = (store.caller().with_lease(lease), store.caller());
    let grant = holder.take(["a", "b"]).await;
    for _ in 0..15 {
        let slept = Instant::now();
        store.pass(lease / 5).await;
        let lost = holder.renew(&grant).await.lost;
        if !lost.is_empty() && slept.elapsed() > lease / 2 {
            late(format_args!("renewed after {:?} of {lease:?}", slept.elapsed()));
        }
        assert!(lost.is_empty(), "lost after {:?}: {lost:?}", slept.elapsed());
        other.refused(["b"]).await;
    }
    holder.free(&grant).await;
    other.take(["a", "b"]).await;
}

/// 2.5: without renewal the lease ends by itself, in real time.
pub async fn without_renewal_the_lease_ends<B: Backend>(store: Store<B>) {
    let holder = store.caller().with_lease(store.short());
    let before = Instant::now();
    holder.take(["a"]).await;
    store.caller().take_soon(["a"]).await;
    let after = before.elapsed();
    assert!(after >= holder.lease.mul_f64(0.9), "taken over after {after:?} of {:?}", holder.lease);
}

/// 2.5: a renewal never brings an expired lock back to life, though no other took it since.
pub async fn renewal_never_resurrects<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    let mut sets = vec![vec![exclusive("a")], vec![exclusive("a"), exclusive("b")]];
    sets.extend(declared.shared.then(|| vec![shared("c")]));
    sets.extend(declared.slots.then(|| vec![slot("d", 2)]));
    for claims in sets {
        let dead = store.caller().with_lease(store.ending());
        let mut grant = dead.take(claims.clone()).await;
        store.end_leases().await;
        grant.lease = Some(store.caller().lease);
        let lost = dead.renew(&grant).await.lost;
        assert_eq!(lost.len(), claims.len(), "{lost:?}");
        for lost in &lost {
            assert!(matches!(lost.reason, LossReason::Expired | LossReason::Vanished), "{lost:?}");
        }
        let next = store.caller();
        let alone = |claim: &Claim<String>| Claim { mode: Mode::Exclusive, ..claim.clone() };
        // Soon: the answer to the renewal may have widened an estimate of the time, and came late enough for that.
        let taken = next.take_soon([alone(&claims[0])]).await;
        assert_eq!(dead.renew(&grant).await.lost.len(), claims.len());
        next.keep(&taken).await;
        next.free(&taken).await;
        let all = next.take(claims.iter().map(alone)).await;
        next.free(&all).await;
    }
}

/// 2.5: the same where another waits: a store may keep what is waited for beyond its lease.
pub async fn renewal_resurrects_nothing_that_is_waited_for<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    for ids in [&["a"][..], &["a", "b"]] {
        let holder = store.caller().with_lease(store.ending());
        let waiter = store.caller();
        let mut grant = holder.take(ids.iter().copied()).await;
        let mut place = waiter.queue(ids.iter().copied()).await;
        // Some more, for a store that only estimates the time.
        store.pass(holder.lease + Duration::from_secs(1)).await;
        grant.lease = Some(waiter.lease);
        assert_eq!(holder.renew(&grant).await.lost.len(), ids.len());
        // A clock that is set forward may have ended its place.
        waiter.free(&place.asking().await).await;
    }
}

/// 2.5: a renewal that arrives after the release changes nothing.
pub async fn renewal_after_release_changes_nothing<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let grant = one.take(["a"]).await;
    one.free(&grant).await;
    assert_eq!(one.renew(&grant).await.lost.len(), 1);
    let taken = two.take(["a"]).await;
    assert_eq!(one.renew(&grant).await.lost.len(), 1);
    two.free(&taken).await;
    one.take(["a"]).await;
    assert_eq!(
        one.renew(&grant).await.lost.len(),
        1,
        "a later grant is not renewed in the name of the old one"
    );
}

/// 2.5: what is still held is extended, and what is not is reported by id and fence.
pub async fn a_partial_loss_extends_the_rest<B: Backend>(store: Store<B>) {
    for mode in [Mode::Exclusive, Mode::Shared] {
        if mode == Mode::Shared && !store.capabilities().shared {
            return;
        }
        let [one, two] = store.callers();
        let one = one.with_lease(store.ending());
        let mut grant = one.take(["a", "b"].map(|name| Claim { target: id(name), mode })).await;
        grant.lease = Some(two.lease);
        let mut part = grant.clone();
        part.locks.truncate(1);
        one.free(&part).await;
        let lost = one.renew(&grant).await.lost;
        assert_eq!(lost.len(), 1);
        assert_eq!((&lost[0].target, lost[0].fence), (&id("a"), part.locks[0].granted.fence));
        store.end_leases().await;
        let taken = two.take(["a"]).await;
        two.refused(["b"]).await;
        two.free(&taken).await;
        one.release(&grant).await;
    }
}

/// 2.5: a lock lost to expiry and taken by another is reported as lost, not as held, and never as broken.
pub async fn a_taken_over_lock_is_reported_as_lost<B: Backend>(store: Store<B>) {
    let holder = store.caller().with_lease(store.ending());
    let grant = holder.take(["a"]).await;
    let next = store.caller();
    next.refused(["a"]).await;
    store.end_leases().await;
    let taken = next.take(["a"]).await;
    assert!(taken.locks[0].granted.fence > grant.locks[0].granted.fence);
    let lost = eventually("the loss is reported", || async { holder.renew(&grant).await.lost.pop() }).await;
    assert!(matches!(lost.reason, LossReason::Expired | LossReason::Vanished), "{lost:?}");
    next.free(&taken).await;
}

/// 2.5 and 3.6: waiters that found a long lease, in this process and in another one, are served soon after it ends that was cut short.
pub async fn a_waiter_notices_a_shorter_lease<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.shortening && declared.fifo) {
        return;
    }
    let holder = store.caller();
    for waiter in store.crowd(2).await {
        let grant = holder.take(["a"]).await;
        let mut place = waiter.queue(["a"]).await;
        let lease = store.short();
        let shorter = Grant { lease: Some(lease), ..grant };
        assert_eq!(store.dao().shorten(&shorter).await.expect("the store answers").lost, []);
        // A process that looks by itself does so every second.
        let granted = place.granted_within(lease + 3 * HEARTBEAT).await;
        waiter.free(&granted).await;
    }
}

/// 2.5: a holder has its locks end sooner. They are its own until then, and free afterwards, whatever lease they had; and what it
/// does not hold any more is reported, and not brought back.
pub async fn a_lease_is_cut_short<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    let [holder, other] = store.callers();
    let mut claims = vec![exclusive("a"), exclusive("b")];
    claims.extend(declared.shared.then(|| shared("c")));
    claims.extend(declared.slots.then(|| slot("d", 2).permits(2)));
    let names: Vec<_> = ["a", "b", "c", "d"].into_iter().take(claims.len()).collect();
    let shorten = async |grant: &Grant<String, Uuid>| {
        let grant = Grant { lease: Some(store.ending()), ..grant.clone() };
        store.dao().shorten(&grant).await.expect("the store answers").lost
    };
    let grant = holder.take(claims.clone()).await;
    assert_eq!(shorten(&grant).await, []);
    for name in &names {
        other.refused([exclusive(name)]).await;
    }
    holder.keep(&Grant { lease: Some(store.ending()), ..grant.clone() }).await;
    let mut part = grant.clone();
    part.locks.truncate(1);
    holder.free(&part).await;
    let lost = shorten(&grant).await;
    assert_eq!(lost.iter().map(|lock| &lock.target).collect::<Vec<_>>(), [&id("a")]);
    let taken = other.take(["a"]).await;
    assert_eq!(shorten(&part).await.len(), 1);
    other.keep(&taken).await;
    if !declared.shortening {
        return;
    }
    let mut place = if declared.fifo { Some(other.queue(["b"]).await) } else { None };
    store.end_leases().await;
    store.until_free(&names[2..]).await;
    match &mut place {
        Some(place) => other.free(&place.granted().await).await,
        None => store.until_free(&["b"]).await,
    }
    store.caller().refused(["a"]).await;
    assert_eq!(shorten(&grant).await.len(), claims.len(), "none of it is held");
    store.until_free(&names[1..]).await;
}
