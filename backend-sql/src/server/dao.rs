//! The DAO over a server's routines: turns requests into their stored forms, and answers back.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use super::{
    Engine, Order, ServerError, StoredGrant, StoredRequest, background,
    reply::{self, Answer},
    request::key,
    watch::{Push, Shared, Watch},
};
use lockcore::{
    BackendError, BreakMode, Broken, Capabilities, ContextId, Finding, Grant, Ident, Inspection, Listing,
    LockDao, LostLock, Page, Released, Renewed, Severity, Swept, Target,
    backend::{AcquireRequest, Acquired, StoreFit, StoreVersion, Wakeup, Withdraw, Withdrawn},
};

/// Locks in the tables of a database server.
pub(crate) struct ServerLockDao<I, C, E: Engine> {
    shared: Arc<Shared<E>>,
    /// Set if notifications were received when it was opened.
    push: bool,
    _watch: Watch<E>,
    types: PhantomData<fn() -> (I, C)>,
}

impl<I: Ident, C: ContextId, E: Engine> ServerLockDao<I, C, E> {
    /// Connects, creates or migrates the schema if the settings say so, and begins to listen.
    pub(crate) async fn over(engine: E) -> Result<Self, BackendError> {
        engine.settings().check(E::NAME)?;
        let shared = Arc::new(Shared::new(engine));
        let (timeout, checked) = (shared.engine().settings().timeout, shared.clone());
        let check = async move |conn: &mut E::Conn| is_ready(checked.engine(), conn).await;
        if !on_connection(&shared, timeout, check).await? {
            let made = shared.clone();
            on_connection(&shared, patience(timeout), async move |conn| made.engine().migrate(conn).await)
                .await?;
        }
        let registered = shared.clone();
        on_connection(&shared, timeout, async move |conn| registered.engine().register(conn).await).await?;
        let (watch, listening) = Watch::start(shared.clone()).await;
        if let (Err(why), true) = (&listening, shared.engine().settings().listens()) {
            tracing::warn!(backend = E::NAME, %why, "LISTEN is unavailable, waiters will poll");
        }
        Ok(ServerLockDao { shared, push: listening.is_ok(), _watch: watch, types: PhantomData })
    }

    /// Returns the engine.
    pub(crate) fn engine(&self) -> &E {
        self.shared.engine()
    }

    async fn carry_out(&self, order: Order<'_>) -> Result<Answer, BackendError> {
        self.shared.carry_out(&order).await.map_err(|error| error.at(self.engine().address()))
    }
}

/// Reports whether the schema can be used as it is. Fails if it cannot, and is not to be migrated.
async fn is_ready<E: Engine>(engine: &E, conn: &mut E::Conn) -> Result<bool, ServerError> {
    engine.admit(conn).await?;
    let found = engine.store_version(conn).await?;
    match fit(engine, found)? {
        StoreFit::Ready => {
            let missing = missing(engine, found, conn).await?;
            if missing.is_empty() || engine.settings().migrates() {
                return Ok(missing.is_empty());
            }
            Err(ServerError::Incomplete { backend: E::NAME, place: engine.location(), missing })
        }
        StoreFit::Migrate if engine.settings().migrates() => Ok(false),
        StoreFit::Migrate => {
            let (place, program) = (engine.location(), engine.settings().program);
            Err(ServerError::Schema { backend: E::NAME, place, found, program })
        }
    }
}

/// Lists what is not there of a schema of this program's version: a dump may have been restored without the routines. A newer schema
/// is the newer program's matter.
async fn missing<E: Engine>(
    engine: &E,
    found: Option<StoreVersion>,
    conn: &mut E::Conn,
) -> Result<Vec<String>, ServerError> {
    match found.is_some_and(|found| found.version == engine.settings().program.version) {
        true => engine.missing(conn).await,
        false => Ok(Vec::new()),
    }
}

/// Compares this program with the schema that was found.
pub(crate) fn fit<E: Engine>(engine: &E, found: Option<StoreVersion>) -> Result<StoreFit, ServerError> {
    let too_old = |source| ServerError::TooOld { backend: E::NAME, place: engine.location(), source };
    engine.settings().program.fit(found).map_err(too_old)
}

/// Reads what the schema's table of versions says.
pub(crate) fn store_version(
    backend: &'static str,
    version: i64,
    oldest_program: i64,
) -> Result<StoreVersion, ServerError> {
    match (u32::try_from(version), u32::try_from(oldest_program)) {
        (Ok(version), Ok(oldest_program)) => Ok(StoreVersion { version, oldest_program }),
        _ => {
            let what = format!("the versions {version} and {oldest_program} of the schema");
            Err(ServerError::Answer { backend, what })
        }
    }
}

