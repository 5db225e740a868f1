//! The hands of the checks: a store under test, callers with a context each, and their places in queues.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use lockcore::{
    BackendError, BackendErrorKind, Capabilities, Claim, ClaimSet, Conflict, ConflictReason, FreshContext,
    Grant, Granted, Ids, LockDao, Mode, Owner, Released, Renewed, StoredContext, Target,
    backend::{AcquireRequest, Acquired, AttemptId, Wake, Wakeup, Withdraw, Withdrawn},
};
use tokio::{
    sync::Barrier,
    task::JoinHandle,
    time::{Instant, timeout},
};
use uuid::Uuid;

use crate::{
    Backend,
    judge::{self, late},
};

/// How long a check waits for what has to happen some time. Long: only a failing check waits for it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The interval of a watcher that is to see only what is pushed: far longer than a check lasts.
pub const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

/// The id that is taken and freed at the start of each store.
pub const MEASURED: &str = "a pair, measured";

/// A lease that does not end during a check.
const LONG: Duration = Duration::from_secs(600);

/// A store under test, in a namespace of its own.
pub struct Store<B: Backend> {
    backend: Arc<B>,
    /// Before the guard, so that it is dropped first.
    dao: Arc<B::Dao>,
    guard: Arc<B::Guard>,
    callers: AtomicUsize,
    /// How long a set was taken and freed at the start: how fast store and machine are now.
    pair: Duration,
    /// Whether the check sets the store's clock.
    sets_clock: bool,
}

impl<B: Backend> Store<B> {
    /// An empty store.
    pub async fn new(backend: Arc<B>) -> Self {
        let (guard, dao) = backend.build().await;
        // The first may have waited for a connection.
        let pair = measured(&dao).await.min(measured(&dao).await);
        let sets_clock = backend.advance(&guard, Duration::ZERO).await;
        let (dao, guard) = (Arc::new(dao), Arc::new(guard));
        Store { backend, dao, guard, callers: AtomicUsize::new(0), pair, sets_clock }
    }

    /// Another empty one, in another namespace.
    pub async fn another(&self) -> Self {
        Store::new(self.backend.clone()).await
    }

    /// The same store and namespace as another process sees it, or `None` where there is no other.
    pub async fn reopen(&self) -> Option<Self> {
        let dao = self.backend.reopen(&self.guard).await;
        assert_eq!(
            dao.is_some(),
            self.capabilities().shared_store,
            "exactly a backend that declares `shared_store` can be opened twice"
        );
        Some(self.beside(dao?))
    }

    /// The same by a clock that is ahead, or `None` where no clock can be made to lie.
    pub async fn reopen_ahead(&self, ahead: Duration) -> Option<Self> {
        let dao = self.backend.reopen_ahead(&self.guard, ahead).await;
        Some(self.beside(dao?))
    }

    fn beside(&self, dao: B::Dao) -> Self {
        let (backend, guard) = (self.backend.clone(), self.guard.clone());
        let (pair, sets_clock) = (self.pair, self.sets_clock);
        Store { backend, dao: Arc::new(dao), guard, callers: AtomicUsize::new(0), pair, sets_clock }
    }

    /// What the backend declares.
    pub fn capabilities(&self) -> Capabilities {
        self.dao.capabilities()
    }

    /// The DAO itself.
    pub fn dao(&self) -> &Arc<B::Dao> {
        &self.dao
    }

    /// A caller with a fresh context and a long lease.
    pub fn caller(&self) -> Caller<B::Dao> {
        let number = self.callers.fetch_add(1, Ordering::Relaxed);
        Caller {
            dao: self.dao.clone(),
            context: Uuid::fresh(),
            lease: LONG,
            owner: format!("caller {number}").into(),
            nested: false,
        }
    }

    /// `N` callers.
    pub fn callers<const N: usize>(&self) -> [Caller<B::Dao>; N] {
        std::array::from_fn(|_| self.caller())
    }

