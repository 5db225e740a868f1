//! Batching, also known as group commit: while a request is in flight, the requests that other tasks make wait, and travel
//! together when it has ended, as one call and one transaction. For the server a statement and a transaction cost as much
//! as the work on one row, so many clients get more done; one alone waits for nothing.
//!
//! Only requests for one id can be batched, sorted by id: so no two batches wait for each other's rows in a circle. Each
//! runtime has batches of its own, since it drives its own connections. Acquires and releases are batched apart, because a
//! release need not wait for the disk. Whatever a batch cannot do goes the ordinary way, see `exchange`.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, oneshot},
    task,
};

use super::{
    Answer, Engine, Key, Order, Outcome, ServerError, StoredGrant, StoredRequest,
    background::{self, PerRuntime},
    exchange::{exchange, in_time, until_done},
    pool::Pool,
};

/// The most requests in a batch: all of them are answered at its end.
const MOST: usize = 64;

/// A batch lingers until all expected requests are there, if they are so many: the tasks that the last one answered make their
/// next requests one after the other.
const LINGERS_FOR: usize = 5;

/// The longest time that it lingers.
const LINGER: Duration = Duration::from_millis(2);

/// A request that has waited for so long starts another batch: what delays the one in flight - a slow disk, a row that a
/// transaction of the user's has locked - must not hold up the others.
const PATIENCE: Duration = Duration::from_millis(5);

/// A request waits while another for its id is in flight: on a second connection it would wait for the row. But not for longer
/// than this, as the first connection may have fallen silent.
const STUCK: Duration = Duration::from_millis(100);

/// The number of times that a request travels in a batch while another transaction has locked its row, before it waits
/// for that alone.
const TRIES: usize = 3;

/// The batches of a DAO.
pub(crate) struct Batches<E: Engine> {
    acquires: PerRuntime<Batcher<E, StoredRequest>>,
    releases: PerRuntime<Batcher<E, StoredGrant>>,
}

impl<E: Engine> Default for Batches<E> {
    fn default() -> Self {
        Batches { acquires: PerRuntime::default(), releases: PerRuntime::default() }
    }
}

impl<E: Engine> Batches<E> {
    /// Carries out an order within the timeout of the settings, in a batch if others of its kind are in flight.
    pub(crate) async fn carry_out(
        &self,
        pool: &Arc<Pool<E>>,
        order: &Order<'_>,
    ) -> Result<Answer, ServerError> {
        let sent = Arc::new(AtomicBool::new(false));
        // Boxed, so that the callers' futures stay small.
        let work = Box::pin(async {
            match *order {
                Order::Acquire(request) if request.fits_batch() => {
                    Batcher::of(&self.acquires, pool).carry_out(order, request, &sent).await
                }
                Order::Release(grant) if grant.ids.len() == 1 => {
                    Batcher::of(&self.releases, pool).carry_out(order, grant, &sent).await
                }
                _ => until_done(pool, order, &sent, None).await,
            }
        });
        in_time(pool, &sent, work).await
    }
}

/// A request of a kind that can be batched.
trait Batched: Clone + Send + Sync + 'static {
    fn id(&self) -> &Key;

    fn send<E: Engine>(
        engine: &E,
        conn: &mut E::Conn,
        batch: &[Self],
    ) -> impl Future<Output = Result<Vec<Outcome>, ServerError>> + Send;
}

impl Batched for StoredRequest {
    fn id(&self) -> &Key {
        &self.ids[0]
    }

    async fn send<E: Engine>(
        engine: &E,
        conn: &mut E::Conn,
        batch: &[Self],
    ) -> Result<Vec<Outcome>, ServerError> {
        engine.acquire_batch(conn, batch).await
    }
}

impl Batched for StoredGrant {
    fn id(&self) -> &Key {
        &self.ids[0]
    }

    async fn send<E: Engine>(
        engine: &E,
        conn: &mut E::Conn,
        batch: &[Self],
    ) -> Result<Vec<Outcome>, ServerError> {
        engine.release_batch(conn, batch).await
    }
}

/// Batches the requests of one kind and one runtime.
struct Batcher<E: Engine, R> {
    pool: Arc<Pool<E>>,
    queue: Mutex<Queue<R>>,
    /// As many requests wait as are expected.
    full: Notify,
}

struct Queue<R> {
    in_flight: usize,
    /// The ids of what is in flight, and since when it is.
    busy: HashMap<Key, Instant>,
    waiting: VecDeque<Pending<R>>,
    /// The number of requests that the next batch may have: as many as the last one, whose tasks go on, and those that
    /// wait already.
    expected: usize,
    /// A task looks after those that wait.
    is_timed: bool,
}

