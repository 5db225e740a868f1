//! The database's thread: the only one that touches the connection, so that an operation is one hop.

use std::{
    collections::HashSet,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use lockcore::{BackendError, Offer, Wake, Wakeup};
use tokio::sync::oneshot;

use super::{
    acquire::{self, Ask, Verdict},
    clock,
    config::Settings,
    error::StoreError,
    row::Key,
    schema,
    step::{Handed, Step},
    store::{Opened, Store},
    watch::{Bell, LOOK, Listener, Waiter, Waiting},
};

/// How often a session with waiters gives a sign of life: a third of how long it counts.
const BEAT: Duration = Duration::from_secs(1);

/// How often the file is looked at while anything is held, so that its holders learn of a file that was replaced.
const FILE_LOOK: Duration = Duration::from_secs(1);

/// The longest lease that is remembered to look after the file: longer ones are renewed before.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long the end of the database waits for its session to be closed: longer than the step may take.
const CLOSING: Duration = Duration::from_millis(300);

/// How many ids one transaction looks at for holders that died or did not renew.
const MOST_LOOKED_AT: usize = 64;

type Job = Box<dyn FnOnce(&mut Worker<'_>) + Send>;

enum Command {
    Do(Job),
    /// Somebody rang.
    Look,
    End,
}

/// The way to the thread. Dropping it ends the thread, after what was sent before, and waits a moment for that.
#[derive(Debug)]
pub(super) struct Database {
    commands: Sender<Command>,
    /// Disconnected once the session is closed.
    closed: Mutex<Receiver<()>>,
    pub(super) path: PathBuf,
    pub(super) in_memory: bool,
    busy_timeout: Duration,
}

/// What runs there.
pub(super) struct Worker<'c> {
    store: Store<'c>,
    waiting: Waiting,
    bell: Bell,
    listener: Option<Listener>,
    commands: Sender<Command>,
    last_beat: i64,
    next_beat: Instant,
    next_look: Instant,
    /// Whether a [`Command::Look`] is on its way: anybody can ring, as often as they like.
    look_pending: Arc<AtomicBool>,
    /// Until when something may be held that was taken or renewed here.
    held_until: Instant,
    next_file_look: Instant,
    /// Another file lies in the place of the one that is open.
    replaced: bool,
}

/// What a committed step leaves to be told.
pub(super) struct Told {
    handed: Vec<Handed>,
    unserved: Vec<Key>,
}

impl Database {
    /// Starts the thread and opens the database there.
    pub(super) async fn open(settings: Settings) -> Result<Self, BackendError> {
        let (path, in_memory, busy_timeout) =
            (settings.path.clone(), settings.in_memory(), settings.busy_timeout);
        let (commands, inbox) = mpsc::channel();
        let (closing, closed) = mpsc::channel();
        let (opened, answer) = oneshot::channel();
        let sender = commands.clone();
        let work = move || match Opened::open(settings) {
            Ok(database) => {
                // Whoever opens it may have lost patience by now.
                let wanted = opened.send(Ok(())).is_ok();
                work(database, &inbox, &sender, closing, wanted);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let started = thread::Builder::new().name("lockcore-sqlite".to_owned()).spawn(work);
        started.map_err(|error| StoreError::NoThread(error).at(&path))?;
        let answer = answer.await.unwrap_or(Err(StoreError::ThreadGone { sent: false }));
        answer.map_err(|error| error.at(&path))?;
        Ok(Database { commands, closed: Mutex::new(closed), path, in_memory, busy_timeout })
    }

    /// Runs an operation on the thread. Once this was polled the operation takes place, in the order of
    /// the calls, though the future be dropped.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Worker<'_>, Instant) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, BackendError> {
        // The time it waits for the operations before it counts too.
        let deadline = Instant::now() + self.busy_timeout;
        let (reply, answer) = oneshot::channel();
        let job = move |worker: &mut Worker<'_>| {
            let done = catch_unwind(AssertUnwindSafe(|| operation(worker, deadline)));
            let done = done.unwrap_or_else(|_| {
                worker.store.abandon();
                Err(StoreError::Panicked)
            });
            worker.replaced |= matches!(done, Err(StoreError::Replaced));
            let _ = reply.send(done);
        };
        let done = match self.commands.send(Command::Do(Box::new(job))) {
            Ok(()) => answer.await.unwrap_or(Err(StoreError::ThreadGone { sent: true })),
            Err(_) => Err(StoreError::ThreadGone { sent: false }),
        };
        done.map_err(|error| error.at(&self.path))
    }
}

impl Drop for Database {
    /// Ends the thread, and waits a moment until the session is closed: the process may end right after this, and who
    /// finds a session that was not closed takes its process for one that died.
    fn drop(&mut self) {
        let sent = self.commands.send(Command::End);
        if sent.is_ok() && !self.in_memory {
            let closed = self.closed.get_mut().unwrap_or_else(PoisonError::into_inner);
            // The other end is dropped.
            let _ = closed.recv_timeout(CLOSING);
        }
    }
}

/// Works on the database, and on whichever takes its place, until it is told to end or `wanted` is false. `closing` is
/// dropped once the session is closed.
fn work(
    mut database: Opened,
    inbox: &Receiver<Command>,
    commands: &Sender<Command>,
    closing: Sender<()>,
    wanted: bool,
) {
    loop {
        let mut worker = Worker::new(Store::of(&database), commands.clone());
        let next = if wanted { worker.run(inbox) } else { None };
        worker.end(next.is_none());
        match next {
            Some(next) => database = next,
            None => {
                drop(closing);
                return;
            }
        }
    }
}

impl<'c> Worker<'c> {
    fn new(store: Store<'c>, commands: Sender<Command>) -> Self {
        let Opened { settings, .. } = store.opened;
        let bell = Bell::new(store.opened.file, &settings.table_prefix);
        let (last_beat, now) = (store.opened.now().at, Instant::now());
        Worker {
            store,
            waiting: Waiting::default(),
            bell,
            listener: None,
            commands,
            last_beat,
            next_beat: now,
            next_look: now,
            look_pending: Arc::default(),
            held_until: now,
            next_file_look: now,
            replaced: false,
        }
    }

    /// Does what it is told; gives the database that took the place of this one, if that happened.
    fn run(&mut self, inbox: &Receiver<Command>) -> Option<Opened> {
        loop {
            let command = match self.next_tick() {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match command {
                Ok(Command::Do(job)) => job(self),
                Ok(Command::Look) => {
                    // Before the look, so that what is handed over after it is looked for again.
                    self.look_pending.store(false, Ordering::Release);
                    self.next_look = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => return None,
            }
            let now = Instant::now();
            if self.next_waiting_tick().is_some_and(|at| at <= now) {
                self.guarded_tick();
            }
            if self.next_file_tick().is_some_and(|at| at <= now) {
                self.look_at_file();
            }
            if std::mem::take(&mut self.replaced) {
                let next = self.reopened();
                // What was held is lost: the holders are told by their renewals, which would be due a third of a lease
                // after the last ones.
                lockcore::renew_all();
                if next.is_some() {
                    return next;
                }
            }
        }
    }

    /// Stops listening and lets go of the database; `close`: it is still the one that others use.
    fn end(mut self, close: bool) {
        self.waiting.clear();
        if let Some(listener) = self.listener.take() {
            listener.end(&self.bell, self.store.session);
        }
        if close {
            self.store.close();
        }
    }

    /// Runs a step under the write lock and serves whoever waits for what it freed. What is to be told is
    /// given to [`tell`](Self::tell) once the caller's own waiter is in the books.
    pub(super) fn write<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Step<'_, 'c>) -> Result<T, StoreError>,
    ) -> Result<(T, Told), StoreError> {
        self.store.write(deadline, |step| {
            let done = work(step)?;
            step.serve()?;
            let told = Told {
                handed: std::mem::take(&mut step.handed),
                unserved: std::mem::take(&mut step.unserved),
            };
            Ok((done, told))
        })
    }

    /// The same for a step that makes nobody wait.
    pub(super) fn write_and_tell<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Step<'_, 'c>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (done, told) = self.write(deadline, work)?;
        self.tell(told);
        Ok(done)
    }

    /// Runs a step that only reads.
    pub(super) fn read<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Step<'_, 'c>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.store.read(deadline, work)
    }

    /// Takes a set; who has to wait gets a place and a bell.
    pub(super) fn acquire(
        &mut self,
        ask: Ask,
        deadline: Instant,
    ) -> Result<(Verdict, Option<Wakeup>), StoreError> {
        let lease = ask.lease;
        let beats = || self.store.opened.now().at - self.last_beat > clock::micros(BEAT);
        let beat = ask.queue && (self.waiting.is_empty() || beats());
        let (verdict, told) = self.write(deadline, |step| acquire::acquire(step, &ask, beat))?;
        let wakeup = match &verdict {
            Verdict::Queued { first_end, .. } => {
                let look = Instant::now() + clock::duration(*first_end).min(LOOK);
                Some(self.enlist(ask, beat, look))
            }
            _ => {
                self.forget(&ask);
                None
            }
        };
        if matches!(verdict, Verdict::Granted(_)) {
            self.holds_for(lease);
        }
        self.tell(told);
        Ok((verdict, wakeup))
    }

    /// Notes that something may be held for so many microseconds from now.
    pub(super) fn holds_for(&mut self, lease: i64) {
        let now = Instant::now();
        if self.held_until <= now {
            self.next_file_look = now + FILE_LOOK;
        }
        self.held_until = self.held_until.max(now + clock::duration(lease).min(LONGEST));
    }

    /// Forgets a waiter that waits no longer.
    pub(super) fn forget(&mut self, ask: &Ask) {
        self.waiting.take(&ask.context, ask.attempt);
    }

    /// Delivers what was handed over to the waiters of this session, rings for those of others, and goes
    /// on with what was too much for one transaction.
    pub(super) fn tell(&mut self, mut told: Told) {
        loop {
            self.deliver(told.handed);
            if told.unserved.is_empty() {
                return;
            }
            let deadline = Instant::now() + self.store.opened.settings.busy_timeout;
            let unserved = told.unserved;
            told = match self.write(deadline, |step| {
                step.freed.extend(unserved);
                Ok(())
            }) {
                Ok(((), told)) => told,
                // The sessions of those who wait look by themselves.
                Err(error) => {
                    return tracing::warn!(path = %self.path(), %error, "could not go on with a hand-off");
                }
            };
        }
    }

    pub(super) fn store(&self) -> &Store<'c> {
        &self.store
    }

    /// Creates or migrates the tables.
    pub(super) fn migrate(&mut self) -> Result<(), StoreError> {
        schema::ensure(&self.store)
    }

    fn enlist(&mut self, ask: Ask, beat: bool, look: Instant) -> Wakeup {
        let (sender, wakeup) = Wakeup::channel();
        if self.listener.is_none() {
            let (commands, pending) = (self.commands.clone(), self.look_pending.clone());
            self.listener = self.bell.listen(self.store.session, move || {
                if !pending.swap(true, Ordering::AcqRel) {
                    let _ = commands.send(Command::Look);
                }
            });
        }
        if self.waiting.is_empty() {
            self.next_look = Instant::now() + LOOK;
        }
        if beat {
            self.last_beat = self.store.opened.now().at;
            self.next_beat = Instant::now() + BEAT;
        }
        let waiter = Waiter { sender, claims: ask.claims };
        self.waiting.add(ask.context, ask.attempt, waiter, look);
        wakeup
    }

    fn deliver(&mut self, handed: Vec<Handed>) {
        let mut others = HashSet::new();
        for Handed { session, context, attempt, granted, lasts, as_of } in handed {
            if session != self.store.session {
                others.insert(session);
            } else if let Some(waiter) = self.waiting.take(&context, attempt) {
                // What the context held before is not part of an offer as it is read from the table.
                let wake = match granted.len() == waiter.claims.len() {
                    true => Wake::Offer(Offer { granted, remaining: Some(clock::duration(lasts)) }),
                    false => Wake::Recheck,
                };
                self.holds_for(lasts);
                // A waiter that is gone withdraws, or its offer ends by itself.
                let _ = waiter.sender.send_as_of(wake, as_of);
            }
        }
        for session in others {
            self.bell.ring(session);
        }
    }

    /// When there is something to do without a request.
    fn next_tick(&self) -> Option<Instant> {
        self.next_waiting_tick().into_iter().chain(self.next_file_tick()).min()
    }

    /// When to look after those who wait.
    fn next_waiting_tick(&self) -> Option<Instant> {
        let id_look = self.waiting.next_look()?;
        Some(self.next_beat.min(self.next_look).min(id_look))
    }

    /// When to look whether the file is still the same: only while something is held.
    fn next_file_tick(&self) -> Option<Instant> {
        (self.store.opened.file.is_some() && self.next_file_look < self.held_until)
            .then_some(self.next_file_look)
    }

    fn look_at_file(&mut self) {
        self.next_file_look = Instant::now() + FILE_LOOK;
        match self.store.opened.check_file() {
            Err(StoreError::Replaced) => self.replaced = true,
            Err(error) => tracing::debug!(path = %self.path(), %error, "the file could not be looked at"),
            Ok(()) => {}
        }
    }

    fn path(&self) -> impl fmt::Display {
        self.store.opened.settings.path.display()
    }

    fn guarded_tick(&mut self) {
        match catch_unwind(AssertUnwindSafe(|| self.tick())) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(path = %self.path(), %error, "could not look after those who wait");
                self.replaced |= matches!(error, StoreError::Replaced);
            }
            Err(_) => self.store.abandon(),
        }
    }

    /// Gives the sign of life, delivers what others handed over, and hands over what holders left that
    /// died or did not renew.
    fn tick(&mut self) -> Result<(), StoreError> {
        let now = Instant::now();
        let deadline = now + self.store.opened.settings.busy_timeout;
        let due = self.waiting.due(now, MOST_LOOKED_AT);
        let beat = self.next_beat <= now;
        self.next_beat = if beat { now + BEAT } else { self.next_beat };
        if self.next_look <= now {
            self.next_look = now + LOOK;
            if due.is_empty() && !beat {
                let offers = self.store.read(deadline, |step| step.offers())?;
                self.deliver(offers);
                return Ok(());
            }
        }
        let expected = self.waiting.claims();
        let ((ends, offers, places, at), told) = self.write(deadline, |step| {
            if beat {
                step.sql.beat.get()?.execute([step.session, step.now.at])?;
            }
            step.freed.extend(due.iter().cloned());
            step.serve()?;
            let places = if beat { step.places_unless(expected)? } else { None };
            Ok((step.first_ends(&due), step.offers()?, places, step.now.at))
        })?;
        self.deliver(offers);
        self.tell(told);
        if let Some(places) = places {
            // A place lapses while the process is stopped, and an administrator can take it away.
            self.waiting.keep_only(&places);
        }
        self.last_beat = if beat { at } else { self.last_beat };
        for (id, left) in ends {
            self.waiting.look_by(&id, Instant::now() + clock::duration(left));
        }
        Ok(())
    }

    /// The file was removed or replaced: opens the one that is there now. Locks and places in the old
    /// one are gone for all who open the new one, and renewals will say so.
    fn reopened(&self) -> Option<Opened> {
        let opened = Opened::open(self.store.opened.settings.clone());
        let warn =
            |error: &_| tracing::warn!(path = %self.path(), %error, "the database could not be opened again");
        opened.inspect_err(warn).ok()
    }
}

#[cfg(test)]
mod tests;