    /// `n` callers who contend: in turn through this DAO and, where the store is shared, through a second one, as
    /// in another process.
    pub async fn crowd(&self, n: usize) -> Vec<Caller<B::Dao>> {
        let other = self.reopen().await;
        let caller = |number| match &other {
            Some(other) if number % 2 == 1 => self.caller().through(&other.dao),
            _ => self.caller(),
        };
        (0..n).map(caller).collect()
    }

    /// A lease that ends soon in real time, but is long enough that a few calls fit into it. For checks of what a service does
    /// about time; those of the store take [`ending`](Self::ending).
    pub fn short(&self) -> Duration {
        self.capabilities().min_lease.max(Duration::from_millis(300)).max(self.pair * 30)
    }

    /// A lease that is to be renewed in real time: it does not end because a busy server, or its disk, is late.
    pub fn lasting(&self) -> Duration {
        let idle = (self.pair * 1000).clamp(Duration::from_secs(1), Duration::from_secs(5));
        (self.short() * 3).max(idle)
    }

    /// A lease that is over after [`end_leases`](Self::end_leases), and not before: where the check sets the store's clock it is
    /// as long as no machine is stopped.
    pub fn ending(&self) -> Duration {
        if self.sets_clock {
            self.capabilities().min_lease.max(Duration::from_secs(60))
        } else {
            self.short()
        }
    }

    /// A lease that is renewed after a part of it [passed](Self::pass).
    pub fn renewable(&self) -> Duration {
        if self.sets_clock { self.ending() } else { self.lasting() }
    }

    /// Lets so much time pass for the store: sets its clock where that can be done, else waits.
    pub async fn pass(&self, time: Duration) {
        if !self.backend.advance(&self.guard, time).await {
            tokio::time::sleep(time).await;
        }
    }

    /// Has another program write something that cannot be read in the place of the lock of an id; `false` if there are no more ways.
    pub async fn spoil(&self, id: &str, way: usize) -> bool {
        self.backend.spoil(&self.guard, id, way).await
    }

    /// Whether [`pass`](Self::pass) takes no time.
    pub fn sets_clock(&self) -> bool {
        self.sets_clock
    }

    /// Takes `ids` with an [ending](Self::ending) lease for a caller that then dies, and waits until it is over by the
    /// store's own account, without any of them having been taken or looked at since: a store that clears up
    /// whatever it meets has not met them.
    pub async fn expired(&self, ids: &[&str]) -> (Caller<B::Dao>, Grant<String, Uuid>) {
        let dead = self.caller().with_lease(self.ending());
        let grant = dead.take(ids.iter().copied()).await;
        self.end_leases().await;
        (dead, grant)
    }

    /// Lets every [ending](Self::ending) lease that began before end, by the store's own account.
    pub async fn end_leases(&self) {
        // One that began later, and lasts as long, has ended by then.
        let clock = self.caller().with_lease(self.ending());
        let id = format!("the clock of {}", clock.context);
        clock.take([&id]).await;
        if self.sets_clock {
            self.pass(self.ending()).await;
        }
        self.until_free(&[&id]).await;
    }

    /// Waits until all of `ids` are free, by the store's own account, without taking one: they are
    /// asked for together with an id that is held, so that the refusal tells which are.
    pub async fn until_free(&self, ids: &[&str]) {
        let (mut stopper, prober) = (self.caller(), self.caller());
        // Held through another DAO where there is one. The last response to this one is then the probe's, so that what it shows
        // still holds in the next step: DynamoDB's time is an estimate, which a late response may widen.
        if let Some(other) = self.reopen().await {
            stopper = stopper.through(&other.dao);
        }
        let held = stopper.take(["the probe's stopper"]).await;
        let probe: Vec<_> = ids.iter().copied().chain(["the probe's stopper"]).collect();
        eventually("the leases end", || async {
            let conflicts = prober.refused(probe.iter().copied()).await;
            (conflicts.len() == 1).then_some(())
        })
        .await;
        stopper.free(&held).await;
    }
}

