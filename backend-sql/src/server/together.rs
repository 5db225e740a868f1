//! Requests that come together travel together: while some exchanges are under way, what other tasks of the program ask
//! for gathers, and goes as one exchange when one of those has ended. Half of what a request costs the server is not the
//! work on its row but that it is a statement and a transaction of its own; so a crowd gets more done, and who is alone
//! waits for nobody, unless there was a crowd just before: then it may be the first of the next.
//!
//! Only requests for one id go together, in the order of the ids: so no two exchanges wait for each other's rows in a
//! circle. Each runtime gathers its own, since it drives its own connections; and where a release waits for less than an
//! acquire does, the two gather apart.

use std::{
    collections::VecDeque,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::BackendErrorKind;
use tokio::{
    sync::{Notify, oneshot},
    task,
};

use super::{
    Done, Engine, Order, Outcome, Pool, ServerError, Single, background,
    pool::Own,
    retry::{alone, exchange},
};

/// So many exchanges are under way before requests gather: while the server works on one, the answers of another are read.
/// Of a crowd, all gather while there is one: the larger the fewer there are.
const LANES: usize = 2;

/// An exchange of so many requests shows that there is a crowd.
const CROWD: usize = 5;

/// How long a request waits at least and at most for one of them to end before there is one more, as long as there are
/// connections: what holds them up - a slow disk, a row that a transaction of the user's has locked - need not hold up
/// others. Twice what the database worked on the last one, without its commit: while it works, one more only makes it work
/// on both. No exchange that takes so long is one too many.
const PATIENCE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(10);

/// How long an exchange of a crowd waits for as many as went the last time.
const GATHER: Duration = Duration::from_millis(2);

/// The most requests of an exchange: all of them get their answers at its end.
const MOST: usize = 64;

/// So often a request goes with others, while somebody else works on its id, before it waits for that one alone: another
/// exchange, which will have ended the next time, or a transaction of the user's.
const TRIES: u32 = 3;

/// None: it was not done with the others, and has to be carried out alone.
type Answer = Result<Option<String>, ServerError>;

/// The requests of one runtime that may go together.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    gathered: Mutex<Gathered>,
    /// As many wait as went the last time.
    full: Notify,
}

#[derive(Debug)]
struct Gathered {
    under_way: usize,
    /// So many went in the last exchange.
    together: usize,
    /// See [`PATIENCE`].
    patience: Duration,
    /// In the order of their numbers.
    waiting: VecDeque<Request>,
    /// Of the last that waited.
    number: u64,
}

/// A request that waits for an exchange to end.
#[derive(Debug)]
struct Request {
    number: u64,
    /// So often it went, and its id was busy.
    tried: u32,
    order: Single,
    taken: Arc<AtomicBool>,
    answer: oneshot::Sender<Answer>,
}

/// How a request begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    /// In an exchange of its own.
    Alone,
    /// In a lane of its own, for which others of a crowd are gathered.
    First,
    /// Behind what is under way.
    Behind,
}

/// Which of a runtime's gatherings an order belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Common,
    ReleasesApart,
}

impl Kind {
    fn of<E: Engine>(order: &Order<'_>) -> Self {
        match order {
            Order::Release(_) if E::RELEASES_APART => Kind::ReleasesApart,
            _ => Kind::Common,
        }
    }
}

/// Carries out an order once, with others if many come at once. `sent`: whether it may have been sent.
pub(super) async fn once<E: Engine>(
    pool: &Arc<Pool<E>>,
    order: &Order<'_>,
    sent: &AtomicBool,
) -> Result<String, ServerError> {
    if !order.is_single() {
        return alone(pool, order, sent).await;
    }
    let (own, kind) = (pool.own(), Kind::of::<E>(order));
    let entry = own.gathering(kind).enter();
    let lane = (entry != Entry::Behind).then(|| Lane::new(pool, &own, kind));
    if entry == Entry::Alone {
        let _lane = lane;
        return alone(pool, order, sent).await;
    }
    if let Some(single) = Single::new(order)
        && let Some(answer) = gathered(pool, &own, kind, lane, single, sent).await?
    {
        return Ok(answer);
    }
    alone(pool, order, sent).await
}

