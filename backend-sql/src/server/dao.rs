//! The DAO over a server's routines: turns requests into their stored forms, and answers back.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use super::{
    Ask, Engine, Hold, Order, ServerError, background,
    reply::{self, Acquiring},
    request::key,
    watch::{Push, Shared, Watch},
};
use lockcore::{
    AcquireRequest, Acquired, BackendError, BreakMode, Broken, Capabilities, ContextId, Finding, Grant,
    Ident, Inspection, Listing, LockDao, Page, Released, Renewed, Severity, StoreFit, StoreVersion, Swept,
    Target, Withdraw, Withdrawn,
};

/// After how long a waiter asks again though nothing woke it. The signs of life look after it, so this is for the case
/// that they are wrong.
const RECHECK: Duration = Duration::from_secs(10);

/// Locks in the tables of a database server.
pub struct ServerLockDao<I, C, E: Engine> {
    shared: Arc<Shared<E>>,
    /// Whether messages were received when it was opened.
    push: bool,
    _watch: Watch<E>,
    types: PhantomData<fn() -> (I, C)>,
}

impl<I: Ident, C: ContextId, E: Engine> ServerLockDao<I, C, E> {
    /// Connects, creates or migrates the schema if the settings say so, and begins to listen.
    pub(crate) async fn open(engine: E) -> Result<Self, BackendError> {
        engine.settings().check(E::NAME)?;
        let shared = Arc::new(Shared::new(engine));
        let (timeout, checked) = (shared.engine().settings().timeout, shared.clone());
        let check = async move |conn: &mut E::Conn| is_ready(checked.engine(), conn).await;
        if !on_connection(&shared, timeout, check).await? {
            let made = shared.clone();
            on_connection(&shared, patience(timeout), async move |conn| made.engine().migrate(conn).await)
                .await?;
        }
        let (watch, heard) = Watch::start(shared.clone()).await;
        if let (Err(why), true) = (&heard, shared.engine().settings().listens()) {
            tracing::warn!(backend = E::NAME, %why, "waiters will look for their turn instead of being told");
        }
        Ok(ServerLockDao { shared, push: heard.is_ok(), _watch: watch, types: PhantomData })
    }

    /// The engine.
    pub(crate) fn engine(&self) -> &E {
        self.shared.engine()
    }

    async fn carry_out(&self, order: Order<'_>) -> Result<String, BackendError> {
        self.shared.carry_out(&order).await.map_err(|error| error.at(self.engine().address()))
    }
}

/// Whether the schema can be used as it is; an error if it cannot, and is not to be migrated.
async fn is_ready<E: Engine>(engine: &E, conn: &mut E::Conn) -> Result<bool, ServerError> {
    engine.admit(conn).await?;
    let found = engine.store_version(conn).await?;
    match fit(engine, found)? {
        StoreFit::Ready => Ok(true),
        StoreFit::Migrate if engine.settings().migrates() => Ok(false),
        StoreFit::Migrate => {
            let (place, program) = (engine.place(), engine.settings().program);
            Err(ServerError::Schema { backend: E::NAME, place, found, program })
        }
    }
}

/// Compares this program with the schema that was found.
pub(crate) fn fit<E: Engine>(engine: &E, found: Option<StoreVersion>) -> Result<StoreFit, ServerError> {
    let too_old = |source| ServerError::TooOld { backend: E::NAME, place: engine.place(), source };
    engine.settings().program.fit(found).map_err(too_old)
}

/// What the schema's table of versions says.
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

