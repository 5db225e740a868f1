//! Waking: how a process learns that its waiters' turn has come, and shows the others that they still wait.
//!
//! One task on this crate's thread listens; another gives a sign of life every second while anybody here waits, which
//! also brings what was handed over (in case telling failed), and looks after leases that have ended on what is waited
//! for. So nothing depends on being told: listening makes it fast.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{Moment, Offer, StoreClock, Waiters, Wake, Wakeup};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use super::{
    Ask, Engine, Heard, Key, Order, Place, Pool, ServerError, background,
    reply::{self, Handed, Told},
    retry,
};

/// Between two signs of life of a process with waiters.
const BEAT: Duration = Duration::from_secs(1);

/// After so long without one others may have taken this process for dead: a sign counts for 3 s.
const SILENCE: Duration = Duration::from_millis(2500);

/// So much later than a lease ends it is certainly over.
const ROUNDING: Duration = Duration::from_millis(1);

/// The same where nobody tells this process anything, so that it has to look: at first, and when nothing happens.
const LOOK: Duration = Duration::from_millis(20);
const SELDOM: Duration = Duration::from_millis(200);

/// How long a message to oneself may take before listening is taken not to work.
const PROBE: Duration = Duration::from_secs(3);

/// Before listening is tried again, at first and at most.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_AT_MOST: Duration = Duration::from_secs(10);

/// What the DAO and its tasks share.
pub(crate) struct Shared<E: Engine> {
    pub(crate) pool: Arc<Pool<E>>,
    /// Names this DAO among all that wait.
    pub(crate) session: i64,
    /// With the ids of those who stand in rows.
    waiters: Waiters<Place, Key>,
    pub(crate) clock: StoreClock,
    /// What is told to this session is heard.
    listening: AtomicBool,
    /// Something was queued for, so that there may be places to give up.
    queued: AtomicBool,
    /// When the next sign of life is due; `None` while nobody waits.
    due: Mutex<Option<Instant>>,
    sooner: Notify,
}

/// The tasks. Dropping it ends them, and gives up the session's places.
pub(crate) struct Watch<E: Engine> {
    shared: Arc<Shared<E>>,
    tasks: Vec<JoinHandle<()>>,
}

impl<E: Engine> Shared<E> {
    pub(crate) fn new(engine: E) -> Self {
        Shared {
            pool: Arc::new(Pool::new(engine)),
            session: fastrand::i64(1..),
            waiters: Waiters::new(),
            clock: StoreClock::new(),
            listening: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            due: Mutex::new(None),
            sooner: Notify::new(),
        }
    }

    /// The database.
    pub(crate) fn engine(&self) -> &E {
        &self.pool.engine
    }

    /// Carries out an order.
    pub(crate) async fn carry_out(&self, order: &Order<'_>) -> Result<String, ServerError> {
        retry::carry_out(&self.pool, order).await
    }

    /// A waiter that will be told. To be called before the request is sent.
    pub(crate) fn expect(&self, ask: &Ask) -> Wakeup {
        self.queued.store(true, Ordering::Relaxed);
        self.waiters.add(ask.place())
    }

    /// It waits in the row of its only id.
    pub(crate) fn stands(&self, ask: &Ask) {
        self.waiters.note(&ask.place(), ask.ids[0].clone());
    }

    /// The attempt waits no more, or never did.
    pub(crate) fn forget(&self, ask: &Ask) {
        self.waiters.remove(&ask.place());
    }

    /// Somebody waits whose way may be free in `end`: a sign of life is due by then.
    pub(crate) fn look_in(&self, end: Option<Duration>) {
        let pause = end.map_or(BEAT, |end| (end + ROUNDING).min(BEAT));
        let at = Instant::now() + if self.is_listening() { pause } else { pause.min(LOOK) };
        let mut due = self.due();
        if due.is_none_or(|due| at < due) {
            *due = Some(at);
            drop(due);
            self.sooner.notify_one();
        }
    }

