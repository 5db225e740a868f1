//! The worker on the database: steps, the waiters of this session, and what has to be done without a request.

use std::{
    collections::HashSet,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{
    backend::{Offer, Wake, Wakeup},
    engine, protocol,
};

use super::{
    acquire::{self, Verdict},
    busy, clock,
    config::Settings,
    error::StoreError,
    file::Files,
    row::{Key, Request},
    schema,
    step::{Handed, Step},
    store::Store,
    watch::{LOOK, Listener, Notifier, Waiter, Waiting},
};

/// The interval at which the file is looked at while anything is held, so that its holders learn of a file that was
/// replaced.
const FILE_LOOK: Duration = Duration::from_secs(1);

/// The longest lease that is remembered to look after the file: longer ones are renewed before.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The most ids that one transaction looks at for holders that died or did not renew.
const MOST_LOOKED_AT: usize = 64;

/// The database and the waiters of its session.
///
/// A step runs either in its caller's thread or in the database's, whichever has the lock of the worker; what may have to
/// wait is left to the latter, which finds it in [`look_after`](Self::look_after).
pub(super) struct Worker {
    store: Store,
    waiting: Waiting,
    notifier: Notifier,
    listener: Option<Listener>,
    /// Wakes the database's thread.
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Set if the session was notified since the last look: any user can do that, without a pause.
    notified: Arc<AtomicBool>,
    last_heartbeat: i64,
    next_heartbeat: Instant,
    next_look: Instant,
    /// The time until when something may be held that was taken or renewed here.
    held_until: Instant,
    next_file_look: Instant,
    /// The room of which one transaction did not get to the waiters.
    unserved: Vec<(Key, u64)>,
    /// Another file, or another log, lies in the place of the one that is open.
    replaced: bool,
    /// The time until when the database's thread sleeps; `None`: until it is woken.
    sleeps_until: Option<Instant>,
    /// Set if it was woken, and has not come yet.
    woken: bool,
}

impl Worker {
    /// Opens the database. `wake` wakes the thread that then calls [`look_after`](Self::look_after).
    pub(super) fn open(settings: Settings, wake: Arc<dyn Fn() + Send + Sync>) -> Result<Self, StoreError> {
        let store = Store::open(settings)?;
        let notifier =
            Notifier::new(store.opened.files.as_ref().map(Files::file), &store.opened.settings.table_prefix);
        let (last_heartbeat, now) = (store.opened.now().at, Instant::now());
        Ok(Worker {
            store,
            waiting: Waiting::default(),
            notifier,
            listener: None,
            wake,
            notified: Arc::default(),
            last_heartbeat,
            next_heartbeat: now,
            next_look: now,
            held_until: now,
            next_file_look: now,
            unserved: Vec::new(),
            replaced: false,
            sleeps_until: None,
            woken: false,
        })
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Runs an operation, which waits for other processes until `deadline`; `None`: not at all.
    pub(super) fn run<T>(
        &mut self,
        deadline: Option<Instant>,
        operation: impl FnOnce(&mut Worker, Option<Instant>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let done = catch_unwind(AssertUnwindSafe(|| operation(self, deadline)));
        let done = done.unwrap_or_else(|_| {
            self.store.opened.roll_back();
            Err(StoreError::Panicked)
        });
        self.replaced |= matches!(done, Err(StoreError::Replaced));
        done
    }

    /// Runs a step under the write lock and serves the waiters for what it made room for. They learn of it by
    /// [`notify`](Self::notify), once the caller's own waiter is registered.
    fn write<T>(
        &mut self,
        deadline: Option<Instant>,
        work: impl FnOnce(&mut Step<'_>) -> Result<T, StoreError>,
    ) -> Result<(T, Vec<Handed>), StoreError> {
        let (done, handed, unserved) = self.store.write(deadline, |step| {
            let done = work(step)?;
            engine::serve(step)?;
            Ok((done, std::mem::take(&mut step.handed), std::mem::take(&mut step.rooms)))
        })?;
        self.unserved.extend(unserved);
        Ok((done, handed))
    }

    /// Runs a step that adds no waiter as [`write`](Self::write) does, and notifies the waiters that it served.
    pub(super) fn write_and_notify<T>(
        &mut self,
        deadline: Option<Instant>,
        work: impl FnOnce(&mut Step<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (done, handed) = self.write(deadline, work)?;
        self.notify(handed);
        Ok(done)
    }

    /// Runs a step that only reads.
    pub(super) fn read<T>(
        &mut self,
        deadline: Option<Instant>,
        work: impl FnOnce(&mut Step<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.store.read(deadline, work)
    }

    /// Takes a set; who has to wait gets a place and a wake-up.
    pub(super) fn acquire(
        &mut self,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<(Verdict, Option<Wakeup>), StoreError> {
        let due = || self.store.opened.now().at - self.last_heartbeat > clock::micros(protocol::HEARTBEAT);
        let heartbeat = request.queue && (self.waiting.is_empty() || due());
        let (verdict, handed) = self.write(deadline, |step| acquire::acquire(step, request, heartbeat))?;
        let wakeup = match &verdict {
            Verdict::Queued { first_end, .. } => {
                let look = Instant::now() + clock::duration(*first_end).min(LOOK);
                Some(self.enlist(request, heartbeat, look))
            }
            _ => {
                self.forget(request);
                None
            }
        };
        if matches!(verdict, Verdict::Granted(_)) {
            self.holds_for(request.lease);
        }
        self.notify(handed);
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
    pub(super) fn forget(&mut self, request: &Request) {
        self.waiting.take(&request.context, request.attempt);
    }

    /// Creates or migrates the tables.
    pub(super) fn migrate(&mut self, deadline: Option<Instant>) -> Result<(), StoreError> {
        busy::wait_until(deadline);
        self.store.opened.check_files()?;
        schema::ensure(&self.store.opened)
    }

    /// Ends the session; what is left is only to be dropped.
    pub(super) fn end(&mut self) {
        self.stop_waiting();
        self.store.close();
    }

    fn enlist(&mut self, request: &Request, heartbeat: bool, look: Instant) -> Wakeup {
        let (sender, wakeup) = Wakeup::channel();
        self.listen();
        if self.waiting.is_empty() {
            self.next_look = Instant::now() + LOOK;
        }
        if heartbeat {
            self.last_heartbeat = self.store.opened.now().at;
            self.next_heartbeat = Instant::now() + protocol::HEARTBEAT;
        }
        let waiter = Waiter { sender, claims: request.claims.clone() };
        self.waiting.add(request.context.clone(), request.attempt, waiter, look);
        wakeup
    }

    /// Listens for notifications of this session, unless that is done.
    fn listen(&mut self) {
        if self.listener.is_none() {
            let (wake, notified) = (self.wake.clone(), self.notified.clone());
            self.listener = self.notifier.listen(self.store.session, move || {
                if !notified.swap(true, Ordering::AcqRel) {
                    wake();
                }
            });
        }
    }

    /// Delivers what is for the waiters of this session, and notifies the sessions of others.
    fn notify(&mut self, handed: Vec<Handed>) {
        let mut others = HashSet::new();
        for Handed { session, context, attempt, granted, lasts, as_of } in handed {
            if session != self.store.session {
                others.insert(session);
            } else if let Some(waiter) = self.waiting.take(&context, attempt) {
                // An offer that leaves out what the context held before is taken by asking again.
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
            self.notifier.notify(session);
        }
    }

    fn stop_waiting(&mut self) {
        self.waiting.clear();
        if let Some(listener) = self.listener.take() {
            listener.end(&self.notifier, self.store.session);
        }
    }

    fn path(&self) -> impl fmt::Display {
        self.store.opened.settings.path.display()
    }
}

/// The work of the database's thread without a request.
impl Worker {
    /// Returns until when the thread may sleep, which is about to.
    pub(super) fn sleep(&mut self) -> Option<Instant> {
        self.sleeps_until = self.next_tick();
        self.sleeps_until
    }

    /// Returns whether a step left something to the thread for which it has to be woken.
    pub(super) fn must_wake(&mut self) -> bool {
        let sooner = |at: Instant| self.sleeps_until.is_none_or(|until| at < until);
        let needs = self.next_tick().is_some_and(sooner)
            || self.replaced
            || !self.unserved.is_empty()
            || self.store.checkpoint_is_due();
        needs && !std::mem::replace(&mut self.woken, true)
    }

    /// Does all that is due.
    pub(super) fn look_after(&mut self) {
        self.woken = false;
        // Before the look, so that what is handed over after it is looked for again.
        if self.notified.swap(false, Ordering::AcqRel) {
            self.next_look = Instant::now();
        }
        self.unasked("serve all waiters", Self::serve_rest);
        let now = Instant::now();
        if self.next_waiting_tick().is_some_and(|at| at <= now) {
            self.unasked("look after the waiters", Self::tick);
            self.unasked("serve all waiters", Self::serve_rest);
        }
        if self.next_file_tick().is_some_and(|at| at <= now) {
            self.look_at_file();
        }
        if self.store.checkpoint_is_due() {
            self.unasked("write the log back", |worker, deadline| worker.store.checkpoint(deadline));
        }
        if std::mem::take(&mut self.replaced) {
            self.reopen();
        }
    }

    /// Runs what no request waits for.
    fn unasked(
        &mut self,
        what: &str,
        work: impl FnOnce(&mut Worker, Option<Instant>) -> Result<(), StoreError>,
    ) {
        let deadline = Instant::now() + self.store.opened.settings.busy_timeout;
        if let Err(error) = self.run(Some(deadline), work) {
            tracing::warn!(path = %self.path(), %error, "could not {what}");
            if !error.may_pass() {
                // A request that is refused for good ends the waits that ask again.
                self.waiting.clear();
            }
        }
    }

    /// Goes on serving where a transaction had handed over enough.
    fn serve_rest(&mut self, deadline: Option<Instant>) -> Result<(), StoreError> {
        while !self.unserved.is_empty() {
            // If this fails, the sessions of those who wait look by themselves.
            let unserved = std::mem::take(&mut self.unserved);
            self.write_and_notify(deadline, |step| {
                step.rooms.extend(unserved);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns when there is something to do without a request.
    fn next_tick(&self) -> Option<Instant> {
        self.next_waiting_tick().into_iter().chain(self.next_file_tick()).min()
    }

    /// Returns when to look after those who wait.
    fn next_waiting_tick(&self) -> Option<Instant> {
        let id_look = self.waiting.next_look()?;
        Some(self.next_heartbeat.min(self.next_look).min(id_look))
    }

    /// Returns when to look whether the file is still the same: only while something is held.
    fn next_file_tick(&self) -> Option<Instant> {
        (self.store.opened.files.is_some() && self.next_file_look < self.held_until)
            .then_some(self.next_file_look)
    }

    fn look_at_file(&mut self) {
        self.next_file_look = Instant::now() + FILE_LOOK;
        match self.store.opened.check_files() {
            Err(StoreError::Replaced) => self.replaced = true,
            Err(error) => tracing::debug!(path = %self.path(), %error, "the file could not be looked at"),
            Ok(()) => {}
        }
    }

    /// Writes the heartbeat, delivers what others handed over, and hands over what holders left that
    /// died or did not renew.
    fn tick(&mut self, deadline: Option<Instant>) -> Result<(), StoreError> {
        let now = Instant::now();
        let due = self.waiting.due(now, MOST_LOOKED_AT);
        let heartbeat = self.next_heartbeat <= now;
        self.next_heartbeat = if heartbeat { now + protocol::HEARTBEAT } else { self.next_heartbeat };
        if self.next_look <= now {
            self.next_look = now + LOOK;
            if due.is_empty() && !heartbeat {
                let handed = self.store.read(deadline, |step| step.offers())?;
                self.notify(handed);
                return Ok(());
            }
        }
        let expected = self.waiting.claims();
        let ((ends, offers, places, at), handed) = self.write(deadline, |step| {
            if heartbeat {
                step.heartbeat()?;
            }
            step.rooms.extend(due.iter().map(|id| (id.clone(), 0)));
            engine::serve(step)?;
            let places = if heartbeat { step.places_unless(expected)? } else { None };
            Ok((step.first_ends(&due), step.offers()?, places, step.now.at))
        })?;
        self.notify(offers);
        self.notify(handed);
        if let Some(places) = places {
            // A place lapses while the process is stopped, and an administrator can take it away.
            self.waiting.keep_only(&places);
        }
        self.last_heartbeat = if heartbeat { at } else { self.last_heartbeat };
        for (id, left) in ends {
            self.waiting.look_by(&id, Instant::now() + clock::duration(left));
        }
        Ok(())
    }

    /// Opens the file that is there now, since ours or its log was removed or replaced. Locks and places in another file are gone
    /// for all who open that; the holders learn so by their renewals, which are due a third of a lease after the last ones. Those
    /// in a log that was removed are written to the file before.
    fn reopen(&mut self) {
        let settings = self.store.opened.settings.clone();
        let closed = self.store.give_up();
        match closed.and_then(|()| Worker::open(settings, self.wake.clone())) {
            Ok(worker) => {
                self.stop_waiting();
                *self = worker;
            }
            Err(error) => {
                tracing::warn!(path = %self.path(), %error, "the database could not be opened again");
            }
        }
        lockcore::backend::renew_all();
    }
}
