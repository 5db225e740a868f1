//! The DAO: converts requests and grants to their stored forms, and results back.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use lockcore::{
    BackendError, BreakMode, Broken, Capabilities, ContextId, Finding, Grant, Ident, Inspection, Listing,
    LockDao, Page, Released, Renewed, Swept, Target,
    backend::{AcquireRequest, Acquired, Wakeup, Withdraw, Withdrawn, unique_name},
    protocol,
};
use uuid::Uuid;

use crate::{
    admin,
    cell::Cell,
    doctor,
    error::StoreError,
    halves::Halves,
    parts::Part,
    probe,
    request::{Hold, Request},
    step::{Losses, Step, Verdict},
    store::{Store, hosted},
    table::{Claim, micros},
    takeover::Scope,
    verify,
};

/// The time after which a waiter without a place asks again.
const WITHOUT_PLACE: Duration = Duration::from_secs(1);

/// Locks in the cells of a store; see the [crate](crate).
pub struct CellLockDao<L: Cell, I = String, C = Uuid> {
    pub(crate) store: Arc<Store<L>>,
    place: String,
    capabilities: Capabilities,
    types: PhantomData<fn() -> (I, C)>,
}

/// The settings of a [`CellLockDao`], which an adapter fills in.
#[derive(Clone, Debug)]
pub struct CellSettings {
    /// The name of the store and the namespace in messages, without secrets.
    pub place: String,
    /// The name of the way to the store, without secrets: its address, and the place in it. A namespace that was seen
    /// to keep conditions on this way is not probed again; a copy of it elsewhere, or one behind a proxy, is.
    pub way: String,
    /// The time for one step with all its tries.
    pub timeout: Duration,
    /// The abilities: those of a [`shared_store`](Capabilities::shared_store) with the leases that the store allows.
    pub capabilities: Capabilities,
}

impl CellSettings {
    /// Returns usual settings for a store: a step may take 10 s, leases are 10 s at least and 60 s by default, and a set has at
    /// most 1000 ids.
    pub fn new(backend: &'static str, place: impl Into<String>) -> Self {
        let (place, capabilities) = (place.into(), Self::capabilities(backend));
        CellSettings { way: place.clone(), place, timeout: Duration::from_secs(10), capabilities }
    }

    /// Returns the abilities of [`new`](Self::new).
    pub const fn capabilities(backend: &'static str) -> Capabilities {
        Capabilities {
            // Renewals are writes, and some stores take one a second and cell.
            min_lease: Duration::from_secs(10),
            default_lease: Some(Duration::from_secs(2 * protocol::DEFAULT_LEASE.as_secs())),
            max_ids: 1000,
            ..Capabilities::shared_store(backend)
        }
    }
}

impl<L: Cell, I: Ident, C: ContextId> CellLockDao<L, I, C> {
    /// Opens a store, and refuses one that ignores the conditions of writes. Nothing has to be created.
    ///
    /// # Errors
    /// [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) says why the store cannot be used; else the reason why it gave
    /// no answer.
    pub async fn open(cell: L, settings: CellSettings) -> Result<Self, BackendError> {
        let CellSettings { place, way, timeout, mut capabilities } = settings;
        if cell.at_once() > 1 {
            capabilities.max_ids = capabilities.max_ids.min(cell.at_once());
        }
        let store = Arc::new(Store::new(cell, unique_name(), timeout, way));
        let opened = store.clone();
        let store = hosted(async move {
            // A namespace that was used before needs no probe.
            let rest = [Part::rest()];
            opened.look(&rest).await?;
            if opened.view(&rest).table.probed != opened.way {
                probe::has_conditional_writes(&opened.cell).await?;
                if opened.is_apart() {
                    let way = opened.way.clone();
                    let note = move |step: &mut Step<'_>| step.table.probed.clone_from(&way);
                    opened.submit(rest.to_vec(), note).await?;
                }
            }
            Ok(opened)
        });
        let store = store.await.map_err(|error| error.report(&place))?;
        Ok(CellLockDao { store, place, capabilities, types: PhantomData })
    }

    /// Returns the cells.
    pub fn cell(&self) -> &L {
        &self.store.cell
    }

