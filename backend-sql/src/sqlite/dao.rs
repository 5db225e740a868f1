//! The DAO: turns requests into their stored forms, has the database do them, and turns the answers back.

use std::{fmt, marker::PhantomData, path::Path, time::Duration};

use lockcore::{
    BackendError, BreakMode, Broken, Capabilities, ContextId, Finding, Grant, Ident, Inspection, Listing,
    LockDao, Page, Released, Renewed, Swept, Target,
    backend::{AcquireRequest, Acquired, Withdraw, Withdrawn},
    engine, protocol,
};
use uuid::Uuid;

use super::{
    acquire::Verdict,
    admin,
    clock::micros,
    config::SqliteBuilder,
    database::Database,
    doctor,
    release::{self, Hold},
    row::{Key, Request, Text, Wanted},
    sweep,
    worker::Worker,
};

/// Locks in a SQLite database; see the [module](super) for what it does how.
pub struct SqliteLockDao<I = String, C = Uuid> {
    database: Database,
    types: PhantomData<fn() -> (I, C)>,
}

impl<I: Ident, C: ContextId> SqliteLockDao<I, C> {
    /// Opens the database file at `path`, or a private store for `:memory:`, with default settings.
    ///
    /// ```no_run
    /// use lockcore::LockingService;
    /// use lockcore_sql::SqliteLockDao;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockingService::new(SqliteLockDao::<String>::open("/var/lib/app/locks.db").await?);
    /// locks.run_locked(["report.csv"], async || ()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SqliteBuilder::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, BackendError> {
        Self::builder().path(path).open().await
    }

    /// Returns settings to choose before opening.
    pub fn builder() -> SqliteBuilder<I, C> {
        SqliteBuilder::new()
    }
}

impl<I: Ident, C: ContextId> SqliteBuilder<I, C> {
    /// Opens the database, and creates or migrates its tables.
    ///
    /// # Errors
    /// [`BadSetting`](lockcore::BackendErrorKind::BadSetting) names the setting and its value;
    /// [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) says why the file cannot be used;
    /// [`Busy`](lockcore::BackendErrorKind::Busy) if another process kept it locked.
    pub async fn open(self) -> Result<SqliteLockDao<I, C>, BackendError> {
        let database = Database::open(self.settings.checked()?).await?;
        Ok(SqliteLockDao { database, types: PhantomData })
    }
}

/// Returns what a file can do, without one. A store in memory is shared with no other process.
pub fn capabilities() -> Capabilities {
    Capabilities {
        push: true,
        shortening: true,
        dead_holders: true,
        // A step takes some ten microseconds, but it may have to wait for those of other processes,
        // and a lease has to be renewed at a third of it.
        min_lease: Duration::from_millis(10),
        // SQLite has no bound; but the write lock is held for some 3 us an id.
        max_ids: 1000,
        ..Capabilities::shared_store("sqlite")
    }
}

