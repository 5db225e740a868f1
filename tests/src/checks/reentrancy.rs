//! The same context asking again: section 2.3.

use lockcore::{Conflict, ConflictReason, Grant, Mode, StoredContext, backend::Acquired};
use uuid::Uuid;

use crate::{
    Backend, Store,
    store::{exclusive, shared, slot},
};

/// 2.3: asking again succeeds under the same fence, and one release frees it.
pub async fn the_same_again_is_one_lock<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let first = one.take(["a"]).await;
    let again = one.take(["a"]).await;
    assert_eq!(first.locks, again.locks);
    one.free(&again).await;
    two.take(["a"]).await;
}

/// 2.3: asking again refreshes the lease.
pub async fn the_same_again_refreshes_the_lease<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let short = one.clone().with_lease(store.ending());
    short.take(["a"]).await;
    one.take(["a"]).await;
    // Another lease, taken after, has ended by now: so the first would have, too.
    store.expired(&["clock"]).await;
    two.refused(["a"]).await;
}

/// 2.3: neither asking again nor renewing for a shorter time lets others in before the time that was granted is over.
pub async fn a_shorter_lease_cuts_nothing_short<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let short = one.clone().with_lease(store.ending());
    one.take(["a"]).await;
    let again = short.take(["a"]).await;
    // Another lease, taken after, has ended by now.
    store.expired(&["clock"]).await;
    two.refused(["a"]).await;
    short.keep(&again).await;
    store.expired(&["another clock"]).await;
    two.refused(["a"]).await;
    one.free(&again).await;
    two.take(["a"]).await;
}

/// 2.3: a weaker mode keeps the stronger one and its fence.
pub async fn a_weaker_mode_keeps_the_stronger<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.shared && declared.slots) {
        return;
    }
    let [one, two] = store.callers();
    let alone = one.take([exclusive("a")]).await;
    for weaker in [shared("a"), slot("a", 3)] {
        let again = one.take([weaker]).await;
        assert_eq!(again.locks, alone.locks);
        two.refused([shared("a")]).await;
    }
    one.free(&alone).await;
    let permit = two.take([slot("a", 3)]).await;
    let again = two.take([shared("a")]).await;
    assert_eq!((fence(&again), mode(&again).permits()), (fence(&permit), 1));
    assert_eq!(again.locks[0].granted.permits, permit.locks[0].granted.permits);
    one.refused([exclusive("a")]).await;
    two.free(&again).await;
    one.take([exclusive("a")]).await;
}

/// 2.3: a stronger mode is a new grant under a higher fence if no other holds the id ...
pub async fn a_stronger_mode_is_a_new_grant<B: Backend>(store: Store<B>) {
    if !store.capabilities().shared {
        return;
    }
    let [one, two] = store.callers();
    let weak = one.take([shared("a")]).await;
    let strong = one.take([exclusive("a")]).await;
    assert!(fence(&strong) > fence(&weak));
    assert_eq!(mode(&strong), Mode::Exclusive);
    two.refused([shared("a")]).await;
    let stale = one.release(&weak).await;
    assert_eq!(stale.lost.len(), 1, "the weaker grant is not held any more");
    two.refused([shared("a")]).await;
    one.free(&strong).await;
    two.take([exclusive("a")]).await;
}

/// 2.2, 2.3: ... and is refused at once if one does, though it asked to be queued; only the others are in its way, and what was
/// held stays.
pub async fn a_stronger_mode_never_waits<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.shared {
        return;
    }
    let [one, two] = store.callers();
    let weak = one.take([shared("a")]).await;
    let other = two.take([shared("a")]).await;
    let mut request = one.request([exclusive("a")]);
    request.queue = declared.fifo;
    match one.send(&request).await {
        Acquired::Refused(conflicts) => match &conflicts[..] {
            [Conflict { reason: ConflictReason::Held { holders, count: 1, .. }, .. }] => {
                assert_eq!(holders[0].context, StoredContext::Known(two.context));
            }
            other => panic!("one other holder is in the way: {other:?}"),
        },
        other => panic!("not refused: {other:?}"),
    }
    one.keep(&weak).await;
    two.free(&other).await;
    // Nothing was queued: the id goes to the next caller.
    let other = two.take([shared("a")]).await;
    two.free(&other).await;
    one.free(&weak).await;
}

