//! The DAO: converts requests and grants to their stored forms, and results back.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use lockcore::{
    BackendError, BreakMode, Broken, Capabilities, ContextId, Finding, Grant, Ident, Inspection, Listing,
    LockDao, Page, Released, Renewed, Swept, Target,
    backend::{AcquireRequest, Acquired, List, Withdraw, Withdrawn},
    protocol,
};
use uuid::Uuid;

use crate::{
    admin,
    bucket::Bucket,
    config::ObjectBuilder,
    doctor,
    driver::{self, Store, WRITES_KEPT},
    error::StoreError,
    probe,
    step::{Hold, Request, Verdict, micros},
    table::Claim,
    takeover::Scope,
};

/// A waiter asks again after this long though nothing woke it: a safety net.
const RECHECK: Duration = Duration::from_secs(10);

/// Locks in a bucket; see the [crate](crate).
pub struct ObjectLockDao<I = String, C = Uuid> {
    store: Arc<Store<Bucket>>,
    place: String,
    capabilities: Capabilities,
    types: PhantomData<fn() -> (I, C)>,
}

/// What an [`ObjectLockDao`] can do on S3.
pub const CAPABILITIES: Capabilities = Capabilities {
    // Renewals are writes, and some stores take one a second and object.
    min_lease: Duration::from_secs(10),
    default_lease: Some(Duration::from_secs(2 * protocol::DEFAULT_LEASE.as_secs())),
    max_ids: 1000,
    ..Capabilities::shared_store("s3")
};

impl<I: Ident, C: ContextId> ObjectLockDao<I, C> {
    /// Begins with default settings, to be changed before opening.
    pub fn builder() -> ObjectBuilder<I, C> {
        ObjectBuilder::new()
    }

    /// Returns how many objects were read and written so far.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn requests(&self) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        let counts = &self.store.cell.counts;
        (counts.reads.load(Relaxed), counts.writes.load(Relaxed))
    }

    fn report<T>(&self, outcome: Result<T, StoreError>) -> Result<T, BackendError> {
        outcome.map_err(|error| error.report(&self.place))
    }

    fn request(request: &AcquireRequest<I, C>) -> Arc<Request> {
        let claims = request.claims.iter();
        Arc::new(Request {
            context: request.context.stored().into_owned(),
            attempt: request.attempt.0,
            claims: claims
                .map(|claim| Claim { id: claim.target.stored().into_owned(), mode: claim.mode })
                .collect(),
            lease: driver::lease(request.lease),
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
            lease: driver::lease(grant.lease),
        }
    }

    fn scope(request: &Request) -> Scope {
        Scope {
            ids: request.claims.iter().map(|claim| claim.id.clone()).collect(),
            takes_over: true,
            grows: true,
            ..Scope::default()
        }
    }
}

impl<I: Ident, C: ContextId> ObjectBuilder<I, C> {
    /// Opens the store: asks for the service's time, and refuses a store that ignores the conditions of writes. Nothing has to
    /// be created but the bucket.
    ///
    /// # Errors
    /// [`BadSetting`](lockcore::BackendErrorKind::BadSetting) names the setting and its value;
    /// [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) says why the store cannot be used; else the reason why it
    /// gave no answer.
    pub async fn open(self) -> Result<ObjectLockDao<I, C>, BackendError> {
        let settings = self.settings;
        let place = settings.place();
        settings.check().map_err(|error| error.report(&place))?;
        let opened = settings.clone();
        let bucket = driver::hosted(async move { opened.bucket().await }).await;
        let bucket = bucket.map_err(|error| error.report(&place))?;
        let session = Uuid::new_v4().simple().to_string();
        let store = Arc::new(Store::new(bucket, session, settings.timeout));
        let probed = store.clone();
        let probe = async move { probe::has_conditional_writes(&probed.cell, &probed.session).await };
        let probed = driver::hosted(probe).await;
        probed.map_err(|error| error.report(&place))?;
        let capabilities = Capabilities {
            backend: settings.scheme(),
            min_lease: settings.min_lease(),
            default_lease: Some(settings.default_lease()),
            ..CAPABILITIES
        };
        Ok(ObjectLockDao { store, place, capabilities, types: PhantomData })
    }
}

