//! The locking service: sets, waiting, callbacks, renewal, loss and outcomes, written once over any backend.

mod acquire;
mod admin;
mod attempt;
mod call;
mod callback;
mod cleanup;
mod door;
mod forward;
mod gate;
mod guard;
mod held;
mod hold;
mod hold_core;
mod hook;
mod keep_for;
mod keeper;
mod lease;
mod metrics;
pub(crate) mod nesting;
mod observe;
pub(crate) mod once;
mod open;
pub(crate) mod run;
mod settings;
mod sweeper;
mod waiting;
mod watching;
mod with_locks;

use std::{fmt, sync::Arc, time::Duration};

use uuid::Uuid;

pub use self::{
    admin::Admin,
    call::Call,
    callback::{CallbackResult, ErrOf, OkOf},
    guard::LockGuard,
    held::Held,
    keeper::renew_all,
    observe::Event,
    once::{Once, OnceCall, OnceGuard, Ran},
    run::Ended,
};
use self::{
    door::Door,
    gate::Gate,
    hook::Hook,
    open::{Open, Refused, Ticket},
    settings::Settings,
};
use crate::{
    AnyLockDao, BadRequest, Capabilities, Claim, ContextId, FreshContext, Ident, LockDao, LockError,
    LockingError, Owner, Wait, background, clock,
};

/// Locks sets of ids, runs a callback while they are held, and releases them whatever happens.
///
/// Cheap to clone; clones are the same service. As a field of your own type write plain `LockingService` where the backend
/// is chosen at run time, or `LockingService<I, C, D>` for a particular backend.
///
/// Every call takes options first: `locks.wait(..).lease(..).with_locks(..)`. [`Call`] has them, and a table that shows
/// which call to take.
///
/// ```
/// use lockcore::{Claim, LockingService, Wait};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockingService::builder(lockcore_memory::MemoryLockDao::<String>::new())
///     .wait(Wait::up_to(Duration::from_secs(5)))
///     .owner("ingest@host-7")
///     .build()?;
///
/// let set = [Claim::exclusive("account/7"), Claim::shared("tariff"), Claim::slots("export", 10)];
/// let total = locks.run_locked(set, async || 42).await?;
/// assert_eq!(total, 42);
/// # Ok(())
/// # }
/// ```
pub struct LockingService<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    inner: Arc<Inner<I, C, D>>,
}

pub(crate) struct Inner<I: Ident, C: ContextId, D> {
    door: Door<D>,
    pub(crate) capabilities: Capabilities,
    defaults: Settings<C>,
    /// The share of a lease before whose end the callback is stopped.
    margin: f64,
    make_context: Box<dyn Fn() -> C + Send + Sync>,
    /// Contexts come from the user, who may give one twice.
    contexts_may_repeat: bool,
    open: Open<C>,
    gate: Gate,
    hook: Option<Hook<I, C>>,
    /// The contexts of commands that this process runs in.
    enclosed_by: Vec<C>,
    /// Ids may be written into spans and the log.
    log_ids: bool,
    sweeper: sweeper::Sweeper,
    /// The turn of a clean-up that is tried again, with the number of such tries that failed in a row.
    cleaning: tokio::sync::Mutex<u32>,
    polls: watching::Polls<I, C>,
}

type StartHook<D> = Box<dyn FnOnce(&D)>;

