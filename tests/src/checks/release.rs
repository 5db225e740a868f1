//! Releases free what the grant holds and nothing else: section 2.4.

use std::time::Duration;

use lockcore::{Claim, Grant, LockDao};
use uuid::Uuid;

use crate::{
    Backend, Caller, Place, Store,
    store::{exclusive, id, shared},
};

/// 2.4, seed case: releasing twice is fine, and says the second time that nothing was held.
pub async fn releasing_twice_is_fine<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let grant = one.take(["a", "b"]).await;
    one.free(&grant).await;
    let again = one.release(&grant).await;
    assert_eq!(again.lost.len(), 2);
    assert!(again.failed.is_empty());
    let taken = two.take(["a", "b"]).await;
    let third = one.release(&grant).await;
    assert_eq!(third.lost.len(), 2, "what another holds by now is not freed");
    one.refused(["a"]).await;
    two.free(&taken).await;
}

/// 2.4: the grant of one context never frees what another holds, even under the right fences.
pub async fn another_context_frees_nothing<B: Backend>(store: Store<B>) {
    for ids in [&["a"][..], &["a", "b"]] {
        let [one, two] = store.callers();
        let held = one.take(ids.iter().copied()).await;
        let mut forged = held.clone();
        forged.context = two.context;
        assert_eq!(two.release(&forged).await.lost.len(), ids.len());
        two.refused(["a"]).await;
        assert_eq!(two.renew(&forged).await.lost.len(), ids.len());
        one.free(&held).await;
    }
}

/// 2.4: an old grant never frees what a later grant of the same context holds.
pub async fn a_stale_grant_frees_nothing<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    for (before, after) in [(&["a"][..], &["a"][..]), (&["a", "b"], &["a"]), (&["a", "b"], &["a", "b"])] {
        let old = one.take(before.iter().copied()).await;
        one.free(&old).await;
        let new = one.take(after.iter().copied()).await;
        let lost = one.release(&old).await.lost;
        assert_eq!(lost.len(), before.len());
        assert!(lost.iter().all(|lost| old.locks.iter().any(|lock| lock.granted.fence == lost.fence)));
        two.refused(["a"]).await;
        one.free(&new).await;
    }
    if store.capabilities().shared {
        let old = one.take([shared("a")]).await;
        one.free(&old).await;
        let new = one.take([shared("a")]).await;
        assert_eq!(one.release(&old).await.lost.len(), 1);
        two.refused(["a"]).await;
        one.free(&new).await;
    }
}

/// 2.4 and 3.8: nor does a release hand on what its grant does not hold: what another context holds, or the same one under
/// another fence, however its holder came by it.
pub async fn only_what_is_held_is_handed_on<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    for ids in [&["a"][..], &["a", "b"]] {
        let [one, two, three] = store.callers();
        let taken = one.take(ids.iter().copied()).await;
        let mut waiting = two.queue(ids.iter().copied()).await;
        hands_nothing_on(&one, &taken, &mut waiting).await;
        one.free(&taken).await;
        let handed = waiting.served().await;
        let mut waiting = three.queue(ids.iter().copied()).await;
        hands_nothing_on(&two, &handed, &mut waiting).await;
        two.free(&handed).await;
        three.free(&waiting.served().await).await;
    }
}

/// What looks like `held`, and is not, is not released, whatever waits for it.
async fn hands_nothing_on<D: LockDao<String, Uuid>>(
    holder: &Caller<D>,
    held: &Grant<String, Uuid>,
    waiting: &mut Place<D>,
) {
    let of_another = Grant { context: Uuid::new_v4(), ..held.clone() };
    let mut of_before = held.clone();
    for lock in &mut of_before.locks {
        lock.granted.fence -= 1;
    }
    for forged in [of_another, of_before] {
        assert_eq!(holder.release(&forged).await.lost.len(), held.locks.len());
        holder.keep(held).await;
        waiting.still_waits().await;
    }
}