/// Checks which versions of programs the schema is for.
fn versions<E: Engine>(engine: &E, found: Option<StoreVersion>) -> Finding {
    let (place, program) = (engine.location(), engine.settings().program.version);
    let (severity, detail) = match (fit(engine, found), found) {
        (Ok(StoreFit::Ready), Some(StoreVersion { version, oldest_program })) => (
            Severity::Ok,
            format!(
                "{version} in {place}, for programs of version {oldest_program} or later; this one has version {program}"
            ),
        ),
        (Ok(_), Some(StoreVersion { version, .. })) => (
            Severity::Error,
            format!("{version} in {place}, this program needs version {program}: migrate it"),
        ),
        (Ok(_), None) => {
            (Severity::Error, format!("none in {place}, this program needs version {program}: migrate it"))
        }
        (Err(error), _) => (Severity::Error, error.to_string()),
    };
    Finding { severity, check: "schema version", detail }
}

/// Returns how long migrating and looking for weaknesses may take: others may migrate, and there may be much data.
pub(crate) fn patience(timeout: Duration) -> Duration {
    timeout.max(Duration::from_secs(30))
}

/// Runs something on a connection, within `after`.
async fn on_connection<E: Engine, T>(
    shared: &Shared<E>,
    after: Duration,
    work: impl AsyncFnOnce(&mut E::Conn) -> Result<T, ServerError>,
) -> Result<T, BackendError> {
    let work = background::within(after, async {
        let mut checkout = shared.pool.take(false).await?;
        let done = work(checkout.conn()).await;
        if done.is_ok() {
            checkout.give_back(shared.engine());
        }
        done
    });
    let outcome = background::hosted(Box::pin(work)).await;
    let outcome = outcome.unwrap_or(Err(ServerError::NoAnswer { backend: E::NAME, after }));
    outcome.map_err(|error| error.at(shared.engine().address()))
}

impl<I, C, E: Engine> fmt::Debug for ServerLockDao<I, C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLockDao").field("engine", self.shared.engine()).finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId, E: Engine> LockDao<I, C> for ServerLockDao<I, C, E> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { push: self.push, ..self.shared.engine().capabilities() }
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        let stored = StoredRequest::new(request, self.shared.session);
        let expected = stored.queue.then(|| Expected::new(&self.shared, &stored));
        match self.carry_out(Order::Acquire(&stored)).await? {
            Answer::Granted(granted) => Ok(Acquired::Granted(granted)),
            Answer::Refused(conflicts) => {
                Ok(Acquired::Refused(reply::conflicts(E::NAME, request, conflicts)?))
            }
            Answer::Queued { conflicts, in_row, end } => {
                let conflicts = reply::conflicts(E::NAME, request, conflicts)?;
                let Some(expected) = expected else { return Ok(Acquired::Refused(conflicts)) };
                if in_row {
                    self.shared.waits_in_row(&stored);
                }
                self.shared.look_in(end);
                Ok(Acquired::Queued {
                    conflicts,
                    wakeup: expected.keep(),
                    recheck: Some(self.shared.recheck()),
                })
            }
            Answer::Withdrawn => Err(ServerError::Withdrawn { backend: E::NAME }.into()),
            other => Err(other.unexpected(E::NAME).into()),
        }
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        let request = &StoredRequest::new(request, self.shared.session);
        self.shared.forget(request);
        match self.carry_out(Order::Withdraw { request, how }).await? {
            Answer::Left => Ok(Withdrawn::Left),
            Answer::Granted(granted) => Ok(Withdrawn::Holds(granted)),
            other => Err(other.unexpected(E::NAME).into()),
        }
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        let answer = self.carry_out(Order::Release(&StoredGrant::new(grant))).await?;
        self.shared.released();
        Ok(Released { lost: losses::<I, C, E>(answer, grant)?, failed: Vec::new() })
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let answer = self.carry_out(Order::Renew(&StoredGrant::new(grant))).await?;
        Ok(Renewed::now(losses::<I, C, E>(answer, grant)?))
    }

    async fn shorten(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let answer = self.carry_out(Order::Shorten(&StoredGrant::new(grant))).await?;
        Ok(Renewed::now(losses::<I, C, E>(answer, grant)?))
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        match self.carry_out(Order::ReleaseContext(&context.stored())).await? {
            Answer::Released(ids) => Ok(reply::targets(&ids)),
            other => Err(other.unexpected(E::NAME).into()),
        }
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        match self.carry_out(Order::List(page)).await? {
            Answer::Listed(listed) => Ok(reply::listing(listed)),
            other => Err(other.unexpected(E::NAME).into()),
        }
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        inspected::<I, C, E>(self.carry_out(Order::Inspect(&key(target))).await?)
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        let order = Order::Break { id: &key(target), fence: fence as i64, how, by };
        match self.carry_out(order).await? {
            Answer::Broken(broken) => Ok(broken),
            other => Err(other.unexpected(E::NAME).into()),
        }
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        self.carry_out(Order::Freeze { id: &key(target), frozen }).await.map(drop)
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        match self.carry_out(Order::Sweep { batch, unless_within }).await? {
            Answer::Swept(swept) => Ok(swept),
            other => Err(other.unexpected(E::NAME).into()),
        }
    }

    async fn migrate(&self) -> Result<(), BackendError> {
        let shared = self.shared.clone();
        let migrate = async move |conn: &mut E::Conn| shared.engine().migrate(conn).await;
        on_connection(&self.shared, patience(self.shared.engine().settings().timeout), migrate).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        let shared = self.shared.clone();
        let look = async move |conn: &mut E::Conn| {
            let found = shared.engine().store_version(conn).await?;
            let mut findings = vec![versions(shared.engine(), found)];
            let missing = missing(shared.engine(), found, conn).await?;
            if !missing.is_empty() {
                let place = shared.engine().location();
                let detail = ServerError::Incomplete { backend: E::NAME, place, missing }.to_string();
                findings.push(Finding { severity: Severity::Error, check: "schema", detail });
            }
            findings.extend(shared.engine().doctor(conn).await?);
            Ok(findings)
        };
        let mut findings =
            on_connection(&self.shared, patience(self.shared.engine().settings().timeout), look).await?;
        findings.push(self.notifications().await);
        Ok(findings)
    }
}

