//! Leader election: one of many candidates leads at a time.
//!
//! A leader holds an exclusive lock under the election's name. Its *term* is the lock's fence, which is higher than that of every
//! leader before, so that a resource can refuse what a former leader writes (see [`FenceGuard`](crate::FenceGuard)). Its *value*,
//! such as its address, is the lock's owner label, which observers read; it may carry [data](Owner::with_data).
//!
//! ```
//! use lockcore::{LockingService, election::Election};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
//! let election = Election::new(&locks, "scheduler");
//! let leadership = election.campaign("10.0.0.7:8080").await?; // waits until no other candidate leads
//!
//! let leader = election.leader().await?.expect("this candidate leads");
//! assert_eq!((&*leader.value, leader.term), ("10.0.0.7:8080", leadership.term()));
//!
//! tokio::select! {
//!     lost = leadership.lost() => eprintln!("another candidate may lead now: {lost:?}"),
//!     () = async { /* lead */ } => leadership.resign().await?,
//! }
//! # Ok(())
//! # }
//! ```

use std::{fmt, time::Duration};

use futures_util::{Stream, StreamExt, future};

use crate::{
    AnyLockDao, ContextId, Held, Ident, Inspection, LockDao, LockError, LockGuard, LockingService, LostLock,
    Mode, Owner, StoredContext, Target, Uuid, Wait,
};

/// An election under one name. All candidates and observers of a name use the same store and namespace.
pub struct Election<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    locks: LockingService<I, C, D>,
    name: I,
    target: Target<I>,
}

/// The leader of a term, as an observer sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leader<C = Uuid> {
    /// The term: the fence of the leader's lock. A later leader has a higher one.
    pub term: u64,
    /// The value that the leader campaigned with.
    pub value: Owner,
    /// The context that holds the lock.
    pub context: StoredContext<C>,
}

/// The leadership of one term. It is renewed until it is dropped, which ends the term in the background.
#[must_use = "dropping the leadership ends the term"]
pub struct Leadership<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    guard: LockGuard<I, C, D>,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Election<I, C, D> {
    /// Makes a handle for the election with this name; nothing is sent.
    pub fn new(locks: &LockingService<I, C, D>, name: impl Into<I>) -> Self {
        let name = name.into();
        Election { locks: locks.clone(), target: Target::Id(name.clone()), name }
    }

    /// Waits until this candidate is elected, for as long as it takes, with the service's lease, also while the store is
    /// unavailable for a while. Candidates are elected in the order of their arrival where the store keeps
    /// it ([`fifo`](crate::Capabilities::fifo)). `value` is what observers see.
    ///
    /// # Errors
    /// Fails if the store refuses the request for good, as by a missing right or a value that is too long for an owner
    /// label.
    ///
    /// # Cancel safety
    /// A candidate whose future is dropped leaves the election.
    pub async fn campaign(&self, value: impl Into<Owner>) -> Result<Leadership<I, C, D>, LockError<I, C>> {
        let value = value.into();
        loop {
            let call = self.locks.call().wait(Wait::forever()).owner(value.clone());
            let guard = call.lock([&self.name]).await?;
            // A lock that was handed over has to be confirmed before it lasts for a whole lease.
            if guard.held().confirmed().await.is_ok() {
                return Ok(Leadership { guard });
            }
        }
    }

    /// Returns who leads, if a candidate does.
    ///
    /// # Errors
    /// Fails if the store does not answer, or has no [listing](crate::Capabilities::listing).
    pub async fn leader(&self) -> Result<Option<Leader<C>>, LockError<I, C>> {
        self.locks.admin().inspect(&self.target).await.map(leader_of)
    }

    /// Returns a stream of leaders: the present one first, then each change. `None` is a time without a leader. Looks as
    /// [`Admin::watch`](crate::Admin::watch) does, so that a leader or a time without one that is shorter than `every` may not be
    /// seen. The stream ends with the first error, as by an interval of zero.
    ///
    /// An observer learns of a new leader after it was elected, so that what it sees may be over: let the resource decide by the
    /// term.
    pub fn observe(
        &self,
        every: Duration,
    ) -> impl Stream<Item = Result<Option<Leader<C>>, LockError<I, C>>> + Send + '_ {
        let looks = self.locks.admin().looks(&self.target, every);
        let changes = looks.scan(None, |last, seen| {
            let leader = seen.map(|look| leader_of(look.seen));
            let is_known = leader.as_ref().is_ok_and(|leader| last.as_ref() == Some(leader));
            *last = leader.as_ref().ok().cloned();
            future::ready(Some((!is_known).then_some(leader)))
        });
        changes.filter_map(future::ready)
    }
}

fn leader_of<I, C>(seen: Inspection<I, C>) -> Option<Leader<C>> {
    let leads = seen.holders.into_iter().find(|holder| holder.mode == Mode::Exclusive)?;
    Some(Leader { term: leads.fence, value: leads.owner, context: leads.context })
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Leadership<I, C, D> {
    /// Returns the term: the fence of the lock, higher than that of every leader before.
    pub fn term(&self) -> u64 {
        self.guard.held().locks()[0].granted.fence
    }

    /// Returns what is held, to check for a loss or to guard writes.
    pub fn held(&self) -> &Held<I, C> {
        self.guard.held()
    }

    /// Waits until the term is lost: after that another candidate may lead. It is never later than in the store.
    ///
    /// # Cancel safety
    /// It can be called again.
    pub async fn lost(&self) -> Vec<LostLock<I>> {
        self.guard.held().lost().await
    }

    /// Ends the term, so that the next candidate is elected.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockingError::Lost) if the term was over before; when the store does not answer, the lock ends
    /// with its lease.
    pub async fn resign(self) -> Result<(), LockError<I, C>> {
        self.guard.release().await
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> fmt::Debug for Election<I, C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.name.stored()).finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> fmt::Debug for Leadership<I, C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("term", &self.term()).finish_non_exhaustive()
    }
}
