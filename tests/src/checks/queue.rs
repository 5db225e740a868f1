//! Waiters of one id are served in order, by hand-off: sections 3.7 and 3.8.

use std::{collections::VecDeque, time::Duration};

use lockcore::{
    ConflictReason,
    backend::{Acquired, Wake, Withdraw, Withdrawn},
};
use tokio::time::{Instant, timeout};

use crate::{
    Backend, PATIENCE, Store,
    judge::{in_time, late},
    store::{ended, exclusive, shared, slot},
};

/// What a waiter that died or gave up may cost those behind it (3.7), and a little for the scheduler.
const DEAD_WAITER: Duration = Duration::from_millis(5_500);

/// 3.7, seed case: a hundred waiters for one id are served in the order in which they came.
pub async fn a_hundred_waiters_are_served_in_order<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let mut holder = store.caller();
    let mut held = holder.take(["a"]).await;
    let mut places = Vec::new();
    for _ in 0..100 {
        places.push(store.caller().queue(["a"]).await);
    }
    let mut places: Vec<_> = places.into_iter().map(|place| tokio::spawn(served(place))).collect();
    places.reverse();
    while let Some(next) = places.pop() {
        assert!(places.iter().all(|later| !later.is_finished()), "a waiter was served out of turn");
        holder.free(&held).await;
        (holder, held) = ended(next).await;
    }
}

/// 3.7 and 4, seed case: waiters for slots are served in the order in which they came, however slots become free.
pub async fn waiters_for_slots_are_served_in_order<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.slots) {
        return;
    }
    let mut held = VecDeque::new();
    for _ in 0..3 {
        let holder = store.caller();
        let grant = holder.take([slot("a", 3)]).await;
        held.push_back((holder, grant));
    }
    let mut places = Vec::new();
    for _ in 0..30 {
        places.push(store.caller().queue([slot("a", 3)]).await);
    }
    let mut places: Vec<_> = places.into_iter().map(|place| tokio::spawn(served(place))).collect();
    places.reverse();
    while let Some(next) = places.pop() {
        assert!(places.iter().all(|later| !later.is_finished()), "a waiter was served out of turn");
        // In turn the one that came first and the one that came last.
        let freed = if places.len() % 2 == 0 { held.pop_front() } else { held.pop_back() };
        let (holder, grant) = freed.expect("three are held");
        holder.free(&grant).await;
        held.push_back(ended(next).await);
    }
}

/// 3.8: the release itself grants the id to the next waiter, so that no other gets in between.
pub async fn a_release_hands_over<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.fifo {
        return;
    }
    for ids in [&["a"][..], &["a", "b"]] {
        let [holder, waiter, other] = store.callers();
        let held = holder.take(ids.iter().copied()).await;
        let mut place = waiter.queue(ids.iter().rev().copied()).await;
        holder.free(&held).await;
        other.refused(["a"]).await;
        let granted = place.served().await;
        assert!(granted.locks[0].granted.fence > held.locks[0].granted.fence);
        waiter.keep(&granted).await;
        other.refused(ids.iter().copied()).await;
        waiter.free(&granted).await;
        let taken = other.take(ids.iter().copied()).await;
        other.free(&taken).await;
    }
}

/// 3.8: an offer that was confirmed lasts for the lease that was asked for.
pub async fn a_confirmed_offer_lasts<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, waiter, other] = store.callers();
    let held = holder.take(["a"]).await;
    let mut place = waiter.queue(["a"]).await;
    holder.free(&held).await;
    let granted = place.granted().await;
    // Longer than any offer, of 3 s at most.
    let confirmed = Instant::now();
    while confirmed.elapsed() < Duration::from_millis(3_500) {
        other.refused(["a"]).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    waiter.free(&granted).await;
}

