//! The guard that underlies every call: section 3.11.

use std::time::Duration;

use lockcore::{
    BadRequest, BreakMode, ConflictReason, Grant, LockDao, LockingError, LossReason, LostLock, Target, Wait,
};
use tokio::time::Instant;

use super::{Oops, Rig};
use crate::{
    Backend, Store, eventually,
    fault::{Fault, Operation},
    polls::dropped_after,
    store::id,
};

/// 3.11: a guard holds the set until it is released, which is over when the call returns.
pub async fn a_guard_holds_until_released<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.lock(["a", "b"]).await.expect("it is free");
    assert_eq!(store.caller().refused(["a", "b"]).await.len(), 2);
    guard.check().expect("it is held");
    assert_eq!(guard.held().locks().len(), 2);
    guard.release().await.expect("it is held");
    assert!(store.is_free(&["a", "b"]).await);
    let refused = rig.locks.lock(["a"]).await.expect("it is free");
    assert!(rig.locks.lock(["a"]).await.expect_err("it is held").is_contention());
    refused.release().await.expect("it is held");
}

/// 3.11: dropping a guard releases it, also in the middle of its release.
pub async fn a_dropped_guard_releases<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    drop(rig.locks.lock(["a"]).await.expect("it is free"));
    store.becomes_free(&["a"]).await;
    for polls in 0.. {
        let guard = rig.locks.lock(["a"]).await.expect("it is free");
        let done = dropped_after(polls, guard.release()).await.is_some();
        store.becomes_free(&["a"]).await;
        if done {
            break;
        }
    }
    for polls in 0.. {
        let guard = dropped_after(polls, rig.locks.lock(["a"])).await;
        let done = guard.is_some();
        drop(guard);
        store.becomes_free(&["a"]).await;
        if done {
            break;
        }
    }
}

/// 3.9 and 3.11: a guard is renewed while it lives.
pub async fn a_guard_is_renewed<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let lease = store.lasting();
    let guard = rig.locks.lease(lease).lock(["a"]).await.expect("it is free");
    let began = Instant::now();
    while began.elapsed() < lease * 2 {
        store.is_held(&["a"], || guard.check().is_ok()).await;
        tokio::time::sleep(lease / 10).await;
    }
    guard.check().expect("it is renewed");
    guard.release().await.expect("nothing was lost");
    let renewals = rig.faults.calls(Operation::Renew);
    tokio::time::sleep(lease).await;
    assert_eq!(rig.faults.calls(Operation::Renew), renewals, "what is released is not renewed");
}

/// 3.11 and 6: a guard that is left stays locked without renewal; its grant releases it, here or elsewhere.
pub async fn a_guard_that_is_left_stays_locked<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let grant = rig.locks.detached().lock(["a"]).await.expect("it is free").leave();
    store.caller().refused(["a"]).await;
    assert_eq!(rig.locks.shutdown(Duration::from_secs(5)).await, 0, "it is not held any more");
    let elsewhere = Rig::new(&store);
    let released = elsewhere.locks.admin().release(&grant).await.expect("the store answers");
    assert!(released.lost.is_empty());
    assert!(store.is_free(&["a"]).await);
}

/// 2.6 and 3.11: a request that got no answer was withdrawn before the one that was granted: none is there to do so once the set is
/// left, and it takes nothing though it arrives after the release.
pub async fn a_guard_that_is_left_leaves_no_request<B: Backend>(store: Store<B>) {
    for wait in [Wait::never(), Wait::retries(1, |_: u32| Duration::ZERO), Wait::forever()] {
        let rig = Rig::new(&store);
        rig.faults.set_times(Operation::Acquire, Fault::Cut, 1);
        let guard = rig.locks.detached().wait(wait).lock(["a"]).await;
        let grant = guard.expect("it is asked for again").leave();
        rig.locks.admin().release(&grant).await.expect("the store answers");
        rig.faults.lift();
        eventually("it arrives", || async { (rig.faults.arrived() == 1).then_some(()) }).await;
        assert!(store.is_free(&["a"]).await);
    }
}