struct Pending<R> {
    request: R,
    since: Instant,
    sent: Arc<AtomicBool>,
    answer: oneshot::Sender<Result<Outcome, ServerError>>,
}

/// The caller's end of [`Pending`].
struct PendingAnswer<'l, E: Engine, R> {
    batcher: &'l Batcher<E, R>,
    answer: oneshot::Receiver<Result<Outcome, ServerError>>,
}

/// A batch, or a request that is sent alone. Dropping it ends it.
struct InFlight<E: Engine, R: Batched> {
    batcher: Arc<Batcher<E, R>>,
    ids: Vec<Key>,
    /// Set unless it failed: then the requests that wait at its end form a batch, if no other one is in flight.
    goes_on: bool,
}

impl<E: Engine, R: Batched> Batcher<E, R> {
    /// Returns the batcher of the current runtime.
    fn of(batchers: &PerRuntime<Self>, pool: &Arc<Pool<E>>) -> Arc<Self> {
        let make = || {
            let queue = Queue {
                in_flight: 0,
                busy: HashMap::new(),
                waiting: VecDeque::new(),
                expected: 0,
                is_timed: false,
            };
            Batcher { pool: pool.clone(), queue: Mutex::new(queue), full: Notify::new() }
        };
        batchers.get(&background::current(), |_| true, make)
    }

    async fn carry_out(
        self: &Arc<Self>,
        order: &Order<'_>,
        request: &R,
        sent: &Arc<AtomicBool>,
    ) -> Result<Answer, ServerError> {
        for _ in 0..TRIES {
            let mut pending = match self.enter(request, sent) {
                Ok(_in_flight) => return until_done(&self.pool, order, sent, None).await,
                Err(pending) => pending,
            };
            let answer = (&mut pending.answer).await;
            drop(pending);
            let doubt = match answer {
                Ok(Ok(Outcome::Done(answer))) => return Ok(answer),
                Ok(Ok(Outcome::Busy)) => {
                    sent.store(false, Ordering::Relaxed);
                    continue;
                }
                Ok(Err(error)) if error.in_doubt() => error,
                // The runtime ends, or the batch had no answer.
                Err(_) if sent.load(Ordering::Relaxed) => {
                    ServerError::NoAnswer { backend: E::NAME, after: self.pool.engine.settings().timeout }
                }
                // Nothing was done; of a failure, another request of the batch may be the cause.
                _ => break,
            };
            return match order.can_be_repeated() {
                true => until_done(&self.pool, order, sent, Some(doubt)).await,
                false => Err(doubt),
            };
        }
        until_done(&self.pool, order, sent, None).await
    }