impl<I, C> fmt::Debug for ObjectLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectLockDao").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId> LockDao<I, C> for ObjectLockDao<I, C> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        let stored = Self::request(request);
        // Before the place is taken: what is handed over at once must not be missed.
        let wakeup = request.queue.then(|| self.store.waiters.add(stored.attempt));
        let asked = stored.clone();
        let verdict = self.store.submit(Self::scope(&stored), move |step| step.acquire(&asked)).await;
        let queued = matches!(verdict, Ok(Verdict::Queued(_)));
        let wakeup = match wakeup {
            Some(wakeup) if queued => {
                self.store.waiters.note(&stored.attempt, stored.clone());
                self.store.watch();
                Some(wakeup)
            }
            Some(_) => {
                self.store.waiters.remove(&stored.attempt);
                None
            }
            None => None,
        };
        match (self.report(verdict)?, wakeup) {
            (Verdict::Granted(granted), _) => Ok(Acquired::Granted(granted.into())),
            (Verdict::Queued(conflicts), Some(wakeup)) => {
                let conflicts = request.conflicts(conflicts);
                Ok(Acquired::Queued { conflicts, wakeup, recheck: Some(RECHECK) })
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
        let stored = Self::request(request);
        self.store.waiters.remove(&stored.attempt);
        let scope = Scope { grows: false, ..Self::scope(&stored) };
        let held = self.store.submit(scope, move |step| step.withdraw(&stored, how)).await;
        Ok(self.report(held)?.map_or(Withdrawn::Left, |granted| Withdrawn::Holds(List::from(granted))))
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        let hold = Self::hold(grant);
        let ids = hold.locks.iter().map(|(id, _)| id.clone()).collect();
        let scope = Scope { ids, takes_over: true, ..Scope::default() };
        let losses = self.report(self.store.submit(scope, move |step| step.release(&hold)).await)?;
        Ok(Released { lost: grant.losses(losses), failed: Vec::new() })
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let hold = Self::hold(grant);
        let store = self.store.clone();
        let losses = driver::hosted(async move { store.renew(hold).await }).await;
        Ok(Renewed { lost: grant.losses(self.report(losses)?) })
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        let context = context.stored().into_owned();
        let scope = Scope { all: true, takes_over: true, ..Scope::default() };
        let freed = self.store.submit(scope, move |step| step.release_context(&context)).await;
        Ok(self.report(freed)?.iter().filter_map(|stored| Target::from_stored(stored)).collect())
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        let page = page.clone();
        let scope = Scope { all: true, shows: true, ..Scope::default() };
        let found = self.report(self.store.submit(scope, move |step| admin::list(step, &page)).await)?;
        Ok(Listing { ids: found.ids.into_iter().map(Inspection::typed).collect(), next: found.next })
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        let id = target.stored().into_owned();
        let scope = Scope { ids: vec![id.clone()], shows: true, ..Scope::default() };
        Ok(self.report(self.store.submit(scope, move |step| admin::inspect(step, &id)).await)?.typed())
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        let (id, by) = (target.stored().into_owned(), by.to_owned());
        let (ids, closes) = (vec![id.clone()], Some((id.clone(), fence)));
        let scope = Scope { ids, takes_over: true, closes, ..Scope::default() };
        let broken = self.store.submit(scope, move |step| step.break_lock(&id, fence, how, &by)).await;
        self.report(broken)
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        let id = target.stored().into_owned();
        let scope = Scope { ids: vec![id.clone()], takes_over: true, ..Scope::default() };
        self.report(self.store.submit(scope, move |step| step.freeze(&id, frozen)).await)
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        let scope = Scope { all: true, takes_over: true, ..Scope::default() };
        let within = unless_within.map(micros);
        let swept = self.store.submit(scope, move |step| {
            match within.is_some_and(|within| step.now.lo.saturating_sub(step.table.swept) < within) {
                true => Swept { elsewhere: true, ..Swept::default() },
                false => {
                    let (removed, more) = step.sweep(batch, WRITES_KEPT);
                    Swept { removed, more, ..Swept::default() }
                }
            }
        });
        let swept = self.report(swept.await)?;
        if swept.elsewhere {
            return Ok(swept);
        }
        let store = self.store.clone();
        let collected = driver::hosted(async move { store.collect(batch).await }).await;
        self.report(collected).map(|()| swept)
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        let store = self.store.clone();
        let findings = driver::hosted(async move { doctor::examine(&store).await }).await;
        self.report(findings)
    }
}