/// 6 and 7: an administrator renews a grant that was left locked, in any order of its locks; a lease out of bounds is
/// refused before anything is sent.
pub async fn a_guard_that_is_left_is_renewed<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let (declared, lease) = (store.capabilities(), store.lasting());
    let mut grant = rig.locks.detached().lease(lease).lock(["a", "b"]).await.expect("it is free").leave();
    grant.locks.reverse();
    grant.locks.push(grant.locks[0].clone());
    let refused = async |lease| {
        let renewed = rig.locks.admin().renew(&Grant { lease, ..grant.clone() }).await;
        match renewed {
            Err(LockingError::BadRequest(bad)) => bad,
            other => panic!("a lease of {lease:?} is not refused: {other:?}"),
        }
    };
    let (min, backend) = (declared.min_lease, declared.backend);
    let lease = Duration::ZERO;
    assert_eq!(refused(Some(lease)).await, BadRequest::LeaseTooShort { lease, min, backend });
    assert!(matches!(refused(Some(Duration::MAX)).await, BadRequest::LeaseTooLong { .. }));
    if !declared.permanent {
        assert!(matches!(refused(None).await, BadRequest::Unsupported { .. }));
    }
    assert_eq!(rig.faults.calls(Operation::Renew), 0, "nothing is sent");

    let long = Duration::from_secs(600);
    let renewed = rig.locks.admin().renew(&Grant { lease: Some(long), ..grant.clone() }).await;
    assert!(renewed.expect("the store answers").lost.is_empty());
    let conflicts = store.caller().refused(["a", "b"]).await;
    assert_eq!(conflicts.len(), 2);
    for conflict in conflicts {
        let ConflictReason::Held { holders, .. } = conflict.reason else { panic!("not held: {conflict:?}") };
        assert!(holders[0].remaining.is_some_and(|left| left > long / 2), "{holders:?}");
    }
    rig.locks.admin().release(&grant).await.expect("the store answers");
    let renewed = rig.locks.admin().renew(&grant).await.expect("the store answers");
    assert_eq!(renewed.lost.len(), 2, "a released grant is not brought back");
    assert!(store.is_free(&["a", "b"]).await);
}

/// 6: what a grant holds is checked by another service, and listed by its context.
pub async fn a_grant_is_checked_elsewhere<B: Backend>(store: Store<B>) {
    if !store.capabilities().listing {
        return;
    }
    let (rig, elsewhere) = (Rig::new(&store), Rig::new(&store));
    let guard = rig.locks.lock(["a", "b", "c"]).await.expect("it is free");
    let grant = guard.grant().clone();
    let check = async || elsewhere.locks.admin().check(&grant).await.expect("the store answers");
    assert_eq!(check().await, []);
    let held = elsewhere.locks.admin().held_by(guard.context()).await.expect("the store answers");
    assert_eq!(held, guard.locks());
    let of_b = grant.locks.iter().filter(|lock| lock.target == id("b")).cloned().collect();
    store.dao().release(&Grant { locks: of_b, ..grant.clone() }).await.expect("the store answers");
    let named = |lost: Vec<LostLock>| -> Vec<_> {
        lost.into_iter().map(|lock| (lock.target.stored().into_owned(), lock.reason)).collect()
    };
    assert_eq!(named(check().await), [("b".to_owned(), LossReason::Vanished)]);
    if store.capabilities().breaking {
        let target = Target::Id("c".to_owned());
        let fence = guard.fence("c");
        let admin = elsewhere.locks.admin();
        admin.break_lock(&target, fence, BreakMode::Now).await.expect("the store answers");
        let lost = [("b".to_owned(), LossReason::Vanished), ("c".to_owned(), LossReason::Broken)];
        assert_eq!(named(check().await), lost);
    }
}

/// 3.5 and 3.11: what a guard holds is no matter of calls in a callback: it is contention, and can be waited for.
pub async fn a_guard_is_like_any_holder<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let guard = rig.locks.lock(["a"]).await.expect("it is free");
    let call = rig
        .locks
        .wait(Wait::up_to(Duration::from_millis(60)))
        .with_locks(["a"], || async { Ok::<_, Oops>(()) });
    match call.await {
        Err(LockingError::NotLocked { timed_out: Some(_), .. }) => {}
        other => panic!("not refused: {other:?}"),
    }
    let call = rig.locks.wait(Wait::forever()).with_locks(["a"], || async { Ok::<_, Oops>(7) });
    let (value, released) = tokio::join!(call, guard.release());
    released.expect("it is held");
    assert_eq!(value.expect("its turn comes"), 7);
}