impl<I, C> fmt::Debug for SqliteLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLockDao").field("path", &self.database.path).finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId> LockDao<I, C> for SqliteLockDao<I, C> {
    fn capabilities(&self) -> Capabilities {
        let shared_store = !self.database.in_memory;
        Capabilities { shared_store, dead_holders: shared_store, ..capabilities() }
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        let stored = stored_request(request);
        let step = move |worker: &mut Worker, deadline| worker.acquire(&stored, deadline);
        let (verdict, wakeup) = self.database.step(request.claims.len(), step).await?;
        Ok(match (verdict, wakeup) {
            (Verdict::Granted(granted), _) => Acquired::Granted(granted),
            (Verdict::Queued { conflicts, .. }, Some(wakeup)) => Acquired::Queued {
                conflicts: request.conflicts(conflicts),
                wakeup,
                recheck: Some(protocol::RECHECK),
            },
            (Verdict::Refused(conflicts) | Verdict::Queued { conflicts, .. }, _) => {
                Acquired::Refused(request.conflicts(conflicts))
            }
        })
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        let stored = stored_request(request);
        let step = move |worker: &mut Worker, deadline| {
            worker.forget(&stored);
            let held = worker.write_and_notify(deadline, |step| engine::withdraw(step, &stored, how))?;
            if held.is_some() {
                worker.holds_for(stored.lease);
            }
            Ok(held)
        };
        let held = self.database.step(request.claims.len(), step).await?;
        Ok(held.map_or(Withdrawn::Left, Withdrawn::Holds))
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        let hold = hold(grant);
        let step = move |worker: &mut Worker, deadline| {
            worker.write_and_notify(deadline, |step| release::release(step, &hold))
        };
        let losses = self.database.step(grant.locks.len(), step).await?;
        Ok(Released { lost: grant.losses(losses), failed: Vec::new() })
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let hold = hold(grant);
        let step = move |worker: &mut Worker, deadline| {
            worker.holds_for(hold.lease);
            worker.write_and_notify(deadline, |step| release::renew(step, &hold))
        };
        let losses = self.database.step(grant.locks.len(), step).await?;
        Ok(Renewed::now(grant.losses(losses)))
    }

    async fn shorten(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let hold = hold(grant);
        let step = move |worker: &mut Worker, deadline| {
            worker.write_and_notify(deadline, |step| release::shorten(step, &hold))
        };
        let losses = self.database.step(grant.locks.len(), step).await?;
        Ok(Renewed::now(grant.losses(losses)))
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        let context = context.stored().into_owned();
        let freed = self.database.send(move |worker, deadline| {
            worker.write_and_notify(deadline, |step| admin::release_context(step, &context))
        });
        Ok(freed.await?.iter().filter_map(|stored| Target::from_stored(stored)).collect())
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        let page = page.clone();
        let listed = self
            .database
            .send(move |worker, deadline| worker.read(deadline, |step| admin::list(step, &page)))
            .await?;
        Ok(Listing { ids: listed.ids.into_iter().map(Inspection::typed).collect(), next: listed.next })
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        let id = key(target);
        let inspected = self
            .database
            .send(move |worker, deadline| worker.read(deadline, |step| admin::inspect(step, &id)));
        Ok(inspected.await?.typed())
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        let (id, by) = (key(target), by.to_owned());
        let broken = self.database.send(move |worker, deadline| {
            worker.write_and_notify(deadline, |step| admin::break_lock(step, &id, fence as i64, how, &by))
        });
        broken.await
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        let id = key(target);
        let done = self.database.send(move |worker, deadline| {
            worker.write_and_notify(deadline, |step| admin::freeze(step, &id, frozen))
        });
        done.await
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        let swept = self.database.send(move |worker, deadline| {
            let found = worker.read(deadline, |step| sweep::look(step, batch, unless_within))?;
            worker.write_and_notify(deadline, |step| sweep::remove(step, &found, batch, unless_within))
        });
        swept.await
    }

    async fn migrate(&self) -> Result<(), BackendError> {
        self.database.send(Worker::migrate).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        self.database.send(doctor::examine).await
    }
}

fn key<I: Ident>(target: &Target<I>) -> Key {
    Key::from(target.stored().as_bytes())
}

fn stored_request<I: Ident, C: ContextId>(request: &AcquireRequest<I, C>) -> Request {
    Request {
        context: Text(request.context.stored().into()),
        attempt: request.attempt.0 as i64,
        claims: request
            .claims
            .iter()
            .zip(Key::all(request.claims.iter().map(|claim| &claim.target)))
            .map(|(claim, id)| Wanted { id, mode: claim.mode })
            .collect(),
        lease: lease(request.lease),
        owner: request.owner.clone(),
        queue: request.queue,
        nested: request.nested,
        detached: request.detached,
    }
}

fn hold<I: Ident, C: ContextId>(grant: &Grant<I, C>) -> Hold {
    Hold {
        context: Text(grant.context.stored().into()),
        locks: Key::all(grant.locks.iter().map(|lock| &lock.target))
            .zip(&grant.locks)
            .map(|(id, lock)| (id, lock.granted.fence))
            .collect(),
        lease: lease(grant.lease),
    }
}

/// `permanent` is not declared, so that every lease that arrives here is finite.
fn lease(lease: Option<Duration>) -> i64 {
    lease.map_or(i64::MAX / 4, |lease| micros(lease).min(i64::MAX / 4))
}