    fn report<T>(&self, outcome: Result<T, StoreError>) -> Result<T, BackendError> {
        outcome.map_err(|error| error.report(&self.place))
    }

    fn request(request: &AcquireRequest<I, C>) -> Arc<Request> {
        let claims = request.claims.iter();
        Arc::new(Request {
            context: request.context.stored().into_owned(),
            attempt: request.attempt.0,
            claims: claims.map(|claim| Claim::new(claim.target.stored(), claim.mode)).collect(),
            lease: lease(request.lease),
            owner: (*request.owner).to_owned(),
            queue: request.queue,
            nested: request.nested,
        })
    }

    fn hold(grant: &Grant<I, C>) -> Hold {
        let locks = grant.locks.iter();
        Hold {
            context: grant.context.stored().into_owned(),
            locks: locks.map(|lock| (lock.target.stored().into_owned(), lock.granted.fence)).collect(),
            lease: lease(grant.lease),
        }
    }

    /// Asks for a set of which a write with a place in the queue is too long: it waits without one, and asks again.
    async fn acquired_without_place(
        &self,
        request: &AcquireRequest<I, C>,
        stored: &Request,
    ) -> Result<Acquired<I, C>, StoreError> {
        self.store.leave_queue(stored).await?;
        let looks = Arc::new(Request { queue: false, ..stored.clone() });
        Ok(match self.store.acquire(&looks).await? {
            Verdict::Granted(granted) => Acquired::Granted(granted),
            Verdict::Refused(conflicts) | Verdict::Queued(conflicts) => Acquired::Queued {
                conflicts: request.conflicts(conflicts),
                wakeup: Wakeup::never(),
                recheck: Some(WITHOUT_PLACE),
            },
            Verdict::Withdrawn => return Err(StoreError::Withdrawn),
        })
    }

    async fn renewed(&self, grant: &Grant<I, C>, is_last: bool) -> Result<Renewed<I>, BackendError> {
        let (store, hold) = (self.store.clone(), Self::hold(grant));
        let (losses, since) = self.report(hosted(async move { store.renew(hold, is_last).await }).await)?;
        Ok(Renewed { lost: grant.losses(losses), since })
    }

    async fn released(&self, hold: Hold) -> Result<Losses, StoreError> {
        let store = self.store.clone();
        let released = async move {
            store.table_with(&hold, |_| true).await?;
            store.submit(store.parts(hold.ids()), move |step| step.release(&hold)).await
        };
        hosted(released).await
    }
}

