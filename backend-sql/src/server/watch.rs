//! The watch, by which a process learns that its waiters' turn has come, and shows other processes that they still
//! wait.
//!
//! One task on the library's thread listens for notifications; another sends a heartbeat every second while there are
//! waiters. The heartbeat's answer has what was handed over, in case a notification was lost, and the heartbeat looks after
//! leases that have ended on what is waited for. So nothing depends on notifications: they only make it fast.

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

use lockcore::{
    backend::{Moment, Offer, StoreClock, Waiters, Wake, Wakeup, unique},
    protocol::{HEARTBEAT, HEARTBEAT_LASTS},
};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use super::{
    Engine, Key, Order, Place, ServerError, StoredRequest, background,
    batch::Batches,
    pool::Pool,
    reply::{self, Answer, Handed, Notification},
};

/// After so long without a heartbeat other processes may have taken this one for dead.
const SILENCE: Duration = HEARTBEAT_LASTS.saturating_sub(Duration::from_millis(500));

/// So much later than a lease ends it is certainly over.
const ROUNDING: Duration = Duration::from_millis(1);

/// Between two heartbeats of a process that does not listen, and so polls: at first, and when nothing happens.
const POLL: Duration = Duration::from_millis(20);
const POLL_AT_MOST: Duration = Duration::from_millis(200);

/// The time that a notification to oneself, or the answer to a probe, may take before the listener is replaced.
const PROBE: Duration = Duration::from_secs(3);

/// The interval at which a listener that receives nothing is probed while there are no waiters: routers forget
/// connections that are not used. While there are waiters it is probed with each heartbeat.
const QUIET: Duration = Duration::from_secs(20);

/// The pause before listening is tried again: at first and at most after a failure of the network, and if it cannot work.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_AT_MOST: Duration = Duration::from_secs(2);
const AGAIN_IF_MISCONFIGURED: Duration = Duration::from_secs(10);

/// The time for which a notification may be on its way that a heartbeat has overtaken. The heartbeat says only that it
/// is a waiter's turn, so that it would have to ask; the notification has the offer.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// The state that the DAO and its tasks share.
pub(crate) struct Shared<E: Engine> {
    pub(crate) pool: Arc<Pool<E>>,
    batches: Batches<E>,
    /// Names this DAO among all that wait.
    pub(crate) session: i64,
    /// Each with its id if its place is in a row.
    waiters: Waiters<Place, Key>,
    pub(crate) clock: StoreClock,
    push: Mutex<Push>,
    /// A heartbeat is about to be sent, so that the listener is to be probed.
    probe: Notify,
    /// There was a waiter, so that there may be places to remove.
    queued: AtomicBool,
    /// The time at which the next heartbeat is due; `None` without waiters.
    due: Mutex<Option<Instant>>,
    sooner: Notify,
}

/// The state of push: whether notifications of this session are received.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    /// The time of the last change.
    pub(crate) since: Instant,
    /// The reason why they are not, if so.
    pub(crate) failure: Option<String>,
}

/// The tasks. Dropping it ends them, and removes the session's places.
pub(crate) struct Watch<E: Engine> {
    shared: Arc<Shared<E>>,
    tasks: Vec<JoinHandle<()>>,
}

impl<E: Engine> Shared<E> {
    pub(crate) fn new(engine: E) -> Self {
        Shared {
            pool: Arc::new(Pool::new(engine)),
            batches: Batches::default(),
            session: i64::try_from(unique() >> 1).unwrap_or(1).max(1),
            waiters: Waiters::new(),
            clock: StoreClock::new(),
            push: Mutex::new(Push { since: Instant::now(), failure: Some("not tried yet".to_owned()) }),
            probe: Notify::new(),
            queued: AtomicBool::new(false),
            due: Mutex::new(None),
            sooner: Notify::new(),
        }
    }

    /// Returns the database.
    pub(crate) fn engine(&self) -> &E {
        &self.pool.engine
    }

    /// Carries out an order.
    pub(crate) async fn carry_out(&self, order: &Order<'_>) -> Result<Answer, ServerError> {
        self.batches.carry_out(&self.pool, order).await
    }

    /// Adds a waiter. To be called before the request is sent: the notification may come before the answer.
    pub(crate) fn expect(&self, request: &StoredRequest) -> Wakeup {
        self.queued.store(true, Ordering::Relaxed);
        self.waiters.add(request.place())
    }

    /// Notes that a request waits in the row of its only id.
    pub(crate) fn waits_in_row(&self, request: &StoredRequest) {
        self.waiters.note(&request.place(), request.ids[0].clone());
    }

    /// Returns after how long a waiter asks again.
    pub(crate) fn recheck(&self) -> Duration {
        self.waiters.recheck()
    }