/// A caller that takes locks: a context, and what its requests have in common.
#[derive(Debug)]
pub struct Caller<D> {
    dao: Arc<D>,
    /// The context.
    pub context: Uuid,
    /// The lease of each request.
    pub lease: Duration,
    /// The owner label.
    pub owner: Owner,
    /// Whether the requests say that locks are already held.
    pub nested: bool,
}

impl<D> Clone for Caller<D> {
    fn clone(&self) -> Self {
        Caller {
            dao: self.dao.clone(),
            context: self.context,
            lease: self.lease,
            owner: self.owner.clone(),
            nested: self.nested,
        }
    }
}

impl<D> Caller<D> {
    /// A caller with a fresh context and this lease.
    pub fn new(dao: Arc<D>, lease: Duration) -> Self {
        Caller { dao, context: Uuid::fresh(), lease, owner: Owner::default(), nested: false }
    }
}

impl<D: LockDao<String, Uuid>> Caller<D> {
    /// The same context with another lease.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The same context, saying that it already holds locks.
    #[must_use]
    pub fn nested(mut self) -> Self {
        self.nested = true;
        self
    }

    /// The same context through another DAO.
    #[must_use]
    pub fn through<E: LockDao<String, Uuid>>(&self, dao: &Arc<E>) -> Caller<E> {
        let Caller { context, lease, owner, nested, .. } = self.clone();
        Caller { dao: dao.clone(), context, lease, owner, nested }
    }

    /// A request under a new attempt, which is refused rather than queued.
    pub fn request(&self, ids: impl Ids<String>) -> AcquireRequest<String, Uuid> {
        AcquireRequest {
            context: self.context,
            attempt: AttemptId::fresh(),
            claims: ClaimSet::new(ids, Mode::Exclusive).expect("the checks ask for valid claims"),
            lease: Some(self.lease),
            owner: self.owner.clone(),
            queue: false,
            nested: self.nested,
            detached: false,
        }
    }

    /// Sends a request; the store has to answer.
    pub async fn send(&self, request: &AcquireRequest<String, Uuid>) -> Acquired<String, Uuid> {
        answered("acquire", self.dao.acquire(request)).await
    }

    /// Asks once for the set.
    pub async fn try_take(
        &self,
        ids: impl Ids<String>,
    ) -> Result<Grant<String, Uuid>, Vec<Conflict<String, Uuid>>> {
        let request = self.request(ids);
        match self.send(&request).await {
            Acquired::Granted(granted) => Ok(grant(&request, granted)),
            Acquired::Refused(conflicts) => {
                assert!(!conflicts.is_empty(), "a refusal says what is in the way");
                Err(conflicts)
            }
            Acquired::Queued { .. } => panic!("queued, though the request said not to"),
        }
    }

    /// Takes the set, which has to be free.
    pub async fn take(&self, ids: impl Ids<String>) -> Grant<String, Uuid> {
        self.try_take(ids).await.unwrap_or_else(|conflicts| panic!("refused: {conflicts:?}"))
    }

    /// Asks for the set, which must not be free.
    pub async fn refused(&self, ids: impl Ids<String>) -> Vec<Conflict<String, Uuid>> {
        self.try_take(ids).await.map(|grant| panic!("granted: {grant:?}")).unwrap_or_else(|refused| refused)
    }

    /// Asks until the set is granted.
    pub async fn take_soon(&self, ids: impl Ids<String> + Clone) -> Grant<String, Uuid> {
        eventually("the set is granted", || async { self.try_take(ids.clone()).await.ok() }).await
    }

    /// Takes the set, or waits for it in the queue.
    pub async fn take_in_turn(&self, ids: impl Ids<String>) -> Grant<String, Uuid> {
        let mut request = self.request(ids);
        request.queue = true;
        match self.send(&request).await {
            Acquired::Granted(granted) => grant(&request, granted),
            Acquired::Queued { conflicts, wakeup, recheck } => {
                Place { caller: self.clone(), request, conflicts, wakeup, recheck }.granted().await
            }
            Acquired::Refused(conflicts) => panic!("refused, though it would wait: {conflicts:?}"),
        }
    }

