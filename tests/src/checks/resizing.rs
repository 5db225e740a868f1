//! Slots whose number every caller sees for itself, resized while held: section 4.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use lockcore::{Claim, Grant};
use uuid::Uuid;

use crate::{Backend, Caller, Store, race, store::slot};

/// 4: the documented trace, step by step.
pub async fn the_documented_trace<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let one_bucket = || Claim::buckets("db".to_owned(), 1, 3);
    let two_buckets = || Claim::buckets("db".to_owned(), 2, 3);
    let mut held = Vec::new();
    for step in 1..=3 {
        held.push(acquire(&store, one_bucket(), step).await);
    }
    store.caller().refused([one_bucket()]).await;
    held.push(acquire(&store, two_buckets(), 4).await);
    store.caller().refused([one_bucket()]).await;
    release(held.remove(0)).await;
    store.caller().refused([one_bucket()]).await;
    release(held.remove(0)).await;
    held.push(acquire(&store, one_bucket(), 3).await);
    store.caller().refused([one_bucket()]).await;
}

/// Seed case: shrunk to 5 while 10 of 10 are held, it is full until only 4 are.
pub async fn shrinking_is_full_until_it_fits<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let mut held = Vec::new();
    for in_use in 1..=10 {
        held.push(acquire(&store, slot("a", 10), in_use).await);
    }
    for left in (5..10).rev() {
        release(held.pop().expect("still held")).await;
        let conflicts = store.caller().refused([slot("a", 5)]).await;
        assert!(
            matches!(conflicts[0].reason, lockcore::ConflictReason::Held { in_use, .. } if in_use == left),
            "{left} are left: {conflicts:?}"
        );
    }
    release(held.pop().expect("still held")).await;
    acquire(&store, slot("a", 5), 5).await;
    store.caller().refused([slot("a", 5)]).await;
}

/// Seed case: a caller that sees a larger number gets in while the smaller view is full.
pub async fn growing_lets_the_larger_view_in<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    for in_use in 1..=3 {
        acquire(&store, slot("a", 3), in_use).await;
    }
    store.caller().refused([slot("a", 3)]).await;
    let fourth = acquire(&store, slot("a", 5), 4).await;
    store.caller().refused([slot("a", 3)]).await;
    acquire(&store, slot("a", 5), 5).await;
    store.caller().refused([slot("a", 5)]).await;
    release(fourth).await;
    store.caller().refused([slot("a", 4)]).await;
    acquire(&store, slot("a", 5), 5).await;
}

/// 4, seed case: under random concurrent resizes no caller is ever let in above its own limit, no unit is lost
/// or counted twice, and at rest nothing is in use.
pub async fn concurrent_resizes_lose_no_unit<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let held: Arc<[AtomicU32; 12]> = Arc::default();
    let crowd = store.crowd(8).await;
    race(8, |worker| {
        let (caller, held) = (crowd[worker].clone(), held.clone());
        let mut random = fastrand::Rng::with_seed(worker as u64);
        async move {
            for _ in 0..15 {
                let buckets = random.u32(1..=4);
                let (limit, permits) = (buckets * 3, random.u32(1..=3));
                let wanted = Claim::buckets("a".to_owned(), buckets, 3).permits(permits);
                let Ok(grant) = caller.try_take([wanted]).await else { continue };
                let granted = &grant.locks[0].granted;
                assert!(granted.in_use <= limit && granted.in_use >= permits, "{granted:?} of {limit}");
                assert_eq!(granted.permits.len(), permits as usize);
                for &index in &granted.permits {
                    assert!(index < limit, "{granted:?} of {limit}");
                    let before = held[index as usize].fetch_add(1, Ordering::SeqCst);
                    assert_eq!(before, 0, "permit {index} is held by two");
                }
                tokio::task::yield_now().await;
                for &index in &granted.permits {
                    held[index as usize].fetch_sub(1, Ordering::SeqCst);
                }
                caller.free(&grant).await;
                assert_eq!(caller.release(&grant).await.lost.len(), 1, "a second release changes nothing");
            }
        }
    })
    .await;
    let alone = store.caller();
    let all = alone.take([slot("a", 12).permits(12)]).await;
    assert_eq!(all.locks[0].granted.in_use, 12, "at rest nothing was in use");
    alone.free(&all).await;
    alone.take(["a"]).await;
}

type Held<D> = (Caller<D>, Grant<String, Uuid>);

async fn acquire<B: Backend>(store: &Store<B>, claim: Claim<String>, in_use: u32) -> Held<B::Dao> {
    let caller = store.caller();
    let grant = caller.take([claim]).await;
    assert_eq!(grant.locks[0].granted.in_use, in_use);
    (caller, grant)
}

async fn release<D: lockcore::LockDao<String, Uuid>>((caller, grant): Held<D>) {
    caller.free(&grant).await;
}
