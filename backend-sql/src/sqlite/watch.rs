//! Waking: how a waiter of this process learns of what another process handed to it.
//!
//! A step that hands over notifies the session by a datagram without content to a socket in Linux's abstract
//! namespace, so that no file is left behind and only sessions that were granted something wake. What was
//! granted is read from the database. Where no datagram arrives - another network namespace, another
//! system - the session polls every [`LOOK`].

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use lockcore::backend::WakeSender;

use super::{
    file::FileId,
    row::{Key, Set, Text},
    session::Places,
};

/// The interval at which a session with waiters looks for offers and for holders that died, though it was not notified.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// The time by which the interval gets longer for each id that is waited for, so that looking never keeps the
/// thread busy.
const LOOK_PER_ID: Duration = Duration::from_micros(200);

/// The waiters of this session.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    entries: HashMap<(Text, i64), Waiter>,
    /// For each id waited for: by how many, and when to look at it next.
    ids: HashMap<Key, (usize, Instant)>,
    schedule: BTreeSet<(Instant, Key)>,
    claims: usize,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) sender: WakeSender,
    pub(super) claims: Set,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a waiter, or replaces the sender of one that asks again. `look` is when to look at its ids first.
    pub(super) fn add(&mut self, context: Text, attempt: i64, waiter: Waiter, look: Instant) {
        let ids: Vec<Key> = waiter.claims.iter().map(|claim| claim.id.clone()).collect();
        self.take(&context, attempt);
        self.claims += ids.len();
        self.entries.insert((context, attempt), waiter);
        for id in ids {
            let (waiters, at) = self.ids.entry(id.clone()).or_insert((0, look));
            *waiters += 1;
            if *waiters == 1 || look < *at {
                self.schedule.remove(&(*at, id.clone()));
                *at = look;
                self.schedule.insert((look, id));
            }
        }
    }

    pub(super) fn take(&mut self, context: &Text, attempt: i64) -> Option<Waiter> {
        if self.entries.is_empty() {
            return None; // the usual case, for less
        }
        let waiter = self.entries.remove(&(context.clone(), attempt))?;
        self.claims -= waiter.claims.len();
        for claim in &waiter.claims {
            let (waiters, at) = self.ids.get_mut(&claim.id).expect("every id of a waiter is counted");
            *waiters -= 1;
            if *waiters == 0 {
                self.schedule.remove(&(*at, claim.id.clone()));
                self.ids.remove(&claim.id);
            }
        }
        Some(waiter)
    }

    /// Has all of them ask again.
    pub(super) fn clear(&mut self) {
        *self = Waiting::default();
    }

    /// Returns the number of claims of all of them together.
    pub(super) fn claims(&self) -> usize {
        self.claims
    }

    /// Has those ask again that have no place.
    pub(super) fn keep_only(&mut self, places: &Places) {
        let lost: Vec<_> = self.entries.keys().filter(|key| !places.contains(key)).cloned().collect();
        for (context, attempt) in lost {
            self.take(&context, attempt);
        }
    }

    /// Returns when the next look is due.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.schedule.first().map(|(at, _)| *at)
    }

    /// The ids that are due, at most `most`; they are due again after an interval.
    pub(super) fn due(&mut self, now: Instant, most: usize) -> Vec<Key> {
        let again = now + LOOK.max(LOOK_PER_ID * u32::try_from(self.ids.len()).unwrap_or(u32::MAX));
        let mut due = Vec::new();
        while due.len() < most && self.next_look().is_some_and(|at| at <= now) {
            let (_, id) = self.schedule.pop_first().expect("the first of them is due");
            self.ids.get_mut(&id).expect("every scheduled id is waited for").1 = again;
            due.push(id);
        }
        self.schedule.extend(due.iter().map(|id| (again, id.clone())));
        due
    }

    /// Looks at an id no later than at `at`.
    pub(super) fn look_by(&mut self, id: &Key, at: Instant) {
        if let Some((_, planned)) = self.ids.get_mut(id)
            && at < *planned
        {
            self.schedule.remove(&(*planned, id.clone()));
            *planned = at;
            self.schedule.insert((at, id.clone()));
        }
    }
}

