//! Attempts whose outcome is in doubt are settled: section 2.6.

use std::collections::BTreeSet;

use lockcore::{
    Claim, Grant,
    backend::{Acquired, Withdraw, Withdrawn},
    protocol::TOMBSTONE,
};
use uuid::Uuid;

use crate::{
    Backend, Store, race,
    store::{exclusive, grant, shared, slot},
};

/// 2.6: undoing an attempt frees what it got; doing so twice is fine.
pub async fn undo_frees_what_the_attempt_got<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let request = one.request(["a", "b"]);
    assert!(matches!(one.send(&request).await, Acquired::Granted(_)));
    assert_eq!(one.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    let taken = two.take(["a", "b"]).await;
    assert_eq!(one.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    one.refused(["a"]).await;
    two.free(&taken).await;
}

/// 2.6: a request that arrives after its attempt was undone is refused by the store, and takes nothing.
pub async fn undo_refuses_a_late_request<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let request = one.request(["a", "b"]);
    assert_eq!(one.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    one.refused_as_withdrawn(&request).await;
    let taken = two.take(["a", "b"]).await;
    one.refused_as_withdrawn(&request).await;
    two.free(&taken).await;
    // Only the attempt is marked, not the context and not the ids.
    let again = one.take(["a", "b"]).await;
    one.free(&again).await;
}

/// 2.6: the store refuses a late request for as long as one can be on its way.
pub async fn undo_refuses_a_very_late_request<B: Backend>(store: Store<B>) {
    if !(store.sets_clock() || B::VIRTUAL_TIME) {
        return; // It would take a minute.
    }
    let one = store.caller();
    let request = one.request(["a", "b"]);
    assert_eq!(one.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    store.pass(TOMBSTONE * 9 / 10).await;
    one.refused_as_withdrawn(&request).await;
}

/// 2.6: an attempt undone after it was granted is refused when its request arrives once more.
pub async fn undo_refuses_a_repeated_request<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let request = one.request(["a"]);
    assert!(matches!(one.send(&request).await, Acquired::Granted(_)));
    one.withdraw(&request, Withdraw::Undo).await;
    one.refused_as_withdrawn(&request).await;
    two.take(["a"]).await;
}

/// 2.6: undoing an attempt leaves what its context holds through an earlier one.
pub async fn undo_leaves_earlier_attempts<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let earlier = one.take(["a"]).await;
    let request = one.request(["a", "b"]);
    assert!(matches!(one.send(&request).await, Acquired::Granted(_)));
    assert_eq!(one.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
    two.refused(["a"]).await;
    let b = two.take(["b"]).await;
    two.free(&b).await;
    one.keep(&earlier).await;
    one.free(&earlier).await;
}

/// 2.6 and 4: undoing a change to fewer permits takes none from those who got them meanwhile: what was held before is lost.
pub async fn undo_takes_no_permits_from_others<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    // With a limit of 5 the others leave no room for it, with one of 9 they have some of its permits.
    for limit in [5, 9] {
        let claim = |permits| slot("a", limit).permits(permits);
        let [first, fewer, other, last] = store.callers();
        let one = first.take([claim(1)]).await;
        let three = fewer.take([claim(3)]).await;
        let request = fewer.request([claim(1)]);
        assert!(matches!(fewer.send(&request).await, Acquired::Granted(_)));
        let two = other.take([claim(2)]).await;
        assert_eq!(fewer.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
        assert_eq!(fewer.renew(&three).await.lost.len(), 1, "others have some of its permits");
        let rest = last.take([claim(limit - 3)]).await;
        assert_eq!(rest.locks[0].granted.in_use, limit);
        apart(&[&one, &two, &rest]);
        assert_eq!(fewer.release(&three).await.lost.len(), 1);
        for (caller, grant) in [(&first, &one), (&other, &two), (&last, &rest)] {
            caller.free(grant).await;
        }
        let all = first.take([claim(limit)]).await;
        first.free(&all).await;
    }
}

/// 2.6 and 4: what was held before an undone change has the permits that its grant names, though others are free.
pub async fn undo_restores_the_permits<B: Backend>(store: Store<B>) {
    if !store.capabilities().slots {
        return;
    }
    let claim = |permits| slot("a", 9).permits(permits);
    for wanted in [2, 5, 1] {
        let [first, own, other, last] = store.callers();
        let below = first.take([claim(2)]).await;
        let held = own.take([claim(3)]).await;
        let above = other.take([claim(1)]).await;
        first.free(&below).await;
        let request = own.request([claim(wanted)]);
        assert!(matches!(own.send(&request).await, Acquired::Granted(_)));
        assert_eq!(own.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
        own.keep(&held).await;
        let rest = last.take([claim(5)]).await;
        assert_eq!(rest.locks[0].granted.in_use, 9);
        apart(&[&held, &above, &rest]);
        own.free(&held).await;
        let again = own.take([claim(3)]).await;
        apart(&[&again, &above, &rest]);
        for (caller, grant) in [(&own, &again), (&other, &above), (&last, &rest)] {
            caller.free(grant).await;
        }
        let all = first.take([claim(9)]).await;
        first.free(&all).await;
    }
}

/// No two of these grants have a permit in common.
fn apart(grants: &[&Grant<String, Uuid>]) {
    let all: Vec<u32> =
        grants.iter().flat_map(|grant| grant.locks[0].granted.permits.iter().copied()).collect();
    let distinct: BTreeSet<u32> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len(), "two holders of one permit: {grants:?}");
}

/// 2.6: an attempt and its undoing at the same moment: whatever comes first, nothing stays behind.
pub async fn undo_settles_a_race<B: Backend>(store: Store<B>) {
    let other = store.reopen().await;
    for round in 0..20 {
        let (one, two) = (store.caller(), store.caller());
        let request = one.request([format!("{round}")]);
        race(2, |number| {
            let (request, dao) = (request.clone(), store.dao().clone());
            let withdraws = one.through(other.as_ref().unwrap_or(&store).dao());
            async move {
                match number {
                    0 => drop(lockcore::LockDao::acquire(&*dao, &request).await),
                    _ => drop(withdraws.withdraw(&request, Withdraw::Undo).await),
                }
            }
        })
        .await;
        let taken = two.take([format!("{round}")]).await;
        two.free(&taken).await;
    }
}

/// 2.6: a request sent again under the same attempt is the same try.
pub async fn the_same_attempt_is_the_same_try<B: Backend>(store: Store<B>) {
    let one = store.caller();
    let request = one.request(["a"]);
    let Acquired::Granted(first) = one.send(&request).await else { panic!("the id is free") };
    let Acquired::Granted(second) = one.send(&request).await else { panic!("it holds the id") };
    assert_eq!(first, second);
    one.free(&grant(&request, second)).await;
    store.caller().take(["a"]).await;
}

/// 2.6: leaving with `KeepIfGranted` answers what is held by now, as often as it is asked.
pub async fn keep_if_granted_tells_what_is_held<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let request = one.request(["a", "b"]);
    let Acquired::Granted(granted) = one.send(&request).await else { panic!("the ids are free") };
    for _ in 0..2 {
        let Withdrawn::Holds(holds) = one.withdraw(&request, Withdraw::KeepIfGranted).await else {
            panic!("it holds the set")
        };
        assert_eq!(holds, granted);
    }
    two.refused(["a"]).await;
    let grant = grant(&request, granted);
    one.keep(&grant).await;
    one.free(&grant).await;
    assert_eq!(one.withdraw(&request, Withdraw::KeepIfGranted).await, Withdrawn::Left);
}

