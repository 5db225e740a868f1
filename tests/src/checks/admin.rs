//! Looking, breaking, freezing: section 6.

use std::{
    pin::pin,
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, StreamExt};
use lockcore::{
    BadRequest, BreakMode, Broken, Change, ConflictReason, EndedBy, Grant, Inspection, Listing, LockDao,
    LockError, LockingService, LossReason, MAX_OWNER_BYTES, Mode, Page, StoredContext,
    backend::{Acquired, Withdraw},
};
use tokio::time::timeout;
use uuid::Uuid;

use super::capabilities::refuses;
use crate::{
    Backend, PATIENCE, Place, Store, eventually,
    judge::late,
    store::{grant, id, shared, slot},
};

/// The interval of watchers.
const OFTEN: Duration = Duration::from_millis(30);

/// 6: the list gives every id that is held, queued for or frozen, once, in order, by pages.
pub async fn ids_are_listed_by_pages<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.listing {
        return refuses(store.dao().list(&Page::default())).await;
    }
    let holder = store.caller();
    let mut expected: Vec<String> = (0..25).map(|number| format!("id {number}")).collect();
    holder.take(&expected).await;
    let _waiting = if declared.fifo {
        expected.push("only queued for".to_owned());
        Some(store.caller().queue(["id 3", "only queued for"]).await)
    } else {
        None
    };
    if declared.breaking {
        store.dao().freeze(&id("only frozen"), true).await.expect("the store answers");
        expected.push("only frozen".to_owned());
    }
    let gone = store.caller();
    let grant = gone.take(["gone"]).await;
    gone.free(&grant).await;
    expected.sort();
    for limit in [1, 7, 100] {
        let mut found = Vec::new();
        let mut page = Page { after: None, limit };
        loop {
            let Listing { ids, next } = store.dao().list(&page).await.expect("the store answers");
            assert!(ids.len() <= limit, "{} ids on a page of {limit}", ids.len());
            found.extend(ids.into_iter().map(|found| found.target.expect("a string").stored().into_owned()));
            let Some(next) = next else { break };
            page.after = Some(next);
        }
        if declared.fifo && !found.iter().any(|id| id == "only queued for") {
            late(format_args!("the heartbeat of a waiter, which {found:?} does not show"));
        }
        assert_eq!(found, expected, "by pages of {limit}");
    }
}

/// 6: an inspection shows holders with label, fence, lease and mode, and waiters in order.
pub async fn an_inspection_shows_holders_and_waiters<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.listing {
        return refuses(store.dao().inspect(&id("a"))).await;
    }
    let holder = store.caller();
    let grant = holder.take(["a"]).await;
    let mut waiting = Vec::new();
    if declared.fifo {
        for _ in 0..3 {
            waiting.push(store.caller().queue(["a"]).await);
        }
    }
    let found = inspect(&store, "a").await;
    assert_eq!(found.target, Ok(id("a")));
    assert!(!found.frozen && found.breaks.is_empty());
    let [held] = &found.holders[..] else { panic!("one holds it: {found:?}") };
    assert_eq!(held.context, StoredContext::Known(holder.context));
    assert_eq!(
        (held.owner.clone(), held.mode, held.lease),
        (holder.owner, Mode::Exclusive, Some(holder.lease))
    );
    assert_eq!(held.fence, grant.locks[0].granted.fence);
    assert!(!held.broken && held.permits.is_empty());
    assert!(held.remaining.is_some_and(|left| left > holder.lease / 2), "{held:?}");
    assert!(is_recent(held.since), "{held:?}");
    let expected: Vec<_> = waiting.iter().map(|place| StoredContext::Known(place.caller.context)).collect();
    let found_waiting: Vec<_> = found.waiters.iter().map(|waiter| waiter.context.clone()).collect();
    if found_waiting.len() < expected.len() {
        late(format_args!("the heartbeats of waiters, of whom only {found_waiting:?} are shown"));
    }
    assert_eq!(found_waiting, expected);
    for (waiter, place) in found.waiters.iter().zip(&waiting) {
        assert_eq!((&waiter.owner, waiter.mode), (&place.caller.owner, Mode::Exclusive));
        assert!(is_recent(waiter.since), "{waiter:?}");
    }
}

