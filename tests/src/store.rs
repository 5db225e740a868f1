//! A store under test, and what checks ask it for.

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
    Capabilities, Claim, ClaimSet, FreshContext, Grant, Granted, LockDao, Mode, Owner, Target,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use tokio::{
    sync::Barrier,
    task::JoinHandle,
    time::{Instant, timeout},
};
use uuid::Uuid;

use crate::{Backend, Caller, judge::late};

/// How long a check waits for what has to happen some time. Long: only a failing check waits for it.
pub const PATIENCE: Duration = Duration::from_secs(30);

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
        let mut caller = Caller::new(self.dao.clone(), LONG);
        caller.owner = format!("caller {number}").into();
        caller
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

/// Waits for the end of a task. Its panic goes on here, as it is: it is judged by its message.
pub(crate) async fn ended<T>(task: JoinHandle<T>) -> T {
    task.await.unwrap_or_else(|ended| resume_unwind(ended.into_panic()))
}