/// 3.8 and 3.9: what an offer says is left of it is left: no other gets the set sooner, though the waiter learnt of
/// it late and does not confirm it.
pub async fn an_offer_lasts_as_long_as_it_says<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.push) {
        return;
    }
    let [holder, other] = store.callers();
    let waiter = store.caller().with_lease(store.short() * 5);
    for delay in [Duration::ZERO, store.short()] {
        let held = holder.take(["a"]).await;
        let mut place = waiter.queue(["a"]).await;
        holder.free(&held).await;
        tokio::time::sleep(delay).await;
        let woken = Instant::now();
        let told = timeout(PATIENCE, place.notified())
            .await
            .unwrap_or_else(|_| late("a waiter is notified of its turn"));
        let Wake::Offer(offer) = told else { panic!("the grant was not handed over") };
        let left = offer.remaining.expect("its lease is finite");
        // Thousandths are for the rates of the clocks.
        assert!(
            left + delay <= waiter.lease.mul_f64(1.001),
            "{left:?} after {delay:?} of {:?}",
            waiter.lease
        );
        let taken = other.take_soon(["a"]).await;
        let after = woken.elapsed();
        assert!(after >= left.mul_f64(0.999), "taken over after {after:?}, though {left:?} were left");
        other.free(&taken).await;
    }
}

/// 2.3 and 3.8: an offer that is found by asking again, or by leaving and renewing, lasts for a whole lease like any
/// other grant, and no longer as an offer does.
pub async fn an_offer_found_by_asking_lasts<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, asking, leaving, other] = store.callers();
    let held = holder.take(["a", "b"]).await;
    let mut asks = asking.queue(["a"]).await;
    let leaves = leaving.queue(["b"]).await;
    holder.free(&held).await;
    let a = asks.asking().await;
    let b = match leaving.withdraw(&leaves.request, Withdraw::KeepIfGranted).await {
        Withdrawn::Holds(granted) => crate::store::grant(&leaves.request, granted),
        Withdrawn::Left => panic!("the grant was not handed over"),
    };
    leaving.keep(&b).await;
    let found = Instant::now();
    while found.elapsed() < Duration::from_millis(2_500) {
        assert_eq!(other.refused(["a", "b"]).await.len(), 2);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    asking.free(&a).await;
    leaving.free(&b).await;
}

/// 2.6 and 3.7: a waiter that asks again keeps its place, and finds what was granted to it meanwhile.
pub async fn asking_again_keeps_the_place<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, first, second] = store.callers();
    let held = holder.take(["a"]).await;
    let mut head = first.queue(["a"]).await;
    let mut next = second.queue(["a"]).await;
    for _ in 0..3 {
        next.still_waits().await;
        head.still_waits().await;
    }
    holder.free(&held).await;
    next.still_waits().await;
    let granted = head.asking().await;
    assert_eq!(head.ask().await.expect("it holds the id").locks, granted.locks);
    first.free(&granted).await;
    second.free(&next.granted().await).await;
}

/// 3.7: a place is kept as long as its process lives and its waiter asks as often as it was asked to, however long it
/// waits: it is not taken for dead.
pub async fn a_place_is_kept_for_long<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let other = store.reopen().await;
    let elsewhere = || other.as_ref().unwrap_or(&store).caller();
    let holder = elsewhere();
    let held = holder.take(["a"]).await;
    let waits = tokio::spawn(served(store.caller().queue(["a"]).await));
    // Longer than a heartbeat counts, 3 s.
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    let mut late = elsewhere().queue(["a"]).await;
    holder.free(&held).await;
    late.still_waits().await;
    let (first, granted) = ended(waits).await;
    first.free(&granted).await;
    let granted = late.granted().await;
    late.caller.free(&granted).await;
}

/// 3.7: who does not want to wait obeys the queue too, and does not join it.
pub async fn without_waiting_the_queue_is_obeyed<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, waiter, hurried] = store.callers();
    let held = holder.take(["b"]).await;
    let mut place = waiter.queue(["a", "b"]).await;
    let conflicts = hurried.refused(["a"]).await;
    assert!(matches!(conflicts[0].reason, ConflictReason::QueuedBehind { count: 1, .. }), "{conflicts:?}");
    holder.free(&held).await;
    let granted = place.granted().await;
    waiter.free(&granted).await;
    hurried.take(["a"]).await;
}

/// 3.7: a shared claim passes a waiter that wants the id shared, and no other.
pub async fn shared_passes_only_shared<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.shared) {
        return;
    }
    let [holder, reader, writer, later] = store.callers();
    let held = holder.take(["b"]).await;
    let mut reading = reader.queue([shared("a"), exclusive("b")]).await;
    let passed = later.take([shared("a")]).await;
    later.refused([exclusive("b")]).await;
    later.free(&passed).await;
    let mut writing = writer.queue([exclusive("a")]).await;
    assert!(
        matches!(later.refused([shared("a")]).await[0].reason, ConflictReason::QueuedBehind { .. }),
        "it would pass the writer"
    );
    holder.free(&held).await;
    let read = reading.granted().await;
    writing.still_waits().await;
    reader.free(&read).await;
    writer.free(&writing.granted().await).await;
    later.take([shared("a")]).await;
}