/// Builds a [`LockingService`] with defaults of its own.
pub struct Builder<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    inner: Inner<I, C, D>,
    on_start: Option<StartHook<D>>,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Builder<I, C, D> {
    /// Sets how the context of each call is created: a value that no call of any process has or had, or both calls hold the locks.
    /// See [`ContextId`]; one that another call of this service is using is refused ([`LockingError::ContextInUse`]).
    ///
    /// A set that is [kept](Call::keep_for), or a fire that [ran](Call::once), is its context's until that time is over, though no call
    /// uses it any more: another call with the same context would be granted the set as its own, and free it early.
    ///
    /// `make` runs on the thread of the call; on one made for that in a call of the [blocking service](crate::blocking) inside a
    /// runtime, without the caller's thread-locals.
    #[must_use]
    pub fn contexts(mut self, make: impl Fn() -> C + Send + Sync + 'static) -> Self {
        self.inner.make_context = Box::new(make);
        self.inner.contexts_may_repeat = true;
        self
    }

    /// Sets the default wait of a call; [`Wait::never`] unless set.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.inner.defaults.wait = wait;
        self
    }

    /// Sets the default lease of a call; the backend's own unless set.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.inner.defaults.lease = Some(lease);
        self
    }

    /// Sets the default owner label, which administration shows; at most [`MAX_OWNER_BYTES`](crate::MAX_OWNER_BYTES) bytes.
    /// Unless set it is [`Owner::this_process`], or empty where the store belongs to this process alone.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<Owner>) -> Self {
        self.inner.defaults.owner = owner.into();
        self
    }

    /// Sets the default bound on how long a callback may hold its locks; none unless set.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.inner.defaults.max_hold = Some(max_hold);
        self
    }

    /// Sets how long before the end of its lease a callback is stopped, as a share of the lease: over 0 and under 0.5; 0.1
    /// unless set. It covers different rates of two clocks and the time to stop.
    #[must_use]
    pub fn margin(mut self, share: f64) -> Self {
        self.inner.margin = share;
        self
    }

    /// Sets how often expired entries of the namespace are swept, and how many ids one step removes: every 5 minutes and 100
    /// unless set, `None` for never. From 10 ms to 365 days, and at least 1. Of many processes one does it.
    #[must_use]
    pub fn sweep(mut self, every: Option<Duration>, batch: usize) -> Self {
        self.inner.sweeper.configure(every, batch);
        self
    }

    /// Names the contexts of what this process runs in and what waits for its end, such as a `lockctl run` that started it. A request
    /// that what they hold keeps from being granted is refused with [`LockingError::SelfDeadlock`], whatever the wait: it could never
    /// end. None unless set; `Config` of `lockcore-any` sets those that `lockctl run` passes to its command.
    ///
    /// Other ids are waited for as by any other process, also behind a waiter that waits for what such a context holds: let calls that
    /// could meet one pass the queue by [`Call::nested`].
    #[must_use]
    pub fn enclosed_by(mut self, contexts: impl IntoIterator<Item = C>) -> Self {
        self.inner.enclosed_by = contexts.into_iter().collect();
        self
    }

    /// Registers a hook for events, many of which no return value reports; see [`Event`]. Events of a call reach it on the
    /// call's thread, before the call goes on - on one made for that in a call of the [blocking service](crate::blocking) inside a
    /// runtime, without the caller's thread-locals -; those of background work on a thread that the service keeps for that, one at
    /// a time. So a slow hook delays its own service's calls, but no renewal; once 1024 events wait for it, further ones are
    /// only logged. A hook that panics affects nothing else.
    #[must_use]
    pub fn on_event(mut self, hook: impl Fn(&Event<'_, I, C>) + Send + Sync + 'static) -> Self {
        self.inner.hook = Some(Hook::new(hook));
        self
    }

    /// Registers a function that is called once with the backend, when the service is built.
    #[must_use]
    pub fn on_start(mut self, hook: impl FnOnce(&D) + 'static) -> Self {
        self.on_start = Some(Box::new(hook));
        self
    }

    /// Puts the ids of a call into its span, and those of lost locks into the log. They may be secret: unless set only their
    /// number is logged.
    #[must_use]
    pub fn log_ids(mut self, log_ids: bool) -> Self {
        self.inner.log_ids = log_ids;
        self
    }

    /// Builds the service.
    ///
    /// # Errors
    /// [`BadRequest`] naming the field and the value that the backend cannot take.
    pub fn build(self) -> Result<LockingService<I, C, D>, BadRequest> {
        let Builder { inner, on_start } = self;
        inner.check_settings(&inner.defaults)?;
        if !(inner.margin > 0.0 && inner.margin < 0.5) {
            let expected = "it must be over 0 and under 0.5";
            return Err(BadRequest::out_of_bounds("margin", inner.margin.to_string(), expected));
        }
        inner.sweeper.check()?;
        if let Some(hook) = on_start {
            hook(inner.door.resting());
        }
        Ok(LockingService { inner: Arc::new(inner) })
    }
}

impl<I: Ident, C: FreshContext, D: LockDao<I, C>> LockingService<I, C, D> {
    /// Creates a service with the defaults: it never waits, and takes the backend's default lease.
    pub fn new(dao: D) -> Self {
        Self { inner: Arc::new(Inner::new(dao, Box::new(C::fresh))) }
    }

