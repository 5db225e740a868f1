//! Waiters of whole sets that overlap: sections 2.1, 3.7 and 3.8.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::backend::{Offer, Wake};
use tokio::time::{Instant, timeout};

use crate::{
    Backend, PATIENCE, Store,
    judge::late,
    race,
    store::{exclusive, shared},
};

/// 3.7: a waiter holds back later ones on every id that they have in common, and on no other.
pub async fn a_waiting_set_holds_back_its_ids_only<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, one, two, three] = store.callers();
    let held = holder.take(["b"]).await;
    let mut first = one.queue(["a", "b"]).await;
    let mut second = two.queue(["a", "c"]).await;
    // "c" is free, but the second waits for it in turn; "d" is free.
    three.refused(["c", "d"]).await;
    let d = three.take(["d"]).await;
    three.free(&d).await;
    holder.free(&held).await;
    let granted = first.granted().await;
    second.still_waits().await;
    one.free(&granted).await;
    two.free(&second.granted().await).await;
}

/// 3.7 and 3.8: a release serves those that may pass a waiter whose set is not free yet.
pub async fn those_that_may_pass_a_waiting_set_are_served<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.shared) {
        return;
    }
    let [first, second, waiter, reader] = store.callers();
    let (a, b) = (first.take(["a"]).await, second.take(["b"]).await);
    let mut waiting = waiter.queue([shared("a"), exclusive("b")]).await;
    let mut reading = reader.queue([shared("a")]).await;
    first.free(&a).await;
    reader.free(&reading.served().await).await;
    waiting.still_waits().await;
    second.free(&b).await;
    waiter.free(&waiting.granted().await).await;
}

/// 3.8: one release serves all waiters that can come.
pub async fn one_release_serves_several_sets<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [holder, one, two, three] = store.callers();
    let held = holder.take(["a", "b", "c"]).await;
    let mut first = one.queue(["a", "x"]).await;
    let mut second = two.queue(["b", "y"]).await;
    let mut third = three.queue(["c", "y"]).await;
    holder.free(&held).await;
    one.free(&first.served().await).await;
    let granted = second.served().await;
    third.still_waits().await;
    two.free(&granted).await;
    three.free(&third.granted().await).await;
}

/// 3.7 and 3.8: of two waiters whom one release sets free the one that came first is served, whatever the order of
/// their ids.
pub async fn of_two_set_free_the_earlier_is_served<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    for [of_the_first, of_the_second] in [["a", "b"], ["b", "a"]] {
        let [holder, one, two] = store.callers();
        let held = holder.take(["a", "b"]).await;
        let mut first = one.queue([of_the_first, "c"]).await;
        // It may pass the first while that one cannot be served, but not when it can.
        let mut second = two.nested().queue([of_the_second, "c"]).await;
        holder.free(&held).await;
        second.still_waits().await;
        one.free(&first.granted().await).await;
        let granted = second.granted().await;
        second.caller.free(&granted).await;
    }
}

/// 2.1 and 3.7: a set is granted only when all of it is free, and holds nothing until then.
pub async fn a_waiting_set_holds_nothing<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let [one, two, waiter, nested] = store.callers();
    let a = one.take(["a"]).await;
    let b = two.take(["b"]).await;
    let mut place = waiter.queue(["a", "b", "c"]).await;
    one.free(&a).await;
    place.still_waits().await;
    let free = nested.clone().nested().take(["a", "c"]).await;
    two.free(&b).await;
    place.still_waits().await;
    nested.free(&free).await;
    waiter.free(&place.granted().await).await;
}

/// 3.8: an offer of a set of which its context held a part before is true of that part, too, which would have ended sooner.
pub async fn an_offer_is_true_of_what_is_kept<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.fifo && declared.shared && declared.push && store.sets_clock()) {
        return;
    }
    const LEFT: Duration = Duration::from_secs(1);
    let [holder, us, other] = store.callers();
    let us = us.with_lease(store.ending());
    let b = holder.take(["b"]).await;
    us.take([shared("a")]).await;
    let mut place = us.queue([shared("a"), exclusive("b")]).await;
    store.pass(store.ending() - LEFT).await;
    let begun = Instant::now();
    holder.free(&b).await;
    match timeout(PATIENCE, place.notified())
        .await
        .unwrap_or_else(|_| late("a waiter is notified of its turn"))
    {
        Wake::Offer(Offer { remaining, .. }) => {
            let remaining = remaining.expect("no lease here is for ever");
            store.pass(LEFT).await;
            let taken = other.try_take(["a"]).await;
            let is_over = begun.elapsed() + LEFT >= remaining;
            assert!(taken.is_err() || is_over, "it is offered for {remaining:?}, and another has it");
        }
        Wake::Recheck => us.free(&place.asking().await).await,
    }
}

/// 3.7 and 3.8: many waiters for overlapping sets are all served, and no id is held by two.
pub async fn many_overlapping_waiters_are_all_served<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    const IDS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let holders: Arc<[AtomicU32; 6]> = Arc::default();
    let crowd = store.crowd(12 * 6).await;
    race(12, |worker| {
        let holders = holders.clone();
        let callers = crowd.iter().skip(worker).step_by(12).cloned().collect::<Vec<_>>();
        let mut random = fastrand::Rng::with_seed(worker as u64);
        async move {
            for caller in callers {
                let chosen = random.choose_multiple(0..IDS.len(), 1 + worker % 3);
                let grant = caller.take_in_turn(chosen.iter().map(|&index| IDS[index])).await;
                for &index in &chosen {
                    assert_eq!(
                        holders[index].fetch_add(1, Ordering::SeqCst),
                        0,
                        "{} is held twice",
                        IDS[index]
                    );
                }
                tokio::task::yield_now().await;
                for &index in &chosen {
                    holders[index].fetch_sub(1, Ordering::SeqCst);
                }
                caller.free(&grant).await;
            }
        }
    })
    .await;
    store.caller().take(IDS).await;
}