    /// Removes a waiter.
    pub(crate) fn forget(&self, request: &StoredRequest) {
        self.waiters.remove(&request.place());
    }

    /// Sends the next heartbeat within `end`, when a waiter's turn may have come.
    pub(crate) fn look_in(&self, end: Option<Duration>) {
        let pause = end.map_or(HEARTBEAT, |end| (end + ROUNDING).min(HEARTBEAT));
        let at = Instant::now() + if self.is_listening() { pause } else { pause.min(POLL) };
        let mut due = self.due();
        if due.is_none_or(|due| at < due) {
            *due = Some(at);
            drop(due);
            self.sooner.notify_one();
        }
    }

    /// Looks at once whether a release has handed over to a waiter of this process, if no notification can reach it.
    pub(crate) fn released(&self) {
        if !self.is_listening() && self.due().is_some() {
            self.look_in(Some(Duration::ZERO));
        }
    }

    /// Returns whether notifications of this session are received at present, and since when.
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

    /// Wakes the waiters that a notification is for, if any.
    fn notify(&self, notification: Notification) -> bool {
        let Notification { o: handed, t: recheck, .. } = notification;
        let is_for_waiters = !handed.is_empty() || !recheck.is_empty();
        for (context, attempt) in recheck {
            // One that no longer waits has left, or was notified before.
            let _ = self.waiters.wake(&(context.text().into(), attempt as u64), Wake::Recheck);
        }
        for handed in reply::whole(handed) {
            self.offer(handed);
        }
        is_for_waiters
    }

    fn offer(&self, handed: Handed) {
        let place = (handed.c.text().into(), handed.a as u64);
        // Read before the remaining time is worked out, so that a stop in between shortens the offer.
        let at = Moment::now();
        let lasts = Duration::from_micros(handed.lasts);
        let wake = match self.clock.remaining(handed.at, lasts, at) {
            Some(left) if !left.is_zero() => {
                Wake::Offer(Offer { granted: reply::grant(handed.g), remaining: Some(left) })
            }
            _ => Wake::Recheck,
        };
        // If the waiter is gone, its withdrawal passes the offer on, or the end of the offer does.
        let _ = self.waiters.wake_as_of(&place, wake, at);
    }

    /// Sends a heartbeat; returns in how long the next one is due.
    async fn heartbeat(&self, probe: Option<u32>) -> Result<Option<Duration>, ServerError> {
        let sent = Moment::now();
        let in_rows = &self.waiters.noted();
        let order = Order::Heartbeat { session: self.session, in_rows, probe };
        let notification = match self.carry_out(&order).await? {
            Answer::Notified(notification) => notification,
            other => return Err(other.unexpected(E::NAME)),
        };
        if let Some(now) = notification.now {
            self.clock.sample(sent, Moment::now(), now);
        }
        if !notification.t.is_empty() && self.is_listening() {
            background::sleep(ON_ITS_WAY).await;
        }
        let next = notification.next.map(reply::span);
        Ok(if self.notify(notification) { Some(Duration::ZERO) } else { next })
    }

    /// Sends heartbeats while there are waiters.
    async fn send_heartbeats(self: Arc<Self>) {
        let (mut pause, mut last) = (POLL, Instant::now());
        loop {
            if self.waiters.count() == 0 {
                *self.due() = None;
                // A waiter that was added meanwhile has no answer yet, and then calls `look_in`.
                self.sooner.notified().await;
                last = Instant::now();
            }
            let due = *self.due();
            let left = due.map_or(HEARTBEAT, |due| due.saturating_duration_since(Instant::now()));
            if !left.is_zero() && background::within(left, self.sooner.notified()).await.is_some() {
                continue;
            }
            self.probe.notify_one();
            // A failure is no reason to stop: without heartbeats others take this process for dead.
            let (next, will_pass) = match self.heartbeat(None).await {
                Ok(next) => (next, true),
                Err(error) => (None, error.kind().is_retryable()),
            };
            if !will_pass || last.elapsed() > SILENCE {
                // A heartbeat that is refused for good ends the waits that ask again. Or this process was stopped, or
                // the server away: others may have removed the places.
                self.waiters.wake_all();
            }
            last = Instant::now();
            pause = if next == Some(Duration::ZERO) { POLL } else { (pause * 2).min(POLL_AT_MOST) };
            let next = next.filter(|next| !next.is_zero());
            let next = next.map_or(HEARTBEAT, |next| (next + ROUNDING).min(HEARTBEAT));
            let next = if self.is_listening() { next } else { next.min(pause) };
            *self.due() = Some(Instant::now() + next);
        }
    }