    /// Creates a builder for a service with other defaults.
    pub fn builder(dao: D) -> Builder<I, C, D> {
        Builder { inner: Inner::new(dao, Box::new(C::fresh)), on_start: None }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockingService<I, C, D> {
    /// Creates a builder for a service whose contexts `make` creates, each unlike any other in any process; see
    /// [`Builder::contexts`].
    pub fn builder_with_contexts(dao: D, make: impl Fn() -> C + Send + Sync + 'static) -> Builder<I, C, D> {
        Builder { inner: Inner::new(dao, Box::new(|| unreachable!("replaced at once"))), on_start: None }
            .contexts(make)
    }

    /// Returns the backend. What is asked of it is none of the service's: in a forked child it has the parent's connections.
    pub fn dao(&self) -> &D {
        self.inner.door.resting()
    }

    /// Returns the administration of the store: list, inspect, break, freeze, sweep, release what others left.
    pub fn admin(&self) -> Admin<'_, I, C, D> {
        Admin::new(&self.inner)
    }

    /// Stops accepting calls and waits up to `grace` until all locks are released. Returns the number of holds that are still
    /// open then, 0 if all went well: running callbacks, calls that wait, and releases that the store has not answered; their locks
    /// end with their leases at the latest. Call it before the process ends, also at a SIGTERM: clean-up in the background ends with
    /// the process.
    ///
    /// # Cancel safety
    /// Safe: new calls stay refused, and it can be called again.
    pub async fn shutdown(&self, grace: Duration) -> usize {
        self.inner.open.close();
        let emptied = std::pin::pin!(self.inner.open.emptied());
        let grace = std::pin::pin!(clock::sleep(grace));
        futures_util::future::select(emptied, grace).await;
        self.inner.open.count()
    }

    /// Locks the global lock of the namespace, alone, and runs the callback. Locks of
    /// single ids are not affected.
    ///
    /// # Errors
    /// As [`Call::with_locks`].
    pub fn with_global_lock<F, Fut>(
        &self,
        callback: F,
    ) -> impl Future<Output = Result<OkOf<Fut>, LockingError<I, C, ErrOf<Fut>>>> + use<'_, I, C, D, F, Fut>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output: CallbackResult>,
    {
        self.call().with_locks([Claim::<I>::global()], callback)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner<I, C, D>> {
        &self.inner
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Clone for LockingService<I, C, D> {
    fn clone(&self) -> Self {
        LockingService { inner: self.inner.clone() }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> fmt::Debug for LockingService<I, C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockingService")
            .field("dao", self.inner.door.resting())
            .field("open", &self.inner.open.count())
            .finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    fn new(dao: D, make_context: Box<dyn Fn() -> C + Send + Sync>) -> Self {
        let capabilities = dao.capabilities();
        metrics::register(capabilities.backend);
        Inner {
            door: Door::new(dao),
            defaults: Settings::new(&capabilities),
            capabilities,
            margin: 0.1,
            make_context,
            contexts_may_repeat: false,
            open: Open::new(),
            gate: Gate::default(),
            hook: None,
            enclosed_by: Vec::new(),
            log_ids: false,
            sweeper: sweeper::Sweeper::default(),
            cleaning: tokio::sync::Mutex::default(),
            polls: watching::Polls::default(),
        }
    }

    /// Distinguishes this service from others in the same process.
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Reports an event to the log, the metrics and the hook.
    pub(crate) fn observe<'a>(&self, event: impl FnOnce() -> Event<'a, I, C>) {
        let event = event();
        observe::record(self.capabilities.backend, self.log_ids, &event);
        if let Some(hook) = &self.hook {
            hook.call(&event);
        }
    }

    /// Reports an event where this may be the library's own thread, which the hook must not block.
    pub(crate) fn observe_owned<T: Send + 'static>(
        &self,
        about: T,
        event: impl Fn(&T) -> Event<'_, I, C> + Send + 'static,
    ) {
        match &self.hook {
            Some(hook) if background::is_here() => {
                observe::record(self.capabilities.backend, self.log_ids, &event(&about));
                hook.call_elsewhere(about, event);
            }
            _ => self.observe(|| event(&about)),
        }
    }

    pub(crate) fn observe_renewal(&self, lag: Duration) {
        metrics::count("lockcore_renewed_total", self.capabilities.backend, "renewed");
        metrics::time("lockcore_renewal_lag_seconds", self.capabilities.backend, lag);
    }

    /// Remembers one more open context, unless the service shuts down or the context is in use.
    fn opened(&self, context: &C, may_repeat: bool) -> Result<Ticket, LockError<I, C>> {
        self.open.enter(context, may_repeat).map_err(|refused| match refused {
            Refused::Closed => LockingError::ShutDown,
            Refused::InUse => LockingError::ContextInUse { context: context.clone() },
        })
    }

    /// The context is no longer in use.
    pub(crate) fn ended(&self, ticket: Ticket) {
        self.open.leave(ticket);
    }
}
