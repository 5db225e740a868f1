//! What is pushed to one connection, and who waits for it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use lockcore::{Granted, Moment, Offer, StoreClock, Waiters, Wake, Wakeup};
use redis::{
    PushInfo, PushKind, Value,
    aio::{AsyncPushSender, SendError},
};
use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::reply::{Message, granted};

/// How often an id that is waited for is looked at though nobody told anything: a foreign client's `DEL` tells nobody.
const LOOK: Duration = Duration::from_millis(250);

/// How much longer the interval gets for each id, so that looking never keeps the server busy.
const LOOK_PER_ID: Duration = Duration::from_micros(200);

/// For how long an id is looked at after the last of our waiters asked for it.
const WANTED: Duration = Duration::from_secs(90);

/// The waiters of one connection, and the ids they wait for.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) waiters: Waiters<Box<str>>,
    pub(crate) clock: StoreClock,
    /// Replicas have to confirm what is granted. No offer is passed on then: its waiter asks again and waits for them.
    unconfirmed: bool,
    closed: AtomicBool,
    /// A connection to some node of a cluster was lost since the channel was last subscribed to.
    deaf: AtomicBool,
    /// The same since everybody last asked again.
    pub(crate) disturbed: AtomicBool,
    looks: Mutex<Looks>,
    /// Something has to be looked at earlier than was planned, or the connection is closed.
    pub(crate) earlier: Notify,
}

/// When to look at what.
#[derive(Debug, Default)]
struct Looks {
    ids: HashMap<Box<str>, Look>,
    /// When the next look is planned.
    planned: Option<Instant>,
}

#[derive(Debug)]
struct Look {
    at: Instant,
    wanted: Instant,
}

impl Inbox {
    /// `unconfirmed`: an offer only has its waiter ask again, which confirms it.
    pub(crate) fn new(unconfirmed: bool) -> Self {
        Inbox { unconfirmed, ..Inbox::default() }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Whether a connection to a node of a cluster was lost, and perhaps messages with it, until it is subscribed to again.
    pub(crate) fn is_deaf(&self) -> bool {
        self.deaf.load(SeqCst)
    }

    /// The connection is of no use any more: everybody asks again, on another.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
        self.waiters.wake_all();
        self.earlier.notify_one();
    }

    /// Somebody waits. Add it before the request is sent.
    pub(crate) fn add(&self, name: Box<str>) -> Wakeup {
        let wakeup = self.waiters.add(name);
        // Whoever closed it meanwhile may have missed this one.
        if self.is_closed() {
            self.waiters.wake_all();
        }
        wakeup
    }

    /// `ids` are waited for; the first lease in the way ends after `first_end`.
    pub(crate) fn wanted(&self, ids: impl Iterator<Item = impl AsRef<str>>, first_end: Option<Duration>) {
        let now = Instant::now();
        let mut looks = self.looks();
        for id in ids {
            let at = now + first_end.map_or(LOOK, |end| end.min(LOOK));
            let look = looks.ids.entry(id.as_ref().into()).or_insert(Look { at, wanted: now });
            (look.at, look.wanted) = (look.at.min(at), now);
            if looks.planned.is_some_and(|planned| at < planned) {
                looks.planned = None;
                self.earlier.notify_one();
            }
        }
    }

    /// The ids to look at now, at most `most`.
    pub(crate) fn due(&self, most: usize) -> Vec<Box<str>> {
        let now = Instant::now();
        let mut looks = self.looks();
        looks.ids.retain(|_, look| now - look.wanted < WANTED);
        let again = now + LOOK.max(LOOK_PER_ID * u32::try_from(looks.ids.len()).unwrap_or(u32::MAX));
        let mut due = Vec::new();
        for (id, look) in &mut looks.ids {
            if look.at <= now && due.len() < most {
                look.at = again;
                due.push(id.clone());
            }
        }
        due
    }

    /// What a look found: when the first lease in the way ends, or that nobody waits any more.
    pub(crate) fn looked(&self, id: &str, first_end: Option<Duration>, waited_for: bool) {
        let mut looks = self.looks();
        if !waited_for {
            looks.ids.remove(id);
        } else if let (Some(look), Some(end)) = (looks.ids.get_mut(id), first_end) {
            look.at = look.at.min(Instant::now() + end);
        }
    }

    /// How long nothing is due, at most `most`.
    pub(crate) fn pause(&self, most: Duration) -> Duration {
        let now = Instant::now();
        let mut looks = self.looks();
        let next = looks.ids.values().map(|look| look.at).min().unwrap_or(now + most).min(now + most);
        looks.planned = Some(next);
        next - now.min(next)
    }

    pub(crate) fn forget_looks(&self) {
        *self.looks() = Looks::default();
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a message; `None` where it is none of ours.
    fn hear(&self, message: &[u8], heard: Moment) -> Option<()> {
        let mut message = Message(message);
        while !message.0.is_empty() {
            match message.field()? {
                "offer" => self.offered(&mut message, heard)?,
                "look" => self.wanted(std::iter::once(message.field()?), Some(Duration::ZERO)),
                _ => return None,
            }
        }
        Some(())
    }

    fn offered(&self, message: &mut Message<'_>, heard: Moment) -> Option<()> {
        let name: Box<str> = message.field()?.into();
        let made = message.number()?;
        let offered = Duration::from_millis(message.number()?);
        let count: usize = message.number()?;
        let mut locks: SmallVec<[Granted; 1]> = SmallVec::with_capacity(count.min(1000));
        for _ in 0..count {
            locks.push(granted(message.field()?, message.number()?, message.number()?).ok()?);
        }
        // The clock is known since before the first waiter took a place.
        let wake = match self.clock.remaining(made, offered, heard) {
            Some(remaining) if !self.unconfirmed => {
                Wake::Offer(Offer { granted: locks, remaining: Some(remaining) })
            }
            _ => Wake::Recheck,
        };
        // Who is gone withdraws, which passes the offer on.
        let _gone = self.waiters.wake_as_of(&name, wake, heard);
        Some(())
    }
}

/// Where the connection puts what is pushed. The connection has the only one: when it is gone, so is the inbox's use.
pub(crate) struct Pushed {
    pub(crate) inbox: Arc<Inbox>,
    /// A cluster's connection goes on when that to one node is lost.
    pub(crate) goes_on: bool,
}

impl AsyncPushSender for Pushed {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                let heard = Moment::now();
                if let Some(Value::BulkString(message)) = info.data.get(1)
                    && self.inbox.hear(message, heard).is_none()
                {
                    tracing::warn!("a message on lockcore's channel that is none of lockcore's");
                }
            }
            PushKind::Disconnection if !self.goes_on => self.inbox.close(),
            // Of which node is not said. If it was the one with our slot, messages are lost until it is subscribed to
            // again: everybody asks again after that, and also soon in case that it is not.
            PushKind::Disconnection => {
                self.inbox.deaf.store(true, SeqCst);
                self.inbox.disturbed.store(true, SeqCst);
            }
            PushKind::SSubscribe if self.inbox.deaf.swap(false, SeqCst) => self.inbox.waiters.wake_all(),
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
