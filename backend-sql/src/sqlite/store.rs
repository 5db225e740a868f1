//! The connection: how it is opened, and how a step becomes one transaction.

use std::{
    cell::Cell,
    fs, thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, params};

use super::{
    clock::{Clock, Now},
    config::{Settings, Synchronous},
    error::{self, StoreError},
    process::Process,
    schema,
    statements::Statements,
    step::Step,
};

/// How often the file is looked at, to notice that another one lies in its place.
const FILE_CHECK: Duration = Duration::from_secs(1);

thread_local! {
    /// Until when the operation that runs on this thread may wait for the file's write lock.
    static BUSY_DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// One open database and who we are in it.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) conn: Connection,
    pub(super) sql: Statements,
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) process: Process,
    pub(super) ns: i64,
    pub(super) session: i64,
    file: Option<(FileId, Instant)>,
}

/// What tells one file from another though they have the same path.
type FileId = (u64, u64);

impl Store {
    /// Opens the database and registers this DAO as a session.
    pub(super) fn open(settings: Settings) -> Result<Self, StoreError> {
        let deadline = Instant::now() + settings.busy_timeout;
        BUSY_DEADLINE.set(Some(deadline));
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, settings.create);
        let conn = Connection::open_with_flags(&settings.path, flags)?;
        conn.busy_handler(Some(wait_for_lock))?;
        conn.set_prepared_statement_cache_capacity(128);
        if !settings.in_memory() {
            use_wal(&conn, deadline)?;
        }
        let synchronous = match settings.synchronous {
            Synchronous::Normal => "NORMAL",
            Synchronous::Full => "FULL",
        };
        conn.pragma_update(None, "synchronous", synchronous)?;
        let sql = Statements::new(&settings.table_prefix);
        let clock = Clock::of_this_host().pretending(settings.boot, settings.ahead);
        let process = Process::this();
        let mut store = Store { conn, sql, settings, clock, process, ns: 0, session: 0, file: None };
        store.file = store.file_id().map(|id| (id, Instant::now()));
        schema::ensure(&store, store.settings.create)?;
        store.register()?;
        Ok(store)
    }

    /// Runs a step in one transaction that holds the write lock from its beginning. What the step returns
    /// is committed; what it refuses is rolled back.
    pub(super) fn write<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Step<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        BUSY_DEADLINE.set(Some(deadline));
        self.check_file()?;
        self.run(&self.sql.begin).map_err(|error| match error {
            StoreError::Sqlite(error) if error::is_busy(&error) => StoreError::Busy(error),
            other => other,
        })?;
        self.finish(work(&mut Step::new(self)))
    }

    /// Runs a step that only reads, in one transaction that waits for nobody.
    pub(super) fn read<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Step<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        BUSY_DEADLINE.set(Some(deadline));
        self.check_file()?;
        self.run(&self.sql.begin_reading)?;
        self.finish(work(&mut Step::new(self)))
    }

    /// Rolls back what a step that panicked left open.
    pub(super) fn abandon(&self) {
        if !self.conn.is_autocommit() {
            let _ = self.run(&self.sql.rollback);
        }
    }

    /// Removes the session, so that nobody has to find out that it ended.
    pub(super) fn close(&mut self) {
        let deadline = Instant::now() + Duration::from_millis(200);
        let closed = self.write(deadline, |step| {
            let mut leave = step.conn.prepare_cached(&step.sql.leave_session)?;
            let freed = leave.query_map([step.session], |row| row.get(0))?.collect::<Result<Vec<_>, _>>()?;
            drop(leave);
            step.conn.prepare_cached(&step.sql.remove_session)?.execute([step.session])?;
            step.freed.extend(freed);
            step.serve()
        });
        if let Err(error) = closed {
            // Whoever meets the session finds that its process ended, or stopped giving signs of life.
            tracing::debug!(%error, "the session could not be removed");
        }
    }

    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(super) fn run(&self, statement: &str) -> Result<(), StoreError> {
        self.conn.prepare_cached(statement)?.execute([])?;
        Ok(())
    }

    pub(super) fn file_id(&self) -> Option<FileId> {
        (!self.settings.in_memory()).then(|| file_id(&self.settings)).flatten()
    }

    fn finish<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if result.is_err() {
            self.abandon();
            return result;
        }
        let Err(StoreError::Sqlite(source)) = self.run(&self.sql.commit) else {
            return result;
        };
        // A transaction that is still open and can be rolled back did not take place - unless the device
        // failed: then a recovery may find it in the log all the same.
        let rolled_back = !self.conn.is_autocommit() && self.run(&self.sql.rollback).is_ok();
        Err(StoreError::Commit { rolled_back: rolled_back && !error::is_io(&source), source })
    }

    /// A file that was removed or replaced must not go on to be ours: others would lock in the new one.
    fn check_file(&mut self) -> Result<(), StoreError> {
        match &mut self.file {
            Some((opened, looked)) if looked.elapsed() >= FILE_CHECK => {
                if file_id(&self.settings) != Some(*opened) {
                    return Err(StoreError::Replaced);
                }
                *looked = Instant::now();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn register(&mut self) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.settings.busy_timeout;
        let (ns, session) = self.write(deadline, |step| {
            let Step { conn, sql, now, process, .. } = step;
            conn.execute(&sql.add_namespace, [step.namespace])?;
            let ns: i64 = conn.query_row(&sql.namespace, [step.namespace], |row| row.get(0))?;
            let version = env!("CARGO_PKG_VERSION");
            let session = params![ns, now.boot, process.space, process.pid, process.start, now.at, version];
            conn.execute(&sql.add_session, session)?;
            Ok((ns, conn.last_insert_rowid()))
        })?;
        (self.ns, self.session) = (ns, session);
        Ok(())
    }
}

/// Called while somebody else has the file's lock. Short naps instead of SQLite's, which go up to 100 ms:
/// a step of another process takes some ten microseconds.
fn wait_for_lock(tries: i32) -> bool {
    let left = BUSY_DEADLINE.get().map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let Some(left) = left.filter(|left| !left.is_zero()) else {
        return false;
    };
    let nap = match tries {
        0..4 => {
            return {
                thread::yield_now();
                true
            };
        }
        4..100 => Duration::from_micros(50),
        100..1000 => Duration::from_micros(250),
        _ => Duration::from_millis(2),
    };
    thread::sleep(nap.min(left));
    true
}

/// Puts the database into WAL mode. Whether it may wait here SQLite does not ask the busy handler.
fn use_wal(conn: &Connection, deadline: Instant) -> Result<(), StoreError> {
    loop {
        let answer = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match answer {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => return Err(StoreError::JournalMode(mode)),
            Err(error) if error::is_busy(&error) && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(2));
            }
            Err(error) if error::is_busy(&error) => return Err(StoreError::Busy(error)),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(unix)]
fn file_id(settings: &Settings) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;

    fs::metadata(&settings.path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn file_id(settings: &Settings) -> Option<FileId> {
    // Elsewhere an open file cannot be removed.
    fs::metadata(&settings.path).ok().map(|_| (0, 0))
}