    /// Takes a place in the queue for the set, which must not be free.
    pub async fn queue(&self, ids: impl Ids<String>) -> Place<D> {
        let mut request = self.request(ids);
        request.queue = true;
        match self.send(&request).await {
            Acquired::Queued { conflicts, wakeup, recheck } => {
                assert!(!conflicts.is_empty(), "a queued request says what is in the way");
                Place { caller: self.clone(), request, conflicts, wakeup, recheck }
            }
            other => panic!("not queued: {other:?}"),
        }
    }

    /// Releases; the store has to answer.
    pub async fn release(&self, grant: &Grant<String, Uuid>) -> Released<String> {
        answered("release", self.dao.release(grant)).await
    }

    /// Releases what is held as the grant says.
    pub async fn free(&self, grant: &Grant<String, Uuid>) {
        let released = self.release(grant).await;
        assert!(released.lost.is_empty() && released.failed.is_empty(), "not freed: {released:?}");
    }

    /// Renews; the store has to answer.
    pub async fn renew(&self, grant: &Grant<String, Uuid>) -> Renewed<String> {
        answered("renew", self.dao.renew(grant)).await
    }

    /// Renews what is held as the grant says.
    pub async fn keep(&self, grant: &Grant<String, Uuid>) {
        let renewed = self.renew(grant).await;
        assert!(renewed.lost.is_empty(), "lost: {renewed:?}");
    }

    /// Withdraws; the store has to answer.
    pub async fn withdraw(&self, request: &AcquireRequest<String, Uuid>, how: Withdraw) -> Withdrawn {
        answered("withdraw", self.dao.withdraw(request, how)).await
    }

    /// Sends a request that was withdrawn before: the store has to refuse it.
    pub async fn refused_as_withdrawn(&self, request: &AcquireRequest<String, Uuid>) {
        match self.dao.acquire(request).await {
            Err(error) if error.kind() == BackendErrorKind::Withdrawn => assert!(!error.in_doubt()),
            other => panic!("a withdrawn request was not refused as such: {other:?}"),
        }
    }
}

/// A place in the queue.
#[derive(Debug)]
pub struct Place<D> {
    /// Who waits.
    pub caller: Caller<D>,
    /// What was asked for.
    pub request: AcquireRequest<String, Uuid>,
    /// What was in the way.
    pub conflicts: Vec<Conflict<String, Uuid>>,
    wakeup: Wakeup,
    recheck: Option<Duration>,
}

impl<D: LockDao<String, Uuid>> Place<D> {
    /// What an answer of [`Acquired::Queued`] means to `caller`.
    pub fn new(
        caller: Caller<D>,
        request: AcquireRequest<String, Uuid>,
        conflicts: Vec<Conflict<String, Uuid>>,
        wakeup: Wakeup,
        recheck: Option<Duration>,
    ) -> Self {
        Place { caller, request, conflicts, wakeup, recheck }
    }

    /// Waits for a message, and does nothing about it.
    pub async fn notified(&mut self) -> Wake {
        self.wakeup.recv().await
    }

    /// Waits for the turn as the service does; an offer is confirmed.
    pub async fn granted(&mut self) -> Grant<String, Uuid> {
        self.granted_within(PATIENCE).await
    }

    /// The same for one whose turn may take longer: many are before it.
    pub async fn granted_within(&mut self, patience: Duration) -> Grant<String, Uuid> {
        timeout(patience, self.wait()).await.unwrap_or_else(|_| late("the turn of a waiter comes"))
    }

    /// The set was granted in the step that was taken last, and this waiter is notified of it without ever asking again,
    /// where push is declared; else waits for the turn. To be called right after a step that makes room.
    pub async fn served(&mut self) -> Grant<String, Uuid> {
        if !self.caller.dao.capabilities().push {
            return self.granted().await;
        }
        self.was_handed_over().await;
        self.offered().await
    }

