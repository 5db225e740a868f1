//! Leader election: one of many candidates leads at a time.
//!
//! A leader holds an exclusive lock under the election's name. Its *term* is the lock's fence, which is higher than that of every
//! leader before, so that a resource can refuse what a former leader writes (see [`FenceGuard`](crate::FenceGuard)). Its *value*,
//! such as its address, is the lock's owner label, which observers read; it may carry [data](Owner::with_data).
//!
//! [`Election::lead`] is a candidate that runs a callback whenever it leads, over outages and lost terms:
//!
//! ```
//! use std::time::Duration;
//!
//! use lockcore::{LockError, LockingService, election::Election};
//!
//! async fn schedule(locks: &LockingService, address: &str) -> Result<(), LockError> {
//!     let election = Election::new(locks, "scheduler").lease(Duration::from_secs(5));
//!     election
//!         .lead(address, async |held| {
//!             let term = held.fence("scheduler"); // so that a resource can refuse what a former leader writes
//!             // lead; what this returns ends the candidacy, and a lost term drops it at an await point
//! #           let _: u64 = term;
//!         })
//!         .await
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dao = lockcore::AnyLockDao::new(lockcore_memory::MemoryLockDao::<String>::new());
//! # Ok(schedule(&LockingService::new(dao), "10.0.0.7:8080").await?)
//! # }
//! ```
//!
//! [`Election::campaign`] is one term of it, as a guard, for flows that no callback fits:
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
    AnyLockDao, Backoff, Call, ContextId, Exponential, Held, Ident, Inspection, LockDao, LockError,
    LockGuard, LockingService, LostLock, Mode, Owner, StoredContext, Target, Uuid, Wait, clock,
};

/// An election under one name. All candidates and observers of a name use the same store and namespace.
pub struct Election<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    locks: LockingService<I, C, D>,
    name: I,
    target: Target<I>,
    /// `None` is the service's.
    lease: Option<Duration>,
}

/// The pause of a candidate that lost its term, so that terms that end at once keep neither the store nor the log busy.
const AFTER_LOSS: Exponential = Exponential { base: Duration::from_secs(1), max: Duration::from_secs(1) };

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
///
/// It is a [guard](LockGuard): nothing stops what is done under it when the term is lost, and calls of the service that are made
/// meanwhile do not know of it; give them [`nested`](crate::Call::nested). Under [`Election::lead`] neither is needed.
#[must_use = "dropping the leadership ends the term"]
pub struct Leadership<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    guard: LockGuard<I, C, D>,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Election<I, C, D> {
    /// Makes a handle for the election with this name; nothing is sent.
    pub fn new(locks: &LockingService<I, C, D>, name: impl Into<I>) -> Self {
        let name = name.into();
        Election { locks: locks.clone(), target: Target::Id(name.clone()), name, lease: None }
    }

    /// Sets the lease of this candidate's terms; the service's default lease unless set. It is renewed each third of it. A leader that
    /// dies is replaced when it ends, at the latest, so that it is usually shorter than that of other locks; a leader that cannot
    /// reach the store for so long loses its term. From the backend's [`min_lease`](crate::Capabilities::min_lease) to 365 days.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Leads again and again: waits until this candidate is elected, as [`campaign`](Self::campaign) does, and runs the callback for
    /// as long as the term lasts. A callback that ends by itself ends the candidacy: the term is resigned, and its value returned. If
    /// the term is lost first, the callback's future is dropped, as by [`Call::with_locks`](crate::Call::with_locks), and the
    /// candidate campaigns again after a random pause of up to a second, behind those that wait by then.
    ///
    /// The callback is given what it holds: [`fence`](Held::fence) is the term. Calls of the same service inside it know of the term.
    /// The value of a callback that has ended is returned though its term was lost meanwhile, which is
    /// [reported](crate::Event::Lost) as any loss.
    ///
    /// It outlasts what passes: a store that is away, starts, fails over or takes no writes, while this waits and while it leads; a
    /// term that an administrator broke; lost data of the store.
    ///
    /// ```
    /// use lockcore::{LockingService, election::Election};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let election = Election::new(&locks, "scheduler");
    /// let term = election.lead("10.0.0.7:8080", async |held| held.fence("scheduler")).await?;
    /// assert!(term > 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign), also in a later term; and
    /// [`LockError::HeldTooLong`](crate::LockingError::HeldTooLong) where the service has a bound on that.
    ///
    /// # Cancel safety
    /// A candidate whose future is dropped leaves the election, or ends its term in the background.
    ///
    /// # Panics
    /// If the callback does, after the term was resigned.
    // No `AsyncFnMut`: the compiler does not see that the future of such a callback is `Send`.
    pub async fn lead<F, Fut>(
        &self,
        value: impl Into<Owner>,
        mut callback: F,
    ) -> Result<Fut::Output, LockError<I, C>>
    where
        F: FnMut(Held<I, C>) -> Fut,
        Fut: Future,
    {
        let value = value.into();
        loop {
            let callback = &mut callback;
            let term = self.call(&value).outcome([&self.name], move |held| async move {
                match held.confirmed().await {
                    Ok(()) => Some(callback(held).await),
                    Err(_lost) => None,
                }
            });
            if let Some(value) = term.await?.value.flatten() {
                return Ok(value);
            }
            clock::sleep(AFTER_LOSS.delay(0)).await;
        }
    }

    /// Waits until this candidate is elected, for as long as it takes. Candidates are elected in the order of their arrival where the
    /// store keeps it ([`fifo`](crate::Capabilities::fifo)). `value` is what observers see.
    ///
    /// It outlasts what passes: a store that is away, starts, fails over or takes no writes for a while, however long. It is over with
    /// the first term: [`lead`](Self::lead) goes on.
    ///
    /// # Errors
    /// Fails if the store refuses the request for good, as by a missing right, a lease that is not possible, or a value that is too
    /// long for an owner label.
    ///
    /// # Cancel safety
    /// A candidate whose future is dropped leaves the election.
    pub async fn campaign(&self, value: impl Into<Owner>) -> Result<Leadership<I, C, D>, LockError<I, C>> {
        let value = value.into();
        loop {
            let guard = self.call(&value).lock([&self.name]).await?;
            // A lock that was handed over has to be confirmed before it lasts for a whole lease.
            if guard.held().confirmed().await.is_ok() {
                return Ok(Leadership { guard });
            }
        }
    }

    fn call(&self, value: &Owner) -> Call<'_, I, C, D> {
        let call = self.locks.wait(Wait::forever()).owner(value.clone());
        match self.lease {
            Some(lease) => call.lease(lease),
            None => call,
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