pub(super) use datagram::{Listener, Notifier};

#[cfg(target_os = "linux")]
mod datagram {
    use std::{
        os::{
            linux::net::SocketAddrExt,
            unix::net::{SocketAddr, UnixDatagram},
        },
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread::{self, JoinHandle},
        time::Duration,
    };

    use super::FileId;

    /// The pause after each datagram: any user of the host can send one.
    const PAUSE: Duration = Duration::from_millis(1);

    /// Notifies the sessions of one file.
    #[derive(Debug)]
    pub(in crate::sqlite) struct Notifier {
        /// `None` for a store in memory, which has no other session.
        socket: Option<UnixDatagram>,
        /// The prefix of the names of all sockets of the file.
        prefix: String,
    }

    impl Notifier {
        pub(in crate::sqlite) fn new(file: Option<FileId>, prefix: &str) -> Self {
            let socket = file.and_then(|_| UnixDatagram::unbound().ok());
            if let Some(socket) = &socket {
                // If the socket's queue is full, the session will wake anyway.
                let _ = socket.set_nonblocking(true);
            }
            let name = |FileId { device, inode }| format!("lockcore/{device:x}/{inode:x}/{prefix}");
            Notifier { socket, prefix: file.map(name).unwrap_or_default() }
        }

        /// Wakes a session. Without effect if it is gone or cannot be reached.
        pub(in crate::sqlite) fn notify(&self, session: i64) {
            if let (Some(socket), Some(address)) = (&self.socket, self.address(session)) {
                let _ = socket.send_to_addr(&[], &address);
            }
        }

        /// Calls `notified` for each datagram to `session`, on a thread of its own.
        pub(in crate::sqlite) fn listen(
            &self,
            session: i64,
            notified: impl Fn() + Send + 'static,
        ) -> Option<Listener> {
            self.socket.as_ref()?;
            let address = self.address(session)?;
            let socket = UnixDatagram::bind_addr(&address).ok()?;
            let ended = Arc::new(AtomicBool::new(false));
            let end = ended.clone();
            let listen = move || {
                while socket.recv(&mut []).is_ok() && !end.load(Ordering::Acquire) {
                    notified();
                    // The kernel keeps a few datagrams, and a sender that sends without a pause has to wait.
                    thread::sleep(PAUSE);
                }
            };
            let thread = thread::Builder::new().name("lockcore-notify".to_owned()).spawn(listen).ok()?;
            Some(Listener { ended, thread })
        }

        fn address(&self, session: i64) -> Option<SocketAddr> {
            let name = format!("{}{session}", self.prefix);
            SocketAddr::from_abstract_name(name).ok()
        }
    }

    /// The thread that listens.
    #[derive(Debug)]
    pub(in crate::sqlite) struct Listener {
        ended: Arc<AtomicBool>,
        thread: JoinHandle<()>,
    }

    impl Listener {
        /// Ends the thread.
        pub(in crate::sqlite) fn end(self, notifier: &Notifier, session: i64) {
            self.ended.store(true, Ordering::Release);
            notifier.notify(session);
            let _ = self.thread.join();
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod datagram {
    //! Without abstract sockets sessions poll.

    #[derive(Debug)]
    pub(in crate::sqlite) struct Notifier;

    impl Notifier {
        pub(in crate::sqlite) fn new(_file: Option<super::FileId>, _prefix: &str) -> Self {
            Notifier
        }

        pub(in crate::sqlite) fn notify(&self, _session: i64) {}

        pub(in crate::sqlite) fn listen(
            &self,
            _session: i64,
            _notified: impl Fn() + Send + 'static,
        ) -> Option<Listener> {
            None
        }
    }

    #[derive(Debug)]
    pub(in crate::sqlite) struct Listener;

    impl Listener {
        pub(in crate::sqlite) fn end(self, _notifier: &Notifier, _session: i64) {}
    }
}
