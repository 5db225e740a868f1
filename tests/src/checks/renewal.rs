//! Renewals keep what is held and bring nothing back: section 2.5.

use lockcore::LossReason;
use tokio::time::Instant;

use crate::{Backend, Store, eventually, store::id};

/// 2.5: a lock that is renewed outlives several of its leases.
pub async fn renewal_outlives_the_lease<B: Backend>(store: Store<B>) {
    let (holder, other) = (store.caller().with_lease(store.lasting()), store.caller());
    let grant = holder.take(["a", "b"]).await;
    let until = Instant::now() + holder.lease * 3;
    while Instant::now() < until {
        tokio::time::sleep(holder.lease / 5).await;
        let renewed = Instant::now();
        let lost = holder.renew(&grant).await.lost;
        assert!(lost.is_empty(), "lost after {:?}: {lost:?}", renewed.elapsed());
        other.refused(["b"]).await;
    }
    holder.free(&grant).await;
    other.take(["a", "b"]).await;
}

/// 2.5: without renewal the lease ends by itself.
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
    for ids in [&["a"][..], &["a", "b"]] {
        let (dead, mut grant) = store.expired(ids).await;
        grant.lease = Some(store.caller().lease);
        let lost = dead.renew(&grant).await.lost;
        assert_eq!(lost.len(), ids.len(), "{lost:?}");
        for lost in &lost {
            assert!(matches!(lost.reason, LossReason::Expired | LossReason::Vanished), "{lost:?}");
        }
        let next = store.caller();
        let taken = next.take(["a"]).await;
        assert_eq!(dead.renew(&grant).await.lost.len(), ids.len());
        next.keep(&taken).await;
        next.free(&taken).await;
        let all = next.take(ids.iter().copied()).await;
        next.free(&all).await;
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
    let [one, two] = store.callers();
    let one = one.with_lease(store.short());
    let mut grant = one.take(["a", "b"]).await;
    grant.lease = Some(two.lease);
    let mut part = grant.clone();
    part.locks.truncate(1);
    one.free(&part).await;
    let lost = one.renew(&grant).await.lost;
    assert_eq!(lost.len(), 1);
    assert_eq!((&lost[0].target, lost[0].fence), (&id("a"), part.locks[0].granted.fence));
    store.expired(&["clock"]).await;
    two.take(["a"]).await;
    two.refused(["b"]).await;
}

/// 2.5: a lock lost to expiry and taken by another is reported as lost, not as held, and never as broken.
pub async fn a_taken_over_lock_is_reported_as_lost<B: Backend>(store: Store<B>) {
    let holder = store.caller().with_lease(store.short());
    let grant = holder.take(["a"]).await;
    let next = store.caller();
    let taken = next.take_soon(["a"]).await;
    assert!(taken.locks[0].granted.fence > grant.locks[0].granted.fence);
    let lost = eventually("the loss is reported", || async { holder.renew(&grant).await.lost.pop() }).await;
    assert!(matches!(lost.reason, LossReason::Expired | LossReason::Vanished), "{lost:?}");
    next.free(&taken).await;
}
