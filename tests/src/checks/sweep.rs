//! Sweeps clear away what is over and never a live lock: section 2.9.

use std::time::Duration;

use lockcore::{LockDao, Swept};

use super::capabilities::refuses;
use crate::{Backend, Store, eventually};

/// 2.9: expired locks are removed in bounded batches until nothing is left, and no live one is.
pub async fn only_expired_locks_are_swept_in_batches<B: Backend>(store: Store<B>) {
    if !store.capabilities().sweeping {
        return refuses(store.dao().sweep(10, None)).await;
    }
    const DEAD: usize = 25;
    let live = store.caller();
    let kept = live.take(["live 1", "live 2", "live 3"]).await;
    let dead = store.caller().with_lease(store.ending());
    // In one set, so that all of them end at the same moment.
    dead.take((0..DEAD).map(|number| format!("dead {number}")).collect::<Vec<_>>()).await;
    assert_eq!(sweep(&store, 10, None).await.removed, 0, "no lease has ended");
    if store.sets_clock() {
        store.pass(dead.lease).await;
    }
    let mut removed = 0;
    while removed < DEAD {
        let batch = eventually("the leases end", || async {
            let swept = sweep(&store, 10, None).await;
            (swept.removed > 0).then_some(swept)
        })
        .await;
        assert!(batch.removed <= 10 && !batch.elsewhere, "{batch:?}");
        removed += batch.removed;
        assert!(batch.more || removed == DEAD, "more is left than it says: {batch:?}");
    }
    assert_eq!(removed, DEAD);
    let rest = sweep(&store, 10, None).await;
    assert_eq!(rest, Swept { removed: 0, more: false, elsewhere: false });
    live.keep(&kept).await;
    store.caller().take(["dead 0", "dead 24"]).await;
    store.caller().refused(["live 2"]).await;
    live.free(&kept).await;
}

/// 2.9: one process of many sweeps a namespace within the interval; others learn that it was done.
pub async fn one_of_many_sweeps<B: Backend>(store: Store<B>) {
    if !store.capabilities().sweeping {
        return refuses(store.dao().sweep(1, Some(Duration::from_secs(1)))).await;
    }
    let hour = Some(Duration::from_secs(3600));
    assert!(!sweep(&store, 100, hour).await.elsewhere, "it was not swept yet");
    store.expired(&["a"]).await;
    let again = sweep(&store, 100, hour).await;
    assert_eq!(again, Swept { removed: 0, more: false, elsewhere: true });
    if let Some(other) = store.reopen().await {
        assert!(sweep(&other, 100, hour).await.elsewhere, "the election is the store's");
    }
    assert!(!sweep(&store, 100, None).await.elsewhere, "without an interval it always sweeps");
    assert!(!sweep(&store.another().await, 100, hour).await.elsewhere, "each namespace by itself");
}

/// 2.9: a sweep does not take a waiter's place, nor a grant from whom it was handed to.
pub async fn a_sweep_leaves_the_queue_alone<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.sweeping && declared.fifo) {
        return;
    }
    let [holder, first, second] = store.callers();
    let held = holder.take(["a"]).await;
    let mut head = first.queue(["a"]).await;
    let mut next = second.queue(["a"]).await;
    sweep(&store, 100, None).await;
    head.still_waits().await;
    holder.free(&held).await;
    sweep(&store, 100, None).await;
    next.still_waits().await;
    let granted = head.granted().await;
    sweep(&store, 100, None).await;
    first.keep(&granted).await;
    first.free(&granted).await;
    second.free(&next.granted().await).await;
}

async fn sweep<B: Backend>(store: &Store<B>, batch: usize, unless_within: Option<Duration>) -> Swept {
    store.dao().sweep(batch, unless_within).await.expect("the store answers")
}
