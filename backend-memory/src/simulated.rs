//! A store that fails as a test wants it to.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{
    BackendError, BackendErrorKind, BreakMode, Broken, Capabilities, ContextId, Finding, Grant, Granted,
    Ident, Inspection, Listing, Lock, LockDao, Page, Released, Renewed, StoredContext, Swept, Target,
    backend::{AcquireRequest, Acquired, Withdraw, Withdrawn},
};
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use crate::MemoryLockDao;

/// A step of the store that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// A request for a set.
    Acquire,
    /// A withdrawal of a request that was dropped or got no answer.
    Withdraw,
    /// A release, also one that leaves the set [kept](lockcore::Call::keep_for).
    Release,
    /// A renewal of the leases.
    Renew,
}

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It works.
    Works,
    /// It fails, and nothing was done.
    Fails(BackendErrorKind),
    /// It is done, and fails as one of which that is not known.
    LosesAnswer,
    /// It is done, and answered so much later.
    AnswersAfter(Duration),
}

/// Locks in memory, in a store that fails as a test wants it to: to test how a program handles outages and lost locks, under
/// tokio's paused clock within milliseconds.
///
/// It has a lease of 30 seconds by default, as the stores have that processes share. What is not scripted works.
///
/// ```
/// use std::{sync::Arc, time::Duration};
///
/// use lockcore::{LockingError, LockingService};
/// use lockcore_memory::SimulatedLockDao;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let store = Arc::new(SimulatedLockDao::<String>::new());
/// let locks = LockingService::new(store.clone());
/// let written = locks.with_locks(["report"], async || {
///     store.pause(Duration::from_secs(60)); // an outage that is longer than the lease
///     tokio::time::sleep(Duration::from_secs(3600)).await;
///     Ok::<_, std::io::Error>(())
/// });
/// // The callback was stopped before another one could begin.
/// assert!(matches!(written.await, Err(LockingError::Lost { callback: None, .. })));
/// # }
/// ```
pub struct SimulatedLockDao<I = String, C = Uuid> {
    memory: MemoryLockDao<I, C>,
    script: Mutex<Script>,
}

#[derive(Default)]
struct Script {
    faults: HashMap<Step, VecDeque<Fault>>,
    steps: HashMap<Step, usize>,
    paused_until: Option<Instant>,
}

impl<I: Ident, C: ContextId> SimulatedLockDao<I, C> {
    /// Creates a store in which nothing is locked and everything works.
    pub fn new() -> Self {
        SimulatedLockDao { memory: MemoryLockDao::new(), script: Mutex::default() }
    }

    /// Returns the locks behind the faults, to look at them.
    pub fn memory(&self) -> &MemoryLockDao<I, C> {
        &self.memory
    }

    /// Scripts what becomes of the next such steps, one by one; after that, they work again.
    ///
    /// ```
    /// use lockcore::BackendErrorKind;
    /// use lockcore_memory::{Fault, SimulatedLockDao, Step};
    ///
    /// let store = SimulatedLockDao::<String>::new();
    /// store.script(Step::Renew, [Fault::Works, Fault::Fails(BackendErrorKind::Unavailable)]);
    /// ```
    pub fn script(&self, step: Step, faults: impl IntoIterator<Item = Fault>) {
        self.locked().faults.entry(step).or_default().extend(faults);
    }

    /// Keeps the store from doing and answering anything for a time, from now on. Leases run on meanwhile.
    ///
    /// # Panics
    /// Outside a runtime of tokio whose timers are enabled.
    pub fn pause(&self, time: Duration) {
        self.locked().paused_until = Some(Instant::now() + time);
    }

    /// Lets all locks of an id vanish, as a store does that lost its data. Their holders learn of it with the next renewal.
    pub fn lose(&self, target: &Target<I>) {
        for holder in self.memory.inspect_now(target).holders {
            let StoredContext::Known(context) = holder.context else { continue };
            let granted = Granted {
                mode: holder.mode,
                fence: holder.fence,
                permits: [].into_iter().collect(),
                in_use: 0,
            };
            let locks = [Lock { target: target.clone(), granted }].into_iter().collect();
            let grant = Grant { context, locks, lease: holder.lease };
            self.memory.release_now(&grant);
        }
    }

    /// Returns how many such steps there were.
    pub fn steps(&self, step: Step) -> usize {
        self.locked().steps.get(&step).copied().unwrap_or_default()
    }

    fn locked(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn step<T>(
        &self,
        step: Step,
        done: impl FnOnce(&MemoryLockDao<I, C>) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let (fault, paused_until) = {
            let mut script = self.locked();
            *script.steps.entry(step).or_default() += 1;
            let fault = script.faults.get_mut(&step).and_then(VecDeque::pop_front).unwrap_or(Fault::Works);
            (fault, script.paused_until)
        };
        if let Some(until) = paused_until.filter(|until| *until > Instant::now()) {
            sleep_until(until).await;
        }
        match fault {
            Fault::Works => done(&self.memory),
            Fault::Fails(kind) => Err(BackendError::new(kind, "scripted to fail")),
            Fault::LosesAnswer => {
                drop(done(&self.memory));
                Err(BackendError::new(BackendErrorKind::Timeout, "scripted to lose the answer")
                    .possibly_done())
            }
            Fault::AnswersAfter(time) => {
                let answer = done(&self.memory);
                sleep(time).await;
                answer
            }
        }
    }
}

impl<I: Ident, C: ContextId> Default for SimulatedLockDao<I, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I: Ident, C: ContextId> fmt::Debug for SimulatedLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedLockDao").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId> LockDao<I, C> for SimulatedLockDao<I, C> {
    fn capabilities(&self) -> Capabilities {
        let shared = Capabilities::shared_store("simulated");
        Capabilities {
            backend: "simulated",
            default_lease: shared.default_lease,
            ..self.memory.capabilities()
        }
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        self.step(Step::Acquire, |memory| memory.acquire_now(request)).await
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        self.step(Step::Withdraw, |memory| Ok(memory.withdraw_now(request, how))).await
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        self.step(Step::Release, |memory| Ok(memory.release_now(grant))).await
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        self.step(Step::Renew, |memory| Ok(memory.renew_now(grant, false))).await
    }

    async fn shorten(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        self.step(Step::Release, |memory| Ok(memory.renew_now(grant, true))).await
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        self.memory.release_context(context).await
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        self.memory.list(page).await
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        self.memory.inspect(target).await
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        self.memory.break_lock(target, fence, how, by).await
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        self.memory.freeze(target, frozen).await
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        self.memory.sweep(batch, unless_within).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        self.memory.doctor().await
    }
}