/// Waits until the order went with others, in that lane if there is one.
async fn gathered<E: Engine>(
    pool: &Arc<Pool<E>>,
    own: &Arc<Own<E>>,
    kind: Kind,
    lane: Option<Lane<E>>,
    order: Single,
    sent: &AtomicBool,
) -> Answer {
    let gathering = own.gathering(kind);
    let (waiting, mut answer) = Waiting::begin(gathering, order, sent);
    if let Some(lane) = lane {
        lane.drive();
    }
    let mut patience = gathering.lock().patience;
    loop {
        match background::within(patience, &mut answer).await {
            Some(Ok(answer)) => return answer,
            // The runtime ends.
            Some(Err(_)) if waiting.taken.load(Ordering::Relaxed) => return Err(unanswered(E::NAME)),
            Some(Err(_)) => return Ok(None),
            None if own.has_connections() && gathering.hasten(waiting.number) => {
                Lane::new(pool, own, kind).drive();
            }
            None => {}
        }
        patience *= 2;
    }
}

fn unanswered(backend: &'static str) -> ServerError {
    let (kind, source) = (BackendErrorKind::Unavailable, sqlx::Error::WorkerCrashed);
    ServerError::Database { backend, kind, in_doubt: true, transient: false, broken: false, source }
}

/// The request of a caller, who may go away. Dropping it says whether the request was sent.
struct Waiting<'c> {
    gathering: &'c Gathering,
    number: u64,
    taken: Arc<AtomicBool>,
    sent: &'c AtomicBool,
}

impl<'c> Waiting<'c> {
    fn begin(
        gathering: &'c Gathering,
        order: Single,
        sent: &'c AtomicBool,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let taken = Arc::new(AtomicBool::new(false));
        let (answer, answered) = oneshot::channel();
        let mut gathered = gathering.lock();
        gathered.number += 1;
        let number = gathered.number;
        if gathered.waiting.len() + 1 == gathered.together {
            gathering.full.notify_one();
        }
        gathered.waiting.push_back(Request { number, tried: 0, order, taken: taken.clone(), answer });
        (Waiting { gathering, number, taken, sent }, answered)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Under the lock it is taken or waits; and nobody receives the answer any more, so that it does not wait again.
        let waiting = &mut self.gathering.lock().waiting;
        if self.taken.load(Ordering::Relaxed) {
            self.sent.store(true, Ordering::Relaxed);
        } else if let Ok(at) = waiting.binary_search_by_key(&self.number, |request| request.number) {
            waiting.remove(at);
        }
    }
}

impl Default for Gathered {
    fn default() -> Self {
        let waiting = VecDeque::new();
        Gathered { under_way: 0, together: 0, patience: *PATIENCE.start(), waiting, number: 0 }
    }
}

impl Gathering {
    fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an exchange, if few are under way and nobody waits.
    fn enter(&self) -> Entry {
        let mut gathered = self.lock();
        let is_crowd = gathered.together >= CROWD;
        let lanes = if is_crowd { 1 } else { LANES };
        if gathered.under_way >= lanes || !gathered.waiting.is_empty() {
            return Entry::Behind;
        }
        gathered.under_way += 1;
        if is_crowd {
            return Entry::First;
        }
        gathered.together = 1;
        Entry::Alone
    }

    /// Waits until as many go together as the last time, if that was a crowd; not for long.
    async fn gather(&self) {
        let few = {
            let gathered = self.lock();
            gathered.together >= CROWD && gathered.waiting.len() < gathered.together
        };
        if few {
            background::within(GATHER, self.full.notified()).await;
        }
    }

    /// Begins one more exchange, if the request still waits.
    fn hasten(&self, number: u64) -> bool {
        let mut gathered = self.lock();
        let waits = gathered.waiting.front().is_some_and(|first| first.number <= number);
        gathered.under_way += usize::from(waits);
        waits
    }

    /// What goes together now; nothing if the lane has ended, of which the last exchange took so long.
    fn take(&self, took: Duration) -> Vec<Request> {
        let mut gathered = self.lock();
        let many = took < gathered.patience && gathered.together >= CROWD && gathered.under_way > 1;
        if many || gathered.waiting.is_empty() {
            gathered.under_way -= 1;
            return Vec::new();
        }
        let most = gathered.waiting.len().min(MOST);
        gathered.together = most;
        let requests: Vec<_> = gathered.waiting.drain(..most).collect();
        for request in &requests {
            request.taken.store(true, Ordering::Relaxed);
        }
        requests
    }

