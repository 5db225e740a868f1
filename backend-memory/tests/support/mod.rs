//! Hands for the tests of this backend: every step of it ends at the first poll, so no runtime is needed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use lockcore::{
    Claim, ClaimSet, Conflict, Grant, LockDao, Mode, Owner,
    backend::{AcquireRequest, Acquired, AttemptId, Wake, Wakeup, Withdraw, Withdrawn},
};
use lockcore_memory::MemoryLockDao;

/// The backend under test: contexts are numbers, so that tests can name them.
pub(crate) type Dao = MemoryLockDao<String, u64>;

pub(crate) type Held = Grant<String, u64>;

/// The output of a step of the backend.
pub(crate) fn now<F: Future>(step: F) -> F::Output {
    match pin!(step).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a step of this backend ends at its first poll"),
    }
}

/// What the waiter was told by now.
pub(crate) fn told(wakeup: &mut Wakeup) -> Option<Wake> {
    match pin!(wakeup.recv()).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(wake) => Some(wake),
        Poll::Pending => None,
    }
}

pub(crate) fn exclusive(id: &str) -> Claim<String> {
    Claim::exclusive(id.to_owned())
}

/// A request that waits in the queue, without a lease.
pub(crate) fn request(
    context: u64,
    claims: impl IntoIterator<Item = Claim<String>>,
) -> AcquireRequest<String, u64> {
    AcquireRequest {
        context,
        attempt: AttemptId(context),
        claims: ClaimSet::new(claims, Mode::Exclusive).expect("the tests ask for valid claims"),
        lease: None,
        owner: Owner::default(),
        queue: true,
        nested: false,
        detached: false,
    }
}

/// A request for one set, and what became of it.
pub(crate) struct Asked {
    pub(crate) request: AcquireRequest<String, u64>,
    pub(crate) conflicts: Vec<Conflict<String, u64>>,
    pub(crate) wakeup: Wakeup,
    pub(crate) recheck: Option<Duration>,
}

/// Takes the set, which is free.
pub(crate) fn take(dao: &Dao, request: &AcquireRequest<String, u64>) -> Held {
    match now(dao.acquire(request)).unwrap() {
        Acquired::Granted(granted) => grant(request, granted),
        other => panic!("not granted: {other:?}"),
    }
}

/// Takes a place in the queue for the set, which is not free.
pub(crate) fn queue(dao: &Dao, request: AcquireRequest<String, u64>) -> Asked {
    match now(dao.acquire(&request)).unwrap() {
        Acquired::Queued { conflicts, wakeup, recheck } => Asked { request, conflicts, wakeup, recheck },
        other => panic!("not queued: {other:?}"),
    }
}

pub(crate) fn grant(request: &AcquireRequest<String, u64>, granted: Vec<lockcore::Granted>) -> Held {
    Grant::new(request.context, request.claims.clone(), granted, request.lease)
}

/// Releases all of it.
pub(crate) fn free(dao: &Dao, held: &Held) {
    let released = now(dao.release(held)).unwrap();
    assert_eq!(released.lost, []);
}

pub(crate) fn withdraw(dao: &Dao, request: &AcquireRequest<String, u64>, how: Withdraw) -> Withdrawn {
    now(dao.withdraw(request, how)).unwrap()
}

impl Asked {
    /// What it was offered by now.
    pub(crate) fn offered(&mut self) -> Option<Held> {
        match told(&mut self.wakeup)? {
            Wake::Offer(offer) => Some(grant(&self.request, offer.granted)),
            Wake::Recheck => panic!("told to ask again"),
        }
    }
}