/// 6: an inspection by another process shows the lease as it was renewed.
pub async fn an_inspection_shows_renewals<B: Backend>(store: Store<B>) {
    if !store.capabilities().listing {
        return;
    }
    let Some(other) = store.reopen().await else { return };
    let holder = store.caller();
    let mut grant = holder.take(["a"]).await;
    let remaining = async || inspect(&other, "a").await.holders[0].remaining.expect("the lease is finite");
    assert!(remaining().await <= holder.lease + Duration::from_secs(3));
    grant.lease = Some(holder.lease * 3);
    holder.keep(&grant).await;
    let left = remaining().await;
    assert!(left > holder.lease * 2, "{left:?}");
}

/// 6: a watcher sees who comes and goes, and what an administrator does; waiting until an id is free takes nothing.
pub async fn a_watcher_sees_each_change<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.listing && declared.breaking) {
        return;
    }
    let locks = LockingService::new(store.dao().clone());
    let (admin, target) = (locks.admin(), id("a"));
    let [one, two] = store.callers();
    let grant = one.take(["a"]).await;
    let refused = pin!(admin.watch(&target, Duration::ZERO)).next().await.expect("there is an answer");
    assert!(matches!(refused, Err(LockError::BadRequest(BadRequest::OutOfBounds { field: "every", .. }))));
    let mut changes = pin!(admin.watch(&target, OFTEN));
    let mut next = async || changes.next().await.expect("it goes on").expect("the store answers");
    let fence = |grant: &Grant<String, Uuid>| grant.locks[0].granted.fence;
    assert!(matches!(next().await, Change::Acquired(held) if held.fence == fence(&grant)));
    let mut free = pin!(admin.until_free(["a", "b"], OFTEN));
    assert!((&mut free).now_or_never().is_none());
    one.free(&grant).await;
    assert!(
        matches!(next().await, Change::Ended { fence: ended, by: EndedBy::Release, .. } if ended == fence(&grant))
    );
    free.await.expect("the store answers");
    let grant = two.take(["a"]).await;
    assert!(matches!(next().await, Change::Acquired(held) if held.fence == fence(&grant)));
    store.dao().break_lock(&target, fence(&grant), BreakMode::Now, "me").await.expect("the store answers");
    assert!(
        matches!(next().await, Change::Ended { fence: ended, by: EndedBy::Break, .. } if ended == fence(&grant))
    );
    store.dao().freeze(&target, true).await.expect("the store answers");
    assert_eq!(next().await, Change::Frozen);
    store.dao().freeze(&target, false).await.expect("the store answers");
    assert_eq!(next().await, Change::Thawed);
}

/// 6: a watcher sees each change by another process with its next look.
pub async fn a_watcher_sees_what_others_do<B: Backend>(store: Store<B>) {
    if store.capabilities().listing {
        see_changes(&store, async || {}).await;
    }
}

