//! What a refusal tells: section 2.2.

use std::time::Duration;

use lockcore::{Conflict, ConflictReason, Holder, MAX_HOLDERS_LISTED, Mode, StoredContext};
use uuid::Uuid;

use crate::{
    Backend, Store,
    store::{exclusive, id, shared, slot},
};

/// 2.2: every conflicting id of the set is listed, in order, and no other.
pub async fn every_conflicting_id_is_listed<B: Backend>(store: Store<B>) {
    let [one, two, asking] = store.callers();
    one.take(["a", "c"]).await;
    two.take(["e"]).await;
    let conflicts = asking.refused(["f", "e", "d", "c", "b", "a"]).await;
    let mut targets: Vec<_> = conflicts.iter().map(|conflict| conflict.target.clone()).collect();
    targets.sort_by(lockcore::Target::cmp_stored);
    assert_eq!(targets, [id("a"), id("c"), id("e")]);
    let holders = targets.iter().map(|target| only_holder(of(&conflicts, target)).context.clone());
    let expected = [one.context, one.context, two.context].map(StoredContext::Known);
    assert_eq!(holders.collect::<Vec<_>>(), expected);
}

/// 2.2: a refusal names the holder's context, label, mode and fence, and how much of its lease is left.
pub async fn the_holder_is_described<B: Backend>(store: Store<B>) {
    let [holder, asking] = store.callers();
    let held = holder.take(["a"]).await;
    let conflicts = asking.refused(["a"]).await;
    let told = only_holder(&conflicts[0]);
    assert_eq!(told.context, StoredContext::Known(holder.context));
    assert_eq!(told.owner, holder.owner);
    assert_eq!(told.mode, Mode::Exclusive);
    assert_eq!(told.fence, held.locks[0].granted.fence);
    let remaining = told.remaining.expect("the lease is finite");
    assert!(remaining > holder.lease / 2, "hardly anything of the lease is over: {remaining:?}");
    assert!(remaining <= holder.lease + Duration::from_secs(2), "at most the lease is left: {remaining:?}");
}

/// 2.2: of many holders a capped list is given, those whose lease ends last first, and the full count.
pub async fn many_holders_are_capped_but_counted<B: Backend>(store: Store<B>) {
    if !store.capabilities().shared {
        return;
    }
    let many = MAX_HOLDERS_LISTED + 4;
    for number in 0..many {
        let reader = store.caller();
        let lease = reader.lease + Duration::from_secs(10 * number as u64);
        reader.with_lease(lease).take([shared("a")]).await;
    }
    let conflicts = store.caller().refused([exclusive("a")]).await;
    let ConflictReason::Held { holders, count, in_use } = &conflicts[0].reason else {
        panic!("not held: {conflicts:?}");
    };
    assert_eq!((holders.len(), *count, *in_use), (MAX_HOLDERS_LISTED, many, many as u32));
    assert!(
        holders.is_sorted_by(|a, b| a.remaining >= b.remaining),
        "the last to end come first: {holders:?}"
    );
}

/// 2.2: the refusal of a slot claim says how full it is.
pub async fn full_slots_tell_how_full<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let [one, two, asking] = store.callers();
    one.take([slot("a", 5).permits(2)]).await;
    two.take([slot("a", 5).permits(2)]).await;
    let conflicts = asking.refused([slot("a", 5).permits(2)]).await;
    let ConflictReason::Held { holders, count, in_use } = &conflicts[0].reason else {
        panic!("not held: {conflicts:?}");
    };
    assert_eq!((holders.len(), *count, *in_use), (2, 2, 4));
    asking.take([slot("a", 5)]).await;
}

/// 2.2 and 3.7: an id that is free but queued for is refused as such, naming the head and how many wait.
pub async fn queued_behind_names_the_head<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, first, second, asking] = store.callers();
    let held = holder.take(["a"]).await;
    // Both wait for more than "b", which therefore stays free.
    let mut head = first.queue(["a", "b"]).await;
    let mut next = second.queue(["a", "b"]).await;
    let conflicts = asking.refused(["b"]).await;
    let behind = ConflictReason::QueuedBehind { head: StoredContext::Known(first.context), count: 2 };
    assert_eq!(conflicts, [Conflict { target: id("b"), reason: behind }]);
    holder.free(&held).await;
    first.free(&head.granted().await).await;
    second.free(&next.granted().await).await;
    asking.take(["b"]).await;
}

fn of<'a>(
    conflicts: &'a [Conflict<String, Uuid>],
    target: &lockcore::Target<String>,
) -> &'a Conflict<String, Uuid> {
    conflicts.iter().find(|conflict| conflict.target == *target).expect("the id is listed")
}

fn only_holder(conflict: &Conflict<String, Uuid>) -> &Holder<Uuid> {
    match &conflict.reason {
        ConflictReason::Held { holders, count: 1, in_use: 1 } if holders.len() == 1 => &holders[0],
        other => panic!("not held by one: {other:?}"),
    }
}
