//! Every future of the DAO can be dropped at every poll: sections 2.6 and 3.2.

use std::time::Duration;

use lockcore::{
    BreakMode, LockDao, Page,
    backend::{Withdraw, Withdrawn},
};

use crate::{Backend, Store, polls::dropped_after, store::id};

/// More polls than any operation takes.
const MANY: usize = 1000;

/// 2.6: an acquire that was dropped at any poll, and then withdrawn, holds nothing.
pub async fn a_dropped_acquire_leaves_nothing<B: Backend>(store: Store<B>) {
    for polls in 0..MANY {
        let [one, two] = store.callers();
        let request = one.request(["a", "b"]);
        let done = dropped_after(polls, store.dao().acquire(&request)).await;
        assert_eq!(one.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
        let taken = two.take(["a", "b"]).await;
        one.refused_as_withdrawn(&request).await;
        two.free(&taken).await;
        if done.is_some() {
            return;
        }
    }
    panic!("it never ended");
}

/// 2.6 and 3.7: nor does one that would have been queued, and it costs those behind it nothing.
pub async fn a_dropped_waiter_leaves_nothing<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    for polls in 0..MANY {
        let [holder, one, two] = store.callers();
        let held = holder.take(["a"]).await;
        let mut request = one.request(["a", "b"]);
        request.queue = true;
        let done = dropped_after(polls, store.dao().acquire(&request)).await.is_some();
        let mut behind = two.queue(["a"]).await;
        one.withdraw(&request, Withdraw::Undo).await;
        holder.free(&held).await;
        let granted = behind.granted().await;
        two.free(&granted).await;
        let all = two.take(["a", "b"]).await;
        two.free(&all).await;
        if done {
            return;
        }
    }
    panic!("it never ended");
}

/// 3.8: a waiter that goes away at the moment of its turn passes it on.
pub async fn a_turn_that_is_not_taken_is_passed_on<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    for how in [Withdraw::Undo, Withdraw::KeepIfGranted] {
        let [holder, one, two] = store.callers();
        let held = holder.take(["a"]).await;
        let place = one.queue(["a"]).await;
        let mut behind = two.queue(["a"]).await;
        let request = place.request.clone();
        drop(place);
        holder.free(&held).await;
        if let Withdrawn::Holds(granted) = one.withdraw(&request, how).await {
            one.free(&crate::store::grant(&request, granted)).await;
        }
        two.free(&behind.granted().await).await;
    }
}

/// 2.6: a withdrawal that was dropped at any poll can be sent again, and then has taken place.
pub async fn a_dropped_withdrawal_can_be_repeated<B: Backend>(store: Store<B>) {
    for how in [Withdraw::Undo, Withdraw::KeepIfGranted] {
        for polls in 0.. {
            assert!(polls < MANY, "it never ended");
            let [one, two] = store.callers();
            let request = one.request(["a"]);
            let lockcore::backend::Acquired::Granted(granted) = one.send(&request).await else {
                panic!("the id is free")
            };
            let done = dropped_after(polls, store.dao().withdraw(&request, how)).await.is_some();
            match one.withdraw(&request, how).await {
                Withdrawn::Left => assert_eq!(how, Withdraw::Undo),
                Withdrawn::Holds(holds) => {
                    assert_eq!((how, &holds), (Withdraw::KeepIfGranted, &granted));
                    one.free(&crate::store::grant(&request, holds)).await;
                }
            }
            let taken = two.take(["a"]).await;
            two.free(&taken).await;
            if done {
                break;
            }
        }
    }
}

/// 2.4: a release that was dropped at any poll can be sent again, and then everything is free.
pub async fn a_dropped_release_can_be_repeated<B: Backend>(store: Store<B>) {
    for polls in 0..MANY {
        let [one, two] = store.callers();
        let held = one.take(["a", "b"]).await;
        let done = dropped_after(polls, store.dao().release(&held)).await.is_some();
        assert!(one.release(&held).await.failed.is_empty());
        let taken = two.take(["a", "b"]).await;
        two.free(&taken).await;
        if done {
            return;
        }
    }
    panic!("it never ended");
}

/// 3.8: a release dropped at any poll and sent again has handed over to who waits.
pub async fn a_dropped_release_hands_over<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    for polls in 0..MANY {
        let [one, two] = store.callers();
        let held = one.take(["a"]).await;
        let mut place = two.queue(["a"]).await;
        let done = dropped_after(polls, store.dao().release(&held)).await.is_some();
        one.release(&held).await;
        two.free(&place.granted().await).await;
        if done {
            return;
        }
    }
    panic!("it never ended");
}

/// 2.5: a renewal that was dropped at any poll leaves the lock held, and it can be renewed and released.
pub async fn a_dropped_renewal_loses_nothing<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    for polls in 0..MANY {
        let held = one.take(["a", "b"]).await;
        let done = dropped_after(polls, store.dao().renew(&held)).await.is_some();
        two.refused(["a"]).await;
        one.keep(&held).await;
        one.free(&held).await;
        let taken = two.take(["a", "b"]).await;
        two.free(&taken).await;
        if done {
            return;
        }
    }
    panic!("it never ended");
}

/// 6: administration that was dropped at any poll changes nothing it did not say, and can be repeated.
pub async fn dropped_administration_can_be_repeated<B: Backend>(store: Store<B>) {
    let (declared, dao, a) = (store.capabilities(), store.dao(), id("a"));
    let [one, two] = store.callers();
    // An order that came to its end is not given again: what is dropped may cost a connection.
    let mut ended = [false; 9];
    let mut polls = 0;
    loop {
        assert!(polls < MANY, "it never ended");
        let [list, inspect, release, sweep, rarely, migrate, doctor, freeze, breaking] = &mut ended;
        let held = one.take(["a", "b"]).await;
        unless_ended(list, declared.listing, polls, dao.list(&Page::default())).await;
        unless_ended(inspect, declared.listing, polls, dao.inspect(&a)).await;
        unless_ended(release, declared.listing, polls, dao.release_context(&two.context)).await;
        unless_ended(sweep, declared.sweeping, polls, dao.sweep(10, None)).await;
        unless_ended(rarely, declared.sweeping, polls, dao.sweep(10, Some(Duration::from_secs(1)))).await;
        unless_ended(migrate, true, polls, dao.migrate()).await;
        unless_ended(doctor, true, polls, dao.doctor()).await;
        one.keep(&held).await;
        unless_ended(freeze, declared.breaking, polls, dao.freeze(&a, true)).await;
        let fence = held.locks[0].granted.fence;
        if declared.breaking {
            dao.freeze(&a, false).await.expect("the store answers");
        }
        unless_ended(breaking, declared.breaking, polls, dao.break_lock(&a, fence, BreakMode::Now, "")).await;
        if declared.breaking {
            dao.break_lock(&a, fence, BreakMode::Now, "").await.expect("the store answers");
            let taken = two.take(["a"]).await;
            two.free(&taken).await;
        }
        assert!(one.release(&held).await.failed.is_empty());
        let taken = two.take(["a", "b"]).await;
        two.free(&taken).await;
        if ended == [true; 9] {
            break;
        }
        // Of the hundreds that it may take to connect, not each.
        polls += 1 + polls / 16;
    }
}

/// Gives a declared order, dropped after so many polls, unless it came to its end with fewer.
async fn unless_ended<F: Future>(ended: &mut bool, declared: bool, polls: usize, order: F) {
    *ended = *ended || !declared || dropped_after(polls, order).await.is_some();
}
