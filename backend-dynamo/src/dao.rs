//! The DAO: converts requests and grants to their stored forms, and results back.

use std::{fmt, marker::PhantomData, time::Duration};

use lockcore::{
    BackendError, BreakMode, Broken, Capabilities, ContextId, Finding, Grant, Ident, Inspection, Listing,
    LockDao, Mode, Page, Released, Renewed, Target,
    backend::{AcquireRequest, Acquired, Withdraw, Withdrawn},
};
use uuid::Uuid;

use crate::{
    acquire::Decision,
    admin,
    config::{DynamoBuilder, TRANSACTION},
    error::StoreError,
    release::{StoredGrant, StoredLock},
    request::{Request, StoredClaim},
    schema::Schema,
    store::Store,
};

/// Locks in a DynamoDB table; see the [crate](crate).
pub struct DynamoLockDao<I = String, C = Uuid> {
    store: Store,
    types: PhantomData<fn() -> (I, C)>,
}

impl<I: Ident, C: ContextId> DynamoLockDao<I, C> {
    /// Opens the table with this name or ARN, with default settings: the SDK's usual chain decides region and credentials.
    ///
    /// ```no_run
    /// use lockcore_dynamo::DynamoLockDao;
    ///
    /// # async fn example() -> Result<(), lockcore::BackendError> {
    /// let dao = DynamoLockDao::<String>::open("locks").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`DynamoBuilder::open`].
    pub async fn open(table: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().table(table).open().await
    }

    /// Begins with default settings, to be changed before opening.
    pub fn builder() -> DynamoBuilder<I, C> {
        DynamoBuilder::new()
    }

    /// Describes the table, to create it with another tool.
    pub fn schema(&self) -> Schema {
        Schema::new(&self.store.settings)
    }

    /// Adds the table and its location to the error of a step.
    fn report<T>(&self, outcome: Result<T, StoreError>) -> Result<T, BackendError> {
        outcome.map_err(|error| self.store.report(error))
    }

    fn key(&self, target: &Target<I>) -> String {
        self.store.keys.lock(&target.stored())
    }

    fn request(&self, request: &AcquireRequest<I, C>) -> Request {
        let claims =
            request.claims.iter().map(|claim| StoredClaim { key: self.key(&claim.target), mode: claim.mode });
        Request {
            context: request.context.stored().into_owned(),
            attempt: request.attempt.0,
            claims: claims.collect(),
            lease: micros(request.lease),
            owner: request.owner.clone(),
        }
    }

    fn grant(&self, grant: &Grant<I, C>) -> StoredGrant {
        let locks = grant.locks.iter().map(|lock| StoredLock {
            key: self.key(&lock.target),
            fence: lock.granted.fence,
            exclusive: lock.granted.mode == Mode::Exclusive,
            permits: lock.granted.permits.clone(),
            beside_others: match lock.granted.mode {
                Mode::Slots { permits, .. } => lock.granted.in_use > permits,
                Mode::Shared => lock.granted.in_use > 1,
                Mode::Exclusive => false,
            },
        });
        StoredGrant {
            context: grant.context.stored().into_owned(),
            locks: locks.collect(),
            lease: micros(grant.lease),
        }
    }
}

#[cfg(feature = "testing")]
#[doc(hidden)]
impl<I, C> DynamoLockDao<I, C> {
    /// Returns what was sent so far. Units are counted from the first call of [`count_units`](Self::count_units) on.
    pub fn usage(&self) -> crate::testing::Usage {
        self.store.clients.meter.usage()
    }

    /// Makes the service return the units of every request from now on.
    pub fn count_units(&self) {
        self.store.clients.meter.count_units();
    }
}

/// The abilities of a [`DynamoLockDao`] with default settings.
pub const CAPABILITIES: Capabilities = Capabilities {
    // Waiters poll: conditional writes of one item keep no queue.
    fifo: false,
    // TTL collects: a sweep would have to read the whole table.
    sweeping: false,
    // The service's time is known to some seconds at worst, and a lease has to be renewed several times.
    min_lease: Duration::from_secs(5),
    max_ids: TRANSACTION,
    ..Capabilities::shared_store("dynamodb")
};

impl<I: Ident, C: ContextId> DynamoBuilder<I, C> {
    /// Opens the table, and reads its description, which also brings the service's time. A table that is missing is no error here:
    /// `migrate` creates it.
    ///
    /// # Errors
    /// [`BadSetting`](lockcore::BackendErrorKind::BadSetting) names the setting and its value;
    /// [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) says why the table cannot be used: another key schema, or
    /// replicas in other regions that are only eventually consistent; else the reason why the service gave no answer.
    pub async fn open(self) -> Result<DynamoLockDao<I, C>, BackendError> {
        self.settings.check().map_err(|error| error.report(None))?;
        // Boxed: the SDK's futures are deep, and their types would be part of the caller's.
        let store = Box::pin(Store::open(self.settings)).await?;
        Ok(DynamoLockDao { store, types: PhantomData })
    }

    /// Describes the table, to create it with another tool, without connecting: see [`Schema`].
    ///
    /// # Errors
    /// [`BadSetting`](lockcore::BackendErrorKind::BadSetting) names the setting and its value.
    pub fn schema(&self) -> Result<Schema, BackendError> {
        self.settings.check().map_err(|error| error.report(None))?;
        Ok(Schema::new(&self.settings))
    }
}

impl<I, C> fmt::Debug for DynamoLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.store.settings;
        f.debug_struct("DynamoLockDao")
            .field("table", &settings.table)
            .field("namespace", &settings.namespace)
            .field("endpoint", &settings.endpoint)
            .finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId> LockDao<I, C> for DynamoLockDao<I, C> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { max_ids: self.store.settings.max_ids(), ..CAPABILITIES }
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        Ok(match self.report(self.store.acquire(&self.request(request)).await)? {
            Decision::Granted(granted) => Acquired::Granted(granted),
            Decision::Refused(conflicts) => Acquired::Refused(request.conflicts(conflicts)),
        })
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        let held = self.report(self.store.withdraw(&self.request(request), how).await)?;
        Ok(held.map_or(Withdrawn::Left, Withdrawn::Holds))
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        let losses = self.report(self.store.release(&self.grant(grant)).await)?;
        Ok(Released { lost: grant.losses(losses), failed: Vec::new() })
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let losses = self.report(self.store.renew(&self.grant(grant)).await)?;
        Ok(Renewed::now(grant.losses(losses)))
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        let freed = self.report(self.store.release_context(&context.stored()).await)?;
        Ok(freed.iter().filter_map(|stored| Target::from_stored(stored)).collect())
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        let (found, next, now) = self.report(self.store.list(page).await)?;
        Ok(admin::listing(found, next, now))
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        let (found, now) = self.report(self.store.inspect(&target.stored()).await)?;
        Ok(admin::typed(found, now))
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        self.report(self.store.break_lock(&target.stored(), fence, how, by).await)
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        self.report(self.store.freeze(&target.stored(), frozen).await)
    }

    async fn migrate(&self) -> Result<(), BackendError> {
        self.report(self.store.migrate().await)
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        let examined = async {
            let mut findings = self.store.examine().await?;
            findings.push(self.store.version_finding().await?);
            Ok(findings)
        };
        self.report(examined.await)
    }
}

/// Converts a lease. `permanent` is not declared, so that every lease that arrives here is finite.
fn micros(lease: Option<Duration>) -> u64 {
    const LONGEST: u64 = u64::MAX / 8;
    lease.map_or(LONGEST, |lease| u64::try_from(lease.as_micros()).unwrap_or(LONGEST).min(LONGEST))
}
