//! Waiting in a queue by a process that is stopped at the worst of times.

use std::{
    sync::{Arc, Mutex},
    task::Waker,
    time::Duration,
};

use uuid::Uuid;

use crate::{
    AcquireRequest, Acquired, BackendError, Capabilities, Grant, Granted, LockDao, LockGuard, LockingService,
    LossReason, Mode, Moment, Offer, Released, Renewed, Wait, Wake, WakeSender, Wakeup, Withdraw, Withdrawn,
    clock::stops, service::hold::CONFIRM,
};

type Guard = LockGuard<String, Uuid, Arc<Offering>>;

const OFFERED: Duration = Duration::from_secs(10);

/// A backend that queues all requests. Its renewals have no answer, unless it `renews`.
#[derive(Debug, Default)]
struct Offering {
    queue: Mutex<Vec<WakeSender>>,
    renews: bool,
}

impl LockDao<String, Uuid> for Offering {
    fn capabilities(&self) -> Capabilities {
        Capabilities { fifo: true, push: true, ..Capabilities::minimal("offering") }
    }

    async fn acquire(
        &self,
        _request: &AcquireRequest<String, Uuid>,
    ) -> Result<Acquired<String, Uuid>, BackendError> {
        let (sender, wakeup) = Wakeup::channel();
        self.queue.lock().expect("no panic").push(sender);
        Ok(Acquired::Queued { conflicts: Vec::new(), wakeup, recheck: None })
    }

    async fn withdraw(
        &self,
        _request: &AcquireRequest<String, Uuid>,
        _how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        Ok(Withdrawn::Left)
    }

    async fn release(&self, _grant: &Grant<String, Uuid>) -> Result<Released<String>, BackendError> {
        Ok(Released { lost: Vec::new(), failed: Vec::new() })
    }

    async fn renew(&self, _grant: &Grant<String, Uuid>) -> Result<Renewed<String>, BackendError> {
        if self.renews {
            return Ok(Renewed::now(Vec::new()));
        }
        std::future::pending().await
    }
}

impl Offering {
    /// Returns how many requests are in the queue.
    fn asked(&self) -> usize {
        self.queue.lock().expect("no panic").len()
    }

    /// Hands it over to the first request, as of now; returns that moment.
    fn offer(&self) -> Moment {
        let sender = self.queue.lock().expect("no panic").remove(0);
        let granted = Granted { mode: Mode::Exclusive, fence: 1, permits: Vec::new(), in_use: 1 };
        let as_of = Moment::now();
        let offer = Offer { granted: vec![granted], remaining: Some(OFFERED) };
        sender.send_as_of(Wake::Offer(offer), as_of).expect("it listens");
        as_of
    }
}

/// Waits in the queue, is handed what it waits for, and is stopped after each look at the clock meanwhile.
/// `None` if it goes on to wait.
fn offered_to_a_stopped_process(dao: &Arc<Offering>, stop: Duration) -> Option<(Guard, Moment)> {
    let service = LockingService::new(dao.clone());
    let mut waiting = Box::pin(service.wait(Wait::forever()).lock(["a"]));
    let cx = &mut std::task::Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(cx).is_pending());
    stops::after_each_look(stop);
    let as_of = dao.offer();
    match waiting.as_mut().poll(cx) {
        std::task::Poll::Ready(guard) => Some((guard.expect("it is held"), as_of)),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn a_stop_after_any_look_at_the_clock_makes_no_offer_longer() {
    let (dao, stop) = (Arc::new(Offering::default()), Duration::from_secs(1));
    let (guard, as_of) = offered_to_a_stopped_process(&dao, stop).expect("most of the offer is left");
    let lease = guard.held().0.lease.as_ref().expect("it has a lease");
    // The second look is the later one, by the stop at least.
    let (elapsed, left) = (as_of.elapsed(), lease.left());
    assert!(elapsed + stop + left <= OFFERED, "{left:?} after {elapsed:?} and {stop:?}");
    assert!(!left.is_zero());
}

#[test]
fn a_process_stopped_until_an_offer_is_over_asks_again() {
    let dao = Arc::new(Offering::default());
    let held = offered_to_a_stopped_process(&dao, 2 * OFFERED);
    assert!(held.is_none() && dao.asked() == 1, "{held:?} after {} more questions", dao.asked());
}

/// Waits in the queue of a store that renews, or does not, and is handed what it waits for.
async fn handed_over(renews: bool) -> Guard {
    let dao = Arc::new(Offering { renews, ..Offering::default() });
    let service = LockingService::new(dao.clone());
    let offering = async {
        while dao.asked() == 0 {
            tokio::task::yield_now().await;
        }
        dao.offer()
    };
    let (guard, _) = tokio::join!(service.wait(Wait::forever()).lock(["a"]), offering);
    let guard = guard.expect("it was handed over");
    assert!(guard.held().time_left().expect("it has a lease") <= OFFERED);
    guard
}

#[tokio::test(start_paused = true)]
async fn what_is_handed_over_is_confirmed_on_demand() {
    let guard = handed_over(true).await;
    let begun = tokio::time::Instant::now();
    guard.held().confirmed().await.expect("the store renews it");
    assert!(begun.elapsed() < CONFIRM, "{:?}", begun.elapsed());
    assert!(guard.held().time_left().expect("it has a lease") > 2 * OFFERED);
    guard.held().confirmed().await.expect("it still is");
    let held = guard.held().clone();
    guard.release().await.expect("it was held");
    assert_eq!(held.confirmed().await.expect_err("it is released").lost[0].reason, LossReason::Released);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_confirmed_is_lost() {
    let guard = handed_over(false).await;
    let begun = tokio::time::Instant::now();
    let lost = guard.held().confirmed().await.expect_err("the store does not answer").lost;
    assert_eq!(lost[0].reason, LossReason::Unreachable);
    assert!(begun.elapsed() <= OFFERED, "{:?}", begun.elapsed());
}
