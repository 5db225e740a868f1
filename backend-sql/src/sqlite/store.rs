//! The store, in which each step becomes one transaction.

use std::time::{Duration, Instant};

use lockcore::engine;
use rusqlite::{OptionalExtension, params};

use super::{
    busy,
    clock::Now,
    config::Settings,
    error::{self, StoreError},
    opened::Opened,
    schema,
    step::Step,
};

/// The interval at which the file is looked at, to notice that another one lies in its place, in microseconds.
const FILE_CHECK: i64 = 1_000_000;

/// The size of the WAL from which it is copied into the file, in pages: SQLite's own default.
const CHECKPOINT_PAGES: u32 = 1000;

/// The number of commits after which SQLite looks at the size of the WAL again.
const CHECKPOINT_COMMITS: u32 = 128;

/// A database at work: our namespace and session in it.
pub(super) struct Store {
    pub(super) opened: Opened,
    /// Our namespace; 0 as long as it has no row.
    ns: i64,
    /// Our session there; 0 before the first step that writes.
    pub(super) session: i64,
    /// Set if both have been committed. Only a step that writes sees to that, so that reading leaves nothing behind.
    registered: bool,
    /// The time at which the file was looked at, by our clock.
    looked: i64,
    /// The number of commits since SQLite looked at the size of the WAL.
    commits: u32,
}

impl Store {
    /// Opens the database, and creates what is missing of it if that is wanted.
    pub(super) fn open(settings: Settings) -> Result<Self, StoreError> {
        let deadline = Instant::now() + settings.busy_timeout;
        busy::wait_until(Some(deadline));
        let mut opened = Opened::open(settings, deadline)?;
        if !opened.settings.create {
            // Before anything is changed of a file that may be an application's.
            schema::require(&opened)?;
        }
        opened.configure(deadline)?;
        schema::ensure(&opened)?;
        opened.identify_log()?;
        let looked = opened.now().at;
        Ok(Store { opened, ns: 0, session: 0, registered: false, looked, commits: 0 })
    }

    /// Runs a step in one transaction that holds the write lock from its beginning. What the step returns is committed; what
    /// it refuses is rolled back. It waits for the lock until `deadline`; `None`: not at all.
    pub(super) fn write<T>(
        &mut self,
        deadline: Option<Instant>,
        work: impl FnOnce(&mut Step<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        busy::wait_until(deadline);
        self.opened.run(&self.opened.sql.begin).map_err(|error| match error {
            StoreError::Sqlite(error) if error::is_busy(&error) => StoreError::Busy(error),
            other => other,
        })?;
        let done = self.transact(|store, now| {
            store.register(now)?;
            work(&mut store.step(now))
        });
        self.registered |= done.is_ok();
        self.commits += 1;
        done
    }

    /// Runs a step that only reads, in one transaction that does not wait for the write lock.
    pub(super) fn read<T>(
        &mut self,
        deadline: Option<Instant>,
        work: impl FnOnce(&mut Step<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        busy::wait_until(deadline);
        self.opened.run(&self.opened.sql.begin_reading)?;
        self.transact(|store, now| {
            if !store.registered {
                (store.ns, store.session) = (store.namespace()?.unwrap_or(0), 0);
            }
            work(&mut store.step(now))
        })
    }

    /// Returns whether it is time for a [`checkpoint`](Self::checkpoint).
    pub(super) fn checkpoint_is_due(&self) -> bool {
        self.commits >= CHECKPOINT_COMMITS && self.opened.files.is_some()
    }

    /// Copies the WAL into the file if it has grown. No other commit does, because this waits for the disk.
    pub(super) fn checkpoint(&mut self, deadline: Option<Instant>) -> Result<(), StoreError> {
        self.opened.checkpoint_after(CHECKPOINT_PAGES)?;
        let looked = self.write(deadline, |step| step.heartbeat());
        self.opened.checkpoint_after(0)?;
        // The first commit after a checkpoint restarts the WAL, and waits for the disk as well.
        let begun = looked.and_then(|()| self.write(deadline, |step| step.heartbeat()));
        self.commits = 0;
        begun
    }

    /// Closes the database: from then on each step fails, since it was replaced.
    pub(super) fn give_up(&mut self) -> Result<(), StoreError> {
        (self.registered, self.looked) = (false, i64::MAX);
        self.opened.close()
    }

    /// Removes the session, so that no other has to find out that it ended.
    pub(super) fn close(&mut self) {
        if !self.registered {
            return;
        }
        let deadline = Instant::now() + Duration::from_millis(200);
        let closed = self.write(Some(deadline), |step| {
            step.leave_session(step.session)?;
            step.conn.prepare_cached(&step.sql.remove_session)?.execute([step.session])?;
            engine::serve(step)
        });
        if let Err(error) = closed {
            // Others find that its process ended, or that its heartbeat stopped.
            let path = self.opened.settings.path.display();
            tracing::debug!(%path, %error, "the session could not be removed");
        }
    }

    fn step(&self, now: Now) -> Step<'_> {
        Step::new(&self.opened, self.ns, self.session, now)
    }

    /// Works in the transaction that was begun, and ends it.
    fn transact<T>(
        &mut self,
        work: impl FnOnce(&mut Self, Now) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let now = self.opened.now();
        let result = self.check(now.at).and_then(|()| work(self, now));
        if result.is_err() {
            self.opened.roll_back();
            return result;
        }
        let Err(StoreError::Sqlite(source)) = self.opened.run(&self.opened.sql.commit) else {
            return result;
        };
        // A transaction that is still open and can be rolled back did not take place - unless the device
        // failed: then a recovery may find it in the log all the same.
        let open = !self.opened.conn.is_autocommit();
        let rolled_back = open && self.opened.run(&self.opened.sql.rollback).is_ok();
        Err(StoreError::Commit { rolled_back: rolled_back && !error::is_io(&source), source })
    }

    /// Looks from time to time whether the file and its log are still those at their names, and the schema one that we know.
    fn check(&mut self, now: i64) -> Result<(), StoreError> {
        if (0..FILE_CHECK).contains(&(now - self.looked)) {
            return Ok(());
        }
        self.opened.check_files()?;
        schema::require(&self.opened)?;
        self.looked = now;
        Ok(())
    }

    /// Makes this DAO a session of its namespace, unless it is one.
    fn register(&mut self, now: Now) -> Result<(), StoreError> {
        if self.registered {
            return Ok(());
        }
        let Opened { conn, sql, settings, process, .. } = &self.opened;
        conn.prepare_cached(&sql.add_namespace)?.execute([&settings.namespace])?;
        self.ns = self.namespace()?.ok_or(StoreError::Corrupt("the table of namespaces"))?;
        let (space, version) = (process.space.as_deref().unwrap_or("?"), env!("CARGO_PKG_VERSION"));
        let session = params![self.ns, now.boot, space, process.pid, process.start, now.at, version];
        conn.prepare_cached(&sql.add_session)?.execute(session)?;
        self.session = conn.last_insert_rowid();
        Ok(())
    }

    fn namespace(&self) -> Result<Option<i64>, StoreError> {
        let Opened { conn, sql, settings, .. } = &self.opened;
        let mut namespace = conn.prepare_cached(&sql.namespace)?;
        Ok(namespace.query_row([&settings.namespace], |row| row.get(0)).optional()?)
    }
}