/// Has others take, release, hand over, break, freeze, thaw and lose an id, and expects that a watcher of `store` sees each
/// of it; `disturb` is called in between.
pub async fn see_changes<B: Backend>(store: &Store<B>, disturb: impl AsyncFnOnce()) {
    let elsewhere = store.reopen().await;
    let other = elsewhere.as_ref().unwrap_or(store);
    let locks = LockingService::new(store.dao().clone());
    let (admin, target) = (locks.admin(), id("a"));
    let mut changes = pin!(admin.watch(&target, OFTEN));
    let mut next = async || {
        let change = timeout(PATIENCE, changes.next()).await.unwrap_or_else(|_| late("a change is seen"));
        change.expect("it goes on").expect("the store answers")
    };
    let long = Duration::from_secs(600);
    let [one, two] = other.callers();
    let (one, two) = (one.with_lease(long), two.with_lease(long));
    let fence = |grant: &Grant<String, Uuid>| grant.locks[0].granted.fence;
    let ended = |change: &Change<Uuid>, grant: &Grant<String, Uuid>, expected: EndedBy| matches!(*change, Change::Ended { fence: ended, by, .. } if ended == fence(grant) && by == expected);
    // Nothing is looked at before the first poll: it sees what is held then.
    let first = one.take(["a"]).await;
    assert!(matches!(next().await, Change::Acquired(_)));
    one.free(&first).await;
    assert!(ended(&next().await, &first, EndedBy::Release));
    // As part of a set, and twice, so that the id is not new.
    let set = one.take(["0", "a"]).await;
    assert!(matches!(next().await, Change::Acquired(_)));
    one.free(&set).await;
    assert!(matches!(next().await, Change::Ended { by: EndedBy::Release, .. }));
    if other.capabilities().fifo {
        // The first waits in the usual way; the second for a set.
        for wanted in [&["a"][..], &["a", "b"]] {
            let held = one.take(["a"]).await;
            assert!(matches!(next().await, Change::Acquired(_)));
            let mut place = two.queue(wanted).await;
            one.free(&held).await;
            assert!(ended(&next().await, &held, EndedBy::Release));
            let granted = place.granted().await;
            assert!(matches!(next().await, Change::Acquired(_)));
            two.free(&granted).await;
            assert!(matches!(next().await, Change::Ended { .. }));
        }
    }
    if other.capabilities().shared {
        let first = one.take([shared("a")]).await;
        assert!(matches!(next().await, Change::Acquired(_)));
        let second = two.take([shared("a")]).await;
        assert!(matches!(next().await, Change::Acquired(_)));
        one.free(&first).await;
        assert!(ended(&next().await, &first, EndedBy::Release));
        two.free(&second).await;
        assert!(ended(&next().await, &second, EndedBy::Release));
    }
    disturb().await;
    if other.capabilities().breaking {
        other.dao().freeze(&target, true).await.expect("the store answers");
        assert_eq!(next().await, Change::Frozen);
        other.dao().freeze(&target, false).await.expect("the store answers");
        assert_eq!(next().await, Change::Thawed);
        for how in [BreakMode::AfterLease, BreakMode::Now] {
            let held = one.take(["a"]).await;
            assert!(matches!(next().await, Change::Acquired(_)));
            other.dao().break_lock(&target, fence(&held), how, "me").await.expect("the store answers");
            let change = next().await;
            if how == BreakMode::Now {
                assert!(ended(&change, &held, EndedBy::Break));
            } else {
                assert!(matches!(change, Change::Broken { .. }));
                one.free(&held).await;
                assert!(ended(&next().await, &held, EndedBy::Break));
            }
        }
    }
    let held = one.take(["a"]).await;
    assert!(matches!(next().await, Change::Acquired(_)));
    other.dao().release_context(&one.context).await.expect("the store answers");
    assert!(ended(&next().await, &held, EndedBy::Release));
    // An attempt whose answer was lost, and that is undone.
    let request = one.request(["a"]);
    other.dao().acquire(&request).await.expect("the store answers");
    assert!(matches!(next().await, Change::Acquired(_)));
    one.withdraw(&request, Withdraw::Undo).await;
    assert!(matches!(next().await, Change::Ended { .. }));
    let dead = two.with_lease(other.short());
    let held = dead.take(["a"]).await;
    assert!(matches!(next().await, Change::Acquired(_)));
    assert!(ended(&next().await, &held, EndedBy::Lease));
}

/// 6: shared holders and slots are all shown, in order of fence, with their permits.
pub async fn an_inspection_shows_all_units<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.listing && declared.slots && declared.shared) {
        return;
    }
    let [one, two, three] = store.callers();
    one.take([slot("a", 5).permits(2)]).await;
    two.take([shared("a")]).await;
    three.take([slot("a", 4)]).await;
    let found = inspect(&store, "a").await;
    let contexts: Vec<_> = found.holders.iter().map(|held| held.context.clone()).collect();
    assert_eq!(contexts, [&one, &two, &three].map(|caller| StoredContext::Known(caller.context)));
    let permits: Vec<_> = found.holders.iter().map(|held| held.permits.to_vec()).collect();
    assert_eq!(permits, [vec![0, 1], vec![], vec![2]]);
    assert_eq!(found.holders[2].mode, Mode::Slots { permits: 1, limit: 4 });
}

/// 6: nothing is shown of an id that is free, nor of a holder whose lease is over.
pub async fn what_is_over_is_not_shown<B: Backend>(store: Store<B>) {
    if !store.capabilities().listing {
        return;
    }
    let dead = store.caller().with_lease(store.ending());
    dead.take(["a"]).await;
    store.end_leases().await;
    let over = inspect(&store, "a").await;
    assert!(over.holders.is_empty(), "{over:?}");
    store.caller().take(["a"]).await;
    let never = inspect(&store, "never seen").await;
    assert_eq!((never.holders.len(), never.waiters.len(), never.frozen), (0, 0, false));
}

