//! Fences only grow: section 5.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use lockcore::{BreakMode, Grant, LockDao};
use uuid::Uuid;

use crate::{Backend, Store, eventually, race, store::id};

/// 5: a fence is at least the store's clock in microseconds, and no more than a little ahead of it.
pub async fn fences_are_as_high_as_the_clock<B: Backend>(store: Store<B>) {
    let caller = store.caller();
    for round in 0..10 {
        let grant = caller.take(["a", &format!("{round}")]).await;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is set");
        for lock in &grant.locks {
            let fence = Duration::from_micros(lock.granted.fence);
            // The store's clock need not be ours; ten minutes tell the right unit from a wrong one.
            assert!(fence.abs_diff(now) < Duration::from_secs(600), "fence {fence:?}, clock {now:?}");
        }
        caller.free(&grant).await;
    }
}

/// 5: every later grant of an id has a higher fence, for any holders and however fast they follow.
pub async fn fences_grow_across_releases<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    // Of each id: where the clock stands still, that of one may be ahead of the other's.
    let mut last = [0, 0];
    for _ in 0..50 {
        for caller in [&one, &two] {
            let grant = caller.take(["a", "b"]).await;
            let fences = [0, 1].map(|position| grant.locks[position].granted.fence);
            assert!(fences.iter().zip(last).all(|(fence, last)| *fence > last), "{fences:?} after {last:?}");
            last = fences;
            caller.free(&grant).await;
        }
    }
}

/// 5: concurrent holders never see a fence that is not higher than the last holder's.
pub async fn fences_grow_under_contention<B: Backend>(store: Store<B>) {
    let last = Arc::new(AtomicU64::new(0));
    let crowd = store.crowd(4).await;
    race(4, |number| {
        let (caller, last) = (crowd[number].clone(), last.clone());
        async move {
            for _ in 0..15 {
                let grant = caller.take_soon(["a"]).await;
                let before = last.swap(fence(&grant), Ordering::SeqCst);
                assert!(fence(&grant) > before, "{} after {before}", fence(&grant));
                caller.free(&grant).await;
            }
        }
    })
    .await;
}

/// 5: shared holders and slots have fences of their own, that grow as well.
pub async fn fences_grow_among_holders_at_once<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    let claims = [
        declared.shared.then(|| crate::store::shared("shared")),
        declared.slots.then(|| crate::store::slot("slots", 100)),
    ];
    for claim in claims.into_iter().flatten() {
        let mut last = 0;
        for _ in 0..10 {
            let grant = store.caller().take([claim.clone()]).await;
            assert!(fence(&grant) > last, "{} after {last}", fence(&grant));
            last = fence(&grant);
        }
    }
}

/// 5: a fence does not go back though the lock expired.
pub async fn fences_grow_across_expiry<B: Backend>(store: Store<B>) {
    let (_, old) = store.expired(&["a"]).await;
    let new = store.caller().take(["a"]).await;
    assert!(fence(&new) > fence(&old));
}

/// 5: a fence does not go back though the expired lock was swept away.
pub async fn fences_grow_across_a_sweep<B: Backend>(store: Store<B>) {
    let dao = store.dao();
    if !store.capabilities().sweeping {
        return super::capabilities::refuses(dao.sweep(10, None)).await;
    }
    let (_, old) = store.expired(&["a"]).await;
    let released = store.caller().take(["b"]).await;
    eventually("nothing is left to sweep", || async {
        let swept = dao.sweep(100, None).await.expect("the store answers");
        (swept.removed == 0 && !swept.more).then_some(())
    })
    .await;
    let new = store.caller().take(["a"]).await;
    assert!(fence(&new) > fence(&old).max(fence(&released)));
}

/// 5: a fence does not go back though the lock was broken, or its context's locks released.
pub async fn fences_grow_across_breaks<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    let mut last = 0;
    if declared.breaking {
        let old = store.caller().take(["a"]).await;
        let broken = store.dao().break_lock(&id("a"), fence(&old), BreakMode::Now, "").await;
        broken.expect("the store answers");
        last = fence(&old);
    }
    let one = store.caller();
    let grant = one.take(["a"]).await;
    assert!(fence(&grant) > last);
    if declared.listing {
        store.dao().release_context(&one.context).await.expect("the store answers");
        assert!(fence(&store.caller().take(["a"]).await) > fence(&grant));
    }
}

/// 5: a fence does not go back when the store is opened again, nor between two who have it open.
pub async fn fences_grow_across_reopening<B: Backend>(store: Store<B>) {
    let Some(other) = store.reopen().await else { return };
    let mut last = 0;
    for round in 0..10 {
        for store in [&store, &other] {
            let caller = store.caller();
            let grant = caller.take(["a"]).await;
            assert!(fence(&grant) > last, "round {round}: {} after {last}", fence(&grant));
            last = fence(&grant);
            caller.free(&grant).await;
        }
    }
    drop(other);
    let later = store.reopen().await.expect("it can be opened again").caller().take(["a"]).await;
    assert!(fence(&later) > last);
}

/// 5: a fence does not go back though the store lost its data: an empty one goes on above.
pub async fn fences_grow_across_loss_of_data<B: Backend>(store: Store<B>) {
    let old = store.caller().take(["a"]).await;
    let granted = SystemTime::now();
    eventually("a millisecond passes", || async {
        granted.elapsed().is_ok_and(|passed| passed.as_millis() > 0).then_some(())
    })
    .await;
    let new = store.another().await.caller().take(["a"]).await;
    assert!(fence(&new) > fence(&old));
}

fn fence(grant: &Grant<String, Uuid>) -> u64 {
    grant.locks[0].granted.fence
}
