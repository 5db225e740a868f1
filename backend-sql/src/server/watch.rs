//! Waking: how a process learns that its waiters' turn has come, and shows the others that they still wait.
//!
//! One task on this crate's thread listens; another gives a sign of life every second while anybody here waits, which
//! also brings what was handed over (in case telling failed), and looks after leases that have ended on what is waited
//! for. So nothing depends on being told: listening makes it fast.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use lockcore::{Moment, Offer, StoreClock, Waiters, Wake, Wakeup};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use super::{
    Ask, Engine, Key, Order, Place, Pool, ServerError, background,
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

/// How long a message to oneself, or the answer to a probe, may take before the listener is replaced.
const PROBE: Duration = Duration::from_secs(3);

/// How often a listener that hears nothing is probed while there are no waiters: routers forget connections that are not used.
/// While anybody waits it is probed with each sign of life.
const QUIET: Duration = Duration::from_secs(20);

/// Before listening is tried again: at first, at most after a failure of the network, and at most where it cannot work.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_AT_MOST: Duration = Duration::from_secs(2);
const AGAIN_IF_MISCONFIGURED: Duration = Duration::from_secs(10);

/// What the DAO and its tasks share.
pub(crate) struct Shared<E: Engine> {
    pub(crate) pool: Arc<Pool<E>>,
    /// Names this DAO among all that wait.
    pub(crate) session: i64,
    /// With the ids of those who stand in rows.
    waiters: Waiters<Place, Key>,
    pub(crate) clock: StoreClock,
    push: Mutex<Push>,
    /// A sign of life is about to be given, so that the listener is to be probed.
    probe: Notify,
    /// Something was queued for, so that there may be places to give up.
    queued: AtomicBool,
    /// When the next sign of life is due; `None` while nobody waits.
    due: Mutex<Option<Instant>>,
    sooner: Notify,
}

/// Whether messages to this session are received.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    /// For how long it has been so.
    pub(crate) since: Instant,
    /// Why not, if so.
    pub(crate) failure: Option<String>,
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
            push: Mutex::new(Push { since: Instant::now(), failure: Some("not tried yet".to_owned()) }),
            probe: Notify::new(),
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

    /// A release may have handed over to a waiter of this process, which then finds it at once although no message can reach it.
    pub(crate) fn released(&self) {
        if !self.is_listening() && self.due().is_some() {
            self.look_in(Some(Duration::ZERO));
        }
    }

    /// Whether messages to this session are received at present, and since when.
    pub(crate) fn push(&self) -> Push {
        self.push.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_listening(&self) -> bool {
        self.push.lock().unwrap_or_else(PoisonError::into_inner).failure.is_none()
    }

    fn set_push(&self, failure: Option<&ServerError>) {
        let mut push = self.push.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = failure.map(ToString::to_string);
        if push.failure.is_none() != failure.is_none() {
            push.since = Instant::now();
        }
        push.failure = failure;
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
            self.probe.notify_one();
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
                    self.set_push(None);
                    // What was told while nobody listened was missed.
                    self.waiters.wake_all();
                    let _ = tried.take().map(|tried| tried.send(Ok(())));
                    let error = self.hear_all(&mut listener).await;
                    self.set_push(Some(&error));
                    self.waiters.wake_all();
                    error
                }
                Err(error) => {
                    self.set_push(Some(&error));
                    error
                }
            };
            let is_misconfigured = matches!(outcome, ServerError::Misconfigured { .. });
            if let Some(tried) = tried.take() {
                let _ = tried.send(Err(outcome));
            } else {
                tracing::debug!(backend = E::NAME, error = %outcome, "not listening");
            }
            background::sleep(pause).await;
            pause = (pause * 2).min(if is_misconfigured { AGAIN_IF_MISCONFIGURED } else { AGAIN_AT_MOST });
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
                let told = reply::told(E::NAME, &self.engine().hear(&mut listener).await?)?;
                let found = told.probe == Some(probe);
                self.hear(told);
                if found {
                    return Ok(());
                }
            }
        });
        heard.await.ok_or_else(silent)??;
        Ok(listener)
    }

    /// Whether listening works, where it is not kept up.
    pub(crate) async fn try_to_listen(&self) -> Result<(), ServerError> {
        let tried = self.begin_to_listen().await.map(drop);
        self.carry_out(&Order::Leave { session: self.session }).await?;
        tried
    }

    /// Hands on what is heard until listening fails, or a probe shows that nothing arrives any more.
    async fn hear_all(&self, listener: &mut E::Listener) -> ServerError {
        let mut alive = Instant::now();
        loop {
            match self.hear_or_silence(listener, alive).await {
                Some(Ok(text)) => match reply::told(E::NAME, &text) {
                    Ok(told) => drop(self.hear(told)),
                    Err(error) => tracing::warn!(backend = E::NAME, %error, "a message cannot be read"),
                },
                Some(Err(error)) => return error,
                None => match background::within(PROBE, self.engine().probe(listener)).await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => return error,
                    None => {
                        // As in `retry`.
                        self.pool.give_up_unused(PROBE / 2);
                        return ServerError::NoAnswer { backend: E::NAME, after: PROBE };
                    }
                },
            }
            alive = Instant::now();
        }
    }

    /// The next message; `None` if the listener is to be probed first.
    async fn hear_or_silence(
        &self,
        listener: &mut E::Listener,
        alive: Instant,
    ) -> Option<Result<String, ServerError>> {
        let (mut heard, mut silence) = (pin!(self.engine().hear(listener)), pin!(self.silence(alive)));
        poll_fn(|cx| match heard.as_mut().poll(cx) {
            Poll::Ready(heard) => Poll::Ready(Some(heard)),
            Poll::Pending => silence.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Waits until the listener, last known to work at `alive`, is to be probed.
    async fn silence(&self, alive: Instant) {
        loop {
            background::within(QUIET, self.probe.notified()).await;
            if alive.elapsed() >= BEAT / 2 {
                return;
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
        let settings = shared.engine().settings();
        let outcome = if settings.listens() {
            tasks.push(background::handle().spawn(shared.clone().listen(tried)));
            outcome.await.unwrap_or(Ok(()))
        } else if settings.administration {
            let what = "opened for administration".to_owned();
            Err(ServerError::Misconfigured { backend: E::NAME, what })
        } else {
            // As listening does: it leaves a connection for the first renewal. If it fails, that makes its own.
            let _ = background::handle().spawn(async move { warm.beat(None).await }).await;
            let what = "listening is switched off".to_owned();
            let off = ServerError::Misconfigured { backend: E::NAME, what };
            shared.set_push(Some(&off));
            Err(off)
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