impl<I, C, E: Engine> ServerLockDao<I, C, E> {
    async fn notifications(&self) -> Finding {
        let settings = self.shared.engine().settings();
        // Opened for administration it does not listen: whether it could is tried now.
        let (works, failure) = if settings.administration && settings.listen {
            let tried = self.shared.try_to_listen().await;
            ("notifications arrive".to_owned(), tried.err().map(|why| why.to_string()))
        } else {
            let Push { since, failure } = self.shared.push();
            let since = since.elapsed().as_secs();
            (format!("listening for {since}s"), failure.map(|why| format!("polling for {since}s: {why}")))
        };
        let (severity, detail) = match failure {
            None => (Severity::Ok, works),
            Some(why) => (Severity::Warning, why),
        };
        Finding { severity, check: "waking", detail }
    }
}

fn inspected<I: Ident, C: ContextId, E: Engine>(answer: Answer) -> Result<Inspection<I, C>, BackendError> {
    match answer {
        Answer::Inspected(inspected) => Ok(reply::inspection(inspected)),
        other => Err(other.unexpected(E::NAME).into()),
    }
}

/// Reads what a release or renewal of a grant lost.
fn losses<I: Ident, C: ContextId, E: Engine>(
    answer: Answer,
    grant: &Grant<I, C>,
) -> Result<Vec<LostLock<I>>, ServerError> {
    match answer {
        Answer::Lost(lost) => reply::losses(E::NAME, lost, grant),
        other => Err(other.unexpected(E::NAME)),
    }
}

/// A waiter of a request that is not answered yet. Dropping it removes the waiter.
struct Expected<'r, E: Engine> {
    shared: &'r Shared<E>,
    request: &'r StoredRequest,
    wakeup: Option<Wakeup>,
}

impl<'r, E: Engine> Expected<'r, E> {
    fn new(shared: &'r Shared<E>, request: &'r StoredRequest) -> Self {
        Expected { shared, request, wakeup: Some(shared.expect(request)) }
    }

    /// Keeps the waiter: the request has a place in the queue.
    fn keep(mut self) -> Wakeup {
        self.wakeup.take().expect("it is taken only here")
    }
}

impl<E: Engine> Drop for Expected<'_, E> {
    fn drop(&mut self) {
        if self.wakeup.is_some() {
            self.shared.forget(self.request);
        }
    }
}