/// 2.3: a slot that is held is granted again though all are taken, and no second unit is.
pub async fn a_full_slot_is_granted_again<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let [one, two, three] = store.callers();
    let first = one.take([slot("a", 2)]).await;
    two.take([slot("a", 2)]).await;
    let again = one.take([slot("a", 2)]).await;
    assert_eq!(fence(&again), fence(&first));
    assert_eq!(again.locks[0].granted.permits, first.locks[0].granted.permits);
    assert_eq!(again.locks[0].granted.in_use, 2);
    // Nor does it wait for itself, where it would wait.
    let mut waits = one.request([slot("a", 2)]);
    waits.queue = store.capabilities().fifo;
    assert!(matches!(one.send(&waits).await, lockcore::backend::Acquired::Granted(_)));
    three.refused([slot("a", 2)]).await;
    one.free(&again).await;
    three.take([slot("a", 2)]).await;
}

/// 2.3: another number of permits is a new grant, made only if it fits beside the others'.
pub async fn another_number_of_permits_is_a_new_grant<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let [one, two, three] = store.callers();
    let first = one.take([slot("a", 3)]).await;
    let other = two.take([slot("a", 3)]).await;
    one.refused([slot("a", 3).permits(3)]).await;
    one.keep(&first).await;
    let two_permits = one.take([slot("a", 3).permits(2)]).await;
    assert!(fence(&two_permits) > fence(&first));
    assert_eq!(two_permits.locks[0].granted.permits.len(), 2);
    assert_eq!(two_permits.locks[0].granted.in_use, 3);
    three.refused([slot("a", 3)]).await;
    let fewer = one.take([slot("a", 3)]).await;
    assert!(fence(&fewer) > fence(&two_permits));
    assert_eq!(fewer.locks[0].granted.in_use, 2);
    let third = three.take([slot("a", 3)]).await;
    two.free(&other).await;
    three.free(&third).await;
    let all = one.take([slot("a", 3).permits(3)]).await;
    assert_eq!(all.locks[0].granted.permits.as_slice(), [0, 1, 2], "its own permits are free for itself");
}

/// 2.3: a refused set leaves the mode, fence and lease of what was held before.
pub async fn a_refused_set_leaves_what_was_held<B: Backend>(store: Store<B>) {
    let [one, two, three] = store.callers();
    let mine = one.take(["a", "b"]).await;
    two.take(["c"]).await;
    let conflicts = one.refused(["a", "b", "c", "d"]).await;
    assert_eq!(conflicts.len(), 1, "only what others hold is in the way: {conflicts:?}");
    one.keep(&mine).await;
    three.refused(["a"]).await;
    let free = three.take(["d"]).await;
    three.free(&free).await;
    one.free(&mine).await;
    three.take(["a", "b"]).await;
}

/// 2.3: a lock of one's own that has expired is a new grant.
pub async fn an_expired_lock_is_granted_anew<B: Backend>(store: Store<B>) {
    let (caller, old) = store.expired(&["a"]).await;
    let new = caller.clone().with_lease(store.caller().lease).take(["a"]).await;
    assert!(fence(&new) > fence(&old), "{new:?} after {old:?}");
    assert_eq!(caller.renew(&old).await.lost.len(), 1);
    assert_eq!(caller.release(&old).await.lost.len(), 1, "the old grant is over");
    store.caller().refused(["a"]).await;
}

/// 2.3 and 2.4: a change to fewer permits serves those who wait for the rest.
pub async fn fewer_permits_serve_the_next<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.slots || !declared.fifo {
        return;
    }
    let [one, two] = store.callers();
    one.take([slot("a", 3).permits(3)]).await;
    let mut next = two.queue([slot("a", 3)]).await;
    let fewer = one.take([slot("a", 3).permits(2)]).await;
    two.free(&next.pushed().await).await;
    one.free(&fewer).await;
}

fn fence(grant: &Grant<String, Uuid>) -> u64 {
    grant.locks[0].granted.fence
}

fn mode(grant: &Grant<String, Uuid>) -> Mode {
    grant.locks[0].granted.mode
}
