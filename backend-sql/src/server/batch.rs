//! Batching, also known as group commit: while a request is in flight, the requests that other tasks make wait, and travel
//! together when it has ended, as one call and one transaction. For the server a statement and a transaction cost as much
//! as the work on one row, so many clients get more done; one alone waits for nothing.
//!
//! Only requests for one id can be batched, sorted by id: so no two batches wait for each other's rows in a circle. Each
//! runtime has batches of its own, since it drives its own connections. Acquires and releases are batched apart, because a
//! release need not wait for the disk. Whatever a batch cannot do goes the ordinary way, see `exchange`.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::oneshot, task};

use super::{
    Answer, Engine, Order, ServerError, StoredGrant, StoredRequest,
    background::{self, PerRuntime},
    exchange::{exchange, in_time, until_done},
    pool::Pool,
};

/// The most requests in a batch: all of them are answered at its end.
const MOST: usize = 64;

/// A request that has waited for so long starts another batch: what delays the one in flight - a slow disk, a row that a
/// transaction of the user's has locked - must not hold up the others.
const PATIENCE: Duration = Duration::from_millis(5);

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
    ) -> impl Future<Output = Result<Vec<Option<Answer>>, ServerError>> + Send;
}

impl Batched for StoredRequest {
    fn id(&self) -> &[u8] {
        &self.ids[0]
    }

    async fn send<E: Engine>(
        engine: &E,
        conn: &mut E::Conn,
        batch: &[Self],
    ) -> Result<Vec<Option<Answer>>, ServerError> {
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
    ) -> Result<Vec<Option<Answer>>, ServerError> {
        engine.release_batch(conn, batch).await
    }
}

/// The requests of one kind and one runtime.
struct Lane<R>(Mutex<Queue<R>>);

struct Queue<R> {
    in_flight: usize,
    waiting: VecDeque<Waiting<R>>,
}

struct Waiting<R> {
    request: R,
    sent: Arc<AtomicBool>,
    /// `None`: nothing was done, and the request has to be sent alone.
    answer: oneshot::Sender<Result<Option<Answer>, ServerError>>,
}

/// The caller's end of [`Waiting`].
struct Waiter<'l, R> {
    lane: &'l Lane<R>,
    answer: oneshot::Receiver<Result<Option<Answer>, ServerError>>,
}

/// A batch, or a request that is sent alone. Dropping it ends it.
struct InFlight<R>(Arc<Lane<R>>);

/// A request that is sent alone: at its end, what waits forms a batch.
struct Alone<E: Engine, R: Batched> {
    pool: Arc<Pool<E>>,
    in_flight: Option<InFlight<R>>,
}

async fn carry_out<E: Engine, R: Batched>(
    lanes: &PerRuntime<Lane<R>>,
    pool: &Arc<Pool<E>>,
    order: &Order<'_>,
    request: &R,
    sent: &Arc<AtomicBool>,
) -> Result<Answer, ServerError> {
    let lane = lanes.get(&background::current(), |_| true, Lane::default);
    let Some(mut waiter) = lane.wait(request, sent) else {
        let _alone = Alone { pool: pool.clone(), in_flight: Some(InFlight(lane)) };
        return until_done(pool, order, sent, None).await;
    };
    let answer = loop {
        match background::within(PATIENCE, &mut waiter.answer).await {
            Some(answer) => break answer,
            None if pool.has_free() && lane.hurry(sent) => drive(pool.clone(), InFlight(lane.clone())),
            None => {}
        }
    };
    drop(waiter);
    let earlier = match answer {
        Ok(Ok(Some(answer))) => return Ok(answer),
        Ok(Err(error)) if error.in_doubt() => Some(error),
        // Nothing was done; of a failure, another request of the batch may be the cause.
        Ok(_) => None,
        // The runtime ends, or the batch had no answer.
        Err(_) if sent.load(Ordering::Relaxed) => {
            Some(ServerError::NoAnswer { backend: E::NAME, after: pool.engine.settings().timeout })
        }
        Err(_) => None,
    };
    match earlier {
        Some(error) if !order.can_be_repeated() => Err(error),
        earlier => until_done(pool, order, sent, earlier).await,
    }
}

