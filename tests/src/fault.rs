//! A fault injector around a backend's own DAO: requests that fail, hang, come late, or lose their answer.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore::{
    BackendError, BackendErrorKind, BreakMode, Broken, Capabilities, Claim, ContextId, Finding, Grant,
    Granted, Ident, Inspection, Listing, LockDao, Page, Released, Renewed, Swept, Target,
    backend::{AcquireRequest, Acquired, Withdraw, Withdrawn},
};
use tokio::sync::watch;

/// What can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// [`LockDao::acquire`].
    Acquire,
    /// [`LockDao::withdraw`].
    Withdraw,
    /// [`LockDao::release`] and [`LockDao::shorten`].
    Release,
    /// [`LockDao::renew`].
    Renew,
    /// [`LockDao::sweep`].
    Sweep,
    /// [`LockDao::inspect`].
    Inspect,
}

/// How it fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The request does not take place, and this is known.
    Fails(BackendErrorKind),
    /// The request takes place, its answer never comes, and the caller gets a timeout.
    LosesAnswer,
    /// The request does not get on its way, and nothing is said, until the fault is lifted.
    Hangs,
    /// The request is on its way, and arrives when the fault is lifted, also if no caller waits for it by then.
    Late,
    /// The connection ends while the request is on its way: it arrives when the fault is lifted, and its answer is not heard.
    Cut,
    /// The request does not take place, and its answer says that it did: what a check has to find.
    Pretends,
}

/// The faults of one [`FaultyDao`]; clones are the same.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    now: watch::Sender<HashMap<Operation, (Fault, usize)>>,
    calls: [AtomicUsize; 6],
    /// How many requests arrived whose connection was cut.
    arrived: AtomicUsize,
}

impl Faults {
    fn new() -> Self {
        Faults(Arc::new(Shared {
            now: watch::Sender::new(HashMap::new()),
            calls: Default::default(),
            arrived: AtomicUsize::new(0),
        }))
    }

    /// From now on every such request fails so.
    pub fn set(&self, operation: Operation, fault: Fault) {
        self.set_times(operation, fault, usize::MAX);
    }

    /// The next `times` such requests fail so.
    pub fn set_times(&self, operation: Operation, fault: Fault, times: usize) {
        self.0.now.send_modify(|faults| {
            faults.insert(operation, (fault, times));
        });
    }

    /// Nothing fails any more.
    pub fn lift(&self) {
        self.0.now.send_modify(HashMap::clear);
    }

    /// How many such requests were made so far.
    pub fn calls(&self, operation: Operation) -> usize {
        self.0.calls[operation as usize].load(Ordering::SeqCst)
    }

    /// How many requests arrived so far whose connection was [cut](Fault::Cut).
    pub fn arrived(&self) -> usize {
        self.0.arrived.load(Ordering::SeqCst)
    }

    fn meet(&self, operation: Operation) -> Option<Fault> {
        self.0.calls[operation as usize].fetch_add(1, Ordering::SeqCst);
        let mut met = None;
        self.0.now.send_if_modified(|faults| {
            if let Some((fault, times)) = faults.get_mut(&operation).filter(|(_, times)| *times > 0) {
                *times -= 1;
                met = Some(*fault);
            }
            false
        });
        met
    }

    async fn lifted(&self, operation: Operation) {
        let mut faults = self.0.now.subscribe();
        let lifted = faults.wait_for(|faults| !faults.contains_key(&operation)).await;
        lifted.expect("`self` keeps the sender");
    }
}

/// A backend's own DAO, some of whose requests fail.
#[derive(Debug)]
pub struct FaultyDao<D> {
    dao: Arc<D>,
    faults: Faults,
}

impl<D> FaultyDao<D> {
    /// Nothing fails at first.
    pub fn new(dao: Arc<D>) -> (Self, Faults) {
        let faults = Faults::new();
        (FaultyDao { dao, faults: faults.clone() }, faults)
    }

    async fn send<T, F>(
        &self,
        operation: Operation,
        pretended: impl FnOnce() -> T + Send,
        call: impl FnOnce(Arc<D>) -> F + Send + 'static,
    ) -> Result<T, BackendError>
    where
        D: Send + Sync + 'static,
        T: Send + 'static,
        F: Future<Output = Result<T, BackendError>> + Send,
    {
        let (dao, faults) = (self.dao.clone(), self.faults.clone());
        match faults.meet(operation) {
            None => call(dao).await,
            Some(Fault::Fails(kind)) => Err(BackendError::new(kind, "made to fail")),
            Some(Fault::LosesAnswer) => {
                drop(call(dao).await);
                Err(BackendError::new(BackendErrorKind::Timeout, "the answer was lost").possibly_done())
            }
            Some(Fault::Hangs) => {
                faults.lifted(operation).await;
                call(dao).await
            }
            Some(Fault::Late) => {
                let under_way = tokio::spawn(async move {
                    faults.lifted(operation).await;
                    call(dao).await
                });
                under_way.await.expect("the request does not panic")
            }
            Some(Fault::Cut) => {
                tokio::spawn(async move {
                    faults.lifted(operation).await;
                    drop(call(dao).await);
                    faults.0.arrived.fetch_add(1, Ordering::SeqCst);
                });
                Err(BackendError::new(BackendErrorKind::Unavailable, "the connection was cut")
                    .possibly_done())
            }
            Some(Fault::Pretends) => Ok(pretended()),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockDao<I, C> for FaultyDao<D> {
    fn capabilities(&self) -> Capabilities {
        self.dao.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        let granted =
            |claim: &Claim<I>| Granted { mode: claim.mode, fence: 1, permits: Vec::new(), in_use: 1 };
        let pretended = || Acquired::Granted(request.claims.iter().map(granted).collect());
        let request = request.clone();
        self.send(Operation::Acquire, pretended, move |dao| async move { dao.acquire(&request).await }).await
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        let request = request.clone();
        self.send(
            Operation::Withdraw,
            || Withdrawn::Left,
            move |dao| async move { dao.withdraw(&request, how).await },
        )
        .await
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        let grant = grant.clone();
        self.send(
            Operation::Release,
            || Released { lost: Vec::new(), failed: Vec::new() },
            move |dao| async move { dao.release(&grant).await },
        )
        .await
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let grant = grant.clone();
        self.send(
            Operation::Renew,
            || Renewed::now(Vec::new()),
            move |dao| async move { dao.renew(&grant).await },
        )
        .await
    }

    async fn shorten(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let grant = grant.clone();
        self.send(
            Operation::Release,
            || Renewed::now(Vec::new()),
            move |dao| async move { dao.shorten(&grant).await },
        )
        .await
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        self.dao.release_context(context).await
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        self.dao.list(page).await
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        let free = Inspection {
            target: Ok(target.clone()),
            holders: Vec::new(),
            waiters: Vec::new(),
            frozen: false,
            breaks: Vec::new(),
            unreadable: None,
        };
        let target = target.clone();
        self.send(Operation::Inspect, || free, move |dao| async move { dao.inspect(&target).await }).await
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        self.dao.break_lock(target, fence, how, by).await
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        self.dao.freeze(target, frozen).await
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        self.send(Operation::Sweep, Swept::default, move |dao| async move {
            dao.sweep(batch, unless_within).await
        })
        .await
    }

    async fn migrate(&self) -> Result<(), BackendError> {
        self.dao.migrate().await
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        self.dao.doctor().await
    }

    async fn verify(&self, time: Duration) -> Result<Vec<Finding>, BackendError> {
        self.dao.verify(time).await
    }
}