/// 6: breaking after the lease stops the renewal; the lock is free when its lease ends.
pub async fn a_break_stops_the_renewal<B: Backend>(store: Store<B>) {
    let dao = store.dao();
    if !store.capabilities().breaking {
        return refuses(dao.break_lock(&id("a"), 1, BreakMode::AfterLease, "")).await;
    }
    let holder = store.caller().with_lease(store.renewable());
    let grant = holder.take(["a", "b"]).await;
    let fence = grant.locks[0].granted.fence;
    let broken = dao.break_lock(&id("a"), fence, BreakMode::AfterLease, "an admin").await;
    let Ok(Broken::Within(Some(within))) = broken else { panic!("not to be broken: {broken:?}") };
    assert!(within <= holder.lease, "{within:?}");
    let lost = holder.renew(&grant).await.lost;
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!((&lost[0].target, lost[0].fence, lost[0].reason), (&id("a"), fence, LossReason::Broken));
    // Nor does asking again extend it.
    assert_eq!(holder.refused(["a", "b"]).await.len(), 1, "of a and b only one is broken");
    store.pass(holder.lease / 2).await;
    assert_eq!(holder.renew(&grant).await.lost.len(), 1, "the other lock is kept");
    // More than the lease of the broken lock has, and less than that of the other one.
    store.pass(holder.lease * 5 / 8).await;
    eventually("it is free though its holder renewed", || async {
        holder.renew(&grant).await;
        store.caller().try_take(["a"]).await.ok()
    })
    .await;
    assert_eq!(holder.renew(&grant).await.lost.len(), 1, "the other lock is kept");
    store.caller().refused(["b"]).await;
}

/// 6: the holder of a broken lock keeps it until it acknowledges by releasing, which serves the next.
pub async fn a_broken_lock_is_freed_by_its_holder<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.breaking {
        return;
    }
    let [holder, next] = store.callers();
    let grant = holder.take(["a"]).await;
    let fence = grant.locks[0].granted.fence;
    let broken = store.dao().break_lock(&id("a"), fence, BreakMode::AfterLease, "an admin").await;
    assert!(matches!(broken, Ok(Broken::Within(_))), "{broken:?}");
    next.refused(["a"]).await;
    if declared.listing {
        assert!(inspect(&store, "a").await.holders[0].broken);
    }
    let waiting = if declared.fifo { Some(next.queue(["a"]).await) } else { None };
    let released = holder.release(&grant).await;
    assert!(released.failed.is_empty());
    assert!(released.lost.iter().all(|lost| lost.reason == LossReason::Broken), "{released:?}");
    match waiting {
        Some(mut place) => drop(place.served().await),
        None => drop(next.take(["a"]).await),
    }
}

/// 6: breaking now frees at once, serves the waiters, and the old holder learns why it lost the lock.
pub async fn a_break_now_frees_at_once<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.breaking {
        return refuses(store.dao().break_lock(&id("a"), 1, BreakMode::Now, "")).await;
    }
    let [holder, waiter, next] = store.callers();
    let grant = holder.take(["a"]).await;
    let waiting = if declared.fifo { Some(waiter.queue(["a"]).await) } else { None };
    let fence = grant.locks[0].granted.fence;
    let broken = store.dao().break_lock(&id("a"), fence, BreakMode::Now, "an admin").await;
    assert_eq!(broken.expect("the store answers"), Broken::Freed);
    let taken = match waiting {
        Some(mut place) => place.served().await,
        None => waiter.take(["a"]).await,
    };
    let lost = holder.renew(&grant).await.lost;
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].reason, LossReason::Broken);
    assert_eq!(holder.release(&grant).await.lost.len(), 1);
    next.refused(["a"]).await;
    waiter.free(&taken).await;
}

