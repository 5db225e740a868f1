//! Leases of this backend, under tokio's paused time.

use std::time::Duration;

use lockcore::{
    LockDao, LossReason,
    backend::{Acquired, Wake, Withdraw, Withdrawn},
};
use tokio::time::advance;

use super::claims::{leased, shared};
use crate::support::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_lease_ends_when_the_test_says_so() {
    let dao = Dao::new();
    let held = take(&dao, &leased(request(1, [exclusive("a")]), SECOND));
    advance(SECOND - Duration::from_nanos(1)).await;
    let mut next = queue(&dao, request(2, [exclusive("a")]));
    assert_eq!(next.recheck, Some(Duration::from_nanos(1)));
    assert_eq!(now(dao.renew(&held)).unwrap().lost, []);
    advance(SECOND).await;
    assert!(told(&mut next.wakeup).is_none(), "the id was not touched");
    let taken = take(&dao, &next.request);
    assert!(taken.locks[0].granted.fence > held.locks[0].granted.fence);
    assert_eq!(now(dao.renew(&held)).unwrap().lost[0].reason, LossReason::Expired);
    assert_eq!(now(dao.release(&held)).unwrap().lost[0].reason, LossReason::Expired);
    free(&dao, &taken);
    assert_eq!(now(dao.release(&taken)).unwrap().lost[0].reason, LossReason::Vanished);
    assert!(dao.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_step_that_touches_an_expired_lock_hands_it_over() {
    for touch in 0..4 {
        let dao = Dao::new();
        let held = take(&dao, &leased(request(1, [exclusive("a")]), SECOND));
        let mut next = queue(&dao, request(2, [exclusive("a")]));
        advance(SECOND).await;
        match touch {
            0 => assert_eq!(now(dao.renew(&held)).unwrap().lost.len(), 1),
            1 => assert_eq!(now(dao.release(&held)).unwrap().lost.len(), 1),
            2 => drop(queue(&dao, request(3, [exclusive("a")]))),
            _ => assert_eq!(now(dao.sweep(100, None)).unwrap().removed, 1),
        }
        next.offered().expect("its turn has come");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_without_a_lease_before_it_needs_no_recheck() {
    let dao = Dao::new();
    take(&dao, &request(1, [exclusive("a")]));
    assert_eq!(queue(&dao, leased(request(2, [exclusive("a")]), SECOND)).recheck, None);
    // The second one may be granted from now on, and die.
    assert_eq!(queue(&dao, request(3, [exclusive("a")])).recheck, Some(SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_learns_of_a_lease_that_begins_later() {
    let dao = Dao::new();
    let reading = take(&dao, &request(1, [shared("a")]));
    let mut writer = queue(&dao, request(2, [exclusive("a")]));
    assert_eq!(writer.recheck, None);
    let mut nested = leased(request(3, [shared("a")]), SECOND);
    nested.nested = true;
    take(&dao, &nested);
    assert!(matches!(told(&mut writer.wakeup), Some(Wake::Recheck)));
    writer = queue(&dao, writer.request);
    assert_eq!(writer.recheck, Some(SECOND));
    free(&dao, &reading);
    advance(SECOND).await;
    free(&dao, &take(&dao, &writer.request));
    assert!(dao.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unheard_offer_stands_for_five_seconds() {
    let dao = Dao::new();
    let held = take(&dao, &request(1, [exclusive("a")]));
    let gone = queue(&dao, request(2, [exclusive("a")])).request;
    let mut next = queue(&dao, request(3, [exclusive("a")]));
    free(&dao, &held);
    assert!(matches!(told(&mut next.wakeup), Some(Wake::Recheck)), "the offer can end");
    next = queue(&dao, next.request);
    assert_eq!(next.recheck, Some(5 * SECOND));
    advance(5 * SECOND).await;
    let taken = take(&dao, &next.request);
    assert_eq!(withdraw(&dao, &gone, Withdraw::KeepIfGranted), Withdrawn::Left);
    free(&dao, &taken);
    assert!(dao.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_offer_is_confirmed_by_asking_again_by_leaving_and_by_renewing() {
    for confirms in 0..3 {
        let dao = Dao::new();
        let held = take(&dao, &request(1, [exclusive("a")]));
        let mut waiter = queue(&dao, request(2, [exclusive("a")])).request;
        free(&dao, &held);
        advance(4 * SECOND).await;
        match confirms {
            0 => drop(take(&dao, &waiter)),
            1 => assert!(matches!(
                withdraw(&dao, &waiter, Withdraw::KeepIfGranted),
                Withdrawn::Holds(granted) if granted.len() == 1
            )),
            _ => {
                let fence = dao.current()[0].holders[0].fence;
                let mut held = held.clone();
                held.context = 2;
                held.locks[0].granted.fence = fence;
                assert_eq!(now(dao.renew(&held)).unwrap().lost, []);
            }
        }
        advance(3600 * SECOND).await;
        assert_eq!(dao.current()[0].holders[0].remaining, None);
        waiter.context = 3;
        drop(queue(&dao, waiter));
    }
}

#[tokio::test(start_paused = true)]
async fn an_offer_tells_how_long_it_lasts() {
    let dao = Dao::new();
    let held = take(&dao, &request(1, [exclusive("a")]));
    let mut waiter = queue(&dao, leased(request(2, [exclusive("a")]), 3 * SECOND));
    free(&dao, &held);
    let Some(Wake::Offer(offer)) = told(&mut waiter.wakeup) else { panic!("it is its turn") };
    let remaining = offer.remaining.expect("it has a lease");
    assert!(remaining > 2 * SECOND && remaining <= 3 * SECOND, "{remaining:?}");
}

#[tokio::test(start_paused = true)]
async fn fences_follow_the_clock_and_never_repeat() {
    let dao = Dao::new();
    let fence = |held: &Held| held.locks[0].granted.fence;
    let next = |context| take(&dao, &leased(request(context, [exclusive("a")]), SECOND));
    let first = next(1);
    free(&dao, &first);
    let second = next(2);
    free(&dao, &second);
    assert_eq!(fence(&second), fence(&first) + 1, "the clock stands still");
    advance(SECOND).await;
    let third = next(3);
    assert_eq!(fence(&third), fence(&first) + 1_000_000);
    free(&dao, &third);
    let permanent = take(&dao, &request(4, [exclusive("a")]));
    assert!(fence(&permanent) > fence(&third));
}

#[tokio::test(start_paused = true)]
async fn the_fence_beside_another_holder_follows_the_clock_too() {
    let dao = Dao::new();
    let fence = |held: &Held| held.locks[0].granted.fence;
    let next = |context| take(&dao, &leased(request(context, [shared("a")]), 10 * SECOND));
    let first = next(1);
    advance(SECOND).await;
    assert_eq!(fence(&next(2)), fence(&first) + 1_000_000);
}

#[test]
fn the_fence_of_a_permanent_lock_is_not_behind_the_clock() {
    for _ in 0..1000 {
        let dao = Dao::new();
        let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
        let held = take(&dao, &request(1, [exclusive("a")]));
        let ahead = u128::from(held.locks[0].granted.fence).checked_sub(before).expect("not behind");
        assert!(ahead < 10_000_000, "{ahead} us ahead");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_takes_its_batch_and_says_whether_there_is_more() {
    let dao = Dao::new();
    for n in 0..250 {
        take(&dao, &leased(request(n, [exclusive(&format!("id {n}"))]), SECOND));
    }
    let live = take(&dao, &request(1000, [exclusive("live")]));
    advance(SECOND).await;
    let sweeps: Vec<_> = (0..4).map(|_| now(dao.sweep(100, None)).unwrap()).collect();
    let removed: Vec<_> = sweeps.iter().map(|swept| (swept.removed, swept.more)).collect();
    assert_eq!(removed, [(100, true), (100, true), (50, false), (0, false)]);
    assert!(now(dao.sweep(100, Some(SECOND))).unwrap().elsewhere);
    assert_eq!(dao.len(), 1);
    free(&dao, &live);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_cleans_up_what_has_expired() {
    let dao = Dao::new();
    take(&dao, &leased(request(1, [exclusive("a")]), SECOND));
    take(&dao, &request(2, [exclusive("b")]));
    advance(SECOND).await;
    let mut never = request(3, [exclusive("a"), exclusive("b")]);
    never.queue = false;
    assert!(
        matches!(now(dao.acquire(&never)).unwrap(), Acquired::Refused(conflicts) if conflicts.len() == 1)
    );
    assert_eq!(dao.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn asking_again_never_shortens_what_is_held() {
    let dao = Dao::new();
    take(&dao, &request(1, [exclusive("a")]));
    let mut again = leased(request(1, [exclusive("a")]), SECOND);
    again.attempt = lockcore::backend::AttemptId(99);
    take(&dao, &again);
    advance(2 * SECOND).await;
    assert_eq!(dao.current()[0].holders.len(), 1);
}