/// Starts a task that sends what waits, batch after batch.
fn drive<E: Engine, R: Batched>(pool: Arc<Pool<E>>, in_flight: InFlight<R>) {
    background::current().spawn(async move {
        let InFlight(lane) = &in_flight;
        loop {
            // The tasks that were answered just now may make their next requests.
            task::yield_now().await;
            let engine = &pool.engine;
            let batch = exchange(&pool, true, async |conn| lane.send(engine, conn).await);
            match background::within(engine.settings().timeout, batch).await {
                Some(Ok(true)) => {}
                _ => return,
            }
        }
    });
}

impl<R> Default for Lane<R> {
    fn default() -> Self {
        Lane(Mutex::new(Queue { in_flight: 0, waiting: VecDeque::new() }))
    }
}

impl<R> Lane<R> {
    fn lock(&self) -> MutexGuard<'_, Queue<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Batched> Lane<R> {
    /// Adds a request to those that wait; `None` if nothing is in flight, and it is to be sent alone.
    fn wait(&self, request: &R, sent: &Arc<AtomicBool>) -> Option<Waiter<'_, R>> {
        let mut queue = self.lock();
        if queue.in_flight == 0 {
            queue.in_flight = 1;
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let waiting = Waiting { request: request.clone(), sent: sent.clone(), answer: sender };
        queue.waiting.push_back(waiting);
        Some(Waiter { lane: self, answer })
    }

    /// Reports whether the request still waits, as the first; then another batch is counted.
    fn hurry(&self, sent: &Arc<AtomicBool>) -> bool {
        let mut queue = self.lock();
        queue.waiting.retain(|waiting| !waiting.answer.is_closed());
        let is_first = queue.waiting.front().is_some_and(|first| Arc::ptr_eq(&first.sent, sent));
        queue.in_flight += usize::from(is_first);
        is_first
    }

    /// Takes the next batch.
    fn take(&self) -> Vec<Waiting<R>> {
        let mut queue = self.lock();
        queue.waiting.retain(|waiting| !waiting.answer.is_closed());
        let most = queue.waiting.len().min(MOST);
        let mut batch: Vec<_> = queue.waiting.drain(..most).collect();
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
        let mut answers = match R::send(engine, conn, &requests).await {
            Ok(answers) if answers.len() == requests.len() => Ok(answers),
            Ok(answers) => {
                let what = format!("{} answers to {} requests", answers.len(), requests.len());
                Err(Arc::new(ServerError::Answer { backend: E::NAME, what }))
            }
            Err(error) => Err(Arc::new(error)),
        };
        for (position, waiting) in waiting.into_iter().enumerate() {
            let answer = answers.as_mut().map(|answers| answers[position].take());
            // A caller that does not wait for it any more withdraws its request, or repeats it.
            let _ = waiting.send(answer.map_err(|error| ServerError::Batch(error.clone())));
        }
        answers.map(|_| true).map_err(ServerError::Batch)
    }
}

impl<R> Drop for Waiter<'_, R> {
    fn drop(&mut self) {
        // Under the lock: from then on it is sent already, or never.
        let _queue = self.lane.lock();
        self.answer.close();
    }
}

impl<R> Drop for InFlight<R> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.in_flight -= 1;
        if queue.in_flight == 0 {
            // They came too late for this, the connection failed, or the runtime ends: each is sent alone.
            let waiting = mem::take(&mut queue.waiting);
            drop((queue, waiting));
        }
    }
}

impl<E: Engine, R: Batched> Drop for Alone<E, R> {
    fn drop(&mut self) {
        if let Some(in_flight) = self.in_flight.take()
            && !in_flight.0.lock().waiting.is_empty()
        {
            drive(self.pool.clone(), in_flight);
        }
    }
}