/// 3.7: a slot claim passes a waiter with a smaller limit, and none with the same or a larger one.
pub async fn larger_limits_pass_smaller_ones<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.slots) {
        return;
    }
    let [one, two, waiter, later] = store.callers();
    let first = one.take([slot("a", 2)]).await;
    let second = two.take([slot("a", 2)]).await;
    let mut place = waiter.queue([slot("a", 2)]).await;
    let passed = later.take([slot("a", 3)]).await;
    two.free(&second).await;
    later.free(&passed).await;
    let granted = place.granted().await;
    let mut small = later.queue([slot("a", 2)]).await;
    one.free(&first).await;
    later.free(&small.granted().await).await;
    waiter.free(&granted).await;
}

/// 3.7: the same limit or a smaller one waits its turn though it would fit.
pub async fn the_same_limit_does_not_pass<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.slots) {
        return;
    }
    let [holder, waiter, later] = store.callers();
    let held = holder.take([slot("a", 3)]).await;
    let mut place = waiter.queue([slot("a", 3).permits(3)]).await;
    for limit in [3, 2] {
        let conflicts = later.refused([slot("a", limit)]).await;
        assert!(matches!(conflicts[0].reason, ConflictReason::QueuedBehind { .. }), "{conflicts:?}");
    }
    let passed = later.take([slot("a", 4)]).await;
    later.free(&passed).await;
    holder.free(&held).await;
    waiter.free(&place.granted().await).await;
}

/// 3.7: a set passes a waiter only if it may on every id that they have in common.
pub async fn a_set_passes_on_every_common_id<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.shared) {
        return;
    }
    let [holder, waiter, later] = store.callers();
    let held = holder.take(["c"]).await;
    let mut place = waiter.queue([shared("a"), exclusive("b"), exclusive("c")]).await;
    later.refused([shared("a"), shared("b")]).await;
    let passed = later.take([shared("a"), exclusive("d")]).await;
    later.free(&passed).await;
    holder.free(&held).await;
    waiter.free(&place.granted().await).await;
}

/// 3.7: a caller that already holds locks obeys holders but no queue.
pub async fn nested_requests_pass_the_queue<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, waiter] = store.callers();
    let outer = holder.take(["a"]).await;
    let mut place = waiter.queue(["a", "b"]).await;
    // Another context, as the service makes one for each call.
    let nested = store.caller().nested();
    let inner = nested.take(["b"]).await;
    store.caller().nested().refused(["b"]).await;
    let mut waiting = store.caller().nested().queue(["b"]).await;
    nested.free(&inner).await;
    let inner = waiting.granted().await;
    waiting.caller.free(&inner).await;
    holder.free(&outer).await;
    waiter.free(&place.granted().await).await;
}

/// 3.7, seed case: a waiter that gave up is skipped, wherever in the queue it stood.
pub async fn waiters_that_gave_up_are_skipped<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let mut holder = store.caller();
    let mut held = holder.take(["a"]).await;
    let mut places = Vec::new();
    for number in 0..12 {
        let place = store.caller().queue(["a"]).await;
        if number % 3 == 1 { places.push(place) } else { ended(tokio::spawn(place.leave())).await }
    }
    for mut place in places {
        holder.free(&held).await;
        held = place.granted().await;
        holder = place.caller;
    }
    holder.free(&held).await;
    store.caller().take(["a"]).await;
}

/// 3.7 and 3.8: a release that is not enough for the first waiter serves one behind it that may pass.
pub async fn a_release_serves_a_larger_limit_behind<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.slots) {
        return;
    }
    let [one, two, small, large] = store.callers();
    let first = one.take([slot("a", 3)]).await;
    let others = two.take([slot("a", 3).permits(2)]).await;
    let mut stuck = small.queue([slot("a", 2)]).await;
    let mut passes = large.queue([slot("a", 3)]).await;
    one.free(&first).await;
    let granted = passes.served().await;
    stuck.still_waits().await;
    large.free(&granted).await;
    two.free(&others).await;
    small.free(&stuck.served().await).await;
}

