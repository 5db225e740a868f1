//! The waiters of one connection, the messages that are pushed to them, and the ids that are polled for them.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use lockcore::{
    Granted,
    backend::{Moment, Offer, StoreClock, Waiters, Wake, Wakeup},
};
use redis::{
    PushInfo, PushKind, Value,
    aio::{AsyncPushSender, SendError},
};
use tokio::sync::Notify;

use crate::reply::{Message, granted};

/// The interval at which an id that is waited for is polled along with the heartbeat, in case that a message was
/// missed. Where a foreign client holds it, the script asks for an earlier poll: its `DEL` notifies no waiter.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The most that an id is polled earlier than planned, along with others.
const POLL_EARLY: Duration = Duration::from_millis(250);

/// The time by which the interval becomes longer for each id, so that polling never keeps the server busy.
const POLL_PER_ID: Duration = Duration::from_micros(200);

/// The time for which an id is polled after the last request of one of our waiters.
const POLL_FOR: Duration = Duration::from_secs(90);

/// The ids for which a waiter has a place.
pub(crate) type Ids = Arc<[Box<str>]>;

/// The waiters of one connection, and the ids they wait for.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) waiters: Waiters<Box<str>, Ids>,
    pub(crate) clock: StoreClock,
    /// Replicas must confirm grants: instead of an offer its waiter is notified to repeat the request, which waits for them.
    unconfirmed: bool,
    closed: AtomicBool,
    /// The connection to a node of a cluster was lost since the channel was last subscribed to.
    unsubscribed: AtomicBool,
    /// Such a connection was lost since all waiters last repeated their requests: messages may have been missed.
    pub(crate) missed: AtomicBool,
    polls: Mutex<Polls>,
    /// Notified when an id has to be polled earlier than planned, or the connection is closed.
    pub(crate) earlier: Notify,
}

/// The times at which to poll each id.
#[derive(Debug, Default)]
struct Polls {
    ids: HashMap<Box<str>, NextPoll>,
    /// The time at which the next poll is planned.
    planned: Option<Instant>,
}

#[derive(Debug)]
struct NextPoll {
    at: Instant,
    /// The time at which a waiter last asked for the id.
    requested: Instant,
}

impl Inbox {
    /// `unconfirmed`: an offer only notifies its waiter to repeat the request, which confirms it.
    pub(crate) fn new(unconfirmed: bool) -> Self {
        Inbox { unconfirmed, ..Inbox::default() }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Returns whether the connection to a node of a cluster was lost, and perhaps messages with it, and not yet
    /// subscribed to again.
    pub(crate) fn is_unsubscribed(&self) -> bool {
        self.unsubscribed.load(SeqCst)
    }

    /// Gives the connection up: all waiters repeat their requests on another.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
        self.waiters.wake_all();
        self.earlier.notify_one();
    }

    /// Adds a waiter, before its request is sent.
    pub(crate) fn add(&self, name: Box<str>) -> Wakeup {
        let wakeup = self.waiters.add(name);
        // A concurrent `close` may have missed this one.
        if self.is_closed() {
            self.waiters.wake_all();
        }
        wakeup
    }

    /// Notes that `waiter` is queued for `ids`; the first lease in the way ends after `first_end`.
    pub(crate) fn queued(&self, waiter: Box<str>, ids: Ids, first_end: Option<Duration>) {
        self.poll_at(ids.iter(), first_end);
        self.waiters.note(&waiter, ids);
    }

    /// Schedules polls of `ids`: the first lease in the way ends after `first_end`.
    fn poll_at(&self, ids: impl Iterator<Item = impl AsRef<str>>, first_end: Option<Duration>) {
        let now = Instant::now();
        let mut polls = self.polls();
        for id in ids {
            let at = now + first_end.map_or(POLL_INTERVAL, |end| end.min(POLL_INTERVAL));
            let next = polls.ids.entry(id.as_ref().into()).or_insert(NextPoll { at, requested: now });
            (next.at, next.requested) = (next.at.min(at), now);
            if polls.planned.is_some_and(|planned| at < planned) {
                polls.planned = None;
                self.earlier.notify_one();
            }
        }
    }