/// 2.6: of a set that is no longer whole nothing stays behind: a caller whose request left holds nothing.
pub async fn leaving_with_a_part_holds_nothing<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    for taken in [false, true] {
        let request = one.request(["a", "b"]);
        let Acquired::Granted(granted) = one.send(&request).await else { panic!("the ids are free") };
        let mut part = grant(&request, granted);
        part.locks.truncate(1);
        one.free(&part).await;
        let other = if taken { Some(two.take(["a"]).await) } else { None };
        assert_eq!(one.withdraw(&request, Withdraw::KeepIfGranted).await, Withdrawn::Left);
        if let Some(other) = other {
            two.free(&other).await;
        }
        let all = two.take(["a", "b"]).await;
        two.free(&all).await;
    }
}

/// 2.6: an attempt that never arrived has left.
pub async fn keep_if_granted_of_nothing_has_left<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let earlier = one.take(["a"]).await;
    let request = one.request(["b"]);
    assert_eq!(one.withdraw(&request, Withdraw::KeepIfGranted).await, Withdrawn::Left);
    // What an earlier attempt was granted is not what this one has.
    let same = one.request(["a"]);
    assert_eq!(one.withdraw(&same, Withdraw::KeepIfGranted).await, Withdrawn::Left);
    one.keep(&earlier).await;
    two.take(["b"]).await;
    let refused = one.request(["b"]);
    assert!(matches!(one.send(&refused).await, Acquired::Refused(_)));
    assert_eq!(one.withdraw(&refused, Withdraw::KeepIfGranted).await, Withdrawn::Left);
}

