//! The DAO. Each of its steps is done under one mutex, and completes at its first poll.
//!
//! # Invariants
//!
//! 1. What may be taken, and who is next, `lockcore::engine` decides; `step.rs` is the table that it asks.
//! 2. No waiter is notified, and no sender dropped, while the table is locked: waking runs foreign code.
//! 3. Every waiter repeats its request, or was notified to, no later than the end of every lease on its ids.
//! 4. An id that is neither held, waited for nor frozen takes no memory.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{
    AnyLockDao, BackendError, BackendErrorKind, BreakMode, Broken, Capabilities, Conflict, ContextId,
    Finding, Grant, Ident, Inspection, Listing, LockDao, LossReason, LostLock, Page, Released, Renewed,
    Swept, Target,
    backend::{AcquireRequest, Acquired, Withdraw, Withdrawn},
    engine::{self, Losses, Reasons, Verdict},
};
use uuid::Uuid;

use crate::{
    clock::{Clock, Lease},
    history::{Event, History, What},
    step::{Step, with_fences, without_fences},
    table::Table,
};

/// Locks among the tasks and threads of one process; see the [crate's documentation](crate).
///
/// It is not `Clone`: give the service an `Arc` of it to keep a handle.
pub struct MemoryLockDao<I = String, C = Uuid> {
    table: Mutex<Table<I, C>>,
    clock: Clock,
}

/// As a backend that is chosen at run time, which a plain `LockingService` has.
///
/// ```
/// use lockcore::LockingService;
/// use lockcore_memory::MemoryLockDao;
///
/// let locks: LockingService = LockingService::new(MemoryLockDao::new().into());
/// ```
impl<I: Ident, C: ContextId> From<MemoryLockDao<I, C>> for AnyLockDao<I, C> {
    fn from(dao: MemoryLockDao<I, C>) -> Self {
        AnyLockDao::new(dao)
    }
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
        MemoryLockDao { table: Mutex::default(), clock: Clock::new() }
    }

    /// Keeps a history of the latest events, at most `capacity`.
    #[must_use]
    pub fn with_history(self, capacity: usize) -> Self {
        self.table().history = Some(History::new(capacity));
        self
    }

    /// Returns the latest events, oldest first; none without [`with_history`](Self::with_history).
    pub fn history(&self) -> Vec<Event<I, C>> {
        self.table().history.iter().flat_map(History::events).cloned().collect()
    }

    /// Lists all ids that are held, queued for or frozen, ordered by stored form.
    pub fn current(&self) -> Vec<Inspection<I, C>> {
        self.list_now(&Page { after: None, limit: usize::MAX }).ids
    }

    /// Returns how many ids are held, queued for or frozen, including ids whose locks have expired but were not cleaned up yet.
    pub fn len(&self) -> usize {
        self.table().ids.len()
    }

    /// Returns whether no id is held, queued for or frozen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns for how many ids the table has room.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.table().ids.capacity()
    }

    /// Locks the table. A panic of the user's `Clone`, `Eq` or `Hash` leaves one call half done and no more.
    fn table(&self) -> MutexGuard<'_, Table<I, C>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a step, grants what it has room for to those who wait for it, and notifies them (invariant 2).
    fn step<T>(&self, step: impl FnOnce(&mut Step<'_, I, C>) -> T) -> T {
        let mut table = self.table();
        let mut under_way = Step::new(&mut table, &self.clock);
        let done = step(&mut under_way);
        under_way.serve();
        let after = under_way.after;
        drop(table);
        after.notify(&self.clock);
        done
    }

    pub(crate) fn acquire_now(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        self.step(|step| {
            let Ok(verdict) = engine::acquire(step, request);
            match verdict {
                Verdict::Granted(granted) => {
                    step.record(What::Granted, &request.context, || with_fences(request, &granted));
                    Ok(Acquired::Granted(granted))
                }
                Verdict::Refused(reasons) => {
                    step.record(What::Refused, &request.context, || without_fences(request));
                    Ok(Acquired::Refused(conflicts(request, reasons)))
                }
                Verdict::Queued(reasons) => {
                    let (wakeup, rechecks) = step.wakeup.take().expect("a place comes with a wake-up");
                    let (conflicts, recheck) = (conflicts(request, reasons), rechecks.remaining(step.now));
                    Ok(Acquired::Queued { conflicts, wakeup, recheck })
                }
                Verdict::Withdrawn => {
                    Err(BackendError::new(BackendErrorKind::Withdrawn, "the attempt was withdrawn before"))
                }
            }
        })
    }

    pub(crate) fn withdraw_now(&self, request: &AcquireRequest<I, C>, how: Withdraw) -> Withdrawn {
        self.step(|step| {
            let Ok(ticket) = engine::Table::ticket(step, request);
            if ticket.is_some() {
                step.record(What::Withdrawn, &request.context, || without_fences(request));
            }
            let Ok(kept) = engine::withdraw(step, request, how);
            let undone = std::mem::take(&mut step.undone);
            if !undone.is_empty() {
                step.record(What::Withdrawn, &request.context, || undone);
            }
            kept.map_or(Withdrawn::Left, Withdrawn::Holds)
        })
    }

    pub(crate) fn release_now(&self, grant: &Grant<I, C>) -> Released<I> {
        self.step(|step| {
            let locks = grant.locks.iter().map(|lock| (&lock.target, lock.granted.fence));
            let Ok(lost) = engine::release(step, &grant.context, locks);
            let is_lost = |position: usize| lost.iter().any(|(at, _)| *at == position);
            step.record(What::Released, &grant.context, || {
                let freed = grant.locks.iter().enumerate().filter(|(position, _)| !is_lost(*position));
                freed.map(|(_, lock)| (lock.target.clone(), Some(lock.granted.fence))).collect()
            });
            Released { lost: losses(grant, lost), failed: Vec::new() }
        })
    }

    pub(crate) fn renew_now(&self, grant: &Grant<I, C>, shortens: bool) -> Renewed<I> {
        self.step(|step| {
            let (context, lease) = (&grant.context, Lease::of(grant.lease));
            let ends = step.now.after(lease);
            let locks = grant.locks.iter().map(|lock| (&lock.target, lock.granted.fence));
            let Ok(lost) = engine::renew(step, context, locks, |step, id, _| {
                match shortens {
                    true => step.set_end(id, context, (lease, ends), None),
                    false => step.extend(id, context, (lease, ends), None),
                }
                Ok(())
            });
            Renewed::now(losses(grant, lost))
        })
    }

    pub(crate) fn list_now(&self, page: &Page) -> Listing<I, C> {
        self.table().list(page, self.clock.now(), &self.clock)
    }

    pub(crate) fn inspect_now(&self, target: &Target<I>) -> Inspection<I, C> {
        self.table().inspect(target, self.clock.now(), &self.clock)
    }
}