impl<L: Cell, I, C> fmt::Debug for CellLockDao<L, I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CellLockDao").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<L: Cell, I: Ident, C: ContextId> LockDao<I, C> for CellLockDao<L, I, C> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        let stored = Self::request(request);
        // Before the place is taken: what is handed over at once must not be missed.
        let wakeup = request.queue.then(|| self.store.waiters.add(stored.attempt));
        // In a box, as is what it seldom needs: callers' futures, and their stacks in debug builds, are as large as this.
        let verdict = match Box::pin(self.store.acquire(&stored)).await {
            Err(StoreError::Full { in_doubt: false, .. }) if request.queue && self.store.is_apart() => {
                self.store.waiters.remove(&stored.attempt);
                return self.report(Box::pin(self.acquired_without_place(request, &stored)).await);
            }
            verdict => verdict,
        };
        let queued = matches!(verdict, Ok(Verdict::Queued(_)));
        let wakeup = match wakeup {
            Some(wakeup) if queued => {
                self.store.waiters.note(&stored.attempt, stored.clone());
                self.store.watch(&stored);
                if let Some(error) = self.store.refusal() {
                    self.store.waiters.remove(&stored.attempt);
                    // It has a place, to be withdrawn.
                    return self.report(Err(error)).map_err(BackendError::possibly_done);
                }
                Some(wakeup)
            }
            Some(_) => {
                self.store.waiters.remove(&stored.attempt);
                None
            }
            None => None,
        };
        match (self.report(verdict)?, wakeup) {
            (Verdict::Granted(granted), _) => Ok(Acquired::Granted(granted)),
            (Verdict::Queued(conflicts), Some(wakeup)) => {
                let conflicts = request.conflicts(conflicts);
                Ok(Acquired::Queued { conflicts, wakeup, recheck: Some(protocol::RECHECK) })
            }
            (Verdict::Refused(conflicts) | Verdict::Queued(conflicts), _) => {
                Ok(Acquired::Refused(request.conflicts(conflicts)))
            }
            (Verdict::Withdrawn, _) => self.report(Err(StoreError::Withdrawn)),
        }
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        let (store, stored) = (&self.store, Self::request(request));
        store.waiters.remove(&stored.attempt);
        let parts = store.parts(stored.ids());
        let (is_apart, withdrawn) = (store.is_apart() && parts.len() > 1, stored.clone());
        let held = match store.submit(parts, move |step| step.withdraw(&withdrawn, how)).await {
            // Also if it were to be kept: what is granted meanwhile is undone.
            Err(error) if is_apart && error.is_of_some() => {
                store.undo_each(&stored, error.is_of_content()).await.map(|()| None)
            }
            held => held,
        };
        Ok(self.report(held)?.map_or(Withdrawn::Left, Withdrawn::Holds))
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        let hold = Self::hold(grant);
        self.store.own.renews_no_more(hold.locks.iter().map(|(_, fence)| *fence));
        let Halves { lost, failed } =
            self.report(self.store.in_halves(hold, |half| self.released(half)).await)?;
        let failed = failed.into_iter().flat_map(|(positions, error)| {
            let error = error.report(&self.place);
            grant.locks[positions].iter().map(move |lock| (lock.target.clone(), error.clone()))
        });
        Ok(Released { failed: failed.collect(), lost: grant.losses(lost) })
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        self.renewed(grant, false).await
    }

    async fn shorten(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let renewed = self.renewed(grant, true).await;
        // It was the last renewal: the heartbeat leaves it alone.
        self.store.own.renews_no_more(grant.locks.iter().map(|lock| lock.granted.fence));
        renewed
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        let (store, context) = (self.store.clone(), context.stored().into_owned());
        let freed = self.report(hosted(async move { store.release_context(context).await }).await)?;
        Ok(freed.iter().filter_map(|stored| Target::from_stored(stored)).collect())
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        let (store, page) = (self.store.clone(), page.clone());
        let found = self.report(hosted(async move { store.list(page).await }).await)?;
        Ok(Listing { ids: found.ids.into_iter().map(Inspection::typed).collect(), next: found.next })
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        let id = target.stored().into_owned();
        self.report(
            self.store.prepared(&Scope { ids: vec![id.clone()], shows: true, ..Scope::default() }).await,
        )?;
        let parts = self.store.parts([&id]);
        Ok(self.report(self.store.submit(parts, move |step| admin::inspect(step, &id)).await)?.typed())
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        let (id, by) = (target.stored().into_owned(), by.to_owned());
        let scope = Scope { ids: vec![id.clone()], closes: Some((id.clone(), fence)), ..Scope::default() };
        let prepared = self.report(self.store.prepared(&scope).await)?;
        if let Some(error) = prepared.failed.into_values().next() {
            // A lock that is not closed to renewal would go on.
            return self.report(Err(error));
        }
        let parts = self.store.parts([&id]);
        let broken = self.store.submit(parts, move |step| step.break_lock(&id, fence, how, &by)).await;
        self.report(broken)
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        let id = target.stored().into_owned();
        let parts = self.store.parts([&id]);
        self.report(self.store.submit(parts, move |step| step.freeze(&id, frozen)).await)
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        let (store, within) = (self.store.clone(), unless_within.map(micros));
        self.report(hosted(async move { store.sweep(batch, within).await }).await)
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        let store = self.store.clone();
        let findings = hosted(async move { doctor::examine(&store).await }).await;
        self.report(findings)
    }

    async fn verify(&self, time: Duration) -> Result<Vec<Finding>, BackendError> {
        let store = self.store.clone();
        let findings = hosted(async move { verify::verify(&store, time).await }).await;
        self.report(findings)
    }
}

/// Converts a lease. `permanent` is not declared, so that every lease that arrives here is finite.
fn lease(lease: Option<Duration>) -> u64 {
    micros(lease.unwrap_or(Duration::MAX))
}