/// 6: a break names the fence it means, and does nothing to a later holder.
pub async fn a_break_is_guarded_by_the_fence<B: Backend>(store: Store<B>) {
    if !store.capabilities().breaking {
        return;
    }
    let [one, two] = store.callers();
    let old = one.take(["a"]).await;
    one.free(&old).await;
    let new = two.take(["a"]).await;
    for how in [BreakMode::Now, BreakMode::AfterLease] {
        let broken = store.dao().break_lock(&id("a"), old.locks[0].granted.fence, how, "an admin").await;
        assert_eq!(broken.expect("the store answers"), Broken::NotHeld);
        let never = store.dao().break_lock(&id("never"), 1, how, "an admin").await;
        assert_eq!(never.expect("the store answers"), Broken::NotHeld);
    }
    two.keep(&new).await;
    two.free(&new).await;
}

/// 6: the rest of a set that was granted with a broken lock goes on being renewed, also what others wait for.
pub async fn a_break_leaves_the_rest_of_the_set<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.breaking {
        return;
    }
    for how in [BreakMode::Now, BreakMode::AfterLease] {
        let [holder, waiter] = store.callers();
        let held = holder.take(["a", "b"]).await;
        let place = if declared.fifo { Some(waiter.queue(["b"]).await) } else { None };
        let fence = held.locks[0].granted.fence;
        store.dao().break_lock(&id("a"), fence, how, "admin").await.expect("the store answers");
        let lost = holder.renew(&held).await.lost;
        assert_eq!(lost.iter().map(|lock| lock.target.clone()).collect::<Vec<_>>(), [id("a")], "{how:?}");
        holder.release(&held).await;
        if let Some(mut place) = place {
            waiter.free(&place.served().await).await;
        }
    }
}

/// 6: breaks are recorded: whose lock, its fence, who broke it, when, how; the newest last, sixteen of them.
pub async fn breaks_are_recorded<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.breaking && declared.listing) {
        return;
    }
    let mut fences = Vec::new();
    for number in 0..18 {
        let holder = store.caller();
        let fence = holder.take(["a"]).await.locks[0].granted.fence;
        // As long as a label with its data can be.
        let by = format!("{:l<1$}", format!("admin {number}"), MAX_OWNER_BYTES);
        let broken = store.dao().break_lock(&id("a"), fence, BreakMode::Now, &by).await;
        assert_eq!(broken.expect("the store answers"), Broken::Freed);
        let breaks = inspect(&store, "a").await.breaks;
        let last = breaks.last().expect("it is recorded");
        assert_eq!(last.context, StoredContext::Known(holder.context));
        assert_eq!((last.fence, &*last.by, last.now), (fence, &*by, true));
        assert!(is_recent(last.at), "{last:?}");
        fences.push(fence);
    }
    let recorded: Vec<u64> = inspect(&store, "a").await.breaks.iter().map(|broken| broken.fence).collect();
    assert_eq!(recorded, fences[2..]);
}

/// 6: a frozen id is granted to no other, its holder keeps, renews and releases it, and thawing serves the waiters.
pub async fn a_frozen_id_is_not_granted<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    let dao = store.dao();
    if !declared.breaking {
        return refuses(dao.freeze(&id("a"), true)).await;
    }
    let [holder, waiter, next] = store.callers();
    let held = holder.take(["a", "b"]).await;
    dao.freeze(&id("a"), true).await.expect("the store answers");
    dao.freeze(&id("a"), true).await.expect("freezing twice is fine");
    if declared.listing {
        assert!(inspect(&store, "a").await.frozen);
    }
    holder.keep(&held).await;
    let again = holder.take(["a"]).await;
    assert_eq!(again.locks[0].granted.fence, held.locks[0].granted.fence);
    holder.free(&held).await;
    let conflicts = next.refused(["a", "b"]).await;
    assert_eq!((conflicts.len(), &conflicts[0].reason), (1, &ConflictReason::Frozen));
    let b = next.take(["b"]).await;
    next.free(&b).await;
    let waiting = if declared.fifo { Some(waiter.queue(["a", "b"]).await) } else { None };
    dao.freeze(&id("a"), false).await.expect("the store answers");
    let taken = match waiting {
        Some(mut place) => place.served().await,
        None => waiter.take(["a", "b"]).await,
    };
    next.refused(["a"]).await;
    waiter.free(&taken).await;
    dao.freeze(&id("a"), false).await.expect("thawing twice is fine");
    next.take(["a"]).await;
}

