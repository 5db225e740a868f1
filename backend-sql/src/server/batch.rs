//! Batching, also known as group commit: while a request is in flight, the requests that other tasks make wait, and travel
//! together when it has ended, as one call and one transaction. For the server a statement and a transaction cost as much
//! as the work on one row, so many clients get more done; one alone waits for nothing.
//!
//! Only requests for one id can be batched, sorted by id: so no two batches wait for each other's rows in a circle. Each
//! runtime has batches of its own, since it drives its own connections. Acquires and releases are batched apart, because a
//! release need not wait for the disk. Whatever a batch cannot do goes the ordinary way, see `exchange`.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    task,
};

use super::{
    Answer, Engine, Order, Outcome, ServerError, StoredGrant, StoredRequest,
    background::{self, PerRuntime},
    exchange::{exchange, in_time, until_done},
    pool::Pool,
};

/// The most requests in a batch: all of them are answered at its end.
const MOST: usize = 64;

/// A batch waits until all expected requests are there, if they are so many: the tasks that the last one answered make their
/// next requests one after the other.
const CROWD: usize = 5;

/// How long it waits for them at most.
const GATHER: Duration = Duration::from_millis(2);

/// A request that has waited for so long starts another batch: what delays the one in flight - a slow disk, a row that a
/// transaction of the user's has locked - must not hold up the others.
const PATIENCE: Duration = Duration::from_millis(5);

/// How often a request travels in a batch while another transaction has locked its row, before it waits for that alone.
const TRIES: usize = 3;

/// The batches of a DAO.
#[derive(Default)]
pub(crate) struct Batches {
    acquires: PerRuntime<Lane<StoredRequest>>,
    releases: PerRuntime<Lane<StoredGrant>>,
}

impl Batches {
    /// Carries out an order within the timeout of the settings, in a batch if others of its kind are in flight.
    pub(crate) async fn carry_out<E: Engine>(
        &self,
        pool: &Arc<Pool<E>>,
        order: &Order<'_>,
    ) -> Result<Answer, ServerError> {
        let sent = Arc::new(AtomicBool::new(false));
        // Boxed, so that the callers' futures stay small.
        let work = Box::pin(async {
            match *order {
                Order::Acquire(request) if request.fits_batch() => {
                    carry_out(&self.acquires, pool, order, request, &sent).await
                }
                Order::Release(grant) if grant.ids.len() == 1 => {
                    carry_out(&self.releases, pool, order, grant, &sent).await
                }
                _ => until_done(pool, order, &sent, None).await,
            }
        });
        in_time(pool, &sent, work).await
    }
}

/// A request of a kind that can be batched.
trait Batched: Clone + Send + Sync + 'static {
    fn id(&self) -> &[u8];

    fn send<E: Engine>(
        engine: &E,
        conn: &mut E::Conn,
        batch: &[Self],
    ) -> impl Future<Output = Result<Vec<Outcome>, ServerError>> + Send;
}

