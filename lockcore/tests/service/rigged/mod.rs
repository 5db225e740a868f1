//! A backend over the one in memory whose steps can be made to fail, to hang, to lag, to panic or to arrive late.
use std::{
    collections::VecDeque,
    future::{pending, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use lockcore::{
    BackendError, BackendErrorKind, BreakMode, Broken, Capabilities, Grant, Inspection, LockDao,
    LockingService, Released, Renewed, Swept, Target,
    backend::{AcquireRequest, Acquired, Moment, Offer, Wake, Wakeup, Withdraw, Withdrawn},
};
use lockcore_memory::MemoryLockDao;
use uuid::Uuid;

pub(crate) type Service = LockingService<String, Uuid, Arc<Rigged>>;

/// A step that a fault can be put into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Acquire,
    Withdraw,
    Release,
    Renew,
    Inspect,
}

/// What goes wrong with one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// It fails before anything is done, with an error of this kind.
    Fails(BackendErrorKind),
    /// It is done, but the answer is a failure that leaves that in doubt.
    AnswerLost,
    /// The same, because its connection ended.
    Cut,
    /// It is neither done nor answered.
    Hangs,
    /// It is done and never answered.
    DoneButHangs,
    /// An acquire fails in doubt, and arrives when [`Rigged::deliver_late`] says so.
    Late,
    /// It answers after this long on the timer of the current runtime.
    Takes(Duration),
    /// A release frees nothing, and says so for each id.
    FreesNothing,
    /// A request for a set is granted, and the answer lacks one of the locks.
    TellsTooFew,
    /// An acquire that is queued is offered its turn for `lasts` only, and gets the offer so much later.
    OffersLate {
        lasts: Duration,
        by: Duration,
    },
    Panics,
}

#[derive(Debug)]
pub(crate) struct Rigged {
    pub(crate) memory: MemoryLockDao<String>,
    capabilities: Capabilities,
    /// How often each step is pending, before and after it is done.
    lag: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    once: VecDeque<(Step, Fault)>,
    always: Vec<(Step, Fault)>,
    steps: Vec<Step>,
    late: Vec<AcquireRequest<String, Uuid>>,
    sweeps: Vec<Option<Duration>>,
}

impl Rigged {
    /// Without faults, and with a lease of 30 s as a shared store has one.
    pub(crate) fn new() -> Arc<Self> {
        Self::with(0, |_| {})
    }

    /// With steps that are pending `lag` times before and after they are done, and other capabilities.
    pub(crate) fn with(lag: usize, change: impl FnOnce(&mut Capabilities)) -> Arc<Self> {
        let memory = MemoryLockDao::new();
        let mut capabilities = Capabilities { backend: "rigged", ..LockDao::capabilities(&memory) };
        capabilities.default_lease = Some(Duration::from_secs(30));
        change(&mut capabilities);
        Arc::new(Rigged { memory, capabilities, lag, state: Mutex::default() })
    }

    /// A backend that has no queue: waiters have to ask again.
    pub(crate) fn without_queue() -> Arc<Self> {
        Self::with(0, |capabilities| (capabilities.fifo, capabilities.push) = (false, false))
    }

    pub(crate) fn service(self: &Arc<Self>) -> Service {
        LockingService::new(self.clone())
    }

    /// The next such step goes wrong.
    pub(crate) fn once(&self, step: Step, fault: Fault) {
        self.state.lock().unwrap().once.push_back((step, fault));
    }

    /// Every such step goes wrong, until [`heal`](Self::heal).
    pub(crate) fn always(&self, step: Step, fault: Fault) {
        self.state.lock().unwrap().always.push((step, fault));
    }

    /// Nothing goes wrong any more.
    pub(crate) fn heal(&self) {
        let mut state = self.state.lock().unwrap();
        state.always.clear();
        state.once.clear();
    }

    /// How often a step was asked for.
    pub(crate) fn count(&self, step: Step) -> usize {
        self.state.lock().unwrap().steps.iter().filter(|&&done| done == step).count()
    }

    /// For each sweep, within which time another one makes it needless.
    pub(crate) fn sweeps(&self) -> Vec<Option<Duration>> {
        self.state.lock().unwrap().sweeps.clone()
    }

    /// Every acquire that is late arrives now; the answers are lost.
    pub(crate) async fn deliver_late(&self) {
        let late = std::mem::take(&mut self.state.lock().unwrap().late);
        assert!(!late.is_empty(), "no request is late");
        for request in late {
            let _unheard = self.memory.acquire(&request).await;
        }
    }

    /// Whether this fault is the next that is planned once.
    fn is_next(&self, step: Step, fault: Fault) -> bool {
        self.state.lock().unwrap().once.front() == Some(&(step, fault))
    }

    /// How the offer to the next acquire is changed.
    fn next_offer(&self) -> Option<(Duration, Duration)> {
        match self.state.lock().unwrap().once.front() {
            Some((Step::Acquire, Fault::OffersLate { lasts, by })) => Some((*lasts, *by)),
            _ => None,
        }
    }

