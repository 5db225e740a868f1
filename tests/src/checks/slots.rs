//! Slots: counted permits with indexes, sections 2.8 and 1.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use lockcore::Claim;

use crate::{Backend, Store, race, store::slot};

/// Seed case: fill, refuse, release, grant.
pub async fn full_slots_are_refused_until_one_is_freed<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let holders: [_; 3] = store.callers();
    let mut grants = Vec::new();
    for holder in &holders {
        grants.push(holder.take([slot("a", 3)]).await);
    }
    let next = store.caller();
    next.refused([slot("a", 3)]).await;
    holders[1].free(&grants[1]).await;
    next.take([slot("a", 3)]).await;
    store.caller().refused([slot("a", 3)]).await;
}

/// 1: a slot has the lowest free permit index, and the grant tells how many are in use.
pub async fn the_lowest_free_permit_is_given<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let callers: [_; 5] = store.callers();
    let mut grants = Vec::new();
    for (number, caller) in callers.iter().enumerate() {
        let grant = caller.take([slot("a", 8)]).await;
        assert_eq!(grant.locks[0].granted.permits.as_slice(), [number as u32]);
        assert_eq!(grant.locks[0].granted.in_use, number as u32 + 1);
        grants.push(grant);
    }
    callers[3].free(&grants[3]).await;
    callers[1].free(&grants[1]).await;
    let two = store.caller().take([slot("a", 8).permits(3)]).await;
    assert_eq!(two.locks[0].granted.permits.as_slice(), [1, 3, 5]);
    assert_eq!(two.locks[0].granted.in_use, 6);
    callers[0].free(&grants[0]).await;
    callers[2].free(&grants[2]).await;
    let lowest = store.caller().take([slot("a", 8)]).await;
    assert_eq!(lowest.locks[0].granted.permits.as_slice(), [0]);
}

/// 2.8: several permits are taken together or not at all, and freed together.
pub async fn several_permits_are_taken_together<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let [one, two] = store.callers();
    let most = one.take([slot("a", 5).permits(3)]).await;
    two.refused([slot("a", 5).permits(3)]).await;
    let rest = two.take([slot("a", 5).permits(2)]).await;
    one.free(&most).await;
    assert_eq!(one.release(&most).await.lost.len(), 1, "a second release frees nothing");
    let most = one.take([slot("a", 5).permits(3)]).await;
    assert_eq!(most.locks[0].granted.in_use, 5);
    two.free(&rest).await;
    one.free(&most).await;
    two.take([Claim::exclusive("a".to_owned())]).await;
}

/// Seed case: ten workers on three slots, many rounds, never more than three at once; each index is
/// held alone.
pub async fn ten_workers_never_exceed_three_slots<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let inside: Arc<[AtomicU32; 3]> = Arc::default();
    let crowd = store.crowd(10).await;
    race(10, |number| {
        let (caller, inside) = (crowd[number].clone(), inside.clone());
        async move {
            for _ in 0..6 {
                let grant = caller.take_soon([slot("a", 3)]).await;
                let granted = &grant.locks[0].granted;
                assert!((1..=3).contains(&granted.in_use), "{granted:?}");
                let index = &inside[granted.permits[0] as usize];
                assert_eq!(index.fetch_add(1, Ordering::SeqCst), 0, "two hold permit {:?}", granted.permits);
                tokio::task::yield_now().await;
                index.fetch_sub(1, Ordering::SeqCst);
                caller.free(&grant).await;
            }
        }
    })
    .await;
    let all = store.caller().take([slot("a", 3).permits(3)]).await;
    assert_eq!(all.locks[0].granted.in_use, 3);
}

/// 2.3 and 3.8: who changes to fewer permits lets in who waits for those given back.
pub async fn permits_given_back_serve_the_next<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.slots && declared.fifo) {
        return;
    }
    let [holder, waiter] = store.callers();
    holder.take([slot("a", 3).permits(3)]).await;
    let mut place = waiter.queue([slot("a", 3).permits(2)]).await;
    let fewer = holder.take([slot("a", 3)]).await;
    let granted = place.served().await;
    assert_eq!(granted.locks[0].granted.permits.as_slice(), [1, 2]);
    holder.free(&fewer).await;
    waiter.free(&granted).await;
}

/// Seed case: killing a holder frees its slot, and the head of the queue gets it.
pub async fn a_dead_holders_slot_goes_to_the_head<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.slots && declared.fifo) {
        return;
    }
    let [live, first, second] = store.callers();
    // In real time: a clock set forward would also end the places of the waiters.
    let dead = store.caller().with_lease(store.short());
    dead.take([slot("a", 2)]).await;
    let kept = live.take([slot("a", 2)]).await;
    let mut head = first.queue([slot("a", 2)]).await;
    let mut next = second.queue([slot("a", 2)]).await;
    let granted = head.granted().await;
    assert_eq!(granted.locks[0].granted.permits.as_slice(), [0]);
    next.still_waits().await;
    live.free(&kept).await;
    assert_eq!(next.granted().await.locks[0].granted.permits.as_slice(), [1]);
    first.free(&granted).await;
}