impl Batched for StoredRequest {
    fn id(&self) -> &[u8] {
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
    fn id(&self) -> &[u8] {
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

/// The requests of one kind and one runtime.
struct Lane<R> {
    queue: Mutex<Queue<R>>,
    /// As many requests wait as are expected.
    full: Notify,
}

struct Queue<R> {
    in_flight: usize,
    waiting: VecDeque<Pending<R>>,
    /// How many requests the next batch may have: as many as the last one, whose tasks go on, and those that wait already.
    expected: usize,
}

struct Pending<R> {
    request: R,
    sent: Arc<AtomicBool>,
    answer: oneshot::Sender<Result<Outcome, ServerError>>,
}

/// The caller's end of [`Pending`].
struct PendingAnswer<'l, R> {
    lane: &'l Lane<R>,
    answer: oneshot::Receiver<Result<Outcome, ServerError>>,
}

/// A batch, or a request that is sent alone. Dropping it ends it.
struct InFlight<E: Engine, R: Batched> {
    pool: Arc<Pool<E>>,
    lane: Arc<Lane<R>>,
    /// What waits at its end forms a batch, unless others are in flight. Not if it failed.
    goes_on: bool,
}

async fn carry_out<E: Engine, R: Batched>(
    lanes: &PerRuntime<Lane<R>>,
    pool: &Arc<Pool<E>>,
    order: &Order<'_>,
    request: &R,
    sent: &Arc<AtomicBool>,
) -> Result<Answer, ServerError> {
    let lane = lanes.get(&background::current(), |_| true, Lane::default);
    let in_flight = |goes_on| InFlight { pool: pool.clone(), lane: lane.clone(), goes_on };
    for _ in 0..TRIES {
        let (is_first, waiter) = lane.enter(request, sent);
        let Some(mut waiter) = waiter else {
            let _in_flight = in_flight(true);
            return until_done(pool, order, sent, None).await;
        };
        if is_first {
            drive(in_flight(false));
        }
        let answer = loop {
            match background::within(PATIENCE, &mut waiter.answer).await {
                Some(answer) => break answer,
                None if pool.has_free() && lane.hurry(sent) => drive(in_flight(false)),
                None => {}
            }
        };
        drop(waiter);
        let doubt = match answer {
            Ok(Ok(Outcome::Done(answer))) => return Ok(answer),
            Ok(Ok(Outcome::Busy)) => {
                sent.store(false, Ordering::Relaxed);
                continue;
            }
            Ok(Err(error)) if error.in_doubt() => error,
            // The runtime ends, or the batch had no answer.
            Err(_) if sent.load(Ordering::Relaxed) => {
                ServerError::NoAnswer { backend: E::NAME, after: pool.engine.settings().timeout }
            }
            // Nothing was done; of a failure, another request of the batch may be the cause.
            _ => break,
        };
        return match order.can_be_repeated() {
            true => until_done(pool, order, sent, Some(doubt)).await,
            false => Err(doubt),
        };
    }
    until_done(pool, order, sent, None).await
}

/// Starts a task that sends what waits, batch after batch.
fn drive<E: Engine, R: Batched>(mut in_flight: InFlight<E, R>) {
    background::current().spawn(async move {
        loop {
            let InFlight { pool, lane, .. } = &in_flight;
            lane.gather().await;
            let engine = &pool.engine;
            let batch = exchange(pool, true, async |conn| lane.send(engine, conn).await);
            match background::within(engine.settings().timeout, batch).await {
                // Of several, as a request that has waited too long starts another, one is enough from now on.
                Some(Ok(true)) if lane.lock().in_flight == 1 => {}
                Some(Ok(_)) => return in_flight.go_on(),
                _ => return,
            }
        }
    });
}

impl<E: Engine, R: Batched> InFlight<E, R> {
    fn go_on(&mut self) {
        self.goes_on = true;
    }
}

impl<R> Default for Lane<R> {
    fn default() -> Self {
        let queue = Queue { in_flight: 0, waiting: VecDeque::new(), expected: 0 };
        Lane { queue: Mutex::new(queue), full: Notify::new() }
    }
}

impl<R> Lane<R> {
    fn lock(&self) -> MutexGuard<'_, Queue<R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the tasks that were answered just now make their next requests.
    async fn gather(&self) {
        task::yield_now().await;
        let is_short = {
            let queue = self.lock();
            queue.expected >= CROWD && queue.waiting.len() < queue.expected
        };
        if is_short {
            background::within(GATHER, self.full.notified()).await;
        }
    }
}

impl<R: Batched> Lane<R> {
    /// Adds a request to those that wait, unless it is to be sent alone, and reports whether nothing is in flight yet.
    fn enter(&self, request: &R, sent: &Arc<AtomicBool>) -> (bool, Option<PendingAnswer<'_, R>>) {
        let mut queue = self.lock();
        let is_first = queue.in_flight == 0;
        queue.in_flight += usize::from(is_first);
        if is_first && queue.expected < CROWD {
            return (true, None);
        }
        let (sender, answer) = oneshot::channel();
        queue.waiting.push_back(Pending { request: request.clone(), sent: sent.clone(), answer: sender });
        if queue.waiting.len() == queue.expected {
            self.full.notify_one();
        }
        (is_first, Some(PendingAnswer { lane: self, answer }))
    }

    /// Reports whether the request still waits, as the first; then another batch is counted.
    fn hurry(&self, sent: &Arc<AtomicBool>) -> bool {
        let mut queue = self.lock();
        while queue.waiting.front().is_some_and(|first| first.answer.is_closed()) {
            queue.waiting.pop_front();
        }
        let is_first = queue.waiting.front().is_some_and(|first| Arc::ptr_eq(&first.sent, sent));
        queue.in_flight += usize::from(is_first);
        is_first
    }

    /// Takes the next batch.
    fn take(&self) -> Vec<Pending<R>> {
        let mut queue = self.lock();
        queue.waiting.retain(|waiting| !waiting.answer.is_closed());
        let most = queue.waiting.len().min(MOST);
        let mut batch: Vec<_> = queue.waiting.drain(..most).collect();
        queue.expected = most;
        for waiting in &batch {
            waiting.sent.store(true, Ordering::Relaxed);
        }
        drop(queue);
        batch.sort_by(|one, other| one.request.id().cmp(other.request.id()));
        batch
    }

    /// Sends the next batch, and passes its answers on; `false` if nothing waits.
    async fn send<E: Engine>(&self, engine: &E, conn: &mut E::Conn) -> Result<bool, ServerError> {
        let batch = self.take();
        if batch.is_empty() {
            return Ok(false);
        }
        let (requests, waiting): (Vec<R>, Vec<_>) =
            batch.into_iter().map(|waiting| (waiting.request, waiting.answer)).unzip();
        let outcomes = match R::send(engine, conn, &requests).await {
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
        outcomes.map(|_| true).map_err(ServerError::Batch)
    }
}

impl<R> Drop for PendingAnswer<'_, R> {
    fn drop(&mut self) {
        // Under the lock: from then on it is sent already, or never.
        let _queue = self.lane.lock();
        self.answer.close();
    }
}

impl<E: Engine, R: Batched> Drop for InFlight<E, R> {
    fn drop(&mut self) {
        let mut queue = self.lane.lock();
        if self.goes_on && queue.in_flight == 1 && !queue.waiting.is_empty() {
            drop(queue);
            return drive(InFlight { pool: self.pool.clone(), lane: self.lane.clone(), goes_on: false });
        }
        queue.in_flight -= 1;
        if queue.in_flight == 0 {
            // The connection failed, or the runtime ends: each is sent alone.
            let waiting = std::mem::take(&mut queue.waiting);
            drop((queue, waiting));
        }
    }
}