/// 2.4: if some ids of a grant are gone the others are freed all the same, and the report says which.
pub async fn a_partial_loss_frees_the_rest<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let grant = one.take(["a", "b", "c"]).await;
    let mut middle = grant.clone();
    middle.locks.retain(|lock| lock.target == id("b"));
    one.free(&middle).await;
    let taken = two.take(["b"]).await;
    let released = one.release(&grant).await;
    assert_eq!(released.lost.len(), 1, "{released:?}");
    assert_eq!(released.lost[0].target, id("b"));
    assert_eq!(released.lost[0].fence, middle.locks[0].granted.fence);
    let rest = two.take(["a", "c"]).await;
    store.caller().refused(["b"]).await;
    two.free(&taken).await;
    two.free(&rest).await;
}

/// 2.4: a part of a grant can be released by itself; the rest stays.
pub async fn a_part_can_be_released<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let mut grant = one.take(["a", "b"]).await;
    let mut part = grant.clone();
    part.locks.truncate(1);
    grant.locks.remove(0);
    one.free(&part).await;
    two.take(["a"]).await;
    two.refused(["b"]).await;
    one.keep(&grant).await;
    one.free(&grant).await;
}

/// 2.4: an expired lock that no other took since is reported as lost by its release, and stays free.
pub async fn releasing_an_expired_lock_tells_so<B: Backend>(store: Store<B>) {
    // A store that estimates its time, and so has leases of seconds, may be unsure again whether the lease has ended: a response
    // that contradicts the others widens the estimate for a while. Then it frees the lock as one that is held.
    let tries = if store.capabilities().min_lease < Duration::from_secs(1) { 1 } else { 3 };
    for left in (0..tries).rev() {
        let (dead, grant) = store.expired(&["a"]).await;
        let lost = dead.release(&grant).await.lost;
        let next = store.caller();
        let free = next.take(["a"]).await;
        if lost.len() == 1 {
            return;
        }
        assert!(left > 0, "the release does not report that the lease had ended");
        next.free(&free).await;
    }
}

/// 2.4: `release_context` finds everything that a context holds, however much, at once, and frees no
/// else's; where listing is not declared it is refused.
pub async fn release_context_finds_everything<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    if !store.capabilities().listing {
        return super::capabilities::refuses(store.dao().release_context(&one.context)).await;
    }
    let sharing = store.capabilities().shared;
    for set in 0..3 {
        let id = |number| format!("{set}/{number}");
        let claim = |number| if sharing && set == 2 { shared(&id(number)) } else { exclusive(&id(number)) };
        one.take((0..70).map(claim).collect::<Vec<_>>()).await;
    }
    one.take([Claim::<String>::global()]).await;
    let other = two.take(["other"]).await;
    let freed = store.dao().release_context(&one.context).await.expect("the store answers");
    assert_eq!(freed.len(), 3 * 70 + 1);
    for set in 0..3 {
        two.take((0..70).map(|number| format!("{set}/{number}")).collect::<Vec<_>>()).await;
    }
    one.refused(["other"]).await;
    two.free(&other).await;
    let nothing = store.dao().release_context(&one.context).await.expect("the store answers");
    assert!(nothing.is_empty(), "{nothing:?}");
}

/// 2.4 and 3.8: `release_context` also takes the context from every queue, and serves the waiters.
pub async fn release_context_leaves_the_queues<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.listing && declared.fifo) {
        return;
    }
    let [one, two, three] = store.callers();
    one.take(["a"]).await;
    let held = two.take(["b"]).await;
    let _abandoned = (one.queue(["b"]).await, one.queue(["b", "c"]).await);
    let mut waiting = three.queue(["a"]).await;
    store.dao().release_context(&one.context).await.expect("the store answers");
    let a = waiting.served().await;
    two.free(&held).await;
    let b = two.take(["b", "c"]).await;
    two.free(&b).await;
    three.free(&a).await;
}