/// 3.7, seed case: a waiter that died without a word costs those behind it at most five seconds.
pub async fn a_dead_waiter_is_skipped_in_time<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    // In one process no waiter dies without dropping what it waits with, and the service then withdraws.
    let Some(doomed) = store.reopen().await else { return };
    let [holder, next] = store.callers();
    let held = holder.take(["a"]).await;
    let dead = doomed.caller().queue(["a"]).await;
    let mut waiting = next.queue(["a"]).await;
    drop(dead);
    drop(doomed);
    let released = Instant::now();
    holder.free(&held).await;
    let granted = waiting.granted().await;
    in_time(released.elapsed(), DEAD_WAITER);
    next.free(&granted).await;
}

/// 3.7: nor does one cost more that waited for a set of which a part stays held, so that nothing is ever offered to it.
pub async fn a_dead_waiting_set_is_skipped_in_time<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let Some(doomed) = store.reopen().await else { return };
    let [holder, next] = store.callers();
    let held = holder.take(["b"]).await;
    let dead = doomed.caller().queue(["a", "b"]).await;
    let mut waiting = next.queue(["a"]).await;
    drop(dead);
    drop(doomed);
    let died = Instant::now();
    let granted = waiting.granted().await;
    in_time(died.elapsed(), DEAD_WAITER);
    next.free(&granted).await;
    holder.free(&held).await;
}

/// 3.7: nor does one cost more that vanished alone - its process lives, but does not listen, confirm or withdraw.
pub async fn a_vanished_waiter_is_skipped_in_time<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, vanishes, next] = store.callers();
    let held = [holder.take(["a"]).await, holder.take(["b"]).await];
    drop((vanishes.queue(["a"]).await, vanishes.queue(["b"]).await));
    let mut waiting = next.queue(["a"]).await;
    let released = Instant::now();
    for held in &held {
        holder.free(held).await;
    }
    let granted = waiting.granted().await;
    // Nor does one that was alone in the queue when its turn came.
    let another = next.take_in_turn(["b"]).await;
    in_time(released.elapsed(), DEAD_WAITER);
    next.free(&granted).await;
    next.free(&another).await;
}

/// 3.7: a holder that died costs the waiters at most its lease; no other request is needed.
pub async fn a_dead_holder_costs_its_lease<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let dead = store.caller().with_lease(store.short() * 2);
    dead.take(["a"]).await;
    let taken = Instant::now();
    let [first, second] = store.callers();
    let mut head = first.queue(["a"]).await;
    let mut next = second.queue(["a"]).await;
    let granted = head.granted().await;
    in_time(taken.elapsed(), dead.lease + DEAD_WAITER);
    next.still_waits().await;
    first.free(&granted).await;
    second.free(&next.granted().await).await;
}

/// 3.8: when the last exclusive holder goes, all shared waiters up to the next exclusive one come in together.
pub async fn shared_waiters_come_in_together<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.shared) {
        return;
    }
    let [holder, one, two, writer, three] = store.callers();
    let held = holder.take(["a"]).await;
    let mut first = one.queue([shared("a")]).await;
    let mut second = two.queue([shared("a")]).await;
    let mut alone = writer.queue([exclusive("a")]).await;
    let mut last = three.queue([shared("a")]).await;
    holder.free(&held).await;
    let (a, b) = (first.served().await, second.served().await);
    last.still_waits().await;
    alone.still_waits().await;
    one.free(&a).await;
    alone.still_waits().await;
    two.free(&b).await;
    let c = alone.granted().await;
    last.still_waits().await;
    writer.free(&c).await;
    three.free(&last.granted().await).await;
}

/// 2.3 and 3.7: a context asking again for what it holds obeys no queue.
pub async fn re_entry_obeys_no_queue<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, waiter] = store.callers();
    let held = holder.take(["a"]).await;
    let mut place = waiter.queue(["a"]).await;
    let mut again = holder.request(["a"]);
    again.queue = true;
    assert!(matches!(holder.send(&again).await, Acquired::Granted(_)));
    holder.free(&held).await;
    waiter.free(&place.granted().await).await;
}

async fn served<D: lockcore::LockDao<String, uuid::Uuid>>(
    mut place: crate::Place<D>,
) -> (crate::Caller<D>, lockcore::Grant<String, uuid::Uuid>) {
    // A hundred may be before it, at a store that takes a second for each.
    let granted = place.granted_within(PATIENCE * 4).await;
    (place.caller, granted)
}
