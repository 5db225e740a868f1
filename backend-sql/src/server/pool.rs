//! Connections, kept per runtime: the runtime that made a connection drives its socket.
//!
//! Not sqlx's pool: that pings when a connection is returned, returns it by a task, and hands out one that was abandoned in
//! the middle of an exchange. Here a connection whose exchange was not finished - its future was dropped, it failed - is
//! closed.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::{
    Server, ServerError,
    background::{self, PerRuntime},
};

/// Connections that were not used for so long are closed rather than trusted: routers on the way forget them without
/// notice.
const STALE: Duration = Duration::from_secs(240);

/// The time after which the server is to close a connection that is not used, such as one left by a host that is gone.
pub(crate) const UNUSED: Duration = Duration::from_secs(300);

/// The connections of a DAO.
pub(crate) struct Pool<E: Server> {
    pub(crate) engine: E,
    runtimes: PerRuntime<Own<E::Conn>>,
}

/// The connections of one runtime.
struct Own<T> {
    free: Arc<Semaphore>,
    idle: Mutex<Idle<T>>,
}

#[derive(Debug)]
struct Idle<T> {
    /// The connections with the time of their last use, in its order. The last one is taken first, so that the
    /// others may grow stale.
    conns: Vec<(T, Instant)>,
    /// Counts how often all of them were given up.
    generation: u64,
}

/// A connection in use. Dropping it closes it, unless it is given back.
pub(crate) struct Checkout<E: Server> {
    conn: Option<E::Conn>,
    own: Arc<Own<E::Conn>>,
    generation: u64,
    _permit: OwnedSemaphorePermit,
}

impl<E: Server> Pool<E> {
    pub(crate) fn new(engine: E) -> Self {
        Pool { engine, runtimes: PerRuntime::default() }
    }

    /// Takes a connection of this runtime: an idle one, or a new one. `urgent`: rather than a new one, an idle one of the
    /// library's thread, whose runtime drives its socket. That takes two more switches between threads, but to connect may
    /// take longer than is left of a lease.
    ///
    /// On the library's thread all connections are our own, also where a pool of the user's lends them: renewals and heartbeats
    /// must not wait for one behind the application, which holds locks meanwhile.
    pub(crate) async fn take(&self, urgent: bool) -> Result<Checkout<E>, ServerError> {
        let runtime = background::current();
        let own = self.of(&runtime);
        let permit = match own.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_none) => own.free.clone().acquire_owned().await.expect("the semaphore is never closed"),
        };
        let (idle, generation) = own.take();
        let conn = match idle {
            Some(conn) => conn,
            None => match if urgent { self.borrow() } else { None } {
                Some(checkout) => return Ok(checkout),
                None => self.engine.connect(runtime.id() == background::handle().id()).await?,
            },
        };
        Ok(Checkout { conn: Some(conn), own, generation, _permit: permit })
    }

    /// Takes an idle connection of the library's thread.
    fn borrow(&self) -> Option<Checkout<E>> {
        let own = self.of(background::handle());
        let permit = own.free.clone().try_acquire_owned().ok()?;
        let (idle, generation) = own.take();
        Some(Checkout { conn: Some(idle?), own, generation, _permit: permit })
    }

    fn of(&self, runtime: &Handle) -> Arc<Own<E::Conn>> {
        let max = self.engine.settings().max_connections;
        // The connections of a runtime that is gone are of no use; a program may make many runtimes.
        self.runtimes.get(runtime, Own::is_stale, || Own {
            free: Arc::new(Semaphore::new(max)),
            idle: Mutex::new(Idle { conns: Vec::new(), generation: 0 }),
        })
    }

    /// Reports whether this runtime may use another connection.
    pub(super) fn has_free(&self) -> bool {
        self.of(&background::current()).free.available_permits() > 0
    }

    /// Closes all connections of all runtimes that are not in use, and those in use when they are given back.
    pub(crate) fn give_up_all(&self) {
        for own in self.runtimes.all() {
            let mut idle = lock(&own.idle);
            idle.generation += 1;
            let conns = std::mem::take(&mut idle.conns);
            drop(idle);
            drop(conns);
        }
    }

    /// Closes the idle connections of all runtimes that were not used for so long: one that was given back since then works.
    pub(crate) fn give_up_unused(&self, unused: Duration) {
        for own in self.runtimes.all() {
            let older =
                lock(&own.idle).conns.extract_if(.., |(_, used)| used.elapsed() > unused).collect::<Vec<_>>();
            drop(older);
        }
    }
}

impl<T> Own<T> {
    fn take(&self) -> (Option<T>, u64) {
        let mut idle = lock(&self.idle);
        let stale = idle.stale(Instant::now());
        let taken = (idle.conns.pop().map(|(conn, _)| conn), idle.generation);
        drop(idle);
        drop(stale);
        taken
    }

    fn is_stale(&self) -> bool {
        lock(&self.idle).conns.iter().all(|(_, used)| used.elapsed() >= STALE)
    }
}

impl<T> Idle<T> {
    /// Takes those out that are stale at `now`.
    fn stale(&mut self, now: Instant) -> Vec<(T, Instant)> {
        let stale = self.conns.partition_point(|(_, used)| now.duration_since(*used) >= STALE);
        self.conns.drain(..stale).collect()
    }
}

impl<E: Server> Checkout<E> {
    /// Returns the connection.
    pub(crate) fn conn(&mut self) -> &mut E::Conn {
        self.conn.as_mut().expect("it is there until it is given back")
    }

    /// Keeps the connection for the next, unless it was lent: its exchange was finished.
    pub(crate) fn give_back(mut self, engine: &E) {
        let Some(conn) = self.conn.take().filter(|conn| engine.keeps(conn)) else { return };
        let mut idle = lock(&self.own.idle);
        if idle.generation == self.generation {
            idle.conns.push((conn, Instant::now()));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_burst_left_goes_though_one_stays_in_use() {
        let burst = Instant::now();
        let mut idle = Idle { conns: (0..10).map(|conn| (conn, burst)).collect(), generation: 0 };
        for (after, closed) in [(STALE / 2, 0), (STALE - Duration::from_nanos(1), 0), (STALE, 9)] {
            let now = burst + after;
            assert_eq!(idle.stale(now).len(), closed, "after {after:?}");
            let (conn, _) = idle.conns.pop().expect("one is left");
            assert_eq!(conn, 9, "the last used is used first");
            idle.conns.push((conn, now));
        }
        assert_eq!(idle.stale(burst + 2 * STALE).len(), 1, "that one too if it is used no more");
        assert!(idle.conns.is_empty());
    }
}
