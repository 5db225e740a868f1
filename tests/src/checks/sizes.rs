//! Sets of every size: a backend may take few ids another way than many, and every way keeps all promises.

use lockcore::{
    LossReason,
    backend::{Acquired, Withdraw, Withdrawn},
};

use crate::{Backend, Store};

/// Around the powers of two, and beyond.
const SIZES: [usize; 9] = [1, 2, 3, 8, 9, 16, 17, 33, 40];

/// So many ids of odd bytes, in order; no two sizes have one in common.
fn set(size: usize) -> Vec<String> {
    (0..size).map(|number| format!("{size}' \"\\`;\0{{}}%s\u{e9}{number:02}")).collect()
}

/// 2.1: new ids and ones that were held before, all or nothing; each grant under greater fences.
pub async fn all_of_it_or_nothing_is_taken<B: Backend>(store: Store<B>) {
    let [one, two, three] = store.callers();
    for size in SIZES {
        let ids = set(size);
        // By id: where the clock stands still, an id that was granted more often is ahead of the others.
        let mut before = vec![0; size];
        for _ in 0..3 {
            let held = one.take(&ids).await;
            assert_eq!(held.locks.len(), size);
            let fences: Vec<u64> = held.locks.iter().map(|lock| lock.granted.fence).collect();
            assert!(fences.iter().zip(&before).all(|(new, old)| new > old), "{fences:?} after {before:?}");
            before = fences;
            assert_eq!(two.refused(&ids).await.len(), size);
            one.free(&held).await;
        }
        for position in [0, size / 2, size - 1] {
            let in_the_way = two.take([&ids[position]]).await;
            assert_eq!(one.refused(&ids).await.len(), 1);
            let others = ids.iter().filter(|id| **id != ids[position]);
            if size > 1 {
                three.free(&three.take(others).await).await;
            }
            two.free(&in_the_way).await;
        }
    }
}

/// 2.4: what a release names and does not hold is reported, and stays as it is; the rest is freed. Each time of what was taken
/// anew: a backend may keep what a caller tried to free in another place.
pub async fn nothing_else_is_freed<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    for size in SIZES {
        let ids = set(size);
        let old = one.take(&ids).await;
        one.free(&old).await;
        let held = one.take(&ids).await;
        assert_eq!(one.release(&old).await.lost.len(), size, "an old grant");
        one.free(&held).await;

        let held = one.take(&ids).await;
        let mut forged = held.clone();
        forged.context = two.context;
        assert_eq!(two.release(&forged).await.lost.len(), size, "that of another context");
        one.free(&held).await;

        let held = one.take(&ids).await;
        let mut middle = held.clone();
        middle.locks = vec![middle.locks.remove(size / 2)];
        one.free(&middle).await;
        let in_between = two.take([&ids[size / 2]]).await;
        let lost = one.release(&held).await.lost;
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].target, middle.locks[0].target);
        assert_eq!(lost[0].fence, middle.locks[0].granted.fence);
        two.keep(&in_between).await;
        two.free(&in_between).await;
        one.free(&one.take(&ids).await).await;
    }
}

/// 2.3 and 2.4: what is over is not held: others get it, and its holder learns it when it frees it.
pub async fn what_is_over_is_free<B: Backend>(store: Store<B>) {
    let two = store.caller();
    let mut over = Vec::new();
    for size in SIZES {
        let ids = set(size);
        // Ids that are there already, too.
        two.free(&two.take(&ids).await).await;
        let dead = store.caller().with_lease(store.ending());
        let held = dead.take(&ids).await;
        over.push((ids, dead, held));
    }
    store.end_leases().await;
    for (number, (ids, dead, held)) in over.iter().enumerate() {
        if number % 2 == 0 {
            let lost = dead.release(held).await.lost;
            assert_eq!(lost.len(), ids.len());
            assert!(lost.iter().all(|lost| lost.reason == LossReason::Expired), "{lost:?}");
        }
        two.free(&two.take(ids).await).await;
    }
}

/// 2.6: a request that arrives after its attempt was withdrawn takes nothing of ids that were there before.
pub async fn a_withdrawn_set_is_not_taken<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    for size in SIZES {
        let ids = set(size);
        two.free(&two.take(&ids).await).await;
        let request = one.request(&ids);
        assert_eq!(one.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
        one.refused_as_withdrawn(&request).await;
        let granted = one.request(&ids);
        assert!(matches!(one.send(&granted).await, Acquired::Granted(_)));
        assert_eq!(one.withdraw(&granted, Withdraw::Undo).await, Withdrawn::Left);
        two.free(&two.take(&ids).await).await;
    }
}

/// 3.8: waiters for one id, and for the whole set, get it in the release.
pub async fn what_is_freed_is_handed_over<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, one, two] = store.callers();
    for size in SIZES {
        let ids = set(size);
        let held = holder.take(&ids).await;
        let mut of_the_first = one.queue([&ids[0]]).await;
        holder.free(&held).await;
        one.free(&of_the_first.served().await).await;

        let held = holder.take(&ids).await;
        let mut of_all = one.queue(&ids).await;
        let mut of_the_last = two.queue([&ids[size - 1]]).await;
        holder.free(&held).await;
        let all = of_all.served().await;
        of_the_last.still_waits().await;
        one.free(&all).await;
        two.free(&of_the_last.served().await).await;
        assert_eq!(one.release(&all).await.lost.len(), size, "it was freed");
    }
}
