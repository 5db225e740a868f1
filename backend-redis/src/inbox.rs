//! What is pushed to one connection, and who waits for it.

use std::{
    collections::{HashMap, HashSet},
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

/// How often an id that is waited for is looked at though nothing was pushed, in the script of the sign of life. Where a
/// foreign client holds it, the script asks for an earlier look: its `DEL` notifies no waiter.
const LOOK: Duration = Duration::from_secs(1);

/// How much earlier than planned an id is looked at along with others.
const ALONG: Duration = Duration::from_millis(250);

/// How much longer the interval gets for each id, so that looking never keeps the server busy.
const LOOK_PER_ID: Duration = Duration::from_micros(200);

/// For how long an id is looked at after the last of our waiters asked for it.
const WANTED: Duration = Duration::from_secs(90);

/// The ids for which a waiter has a place.
pub(crate) type Ids = Arc<[Box<str>]>;

/// The waiters of one connection, and the ids they wait for.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) waiters: Waiters<Box<str>, Ids>,
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

    /// `waiter` has a place in the lines of `ids`; the first lease in the way ends after `first_end`.
    pub(crate) fn waits(&self, waiter: Box<str>, ids: Ids, first_end: Option<Duration>) {
        self.wanted(ids.iter(), first_end);
        self.waiters.note(&waiter, ids);
    }

    /// `ids` are to be looked at in time: the first lease in the way ends after `first_end`.
    fn wanted(&self, ids: impl Iterator<Item = impl AsRef<str>>, first_end: Option<Duration>) {
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

    /// The ids to look at now, at most `most`; `beat`: there is a script in any case.
    pub(crate) fn due(&self, most: usize, beat: bool) -> Vec<Box<str>> {
        let now = Instant::now();
        let mut looks = self.looks();
        looks.ids.retain(|_, look| now - look.wanted < WANTED);
        let again = now + LOOK.max(LOOK_PER_ID * u32::try_from(looks.ids.len()).unwrap_or(u32::MAX));
        // One script for many: ids that are due soon are included.
        let any = looks.ids.values().any(|look| look.at <= now);
        let soon = if any || beat { now + ALONG } else { now };
        let mut due = Vec::new();
        for (id, look) in &mut looks.ids {
            if look.at <= soon && due.len() < most {
                look.at = again;
                due.push(id.clone());
            }
        }
        due
    }

    /// What a look found: when the first lease in the way ends.
    pub(crate) fn looked(&self, id: &str, first_end: Option<Duration>) {
        if let (Some(look), Some(end)) = (self.looks().ids.get_mut(id), first_end) {
            look.at = look.at.min(Instant::now() + end);
        }
    }

    /// The server knows no waiters for `ids`. What it pushed before it said so was read before: a waiter that still waits for one of
    /// them here lost its place, or missed its offer, and asks again.
    pub(crate) fn unknown(&self, ids: &HashSet<&str>) {
        if ids.is_empty() {
            return;
        }
        self.looks().ids.retain(|id, _| !ids.contains(&**id));
        for (waiter, wanted) in self.waiters.noted() {
            if wanted.iter().any(|id| ids.contains(&**id)) {
                self.waiters.remove(&waiter);
            }
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