/// Which versions of programs the schema is for.
fn versions<E: Engine>(engine: &E, found: Option<StoreVersion>) -> Finding {
    let (place, program) = (engine.place(), engine.settings().program.version);
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

/// For how long to migrate, or to look for weaknesses: others may be at it, and there may be much.
fn patience(timeout: Duration) -> Duration {
    timeout.max(Duration::from_secs(30))
}

/// Runs something on a connection, within `after`.
async fn on_connection<E: Engine, T>(
    shared: &Shared<E>,
    after: Duration,
    work: impl AsyncFnOnce(&mut E::Conn) -> Result<T, ServerError>,
) -> Result<T, BackendError> {
    let work = background::within(after, async {
        let mut lease = shared.pool.take(false).await?;
        let done = work(lease.conn()).await;
        if done.is_ok() && shared.engine().keeps_connections() {
            lease.give_back();
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
        let ask = Ask::new(request);
        // Before the request is sent: the turn may come before the answer.
        let wakeup = ask.queue.then(|| self.shared.expect(&ask));
        let order = Order::Acquire { ask: &ask, session: self.shared.session };
        let answer = self.carry_out(order).await;
        let mut settled = Settled { shared: &self.shared, ask: &ask, waits: wakeup.is_some() };
        let answer = answer?;
        if let Some(fences) = answer.strip_prefix('G') {
            return Ok(Acquired::Granted(reply::plain_grant(E::NAME, fences, request.claims.len())?));
        }
        let found: Acquiring = reply::read(E::NAME, &answer)?;
        if found.w != 0 {
            return Err(ServerError::Withdrawn { backend: E::NAME }.into());
        }
        if let Some(given) = found.g {
            return Ok(Acquired::Granted(reply::grant(E::NAME, given, request.claims.len())?));
        }
        let conflicts = reply::conflicts(E::NAME, request, found.c)?;
        Ok(match wakeup {
            Some(wakeup) if found.q != 0 => {
                settled.waits = false;
                if found.q == reply::IN_ROW {
                    self.shared.stands(&ask);
                }
                self.shared.look_in(found.end.map(reply::span));
                Acquired::Queued { conflicts, wakeup, recheck: Some(RECHECK) }
            }
            _ => Acquired::Refused(conflicts),
        })
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        let ask = Ask::new(request);
        self.shared.forget(&ask);
        let order = Order::Withdraw { ask: &ask, how };
        let answer = self.carry_out(order).await?;
        if answer.is_empty() {
            return Ok(Withdrawn::Left);
        }
        let given = reply::read::<Acquiring>(E::NAME, &answer)?.g.unwrap_or_default();
        Ok(Withdrawn::Holds(reply::grant(E::NAME, given, request.claims.len())?))
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        let answer = self.carry_out(Order::Release(&Hold::new(grant))).await?;
        self.shared.released();
        Ok(Released { lost: reply::losses(E::NAME, &answer, grant)?, failed: Vec::new() })
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let answer = self.carry_out(Order::Renew(&Hold::new(grant))).await?;
        Ok(Renewed { lost: reply::losses(E::NAME, &answer, grant)? })
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        let answer = self.carry_out(Order::ReleaseContext(&context.stored())).await?;
        Ok(reply::targets(E::NAME, &answer)?)
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        let answer = self.carry_out(Order::List(page)).await?;
        Ok(reply::listing(E::NAME, &answer)?)
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        let answer = self.carry_out(Order::Inspect(&key(target))).await?;
        Ok(reply::inspection(reply::read(E::NAME, &answer)?))
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        let order = Order::Break { id: &key(target), fence: fence as i64, how, by };
        let answer = self.carry_out(order).await?;
        Ok(reply::broken(E::NAME, &answer)?)
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        self.carry_out(Order::Freeze { id: &key(target), frozen }).await?;
        Ok(())
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        let answer = self.carry_out(Order::Sweep { batch, unless_within }).await?;
        Ok(reply::swept(E::NAME, &answer)?)
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
            findings.extend(shared.engine().doctor(conn).await?);
            Ok(findings)
        };
        let mut findings =
            on_connection(&self.shared, patience(self.shared.engine().settings().timeout), look).await?;
        findings.push(self.hearing().await);
        Ok(findings)
    }
}

impl<I, C, E: Engine> ServerLockDao<I, C, E> {
    async fn hearing(&self) -> Finding {
        let settings = self.shared.engine().settings();
        // Opened for administration it does not listen: whether it could is tried now.
        let (works, failure) = if settings.administration && settings.listen {
            let tried = self.shared.try_to_listen().await;
            ("messages arrive".to_owned(), tried.err().map(|why| why.to_string()))
        } else {
            let Push { since, failure } = self.shared.push();
            let since = since.elapsed();
            (
                format!("listening for {since:.0?}"),
                failure.map(|why| format!("polling for {since:.0?}: {why}")),
            )
        };
        let (severity, detail) = match failure {
            None => (Severity::Ok, works),
            Some(why) => (Severity::Warning, why),
        };
        Finding { severity, check: "waking", detail }
    }
}

/// Forgets the waiter of a request that turned out not to wait.
struct Settled<'r, E: Engine> {
    shared: &'r Shared<E>,
    ask: &'r Ask,
    waits: bool,
}

impl<E: Engine> Drop for Settled<'_, E> {
    fn drop(&mut self) {
        if self.waits {
            self.shared.forget(self.ask);
        }
    }
}