    /// The same, but without another request on its ids in between, which would serve the waiters too.
    pub async fn pushed(&mut self) -> Grant<String, Uuid> {
        let declared = self.caller.dao.capabilities();
        if declared.push && declared.listing {
            self.was_handed_over().await;
        }
        if declared.push { self.offered().await } else { self.granted().await }
    }

    /// By the store's own account the set is this waiter's. Looked at without another request on its ids where that can be done,
    /// which would serve the waiters too.
    async fn was_handed_over(&self) {
        if self.caller.dao.capabilities().listing {
            for claim in self.request.claims.iter() {
                let seen = answered("inspect", self.caller.dao.inspect(&claim.target)).await;
                let me = StoredContext::Known(self.caller.context);
                let waits = seen.waiters.iter().any(|waiter| waiter.context == me);
                if waits {
                    late(format_args!(
                        "{} is handed over in the step that made room: {seen:?}",
                        claim.target
                    ));
                }
                if !seen.holders.iter().any(|holder| holder.context == me) {
                    late(format_args!("the offer is over by now: {seen:?}"));
                }
            }
            return;
        }
        let targets = || self.request.claims.iter().map(|claim| claim.target.clone());
        let mut prober = self.caller.clone();
        prober.context = Uuid::fresh();
        let probe: Vec<_> = targets().map(|target| Claim { target, mode: Mode::Exclusive }).collect();
        let Err(conflicts) = prober.try_take(probe).await else {
            late("an offer lasts until it is looked at")
        };
        let me = StoredContext::Known(self.caller.context);
        for target in targets() {
            let of_target = conflicts.iter().find(|conflict| conflict.target == target);
            let mine = of_target.is_some_and(|conflict| match &conflict.reason {
                ConflictReason::Held { holders, .. } => holders.iter().any(|holder| holder.context == me),
                _ => false,
            });
            assert!(mine, "{target} was not handed over in the step that made room: {conflicts:?}");
        }
    }

    /// Waits for an offer, without ever asking again.
    pub async fn offered(&mut self) -> Grant<String, Uuid> {
        match timeout(PATIENCE, self.wakeup.recv())
            .await
            .unwrap_or_else(|_| late("a waiter is notified of its turn"))
        {
            Wake::Offer(offer) => self.confirm(offer).await,
            Wake::Recheck => late("an offer comes while it lasts"),
        }
    }

    /// Asks again: the place is kept, and nothing was granted.
    pub async fn still_waits(&mut self) {
        if let Some(grant) = self.ask().await {
            panic!("granted out of turn: {grant:?}");
        }
    }

    /// Asks again with the same attempt: what is held by now.
    pub async fn ask(&mut self) -> Option<Grant<String, Uuid>> {
        match self.caller.send(&self.request).await {
            Acquired::Granted(granted) => Some(grant(&self.request, granted)),
            Acquired::Queued { conflicts, wakeup, recheck } => {
                self.conflicts = conflicts;
                self.wakeup = wakeup;
                self.recheck = recheck;
                None
            }
            Acquired::Refused(conflicts) => panic!("a waiter was refused: {conflicts:?}"),
        }
    }