    /// Listens for ever; sends to `tried` whether the first try worked.
    async fn listen(self: Arc<Self>, tried: oneshot::Sender<Result<(), ServerError>>) {
        let mut tried = Some(tried);
        let mut pause = AGAIN;
        loop {
            let listener = self.begin_to_listen().await;
            let outcome = match listener {
                Ok(mut listener) => {
                    pause = AGAIN;
                    self.set_push(None);
                    // The notifications sent before were missed.
                    self.waiters.wake_all();
                    let _ = tried.take().map(|tried| tried.send(Ok(())));
                    let error = self.receive_all(&mut listener).await;
                    self.set_push(Some(&error));
                    self.waiters.wake_all();
                    error
                }
                Err(error) => {
                    self.set_push(Some(&error));
                    error
                }
            };
            let is_misconfigured =
                matches!(outcome, ServerError::Misconfigured { .. }) || outcome.is_stray_notification();
            if let Some(tried) = tried.take() {
                let _ = tried.send(Err(outcome));
            } else {
                tracing::debug!(backend = E::NAME, error = %outcome, "not listening");
            }
            if is_misconfigured {
                // Each try disturbs other clients of a pooler: its connections to the server listen meanwhile.
                background::sleep(AGAIN_IF_MISCONFIGURED).await;
            } else {
                background::sleep(pause).await;
                pause = (pause * 2).min(AGAIN_AT_MOST);
            }
        }
    }

    /// Listens, and makes sure that notifications arrive, by one to itself that takes the way of all others.
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
        self.heartbeat(Some(probe)).await?;
        let received = background::within(PROBE, async {
            loop {
                let notification = self.engine().receive(&mut listener).await?;
                let found = notification.probe == Some(probe);
                self.notify(notification);
                if found {
                    return Ok(());
                }
            }
        });
        received.await.ok_or_else(silent)??;
        Ok(listener)
    }

    /// Tries whether listening works, if it is not kept up.
    pub(crate) async fn try_to_listen(&self) -> Result<(), ServerError> {
        let tried = self.begin_to_listen().await.map(drop);
        self.carry_out(&Order::Leave { session: self.session }).await?;
        tried
    }

    /// Passes on notifications until listening fails, or a probe shows that nothing arrives any more.
    async fn receive_all(&self, listener: &mut E::Listener) -> ServerError {
        let mut alive = Instant::now();
        loop {
            match self.receive_or_silence(listener, alive).await {
                Some(Ok(notification)) => drop(self.notify(notification)),
                // Any role may send one.
                Some(Err(error @ ServerError::Answer { .. })) => {
                    tracing::warn!(backend = E::NAME, %error, "a notification cannot be read");
                }
                Some(Err(error)) => return error,
                None => match background::within(PROBE, self.engine().probe(listener)).await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => return error,
                    None => {
                        // As in `exchange`.
                        self.pool.give_up_unused(PROBE / 2);
                        return ServerError::NoAnswer { backend: E::NAME, after: PROBE };
                    }
                },
            }
            alive = Instant::now();
        }
    }

    /// Waits for the next notification; `None` if the listener is to be probed first.
    async fn receive_or_silence(
        &self,
        listener: &mut E::Listener,
        alive: Instant,
    ) -> Option<Result<Notification, ServerError>> {
        let (mut received, mut silence) = (pin!(self.engine().receive(listener)), pin!(self.silence(alive)));
        poll_fn(|cx| match received.as_mut().poll(cx) {
            Poll::Ready(received) => Poll::Ready(Some(received)),
            Poll::Pending => silence.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Waits until the listener, last known to work at `alive`, is to be probed.
    async fn silence(&self, alive: Instant) {
        loop {
            background::within(QUIET, self.probe.notified()).await;
            if alive.elapsed() >= HEARTBEAT / 2 {
                return;
            }
        }
    }
}

impl<E: Engine> Watch<E> {
    /// Starts the tasks. `Err` says why no notification is received; listening is tried again all the same.
    pub(crate) async fn start(shared: Arc<Shared<E>>) -> (Self, Result<(), ServerError>) {
        let (tried, outcome) = oneshot::channel();
        let warm = shared.clone();
        let mut tasks = vec![background::handle().spawn(shared.clone().send_heartbeats())];
        let settings = shared.engine().settings();
        let outcome = if settings.listens() {
            tasks.push(background::handle().spawn(shared.clone().listen(tried)));
            outcome.await.unwrap_or(Ok(()))
        } else if settings.administration {
            let what = "opened for administration".to_owned();
            Err(ServerError::Misconfigured { backend: E::NAME, what })
        } else {
            // As listening does: it leaves a connection for the first renewal. If it fails, that makes its own.
            let _ = background::handle().spawn(async move { warm.heartbeat(None).await }).await;
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
                // If it fails, the places lapse without heartbeats.
                let _ = shared.carry_out(&Order::Leave { session: shared.session }).await;
            });
        }
    }
}
