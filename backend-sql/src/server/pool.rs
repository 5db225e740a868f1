//! Connections, kept by the runtime that made them, which alone drives their sockets.
//!
//! Not sqlx's pool: that pings when a connection is returned, returns it by a task, and gives one that was abandoned in
//! the middle of an exchange to the next. Here a connection whose exchange was not finished - its future was dropped,
//! it failed - is closed.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Handle, Id},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::{Engine, ServerError, background};

/// Connections that were not used for so long are closed rather than trusted: routers between here and there forget
/// them without a word.
const STALE: Duration = Duration::from_secs(240);

/// The connections of a DAO.
pub(crate) struct Pool<T> {
    runtimes: Mutex<Vec<Arc<Own<T>>>>,
    max: usize,
}

/// Those of one runtime.
struct Own<T> {
    runtime: Id,
    free: Arc<Semaphore>,
    idle: Mutex<Idle<T>>,
}

struct Idle<T> {
    /// The last used is used first, so that the others may grow stale.
    conns: Vec<(T, Instant)>,
    /// Counts how often all of them were given up.
    generation: u64,
}

/// A connection in use. Dropping it closes it, unless it is given back.
pub(crate) struct Lease<T> {
    conn: Option<T>,
    own: Arc<Own<T>>,
    generation: u64,
    _permit: OwnedSemaphorePermit,
}

impl<T: Send> Pool<T> {
    pub(crate) fn new(max: usize) -> Self {
        Pool { runtimes: Mutex::default(), max }
    }

    /// A connection of this runtime: an idle one, or a new one. `warm`: rather than a new one, an idle one of this crate's
    /// thread, whose runtime drives it for whoever polls it. That takes two more switches between threads, and to connect
    /// may take longer than is left of a lease.
    pub(crate) async fn take<E: Engine<Conn = T>>(
        &self,
        engine: &E,
        warm: bool,
    ) -> Result<Lease<T>, ServerError> {
        let own = self.own();
        let permit = match own.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_none) => own.free.clone().acquire_owned().await.expect("the semaphore is never closed"),
        };
        let (idle, generation) = own.take();
        let conn = match idle {
            Some(conn) => conn,
            None => match if warm { self.borrow() } else { None } {
                Some(lease) => return Ok(lease),
                None => engine.connect().await?,
            },
        };
        Ok(Lease { conn: Some(conn), own, generation, _permit: permit })
    }

    /// An idle connection of this crate's thread.
    fn borrow(&self) -> Option<Lease<T>> {
        let own = self.own_of(background::handle().id());
        let permit = own.free.clone().try_acquire_owned().ok()?;
        let (idle, generation) = own.take();
        Some(Lease { conn: Some(idle?), own, generation, _permit: permit })
    }

    fn own(&self) -> Arc<Own<T>> {
        // Without a runtime of the caller's the sockets belong to ours, see `background::hosted`.
        self.own_of(Handle::try_current().map_or_else(|_| background::handle().id(), |here| here.id()))
    }

    fn own_of(&self, runtime: Id) -> Arc<Own<T>> {
        let mut runtimes = lock(&self.runtimes);
        if let Some(own) = runtimes.iter().find(|own| own.runtime == runtime) {
            return own.clone();
        }
        // Those of runtimes that are gone are of no use, and who comes from a new runtime may come from many.
        runtimes.retain(|own| Arc::strong_count(own) > 1 || !own.is_stale());
        let idle = Mutex::new(Idle { conns: Vec::new(), generation: 0 });
        let own = Arc::new(Own { runtime, free: Arc::new(Semaphore::new(self.max)), idle });
        runtimes.push(own.clone());
        own
    }

    /// Closes all connections of all runtimes that are not in use, and those in use when they are given back.
    pub(crate) fn give_up_all(&self) {
        let runtimes = lock(&self.runtimes).clone();
        for own in runtimes {
            let mut idle = lock(&own.idle);
            idle.generation += 1;
            let conns = std::mem::take(&mut idle.conns);
            drop(idle);
            drop(conns);
        }
    }
}

impl<T> Own<T> {
    fn take(&self) -> (Option<T>, u64) {
        let mut idle = lock(&self.idle);
        let found = match idle.conns.pop() {
            Some((conn, used)) if used.elapsed() < STALE => Some(conn),
            Some(_stale) => {
                // All others are as old or older.
                idle.conns.clear();
                None
            }
            None => None,
        };
        (found, idle.generation)
    }

    fn is_stale(&self) -> bool {
        lock(&self.idle).conns.iter().all(|(_, used)| used.elapsed() >= STALE)
    }
}

impl<T> Lease<T> {
    /// The connection.
    pub(crate) fn conn(&mut self) -> &mut T {
        self.conn.as_mut().expect("it is there until it is given back")
    }

    /// Keeps the connection for the next: its exchange was finished.
    pub(crate) fn give_back(mut self) {
        let Some(conn) = self.conn.take() else { return };
        let mut idle = lock(&self.own.idle);
        if idle.generation == self.generation {
            idle.conns.push((conn, Instant::now()));
        }
    }
}

impl<T> std::fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("max", &self.max).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