/// 2.6 and 3.7: a waiter that leaves is not granted anything later, and leaving twice is fine.
pub async fn a_waiter_that_left_gets_nothing<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    for how in [Withdraw::KeepIfGranted, Withdraw::Undo] {
        let [holder, waiter, next] = store.callers();
        let held = holder.take(["a"]).await;
        let place = waiter.queue(["a", "b"]).await;
        for _ in 0..2 {
            assert_eq!(waiter.withdraw(&place.request, how).await, Withdrawn::Left);
        }
        holder.free(&held).await;
        let taken = next.take(["a", "b"]).await;
        next.free(&taken).await;
    }
}

/// 2.6 and 3.8: a waiter that leaves lets in those who only waited for it.
pub async fn a_leaving_waiter_serves_the_next<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.shared) {
        return;
    }
    for how in [Withdraw::KeepIfGranted, Withdraw::Undo] {
        let [reader, writer, other] = store.callers();
        let read = reader.take([shared("a")]).await;
        let place = writer.queue([exclusive("a")]).await;
        let mut behind = other.queue([shared("a")]).await;
        writer.withdraw(&place.request, how).await;
        let read_too = behind.served().await;
        other.free(&read_too).await;
        reader.free(&read).await;
    }
}

/// 2.6 and 3.8: undoing an attempt that was granted hands its locks to who waits for them.
pub async fn undo_serves_the_next<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [one, two, three] = store.callers();
    let request = one.request([Claim::exclusive("a".to_owned())]);
    assert!(matches!(one.send(&request).await, Acquired::Granted(_)));
    let mut next = two.queue(["a"]).await;
    one.withdraw(&request, Withdraw::Undo).await;
    two.free(&next.served().await).await;
    let request = one.request([Claim::exclusive("a".to_owned())]);
    assert!(matches!(one.send(&request).await, Acquired::Granted(_)));
    let second = two.queue(["a"]).await;
    let mut third = three.queue(["a"]).await;
    one.withdraw(&request, Withdraw::Undo).await;
    // By now it is the second's, who goes away as well, without ever having listened.
    two.withdraw(&second.request, Withdraw::Undo).await;
    let granted = third.served().await;
    two.refused_as_withdrawn(&second.request).await;
    three.free(&granted).await;
}

/// 2.6 and 3.7: giving up is one step: either it left, or it holds the set as of now.
pub async fn giving_up_leaves_or_holds<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    for round in 0..20 {
        let [holder, waiter, next] = store.callers();
        let held = holder.take(["a"]).await;
        let place = waiter.queue(["a"]).await;
        let answers = race(2, |number| {
            let (holder, held) = (holder.clone(), held.clone());
            let (waiter, request) = (waiter.clone(), place.request.clone());
            async move {
                match number {
                    0 => holder.free(&held).await,
                    _ => match waiter.withdraw(&request, Withdraw::KeepIfGranted).await {
                        Withdrawn::Left => return None,
                        Withdrawn::Holds(granted) => return Some(grant(&request, granted)),
                    },
                }
                None
            }
        })
        .await;
        if let Some(grant) = answers.into_iter().flatten().next() {
            next.refused(["a"]).await;
            waiter.keep(&grant).await;
            waiter.free(&grant).await;
        }
        let taken = next.try_take(["a"]).await;
        let taken = taken.unwrap_or_else(|left| panic!("round {round}: left behind: {left:?}"));
        next.free(&taken).await;
    }
}