    /// Returns the ids to poll now, at most `most`; `heartbeat`: the script is called in any case.
    pub(crate) fn due(&self, most: usize, heartbeat: bool) -> Vec<Box<str>> {
        let now = Instant::now();
        let mut polls = self.polls();
        polls.ids.retain(|_, next| now - next.requested < POLL_FOR);
        let again = now + POLL_INTERVAL.max(POLL_PER_ID * u32::try_from(polls.ids.len()).unwrap_or(u32::MAX));
        // One call for many: ids that are due soon are included.
        let any = polls.ids.values().any(|next| next.at <= now);
        let soon = if any || heartbeat { now + POLL_EARLY } else { now };
        let mut due = Vec::new();
        for (id, next) in &mut polls.ids {
            if next.at <= soon && due.len() < most {
                next.at = again;
                due.push(id.clone());
            }
        }
        due
    }

    /// Notes what a poll found: when the first lease in the way ends.
    pub(crate) fn polled(&self, id: &str, first_end: Option<Duration>) {
        if let (Some(next), Some(end)) = (self.polls().ids.get_mut(id), first_end) {
            next.at = next.at.min(Instant::now() + end);
        }
    }

    /// The server has no waiters for `ids`. Messages that it pushed before this reply were read before: a waiter that is still
    /// queued for one of them here lost its place or missed its offer, and repeats its request.
    pub(crate) fn unknown(&self, ids: &HashSet<&str>) {
        if ids.is_empty() {
            return;
        }
        self.polls().ids.retain(|id, _| !ids.contains(&**id));
        for (waiter, queued_for) in self.waiters.noted() {
            if queued_for.iter().any(|id| ids.contains(&**id)) {
                self.waiters.remove(&waiter);
            }
        }
    }

    /// Returns for how long nothing is due, at most `most`.
    pub(crate) fn pause(&self, most: Duration) -> Duration {
        let now = Instant::now();
        let mut polls = self.polls();
        let next = polls.ids.values().map(|next| next.at).min().unwrap_or(now + most).min(now + most);
        polls.planned = Some(next);
        next - now.min(next)
    }

    pub(crate) fn clear_polls(&self) {
        *self.polls() = Polls::default();
    }

    fn polls(&self) -> MutexGuard<'_, Polls> {
        self.polls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a message; `None` where it has another format.
    fn receive(&self, message: &[u8], received: Moment) -> Option<()> {
        let mut message = Message(message);
        while !message.0.is_empty() {
            match message.field()? {
                "offer" => self.offered(&mut message, received)?,
                "poll" => self.poll_at(std::iter::once(message.field()?), Some(Duration::ZERO)),
                _ => return None,
            }
        }
        Some(())
    }

    fn offered(&self, message: &mut Message<'_>, received: Moment) -> Option<()> {
        let name: Box<str> = message.field()?.into();
        let made = message.number()?;
        let offered = Duration::from_millis(message.number()?);
        let count: usize = message.number()?;
        let mut locks: Vec<Granted> = Vec::with_capacity(count.min(1000));
        for _ in 0..count {
            locks.push(granted(message.field()?, message.number()?, message.number()?).ok()?);
        }
        // The clock was read before the first waiter was queued.
        let wake = match self.clock.remaining(made, offered, received) {
            Some(remaining) if !self.unconfirmed => {
                Wake::Offer(Offer { granted: locks, remaining: Some(remaining) })
            }
            _ => Wake::Recheck,
        };
        // A waiter that is gone withdraws, which passes the offer on.
        let _gone = self.waiters.wake_as_of(&name, wake, received);
        Some(())
    }
}

/// Receives push messages of the connection, which owns the only one: dropping it closes the inbox.
pub(crate) struct Pushed {
    pub(crate) inbox: Arc<Inbox>,
    /// A cluster's connection survives the loss of one to a node.
    pub(crate) is_cluster: bool,
}

impl AsyncPushSender for Pushed {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                let received = Moment::now();
                if let Some(Value::BulkString(message)) = info.data.get(1)
                    && self.inbox.receive(message, received).is_none()
                {
                    tracing::warn!("a message in an unknown format on lockcore's channel");
                }
            }
            PushKind::Disconnection if !self.is_cluster => self.inbox.close(),
            // The driver does not say which node. If it had our slot, messages are lost until it is subscribed to again: all
            // waiters repeat their requests after that, and soon in case that it was another node.
            PushKind::Disconnection => {
                self.inbox.unsubscribed.store(true, SeqCst);
                self.inbox.missed.store(true, SeqCst);
            }
            PushKind::SSubscribe if self.inbox.unsubscribed.swap(false, SeqCst) => {
                self.inbox.waiters.wake_all()
            }
            // The slot moved to another node.
            PushKind::SUnsubscribe => self.inbox.close(),
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        self.inbox.close();
    }
}