fn conflicts<I: Ident, C: ContextId>(
    request: &AcquireRequest<I, C>,
    reasons: Reasons<C>,
) -> Vec<Conflict<I, C>> {
    let target = |position: usize| request.claims[position].target.clone();
    reasons.into_iter().map(|(position, reason)| Conflict { target: target(position), reason }).collect()
}

fn losses<I: Ident, C: ContextId>(grant: &Grant<I, C>, lost: Losses) -> Vec<LostLock<I>> {
    let lost_lock = |(position, reason): (usize, LossReason)| {
        let lock = &grant.locks[position];
        LostLock { target: lock.target.clone(), fence: lock.granted.fence, reason }
    };
    lost.into_iter().map(lost_lock).collect()
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

impl<I: Ident, C: ContextId> LockDao<I, C> for MemoryLockDao<I, C> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // A process that dies takes this backend along.
            shared_store: false,
            push: true,
            shortening: true,
            permanent: true,
            min_lease: Duration::from_millis(1),
            default_lease: None,
            max_ids: usize::MAX,
            ..Capabilities::shared_store("memory")
        }
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        self.acquire_now(request)
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        Ok(self.withdraw_now(request, how))
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        Ok(self.release_now(grant))
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        Ok(self.renew_now(grant, false))
    }

    async fn shorten(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        Ok(self.renew_now(grant, true))
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        Ok(self.step(|step| step.release_context(context)))
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        Ok(self.list_now(page))
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        Ok(self.inspect_now(target))
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        Ok(self.step(|step| step.break_lock(target, fence, how, by)))
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        self.step(|step| step.freeze(target, frozen));
        Ok(())
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        Ok(self.step(|step| step.sweep(batch, unless_within)))
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        Ok(self.table().findings())
    }
}
