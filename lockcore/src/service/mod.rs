//! The locking service: sets, waiting, callbacks, renewal, loss and outcomes, written once over any backend.

mod acquire;
mod admin;
mod call;
mod cleanup;
mod defaults;
mod gate;
mod gauge;
mod guard;
mod held;
mod hold;
mod hook;
mod keeper;
mod lease;
mod nesting;
mod observe;
pub(crate) mod run;
mod sweeper;
mod waiting;

use std::{fmt, sync::Arc, time::Duration};

use uuid::Uuid;

pub use self::{
    admin::Admin,
    call::{Call, CallbackResult, ErrOf, OkOf},
    guard::LockGuard,
    held::Held,
    keeper::renew_all,
    observe::Event,
    run::Ended,
};
use self::{
    call::Settings,
    gate::Gate,
    gauge::{Gauge, Refused, Ticket},
    hook::Hook,
};
use crate::{
    AnyLockDao, BadRequest, Capabilities, Claim, ContextId, FreshContext, Ident, LockDao, LockError,
    LockingError, Owner, Wait, background, clock, process,
};

/// Locks sets of ids, runs a callback while they are held, and releases them whatever happens.
///
/// Cheap to clone; clones are the same service. A field of a user's own type is plain `LockingService`
/// where the backend is chosen at run time, or `LockingService<I, C, D>` for a particular backend.
///
/// Every call can be given options first, see [`Call`]: `locks.wait(..).lease(..).with_locks(..)`.
pub struct LockingService<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    inner: Arc<Inner<I, C, D>>,
}

pub(crate) struct Inner<I: Ident, C: ContextId, D> {
    pub(crate) dao: D,
    pub(crate) capabilities: Capabilities,
    defaults: Settings<C>,
    /// The share of a lease before whose end the callback is stopped.
    margin: f64,
    make_context: Box<dyn Fn() -> C + Send + Sync>,
    /// Contexts come from the user, who may give one twice.
    contexts_may_repeat: bool,
    open: Gauge<C>,
    gate: Gate,
    hook: Option<Hook<I, C>>,
    sweeper: sweeper::Sweeper,
    /// The turn of a clean-up that is tried again, with the number of such tries that failed in a row.
    cleaning: tokio::sync::Mutex<u32>,
    /// The process that made the service.
    process: u32,
    _ids: std::marker::PhantomData<fn() -> I>,
}

type StartHook<D> = Box<dyn FnOnce(&D)>;

/// Builds a [`LockingService`] with defaults of its own.
pub struct Builder<I: Ident, C: ContextId, D: LockDao<I, C>> {
    inner: Inner<I, C, D>,
    on_start: Option<StartHook<D>>,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Builder<I, C, D> {
    /// How contexts are made, one for each call: must give a fresh value each time, see [`ContextId`]. A value that
    /// is in use by another call of this service is refused ([`LockingError::ContextInUse`]).
    #[must_use]
    pub fn contexts(mut self, make: impl Fn() -> C + Send + Sync + 'static) -> Self {
        self.inner.make_context = Box::new(make);
        self.inner.contexts_may_repeat = true;
        self
    }

    /// The default wait of a call; [`Wait::never`] unless set.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.inner.defaults.wait = wait;
        self
    }

    /// The default lease of a call; the backend's own unless set.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.inner.defaults.lease = Some(lease);
        self
    }

    /// The default owner label, for people to read; at most [`MAX_OWNER_BYTES`](crate::MAX_OWNER_BYTES) bytes.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<Owner>) -> Self {
        self.inner.defaults.owner = owner.into();
        self
    }

    /// The default bound on how long a callback may hold its locks; none unless set.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.inner.defaults.max_hold = Some(max_hold);
        self
    }

    /// The share of a lease before whose end a callback is stopped, over 0 and under 0.5; 0.1 unless set. It covers
    /// the difference between the rates of two clocks and the time to stop.
    #[must_use]
    pub fn margin(mut self, share: f64) -> Self {
        self.inner.margin = share;
        self
    }

    /// How often this process offers to sweep the namespace, and how much it removes in one step; every 5 minutes and
    /// 100 unless set, `None` for never. From 10 ms to 365 days, and at least 1. Of many processes one does it.
    #[must_use]
    pub fn sweep(mut self, every: Option<Duration>, batch: usize) -> Self {
        self.inner.sweeper.configure(every, batch);
        self
    }

    /// Is told what no outcome tells; see [`Event`]. What happens in a call is told on its thread, before the call goes on;
    /// what happens in the background on a thread that the service keeps for that, one after the other. So a slow hook
    /// delays its own service's calls, but no renewal; once 1024 events wait for it, further ones are only logged. A hook
    /// that panics disturbs nothing else.
    #[must_use]
    pub fn on_event(mut self, hook: impl Fn(&Event<'_, I, C>) + Send + Sync + 'static) -> Self {
        self.inner.hook = Some(Hook::new(hook));
        self
    }

    /// Is called once with the backend when the service is built.
    #[must_use]
    pub fn on_start(mut self, hook: impl FnOnce(&D) + 'static) -> Self {
        self.on_start = Some(Box::new(hook));
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
            return Err(BadRequest::OutOfBounds {
                field: "margin",
                value: inner.margin.to_string(),
                expected: "it must be over 0 and under 0.5",
            });
        }
        inner.sweeper.check()?;
        if let Some(hook) = on_start {
            hook(&inner.dao);
        }
        Ok(LockingService { inner: Arc::new(inner) })
    }
}