    /// Adds a request to those that wait, or has it sent alone if nothing is in flight and no batch would linger.
    fn enter(
        self: &Arc<Self>,
        request: &R,
        sent: &Arc<AtomicBool>,
    ) -> Result<InFlight<E, R>, PendingAnswer<'_, E, R>> {
        let mut queue = self.lock();
        let is_first = queue.in_flight == 0;
        queue.in_flight += usize::from(is_first);
        if is_first && queue.expected < LINGERS_FOR {
            queue.busy.insert(request.id().clone(), Instant::now());
            return Ok(InFlight { batcher: self.clone(), ids: vec![request.id().clone()], goes_on: true });
        }
        let (sender, answer) = oneshot::channel();
        let (request, since, sent) = (request.clone(), Instant::now(), sent.clone());
        queue.waiting.push_back(Pending { request, since, sent, answer: sender });
        if queue.waiting.len() == queue.expected {
            self.full.notify_one();
        }
        let is_timed = std::mem::replace(&mut queue.is_timed, true);
        drop(queue);
        if is_first {
            self.send_next();
        }
        if !is_timed {
            background::current().spawn(self.clone().look_after());
        }
        Err(PendingAnswer { batcher: self, answer })
    }

    /// Starts another batch when one has waited for [`PATIENCE`]; ends when nothing waits.
    async fn look_after(self: Arc<Self>) {
        let mut pause = PATIENCE;
        loop {
            background::sleep(pause).await;
            let mut queue = self.lock();
            if queue.waiting.is_empty() {
                queue.is_timed = false;
                return;
            }
            let left = queue.next().map_or(PATIENCE, |next| PATIENCE.saturating_sub(next.since.elapsed()));
            pause = if left.is_zero() { PATIENCE } else { left };
            if left.is_zero() && self.pool.has_free() {
                queue.in_flight += 1;
                drop(queue);
                self.send_next();
            }
        }
    }

    /// Starts a task that sends the next batch, which is counted already.
    fn send_next(self: &Arc<Self>) {
        let mut in_flight = InFlight { batcher: self.clone(), ids: Vec::new(), goes_on: false };
        background::current().spawn(async move {
            let (batcher, ids) = (&in_flight.batcher, &mut in_flight.ids);
            batcher.linger().await;
            let batch = exchange(&batcher.pool, true, async |conn| batcher.send(conn, ids).await);
            let outcome = background::within(batcher.pool.engine.settings().timeout, batch).await;
            in_flight.go_on(matches!(outcome, Some(Ok(()))));
        });
    }

    /// Lets the tasks that were answered just now make their next requests.
    async fn linger(&self) {
        task::yield_now().await;
        let is_short = || {
            let queue = self.lock();
            queue.expected >= LINGERS_FOR && queue.waiting.len() < queue.expected
        };
        let full = async {
            while is_short() {
                self.full.notified().await;
            }
        };
        background::within(LINGER, full).await;
    }

    /// Takes the next batch, sends it, and passes its answers on. Adds its ids to `ids`.
    async fn send(&self, conn: &mut E::Conn, ids: &mut Vec<Key>) -> Result<(), ServerError> {
        let batch = self.lock().take();
        ids.extend(batch.iter().map(|waiting| waiting.request.id().clone()));
        if batch.is_empty() {
            return Ok(());
        }
        let (requests, waiting): (Vec<R>, Vec<_>) =
            batch.into_iter().map(|waiting| (waiting.request, waiting.answer)).unzip();
        let outcomes = match R::send(&self.pool.engine, conn, &requests).await {
            Ok(outcomes) if outcomes.len() != requests.len() => {
                let what = format!("{} answers to {} requests", outcomes.len(), requests.len());
                Err(ServerError::Answer { backend: E::NAME, what })
            }
            outcomes => outcomes,
        };
        {
            let mut queue = self.lock();
            queue.expected = MOST.min(requests.len() + queue.waiting.len());
        }
        let mut outcomes = outcomes.map(Vec::into_iter).map_err(Arc::new);
        for waiting in waiting {
            let outcome = outcomes.as_mut().map(|outcomes| outcomes.next().expect("one for each request"));
            // A caller that does not wait for it any more withdraws its request, or repeats it.
            let _ = waiting.send(outcome.map_err(|error| ServerError::Batch(error.clone())));
        }
        outcomes.map(drop).map_err(ServerError::Batch)
    }
}

impl<E: Engine, R: Batched> InFlight<E, R> {
    fn go_on(&mut self, goes_on: bool) {
        self.goes_on = goes_on;
    }
}

impl<E: Engine, R> Batcher<E, R> {
    fn lock(&self) -> MutexGuard<'_, Queue<R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Batched> Queue<R> {
    /// Returns the first request that need not wait for what is in flight.
    fn next(&self) -> Option<&Pending<R>> {
        self.waiting.iter().find(|waiting| !self.is_busy(waiting.request.id()))
    }

    fn is_busy(&self, id: &Key) -> bool {
        self.busy.get(id).is_some_and(|since| since.elapsed() < STUCK)
    }

    /// Takes the next batch, sorted by id.
    fn take(&mut self) -> Vec<Pending<R>> {
        let (mut batch, mut behind) = (Vec::new(), Vec::new());
        while batch.len() < MOST
            && let Some(waiting) = self.waiting.pop_front()
        {
            if self.is_busy(waiting.request.id()) {
                behind.push(waiting);
            } else if !waiting.answer.is_closed() {
                waiting.sent.store(true, Ordering::Relaxed);
                batch.push(waiting);
            }
        }
        for waiting in behind.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
        let now = Instant::now();
        self.busy.extend(batch.iter().map(|waiting| (waiting.request.id().clone(), now)));
        self.expected = batch.len();
        batch.sort_by(|one, other| one.request.id().cmp(other.request.id()));
        batch
    }
}

impl<E: Engine, R> Drop for PendingAnswer<'_, E, R> {
    fn drop(&mut self) {
        // Under the lock: from then on it is sent already, or never.
        let _queue = self.batcher.lock();
        self.answer.close();
    }
}

impl<E: Engine, R: Batched> Drop for InFlight<E, R> {
    fn drop(&mut self) {
        let mut queue = self.batcher.lock();
        for id in &self.ids {
            queue.busy.remove(id);
        }
        if self.goes_on && queue.in_flight == 1 && !queue.waiting.is_empty() {
            drop(queue);
            return self.batcher.send_next();
        }
        queue.in_flight -= 1;
        if queue.in_flight == 0 {
            // The connection failed, or the runtime ends: each is sent alone.
            let waiting = std::mem::take(&mut queue.waiting);
            drop((queue, waiting));
        }
    }
}
