//! The DAO and its invariants. Every step completes at its first poll.
//!
//! # Invariants
//!
//! 1. A thread has at most one [`Locked`](crate::table::Locked). It locks its shards in ascending order,
//!    each once, and takes no further one: so shards never deadlock. The mutexes of the history and of a
//!    waiter's sender are leaves, taken last and briefly.
//! 2. Whether a set can be granted is decided, and the set granted, under the locks of all its shards
//!    without a break in between.
//! 3. A waiter is in the queues of all its ids or of none, and that changes only under the locks of all
//!    its shards. So when the hand-off has to give locks up in order to take more of them, no request that
//!    obeys the queue can pass; it then chooses again, and grants only under all locks that it needs.
//! 4. A step that makes room on an id with waiters - removes a row or a place, or thaws it - notes it as
//!    freed and serves its queue before it ends.
//! 5. No waiter is notified, and no sender dropped, while a shard is locked: waking runs foreign code.
//! 6. Every waiter repeats its request, or was notified to, no later than the end of every lease on its ids.
//! 7. Fences of a shard only grow; each is chosen under the shard's lock, by the step that grants.

use std::{fmt, time::Duration};

use futures_util::stream::BoxStream;
use lockcore::{
    BackendError, BreakMode, Broken, Capabilities, ContextId, Finding, Grant, Ident, Inspection, Listing,
    LockDao, Page, Released, Renewed, Swept, Target,
    backend::{AcquireRequest, Acquired, Withdraw, Withdrawn},
};
use uuid::Uuid;

use crate::{
    admin::Sweeping,
    clock::Clock,
    history::{Event, History, What},
    sync::{AtomicU64, Mutex},
    table::{MAX_SHARDS, Tables},
    watchers::Watchers,
};

/// Locks among the tasks and threads of one process; see the [crate's documentation](crate).
///
/// It is not `Clone`: give the service an `Arc` of it to keep a handle.
pub struct MemoryLockDao<I = String, C = Uuid> {
    pub(crate) tables: Tables<I, C>,
    pub(crate) clock: Clock,
    /// The number of the next waiter, from 1. Taken only under the locks of the waiter's set, so that numbers in every queue are in
    /// the order of arrival.
    pub(crate) arrivals: AtomicU64,
    pub(crate) history: Option<History<I, C>>,
    pub(crate) sweeping: Mutex<Sweeping>,
    pub(crate) watchers: Watchers,
}

impl<I: Ident, C: ContextId> MemoryLockDao<I, C> {
    /// Creates a backend in which nothing is locked.
    ///
    /// Keep an [`Arc`](std::sync::Arc) of it to look behind the service, which a test may want:
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use lockcore::LockingService;
    /// use lockcore_memory::MemoryLockDao;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let dao = Arc::new(MemoryLockDao::<String>::new());
    /// let locks = LockingService::new(dao.clone());
    /// let guard = locks.lock(["report.csv"]).await?;
    /// assert_eq!(dao.current().len(), 1);
    /// guard.release().await?;
    /// assert!(dao.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Self {
        MemoryLockDao {
            tables: Tables::new(MAX_SHARDS),
            clock: Clock::new(),
            arrivals: AtomicU64::new(1),
            history: None,
            sweeping: Mutex::new(Sweeping::default()),
            watchers: Watchers::default(),
        }
    }

    /// Sets the number of shards, rounded up to a power of two and at most 64, which is the default:
    /// fewer take less memory, more allow more threads to work at once.
    ///
    /// To be called before the first use: it drops all locks.
    #[must_use]
    pub fn with_shards(mut self, shards: usize) -> Self {
        self.tables = Tables::new(shards);
        self
    }

    /// Keeps a history of the latest events, at most `capacity`.
    #[must_use]
    pub fn with_history(mut self, capacity: usize) -> Self {
        self.history = Some(History::new(capacity));
        self
    }

    /// Returns the latest events, oldest first; none without [`with_history`](Self::with_history).
    pub fn history(&self) -> Vec<Event<I, C>> {
        self.history.as_ref().map(History::events).unwrap_or_default()
    }

    /// Returns how many ids are held, queued for or frozen, including ids whose locks have expired but were not cleaned up yet.
    /// Locks one shard after the other.
    pub fn len(&self) -> usize {
        (0..self.tables.shard_count())
            .map(|shard| self.tables.lock(1 << shard).tables().map(|table| table.len()).sum::<usize>())
            .sum()
    }

    /// Returns whether no id is held, queued for or frozen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Does a step and has the watchers look again.
    pub(crate) fn notifying<T>(&self, step: impl FnOnce() -> T) -> T {
        let done = step();
        self.watchers.notify();
        done
    }

    /// Records an event, if there is a history.
    pub(crate) fn record(
        &self,
        what: What,
        context: &C,
        now: impl FnOnce() -> crate::clock::StoreTime,
        ids: impl FnOnce() -> Vec<(Target<I>, Option<u64>)>,
    ) {
        if let Some(history) = &self.history {
            let at = self.clock.calendar(now());
            history.add(Event { what, context: context.clone(), ids: ids(), at });
        }
    }
}

impl<I: Ident, C: ContextId> Default for MemoryLockDao<I, C> {
    fn default() -> Self {
        MemoryLockDao::new()
    }
}

impl<I, C> fmt::Debug for MemoryLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLockDao").finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<I: Ident, C: ContextId> LockDao<I, C> for MemoryLockDao<I, C> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // A process that dies takes this backend along.
            shared_store: false,
            push: true,
            push_changes: true,
            shortening: true,
            permanent: true,
            min_lease: Duration::from_millis(1),
            default_lease: None,
            max_ids: usize::MAX,
            ..Capabilities::shared_store("memory")
        }
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        self.notifying(|| self.acquire_now(request))
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        Ok(self.notifying(|| self.withdraw_now(request, how)))
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        Ok(self.notifying(|| self.release_now(grant)))
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        Ok(self.renew_now(grant))
    }

    async fn shorten(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        Ok(self.notifying(|| self.shorten_now(grant)))
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        Ok(self.notifying(|| self.release_context_now(context)))
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        Ok(self.list_now(page))
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        Ok(self.inspect_now(target))
    }

    fn watch<'w>(
        &'w self,
        target: &'w Target<I>,
        every: Duration,
    ) -> BoxStream<'w, Result<Inspection<I, C>, BackendError>> {
        self.watch_now(target, every)
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        Ok(self.notifying(|| self.break_now(target, fence, how, by)))
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        self.notifying(|| self.freeze_now(target, frozen));
        Ok(())
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        Ok(self.notifying(|| self.sweep_now(batch, unless_within)))
    }

    async fn migrate(&self) -> Result<(), BackendError> {
        Ok(())
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        Ok(self.findings())
    }
}