impl<I: Ident, C: FreshContext, D: LockDao<I, C>> LockingService<I, C, D> {
    /// A service with the defaults: never waits, and the backend's own lease.
    pub fn new(dao: D) -> Self {
        Self { inner: Arc::new(Inner::new(dao, Box::new(C::fresh))) }
    }

    /// A service with other defaults.
    pub fn builder(dao: D) -> Builder<I, C, D> {
        Builder { inner: Inner::new(dao, Box::new(C::fresh)), on_start: None }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockingService<I, C, D> {
    /// A service whose contexts the user makes; see [`Builder::contexts`].
    pub fn builder_with_contexts(dao: D, make: impl Fn() -> C + Send + Sync + 'static) -> Builder<I, C, D> {
        Builder { inner: Inner::new(dao, Box::new(|| unreachable!("replaced at once"))), on_start: None }
            .contexts(make)
    }

    /// The backend.
    pub fn dao(&self) -> &D {
        &self.inner.dao
    }

    /// What an administrator does: list, inspect, break, freeze, sweep, release what others left.
    pub fn admin(&self) -> Admin<'_, I, C, D> {
        Admin::new(&self.inner)
    }

    /// Refuses new calls and waits until every lock is released, at most for `grace`. Gives the number of holds that
    /// were still open then: callbacks that go on, calls that wait for others, or releases that the store has not
    /// answered; their locks end with their leases at the latest. To be called before a process ends: what is cleaned
    /// up in the background ends with it.
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

    /// Locks the whole namespace against everybody else who asks for the global lock, and runs the callback. Locks of
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
            .field("dao", &self.inner.dao)
            .field("open", &self.inner.open.count())
            .finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    fn new(dao: D, make_context: Box<dyn Fn() -> C + Send + Sync>) -> Self {
        let capabilities = dao.capabilities();
        Inner {
            dao,
            defaults: Settings::new(&capabilities),
            capabilities,
            margin: 0.1,
            make_context,
            contexts_may_repeat: false,
            open: Gauge::new(),
            gate: Gate::default(),
            hook: None,
            sweeper: sweeper::Sweeper::default(),
            cleaning: tokio::sync::Mutex::default(),
            process: process::current(),
            _ids: std::marker::PhantomData,
        }
    }

    /// What tells this service from others in the same process.
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Tells an event to the log, the metrics and the hook.
    pub(crate) fn observe<'a>(&self, event: impl FnOnce() -> Event<'a, I, C>) {
        let event = event();
        observe::record(self.capabilities.backend, &event);
        if let Some(hook) = &self.hook {
            hook.call(&event);
        }
    }

    /// The same where this may be the library's own thread, which the hook must not block.
    pub(crate) fn observe_owned<T: Send + 'static>(
        &self,
        about: T,
        event: impl Fn(&T) -> Event<'_, I, C> + Send + 'static,
    ) {
        match &self.hook {
            Some(hook) if background::is_here() => {
                observe::record(self.capabilities.backend, &event(&about));
                hook.call_elsewhere(about, event);
            }
            _ => self.observe(|| event(&about)),
        }
    }

    /// Whether this is a forked child's copy of a service of its parent.
    pub(crate) fn is_of_another_process(&self) -> bool {
        process::current() != self.process
    }

    pub(crate) fn observe_renewal(&self, lag: Duration) {
        observe::count("lockcore_renewed_total", self.capabilities.backend, "renewed");
        observe::time("lockcore_renewal_lag_seconds", self.capabilities.backend, lag);
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