/// 6: nor is it handed over to a waiter that was there before, under locks with a lease or without, until it is thawed.
pub async fn a_frozen_id_is_not_handed_over<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !declared.breaking || !declared.fifo {
        return;
    }
    let dao = store.dao();
    for permanent in [false, declared.permanent] {
        let [holder, waiter, next] = store.callers();
        let [mut held, mut waits] = [&holder, &waiter].map(|caller| caller.request(["a"]));
        if permanent {
            (held.lease, waits.lease) = (None, None);
        }
        waits.queue = true;
        let Acquired::Granted(granted) = holder.send(&held).await else { panic!("the id is free") };
        let held = grant(&held, granted);
        let Acquired::Queued { conflicts, wakeup, recheck } = waiter.send(&waits).await else {
            panic!("the id is held")
        };
        let mut place = Place::new(waiter.clone(), waits, conflicts, wakeup, recheck);
        dao.freeze(&id("a"), true).await.expect("the store answers");
        holder.free(&held).await;
        next.refused(["a"]).await;
        if declared.listing {
            assert_eq!(inspect(&store, "a").await.holders, []);
        }
        dao.freeze(&id("a"), false).await.expect("the store answers");
        waiter.free(&place.served().await).await;
    }
}

/// 6: the schema can be made again and again, locks stay, and a store as it comes has nothing wrong with it.
pub async fn migrating_and_looking_change_nothing<B: Backend>(store: Store<B>) {
    let holder = store.caller();
    let held = holder.take(["a"]).await;
    for _ in 0..2 {
        store.dao().migrate().await.expect("the store answers");
        let findings = store.dao().doctor().await.expect("the store answers");
        assert!(findings.iter().all(|found| found.severity < lockcore::Severity::Error), "{findings:?}");
    }
    holder.keep(&held).await;
    store.caller().refused(["a"]).await;
}

/// 6: what another program wrote in the place of one id, which cannot be read, stops no request for another, is listed as such, and
/// is not taken for free.
pub async fn what_cannot_be_read_stops_no_other<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    let [holder, other, spoiled] = store.callers();
    for way in 0.. {
        let bad = format!("bad {way}");
        let before = spoiled.take([&bad]).await;
        if !store.spoil(&bad, way).await {
            spoiled.free(&before).await;
            break;
        }
        let held = holder.take(["a", "later"]).await;
        assert_eq!(other.refused(["a", "b"]).await.len(), 1, "way {way}");
        other.free(&other.take(["b"]).await).await;
        holder.keep(&held).await;
        if declared.listing {
            let listing = store.dao().list(&Page { after: None, limit: 100 }).await;
            let listing = listing.unwrap_or_else(|error| panic!("way {way} stops the list: {error}"));
            let find = |wanted: &str| listing.ids.iter().find(|seen| seen.target == Ok(id(wanted)));
            for readable in ["a", "later"] {
                let seen = find(readable).unwrap_or_else(|| panic!("way {way} hides {readable}"));
                assert_eq!((seen.holders.len(), &seen.unreadable), (1, &None), "way {way}");
            }
            let seen = find(&bad).unwrap_or_else(|| panic!("way {way} is not listed: {listing:?}"));
            assert!(seen.unreadable.as_ref().is_some_and(|why| !why.is_empty()), "way {way}: {seen:?}");
            assert!(inspect(&store, &bad).await.unreadable.is_some(), "way {way}");
        }
        if declared.sweeping {
            let swept = store.dao().sweep(100, None).await;
            swept.unwrap_or_else(|error| panic!("way {way} stops the sweep: {error}"));
        }
        let freed = store.dao().release_context(&holder.request(["a"]).context).await;
        let freed = freed.unwrap_or_else(|error| panic!("way {way} stops a restart: {error}"));
        assert_eq!(freed.len(), 2, "way {way}: {freed:?}");
        other.free(&other.take(["a", "later"]).await).await;
    }
}

async fn inspect<B: Backend>(store: &Store<B>, of: &str) -> Inspection<String, Uuid> {
    store.dao().inspect(&id(of)).await.expect("the store answers")
}

fn is_recent(time: SystemTime) -> bool {
    let now = SystemTime::now();
    let distance = now.duration_since(time).or_else(|_| time.duration_since(now));
    distance.is_ok_and(|distance| distance < Duration::from_secs(600))
}