    /// Whether what is told to this session is heard at present.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Relaxed)
    }

    fn due(&self) -> MutexGuard<'_, Option<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands on what was told.
    fn hear(&self, told: Told) -> bool {
        let something = !told.o.is_empty() || !told.t.is_empty();
        for (context, attempt) in told.t {
            // Whoever no longer waits has left, or was told before.
            let _ = self.waiters.wake(&(context.text().into(), attempt as u64), Wake::Recheck);
        }
        for handed in reply::whole(told.o) {
            self.hand_on(handed);
        }
        something
    }

    fn hand_on(&self, handed: Handed) {
        let place = (handed.c.text().into(), handed.a as u64);
        let claims = handed.g.len();
        // Before it is worked out what is left, so that a stop in between shortens the offer.
        let at = Moment::now();
        let lasts = Duration::from_micros(handed.lasts);
        let remaining = self.clock.remaining(handed.at, lasts, at);
        let wake = match (reply::grant(E::NAME, handed.g, claims), remaining) {
            (Ok(granted), Some(left)) if !left.is_zero() => {
                Wake::Offer(Offer { granted, remaining: Some(left) })
            }
            _ => Wake::Recheck,
        };
        // If nobody waits, the withdrawal that a vanishing waiter makes passes it on, or its short lease does.
        let _ = self.waiters.wake_as_of(&place, wake, at);
    }

    /// Gives a sign of life; in how long the next is due.
    async fn beat(&self, probe: Option<u32>) -> Result<Option<Duration>, ServerError> {
        let sent = Moment::now();
        let standing = &self.waiters.noted();
        let answer = self.carry_out(&Order::Beat { session: self.session, standing, probe }).await?;
        let told = reply::told(E::NAME, &answer)?;
        if let Some(now) = told.now {
            self.clock.sample(sent, Moment::now(), now);
        }
        let next = told.next.map(reply::span);
        Ok(if self.hear(told) { Some(Duration::ZERO) } else { next })
    }

    /// While anybody waits.
    async fn give_signs_of_life(self: Arc<Self>) {
        let (mut pause, mut last) = (LOOK, Instant::now());
        loop {
            if self.waiters.count() == 0 {
                *self.due() = None;
                // Who was added meanwhile has not been answered yet, and then calls `look_in`.
                self.sooner.notified().await;
                last = Instant::now();
            }
            let due = *self.due();
            let left = due.map_or(BEAT, |due| due.saturating_duration_since(Instant::now()));
            if !left.is_zero() && background::within(left, self.sooner.notified()).await.is_some() {
                continue;
            }
            // A failure is no reason to stop: others take us for dead if the signs are missing.
            let next = self.beat(None).await.unwrap_or(None);
            if last.elapsed() > SILENCE {
                // This process was stopped, or the server away: others may have removed the places.
                self.waiters.wake_all();
            }
            last = Instant::now();
            pause = if next == Some(Duration::ZERO) { LOOK } else { (pause * 2).min(SELDOM) };
            let next = next.filter(|next| !next.is_zero()).map_or(BEAT, |next| (next + ROUNDING).min(BEAT));
            let next = if self.is_listening() { next } else { next.min(pause) };
            *self.due() = Some(Instant::now() + next);
        }
    }

    /// Listens for ever; `tried` is told whether the first try worked.
    async fn listen(self: Arc<Self>, tried: oneshot::Sender<Result<(), ServerError>>) {
        let mut tried = Some(tried);
        let mut pause = AGAIN;
        loop {
            let listener = self.begin_to_listen().await;
            let outcome = match listener {
                Ok(mut listener) => {
                    pause = AGAIN;
                    self.listening.store(true, Ordering::Relaxed);
                    // What was told while nobody listened was missed.
                    self.waiters.wake_all();
                    let _ = tried.take().map(|tried| tried.send(Ok(())));
                    let error = self.hear_all(&mut listener).await;
                    self.listening.store(false, Ordering::Relaxed);
                    self.waiters.wake_all();
                    error
                }
                Err(error) => error,
            };
            if let Some(tried) = tried.take() {
                let _ = tried.send(Err(outcome));
            } else {
                tracing::debug!(backend = E::NAME, error = %outcome, "not listening");
            }
            background::sleep(pause).await;
            pause = (pause * 2).min(AGAIN_AT_MOST);
        }
    }

    /// Listens, and makes sure that it hears what is told by the way that others tell it.
    async fn begin_to_listen(&self) -> Result<E::Listener, ServerError> {
        let timeout = self.engine().settings().timeout;
        let listen = background::within(timeout, self.engine().listen(self.session));
        let silent = || ServerError::Misconfigured {
            backend: E::NAME,
            what: format!(
                "a message to itself did not arrive within {PROBE:?}: listening needs a connection past the pooler"
            ),
        };
        let mut listener =
            listen.await.ok_or(ServerError::NoAnswer { backend: E::NAME, after: timeout })??;
        let probe = fastrand::u32(1..);
        self.beat(Some(probe)).await?;
        let heard = background::within(PROBE, async {
            loop {
                match self.engine().hear(&mut listener).await? {
                    Heard::Told(text) => {
                        let told = reply::told(E::NAME, &text)?;
                        let found = told.probe == Some(probe);
                        self.hear(told);
                        if found {
                            return Ok(());
                        }
                    }
                    Heard::Ring => return Ok(()),
                    Heard::Gap => {}
                }
            }
        });
        heard.await.ok_or_else(silent)??;
        Ok(listener)
    }

    /// Hands on what is heard until listening fails.
    async fn hear_all(&self, listener: &mut E::Listener) -> ServerError {
        loop {
            match self.engine().hear(listener).await {
                Ok(Heard::Told(text)) => match reply::told(E::NAME, &text) {
                    Ok(told) => drop(self.hear(told)),
                    Err(error) => tracing::warn!(backend = E::NAME, %error, "a message cannot be read"),
                },
                Ok(Heard::Ring) => {
                    if let Err(error) = self.beat(None).await {
                        tracing::debug!(backend = E::NAME, %error, "no answer to a sign of life");
                        self.waiters.wake_all();
                    }
                }
                Ok(Heard::Gap) => self.waiters.wake_all(),
                Err(error) => return error,
            }
        }
    }
}

impl<E: Engine> Watch<E> {
    /// Starts the tasks. `Err` holds why nothing is heard; it is tried again and again all the same.
    pub(crate) async fn start(shared: Arc<Shared<E>>) -> (Self, Result<(), ServerError>) {
        let (tried, outcome) = oneshot::channel();
        let warm = shared.clone();
        let mut tasks = vec![background::handle().spawn(shared.clone().give_signs_of_life())];
        let outcome = if shared.engine().settings().listen {
            tasks.push(background::handle().spawn(shared.clone().listen(tried)));
            outcome.await.unwrap_or(Ok(()))
        } else {
            // As listening does: it leaves a connection for the first renewal. If it fails, that makes its own.
            let _ = background::handle().spawn(async move { warm.beat(None).await }).await;
            let what = "listening is switched off".to_owned();
            Err(ServerError::Misconfigured { backend: E::NAME, what })
        };
        (Watch { shared, tasks }, outcome)
    }
}

impl<E: Engine> Drop for Watch<E> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if self.shared.queued.load(Ordering::Relaxed) {
            let shared = self.shared.clone();
            background::handle().spawn(async move {
                // If it fails, the places lapse for want of signs of life.
                let _ = shared.carry_out(&Order::Leave { session: shared.session }).await;
            });
        }
    }
}