    /// Waits for the turn by asking alone, without regard to offers.
    pub async fn asking(&mut self) -> Grant<String, Uuid> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(grant) = self.ask().await {
                return grant;
            }
            if Instant::now() >= deadline {
                late("the turn of a waiter comes");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Gives up; it must not have been granted.
    pub async fn leave(self) {
        let left = self.caller.withdraw(&self.request, Withdraw::KeepIfGranted).await;
        assert_eq!(left, Withdrawn::Left, "it was not granted, and can leave");
    }

    /// How long the place is kept without asking again; `None` is for ever.
    pub fn recheck(&self) -> Option<Duration> {
        self.recheck
    }

    async fn wait(&mut self) -> Grant<String, Uuid> {
        loop {
            let woken = match self.recheck {
                Some(recheck) => timeout(recheck, self.wakeup.recv()).await.unwrap_or(Wake::Recheck),
                None => self.wakeup.recv().await,
            };
            if let Wake::Offer(offer) = woken {
                return self.confirm(offer).await;
            }
            if let Some(grant) = self.ask().await {
                return grant;
            }
        }
    }

    async fn confirm(&self, offer: lockcore::backend::Offer) -> Grant<String, Uuid> {
        let grant = grant(&self.request, offer.granted);
        if offer.remaining.is_some() {
            let lost = self.caller.renew(&grant).await.lost;
            if !lost.is_empty() {
                late(format_args!("an offer was lost before it was confirmed: {lost:?}"));
            }
        }
        grant
    }
}

/// What a request obtained.
pub fn grant(
    request: &AcquireRequest<String, Uuid>,
    granted: impl IntoIterator<Item = Granted>,
) -> Grant<String, Uuid> {
    let granted: Vec<_> = granted.into_iter().collect();
    assert_eq!(granted.len(), request.claims.len(), "one answer for each claim");
    Grant::new(request.context, request.claims.clone(), granted.into_iter().collect(), request.lease)
}

/// The target of an id.
pub fn id(id: &str) -> Target<String> {
    Target::Id(id.to_owned())
}

/// A claim for one of `limit` slots.
pub fn slot(id: &str, limit: u32) -> Claim<String> {
    Claim::slots(id.to_owned(), limit)
}

/// A shared claim.
pub fn shared(id: &str) -> Claim<String> {
    Claim::shared(id.to_owned())
}

/// An exclusive claim.
pub fn exclusive(id: &str) -> Claim<String> {
    Claim::exclusive(id.to_owned())
}

/// Takes and frees an id, and returns how long that took. A store that fails is a matter of the check.
async fn measured<D: LockDao<String, Uuid>>(dao: &D) -> Duration {
    let began = Instant::now();
    let context = Uuid::fresh();
    let request = AcquireRequest {
        context,
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([MEASURED], Mode::Exclusive).expect("the id is valid"),
        lease: Some(LONG),
        owner: Owner::default(),
        queue: false,
        nested: false,
        detached: false,
    };
    if let Ok(Ok(Acquired::Granted(granted))) = timeout(PATIENCE, dao.acquire(&request)).await {
        let _ = timeout(PATIENCE, dao.release(&grant(&request, granted))).await;
    }
    began.elapsed()
}

/// Asks again and again until there is an answer, at most as long as [`PATIENCE`] lasts.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        if Instant::now() >= deadline {
            late(format_args!("not within {PATIENCE:?}: {what}"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs `task` for each number below `n`, all at the same moment, on all threads of the runtime.
pub async fn race<T, F>(n: usize, task: impl Fn(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(Barrier::new(n));
    let tasks = (0..n).map(|number| {
        let (start, task) = (start.clone(), task(number));
        tokio::spawn(async move {
            start.wait().await;
            task.await
        })
    });
    let tasks: Vec<_> = tasks.collect();
    join_all(tasks.into_iter().map(ended)).await
}

/// Waits for the store's answer. How long it took is part of how fast the machine was, on which the server may run, too.
async fn answered<T>(what: &str, answer: impl Future<Output = Result<T, BackendError>>) -> T {
    // Not in virtual time.
    let asked = std::time::Instant::now();
    let answer = timeout(PATIENCE, answer).await;
    judge::answered(asked.elapsed());
    match answer {
        Ok(answer) => answer.unwrap_or_else(|error| panic!("{what} fails: {error:?}")),
        Err(_) => late(format_args!("{what} answers")),
    }
}

/// Waits for the end of a task. Its panic goes on here, as it is: it is judged by its message.
pub(crate) async fn ended<T>(task: JoinHandle<T>) -> T {
    task.await.unwrap_or_else(|ended| resume_unwind(ended.into_panic()))
}