    /// A request for which nothing was done waits again, in its turn; unless nobody waits for it any more.
    fn put_back(&self, request: Request) {
        let mut gathered = self.lock();
        if !request.answer.is_closed() {
            request.taken.store(false, Ordering::Relaxed);
            let at = gathered.waiting.partition_point(|other| other.number < request.number);
            gathered.waiting.insert(at, request);
        }
    }
}

/// The right to an exchange. Whoever drops it begins the next one, if somebody waits for it.
struct Lane<E: Engine> {
    pool: Arc<Pool<E>>,
    own: Arc<Own<E>>,
    kind: Kind,
    held: Held,
}

enum Held {
    /// By a caller that goes alone.
    ByCaller,
    /// By a task that carries out what waits.
    ByTask,
    /// By nobody any more.
    No,
}

impl<E: Engine> Lane<E> {
    fn new(pool: &Arc<Pool<E>>, own: &Arc<Own<E>>, kind: Kind) -> Self {
        Lane { pool: pool.clone(), own: own.clone(), kind, held: Held::ByCaller }
    }

    /// Begins a task that carries out what waits.
    fn drive(mut self) {
        self.held = Held::ByTask;
        let runtime = self.own.runtime.clone();
        runtime.spawn(async move {
            let mut took = Duration::MAX;
            loop {
                // Who was answered just now may come along.
                task::yield_now().await;
                self.own.gathering(self.kind).gather().await;
                let requests = self.own.gathering(self.kind).take(took);
                if requests.is_empty() {
                    return self.end();
                }
                let begun = Instant::now();
                self.exchange(requests).await;
                took = begun.elapsed();
            }
        });
    }

    /// Nothing waits, and the lane is not counted any more.
    fn end(mut self) {
        self.held = Held::No;
    }

    async fn exchange(&self, mut requests: Vec<Request>) {
        // Of one id, what is freed before what is taken.
        requests.sort_by(|one, other| one.order.rank().cmp(&other.order.rank()));
        let after = self.pool.engine.settings().timeout;
        let outcomes = background::within(after, self.carry_out(&requests)).await;
        match outcomes.unwrap_or(Err(ServerError::NoAnswer { backend: E::NAME, after })) {
            Ok(Done { outcomes, worked }) => {
                let patience = (worked * 2).clamp(*PATIENCE.start(), *PATIENCE.end());
                self.own.gathering(self.kind).lock().patience = patience;
                for (mut request, outcome) in requests.into_iter().zip(outcomes) {
                    request.tried += 1;
                    let answer = match outcome {
                        Outcome::Done(answer) => Some(answer),
                        Outcome::Busy if request.tried < TRIES => {
                            self.own.gathering(self.kind).put_back(request);
                            continue;
                        }
                        Outcome::Busy | Outcome::Alone => None,
                    };
                    // Who does not wait for it any more withdraws it, or asks again.
                    let _ = request.answer.send(Ok(answer));
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for request in requests {
                    let _ = request.answer.send(Err(ServerError::Together(error.clone())));
                }
            }
        }
    }

    async fn carry_out(&self, requests: &[Request]) -> Result<Done, ServerError> {
        let orders: Vec<_> = requests.iter().map(|request| &request.order).collect();
        let warm = orders.iter().any(|order| matches!(order, Single::Release(_)));
        let engine = &self.pool.engine;
        let done =
            exchange(&self.pool, warm, async |conn| engine.carry_out_together(conn, &orders).await).await?;
        if done.outcomes.len() != requests.len() {
            let what = format!("{} answers to {} requests", done.outcomes.len(), requests.len());
            return Err(ServerError::Answer { backend: E::NAME, what });
        }
        Ok(done)
    }
}

impl<E: Engine> Drop for Lane<E> {
    fn drop(&mut self) {
        let mut gathered = self.own.gathering(self.kind).lock();
        match self.held {
            Held::ByCaller if !gathered.waiting.is_empty() => {
                drop(gathered);
                Lane::new(&self.pool, &self.own, self.kind).drive();
            }
            Held::ByCaller => gathered.under_way -= 1,
            Held::ByTask => {
                // The runtime ends, or an exchange panicked.
                gathered.under_way -= 1;
                let unanswered = std::mem::take(&mut gathered.waiting);
                drop((gathered, unanswered));
            }
            Held::No => {}
        }
    }
}