    fn fault(&self, step: Step) -> Option<Fault> {
        let mut state = self.state.lock().unwrap();
        state.steps.push(step);
        match state.once.iter().position(|(planned, _)| *planned == step) {
            Some(position) => state.once.remove(position).map(|(_, fault)| fault),
            None => state.always.iter().find(|(planned, _)| *planned == step).map(|(_, fault)| *fault),
        }
    }

    async fn rig<T>(
        &self,
        step: Step,
        done: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let fault = self.fault(step);
        lag(self.lag).await;
        match fault {
            Some(Fault::Fails(kind)) => return Err(BackendError::new(kind, "rigged to fail")),
            Some(Fault::Hangs) => pending().await,
            Some(Fault::Panics) => panic!("rigged to panic"),
            Some(Fault::Takes(long)) => tokio::time::sleep(long).await,
            _ => {}
        }
        let answer = done.await;
        lag(self.lag).await;
        match fault {
            Some(Fault::AnswerLost) => Err(in_doubt()),
            Some(Fault::Cut) => {
                Err(BackendError::new(BackendErrorKind::Unavailable, "rigged to be cut").possibly_done())
            }
            Some(Fault::DoneButHangs) => pending().await,
            _ => answer,
        }
    }
}

impl LockDao<String, Uuid> for Rigged {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn acquire(
        &self,
        request: &AcquireRequest<String, Uuid>,
    ) -> Result<Acquired<String, Uuid>, BackendError> {
        if self.is_next(Step::Acquire, Fault::Late) {
            self.fault(Step::Acquire);
            self.state.lock().unwrap().late.push(request.clone());
            return Err(in_doubt());
        }
        let tells_too_few = self.is_next(Step::Acquire, Fault::TellsTooFew);
        let offers_late = self.next_offer();
        let mut answer = self.rig(Step::Acquire, self.memory.acquire(request)).await;
        match &mut answer {
            Ok(Acquired::Granted(granted)) if tells_too_few => drop(granted.pop()),
            Ok(Acquired::Queued { wakeup, .. }) => {
                if let Some((lasts, by)) = offers_late {
                    *wakeup = offered_late(std::mem::replace(wakeup, Wakeup::never()), lasts, by);
                }
            }
            _ => {}
        }
        answer
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<String, Uuid>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        let tells_too_few = self.is_next(Step::Withdraw, Fault::TellsTooFew);
        let mut answer = self.rig(Step::Withdraw, self.memory.withdraw(request, how)).await;
        if let (true, Ok(Withdrawn::Holds(granted))) = (tells_too_few, &mut answer) {
            granted.pop();
        }
        answer
    }

    async fn release(&self, grant: &Grant<String, Uuid>) -> Result<Released<String>, BackendError> {
        let frees_nothing = self.is_next(Step::Release, Fault::FreesNothing);
        self.rig(Step::Release, async {
            if !frees_nothing {
                return self.memory.release(grant).await;
            }
            let error = BackendError::new(BackendErrorKind::Busy, "rigged to free nothing");
            let failed = grant.locks.iter().map(|lock| (lock.target.clone(), error.clone())).collect();
            Ok(Released { lost: Vec::new(), failed })
        })
        .await
    }

    async fn renew(&self, grant: &Grant<String, Uuid>) -> Result<Renewed<String>, BackendError> {
        self.rig(Step::Renew, self.memory.renew(grant)).await
    }

    async fn shorten(&self, grant: &Grant<String, Uuid>) -> Result<Renewed, BackendError> {
        self.rig(Step::Release, self.memory.shorten(grant)).await
    }

    async fn inspect(&self, target: &Target<String>) -> Result<Inspection, BackendError> {
        self.rig(Step::Inspect, self.memory.inspect(target)).await
    }

    async fn break_lock(
        &self,
        target: &Target<String>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        self.memory.break_lock(target, fence, how, by).await
    }

    async fn sweep(&self, batch: usize, unless_within: Option<Duration>) -> Result<Swept, BackendError> {
        self.state.lock().unwrap().sweeps.push(unless_within);
        self.memory.sweep(batch, unless_within).await
    }
}

fn offered_late(mut wakeup: Wakeup, lasts: Duration, by: Duration) -> Wakeup {
    let (sender, late) = Wakeup::channel();
    tokio::spawn(async move {
        let Wake::Offer(Offer { granted, .. }) = wakeup.recv().await else { panic!("it is no offer") };
        let as_of = Moment::now();
        tokio::time::sleep(by).await;
        // The waiter may be gone.
        let _ = sender.send_as_of(Wake::Offer(Offer { granted, remaining: Some(lasts) }), as_of);
    });
    late
}

fn in_doubt() -> BackendError {
    BackendError::new(BackendErrorKind::Timeout, "rigged to be in doubt").possibly_done()
}

async fn lag(times: usize) {
    for _ in 0..times {
        let mut yielded = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// Polls once, and wakes no task.
pub(crate) fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits, in real time, until it is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Fails the test instead of letting it hang: runs it on a thread of its own that gets 10 s of real time.
pub(crate) fn within_ten_seconds<T: Send + 'static>(
    what: &str,
    code: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(code()));
    match receiver.recv_timeout(Duration::from_secs(10)) {
        Ok(value) => value,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("hangs: {what}"),
        Err(_panicked) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("the value was sent"),
        },
    }
}
