//! The way to the database: a step is done in its caller's thread, or sent to the database's.
//!
//! A step takes some ten microseconds, and handing it to another thread takes longer than that. So it is done where it is
//! asked for, in the poll of its future, as long as nothing makes it wait: the connection is not in use, and no other
//! process has the file's write lock. Otherwise it goes to the thread, which may wait. What always goes there: checkpoints
//! and commits that wait for the disk ([`Synchronous::Full`]), large sets, administration.

use std::{
    path::PathBuf,
    process,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use lockcore::BackendError;
use tokio::{sync::oneshot, task::coop::consume_budget};

use super::{
    config::{Settings, Synchronous},
    error::StoreError,
    worker::Worker,
};

/// The largest set that is taken in its caller's thread: some 5 us an id.
const MOST_IDS_HERE: usize = 128;

/// For so many ids a step uses up one more of the 128 units after which tokio has a task let others run.
const IDS_PER_UNIT: usize = 4;

/// The time for which the end of the database waits for its session to be closed: longer than the step may take.
const CLOSING: Duration = Duration::from_millis(300);

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

enum Command {
    Do(Job),
    /// There is something to look after.
    Wake,
    End,
}

/// The way to the database. Dropping it ends the thread, after what was sent before, and waits a moment for that.
pub(super) struct Database {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    /// Disconnected once the session is closed.
    closed: Mutex<Receiver<()>>,
    pub(super) path: PathBuf,
    pub(super) in_memory: bool,
    busy_timeout: Duration,
    /// Set if no commit waits for the disk.
    here: bool,
    /// The process that opened it.
    process: u32,
}

/// The state that callers and the thread share.
struct Shared {
    /// `None` before the database is open and after it was closed.
    worker: Mutex<Option<Worker>>,
    /// The number of operations that were sent to the thread and are not done, and one more while it works. As long as
    /// there are any, all are sent there, so that they take place in the order of the calls: a withdrawal never
    /// overtakes what it withdraws.
    sent: AtomicUsize,
}

impl Database {
    /// Starts the thread and opens the database there.
    pub(super) async fn open(settings: Settings) -> Result<Self, BackendError> {
        let (path, in_memory, busy_timeout) =
            (settings.path.clone(), settings.in_memory(), settings.busy_timeout);
        let here = in_memory || settings.synchronous == Synchronous::Normal;
        let shared = Arc::new(Shared { worker: Mutex::new(None), sent: AtomicUsize::new(0) });
        let (commands, inbox) = mpsc::channel();
        let (closing, closed) = mpsc::channel::<()>();
        let (opened, answer) = oneshot::channel();
        let (theirs, waker) = (shared.clone(), commands.clone());
        let wake = Arc::new(move || drop(waker.send(Command::Wake)));
        let work = move || match Worker::open(settings, wake) {
            Ok(worker) => {
                *theirs.lock() = Some(worker);
                // The opener may have lost patience by now.
                if opened.send(Ok(())).is_ok() {
                    theirs.work(&inbox);
                }
                let worker = theirs.close();
                drop(closing);
                drop(worker);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let started = thread::Builder::new().name("lockcore-sqlite".to_owned()).spawn(work);
        started.map_err(|error| StoreError::NoThread(error).at(&path))?;
        let answer = answer.await.unwrap_or(Err(StoreError::ThreadGone { sent: false }));
        answer.map_err(|error| error.at(&path))?;
        let closed = Mutex::new(closed);
        Ok(Database { shared, commands, closed, path, in_memory, busy_timeout, here, process: process::id() })
    }

    /// Runs a step of a set of so many ids: here at once if nothing makes it wait, otherwise on the thread. `operation` may
    /// be called twice, but the first time it found the file busy and did nothing.
    ///
    /// Once this was polled the step takes place, in the order of the calls, though the future be dropped.
    pub(super) async fn step<T: Send + 'static>(
        &self,
        ids: usize,
        mut operation: impl FnMut(&mut Worker, Option<Instant>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, BackendError> {
        if self.here
            && ids <= MOST_IDS_HERE
            && self.process == process::id()
            && let Some(done) = self.step_here(&mut operation)
        {
            // One who takes steps in a row would otherwise never let the other tasks of its runtime run.
            for _ in 0..=ids / IDS_PER_UNIT {
                consume_budget().await;
            }
            return done.map_err(|error| error.at(&self.path));
        }
        self.send(operation).await
    }

    /// Runs an operation on the thread. Once this was polled it takes place, in the order of the calls, though the future be
    /// dropped.
    pub(super) async fn send<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Worker, Option<Instant>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, BackendError> {
        if self.process != process::id() {
            return Err(StoreError::Forked.at(&self.path));
        }
        // The time it waits for the operations before it counts too.
        let deadline = Instant::now() + self.busy_timeout;
        let (reply, answer) = oneshot::channel();
        let job = move |worker: &mut Worker| {
            let _ = reply.send(worker.run(Some(deadline), operation));
        };
        self.shared.sent.fetch_add(1, Ordering::AcqRel);
        let done = match self.commands.send(Command::Do(Box::new(job))) {
            Ok(()) => answer.await.unwrap_or(Err(StoreError::ThreadGone { sent: true })),
            Err(_) => Err(StoreError::ThreadGone { sent: false }),
        };
        done.map_err(|error| error.at(&self.path))
    }

    /// Runs a step in this thread; `None`: something makes it wait, and nothing was done.
    fn step_here<T>(
        &self,
        operation: &mut impl FnMut(&mut Worker, Option<Instant>) -> Result<T, StoreError>,
    ) -> Option<Result<T, StoreError>> {
        if self.shared.sent.load(Ordering::Acquire) > 0 {
            return None;
        }
        let mut guard = self.shared.worker.try_lock().ok()?;
        let worker = guard.as_mut()?;
        let done = worker.run(None, operation);
        let wake = worker.must_wake();
        drop(guard);
        if wake {
            let _ = self.commands.send(Command::Wake);
        }
        match done {
            Err(StoreError::Busy(_)) => None,
            done => Some(done),
        }
    }
}

impl Drop for Database {
    /// Ends the thread, and waits a moment until the session is closed: the process may end right after this, and another
    /// one that finds a session which was not closed takes its process for one that died.
    fn drop(&mut self) {
        let sent = self.commands.send(Command::End);
        if sent.is_ok() && !self.in_memory && self.process == process::id() {
            let closed = self.closed.get_mut().unwrap_or_else(PoisonError::into_inner);
            // The other end is dropped.
            let _ = closed.recv_timeout(CLOSING);
        }
    }
}

impl Shared {
    /// Does what is sent, and what is due, until it is to end.
    fn work(&self, inbox: &Receiver<Command>) {
        let mut until: Option<Instant> = None;
        loop {
            let command = match until {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            // Otherwise one who takes steps without a pause could keep this thread from the connection.
            self.sent.fetch_add(1, Ordering::AcqRel);
            let mut guard = self.lock();
            let Some(worker) = guard.as_mut() else { return };
            match command {
                Ok(Command::Do(job)) => {
                    job(worker);
                    self.sent.fetch_sub(1, Ordering::AcqRel);
                }
                Ok(Command::Wake) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
            worker.look_after();
            until = worker.sleep();
            self.sent.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Ends the session, and gives what is to be dropped once that is known.
    fn close(&self) -> Option<Worker> {
        let mut worker = self.lock().take();
        if let Some(worker) = &mut worker {
            worker.end();
        }
        worker
    }

    fn lock(&self) -> MutexGuard<'_, Option<Worker>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
