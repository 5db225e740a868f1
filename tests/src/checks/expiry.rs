//! Leases end by the store's clock, and one taker wins what expired: section 2.7.

use std::time::Duration;

use lockcore::{Claim, ConflictReason, Mode};
use tokio::time::Instant;

use crate::{
    Backend, Store, eventually, race,
    store::{exclusive, shared, slot},
};

/// 2.7 and 2.9: an expired id can be taken at once, by the first who asks.
pub async fn an_expired_id_is_taken_at_once<B: Backend>(store: Store<B>) {
    store.expired(&["a", "b"]).await;
    let next = store.caller();
    let taken = next.take(["b"]).await;
    next.free(&taken).await;
    next.take(["a", "b", "c"]).await;
}

/// 2.7: of five contenders for an expired id exactly one wins, though all see it expired.
pub async fn one_of_five_takes_an_expired_id<B: Backend>(store: Store<B>) {
    let ids: Vec<String> = (0..20).map(|number| format!("id {number}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    store.expired(&ids).await;
    let crowd = store.crowd(5).await;
    for id in ids {
        let wins = race(5, |number| {
            let (caller, id) = (crowd[number].clone(), id.to_owned());
            async move { caller.try_take([id]).await.is_ok() }
        })
        .await;
        assert_eq!(wins.iter().filter(|&&won| won).count(), 1, "{id}: {wins:?}");
    }
}

/// 2.7: the expired holder of a part of a set is not in the way of the set.
pub async fn an_expired_part_is_not_in_the_way<B: Backend>(store: Store<B>) {
    let [holder, next] = store.callers();
    let held = holder.take(["b"]).await;
    store.expired(&["a", "c"]).await;
    let conflicts = next.refused(["a", "b", "c"]).await;
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    holder.free(&held).await;
    next.take(["a", "b", "c"]).await;
}

/// 2.7: expired shared holders and slots make room, one by one.
pub async fn expired_units_make_room<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    let [live, next] = store.callers();
    if declared.slots {
        let dead = store.caller().with_lease(store.ending());
        dead.take([slot("slots", 3).permits(2)]).await;
        let kept = live.take([slot("slots", 3)]).await;
        store.end_leases().await;
        let taken = next.take([slot("slots", 3).permits(2)]).await;
        assert_eq!(
            taken.locks[0].granted.permits.as_slice(),
            [0, 1],
            "the indexes of the dead are free again"
        );
        assert_eq!(taken.locks[0].granted.in_use, 3);
        live.free(&kept).await;
    }
    if declared.shared {
        for dead in store.callers::<2>() {
            dead.with_lease(store.ending()).take([shared("shared")]).await;
        }
        let kept = live.take([shared("shared")]).await;
        store.end_leases().await;
        let conflicts = next.refused([exclusive("shared")]).await;
        assert!(matches!(conflicts[0].reason, ConflictReason::Held { count: 1, .. }), "{conflicts:?}");
        live.free(&kept).await;
        next.take([exclusive("shared")]).await;
    }
}

/// 2.2 and 2.7: what is left of a lease shrinks as time passes, and a renewal restores it.
pub async fn what_remains_shrinks<B: Backend>(store: Store<B>) {
    let [holder, asking] = store.callers();
    let grant = holder.take(["a"]).await;
    let remaining = || async {
        match &asking.refused(["a"]).await[0].reason {
            ConflictReason::Held { holders, .. } => holders[0].remaining.expect("the lease is finite"),
            other => panic!("not held: {other:?}"),
        }
    };
    let first = remaining().await;
    let later = eventually("it shrinks", || async {
        let now = remaining().await;
        (now + Duration::from_millis(20) < first).then_some(now)
    })
    .await;
    // The answer may take longer to come than was left to shrink: then once more.
    eventually("a renewal restores it", || async {
        holder.keep(&grant).await;
        (remaining().await > later).then_some(())
    })
    .await;
}

/// 2.7 and 5: a lock from the future - the clock was set back since - lasts its lease from when it is met and no longer,
/// and the next fence is higher all the same.
pub async fn a_lock_from_the_future_lasts_its_lease<B: Backend>(store: Store<B>) {
    let Some(ahead) = store.reopen_ahead(Duration::from_secs(3600)).await else { return };
    let declared = store.capabilities();
    let mut claims = vec![exclusive("a"), exclusive("b")];
    claims.extend(declared.shared.then(|| shared("c")));
    claims.extend(declared.slots.then(|| slot("d", 1)));
    let wanted: Vec<_> =
        claims.iter().map(|claim| Claim { mode: Mode::Exclusive, ..claim.clone() }).collect();
    let lease = store.ending() * 2;
    let holder = ahead.caller().with_lease(lease);
    let grant = holder.take(claims.clone()).await;
    let met = Instant::now();
    let next = store.caller();
    assert_eq!(next.refused(wanted.clone()).await.len(), claims.len(), "it is not taken for one that ended");
    if store.sets_clock() {
        store.pass(lease / 2).await;
        assert_eq!(next.refused(wanted.clone()).await.len(), claims.len(), "it lasts its lease");
        store.pass(lease / 2).await;
    }
    let taken = next.take_soon(wanted).await;
    let after = met.elapsed();
    assert!(store.sets_clock() || after >= lease.mul_f64(0.9), "taken over after {after:?} of {lease:?}");
    for (new, old) in taken.locks.iter().zip(&grant.locks) {
        assert!(new.granted.fence > old.granted.fence, "{new:?} after {old:?}");
    }
    // By the right clock: by the other one the new lease is over too.
    let late = holder.through(store.dao());
    assert_eq!(late.release(&grant).await.lost.len(), claims.len());
    store.caller().refused(["a"]).await;
}

/// 7: the shortest lease that is declared possible is kept: no other gets in before it ends.
pub async fn the_shortest_lease_is_kept<B: Backend>(store: Store<B>) {
    let shortest = store.capabilities().min_lease;
    assert!(shortest > Duration::ZERO);
    for round in 0..3 {
        let holder = store.caller().with_lease(shortest);
        let asked = Instant::now();
        holder.take([format!("{round}")]).await;
        store.caller().take_soon([format!("{round}")]).await;
        let taken_over = asked.elapsed();
        // A thousandth is for the rounding of the clocks in between.
        assert!(taken_over >= shortest.mul_f64(0.999), "taken over after {taken_over:?} of {shortest:?}");
    }
}

/// 2.10 and 7: a lock without a lease, where that is declared, outlasts others and tells that it does.
pub async fn permanent_locks_last<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.permanent {
        assert!(declared.default_lease.is_some(), "a default that the backend itself cannot keep");
        return;
    }
    let [one, two] = store.callers();
    let mut request = one.request(["a"]);
    request.lease = None;
    let lockcore::backend::Acquired::Granted(granted) = one.send(&request).await else {
        panic!("the id is free")
    };
    let grant = crate::store::grant(&request, granted);
    store.expired(&["clock"]).await;
    match &two.refused(["a"]).await[0].reason {
        ConflictReason::Held { holders, .. } => assert_eq!(holders[0].remaining, None),
        other => panic!("not held: {other:?}"),
    }
    one.keep(&grant).await;
    one.free(&grant).await;
    two.take(["a"]).await;
}
