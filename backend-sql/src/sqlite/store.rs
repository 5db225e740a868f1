//! The connection: how it is opened, and how a step becomes one transaction.

use std::{
    cell::Cell,
    io, thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::{
    clock::{Clock, Now},
    config::{Settings, Synchronous},
    error::{self, StoreError},
    file::{self, FileId, FileSystem},
    process::Process,
    schema,
    statements::{Kept, Statements},
    step::Step,
};

/// How often the file is looked at, to notice that another one lies in its place, in microseconds.
const FILE_CHECK: i64 = 1_000_000;

/// The size of a page of a new file, in bytes.
const PAGE: i64 = 2048;

thread_local! {
    /// Until when the operation that runs on this thread may wait for the file's write lock.
    static BUSY_DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// An open database and who we are in it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) conn: Connection,
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) process: Process,
    /// `None` in memory.
    pub(super) file: Option<FileId>,
}

/// It at work, with its statements.
pub(super) struct Store<'c> {
    pub(super) opened: &'c Opened,
    pub(super) sql: Statements<'c>,
    /// Our namespace; 0 as long as it has no row.
    pub(super) ns: i64,
    /// Who we are there; 0 before the first step that writes.
    pub(super) session: i64,
    /// Whether both have been committed. Only a step that writes sees to that, so that reading leaves nothing behind.
    registered: bool,
    /// When the file was looked at, by our clock.
    looked: i64,
}

impl Opened {
    /// Opens the database, and creates what is missing of it if that is wanted.
    pub(super) fn open(settings: Settings) -> Result<Self, StoreError> {
        let deadline = Instant::now() + settings.busy_timeout;
        BUSY_DEADLINE.set(Some(deadline));
        let clock = Clock::of_this_host(settings.in_memory()).ok_or(StoreError::NoClock)?;
        let clock = clock.pretending(settings.boot, settings.ahead, settings.rebooted);
        let (mut conn, file) = match settings.in_memory() {
            true => (Connection::open_in_memory()?, None),
            false => open_file(&settings).map(|(conn, file)| (conn, Some(file)))?,
        };
        wait_for_others(&mut conn)?;
        let process = Process::this();
        let opened = Opened { conn, settings, clock, process, file };
        let store = Store::of(&opened);
        if !opened.settings.create {
            // Before anything is changed of a file that may be an application's.
            schema::require(&store)?;
        }
        opened.configure(deadline)?;
        schema::ensure(&store)?;
        drop(store);
        Ok(opened)
    }

    fn configure(&self, deadline: Instant) -> Result<(), StoreError> {
        if self.file.is_some() {
            // For a new file. A commit writes whole pages, and most sets are small: with the usual 4096 bytes a lock of one id
            // takes 8 % longer, of ten 5 %; one of a hundred takes 9 % less.
            self.conn.pragma_update(None, "page_size", PAGE)?;
            use_wal(&self.conn, deadline)?;
        }
        let synchronous = match self.settings.synchronous {
            Synchronous::Normal => "NORMAL",
            Synchronous::Full => "FULL",
        };
        Ok(self.conn.pragma_update(None, "synchronous", synchronous)?)
    }

    /// A file that was removed or replaced must not go on to be ours: others would lock in the new one.
    pub(super) fn check_file(&self) -> Result<(), StoreError> {
        let Some(file) = self.file else { return Ok(()) };
        match file::id(&self.settings.path) {
            Ok(found) if found == file => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::File(error)),
            _ => Err(StoreError::Replaced),
        }
    }

    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }
}

impl<'c> Store<'c> {
    pub(super) fn of(opened: &'c Opened) -> Self {
        let sql = Statements::new(&opened.conn, &opened.settings.table_prefix);
        Store { opened, sql, ns: 0, session: 0, registered: false, looked: opened.now().at }
    }

    /// Runs a step in one transaction that holds the write lock from its beginning. What the step returns
    /// is committed; what it refuses is rolled back.
    pub(super) fn write<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Step<'_, 'c>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        BUSY_DEADLINE.set(Some(deadline));
        run(&self.sql.begin).map_err(|error| match error {
            StoreError::Sqlite(error) if error::is_busy(&error) => StoreError::Busy(error),
            other => other,
        })?;
        let done = self.step(|store, now| {
            store.register(now)?;
            work(&mut Step::new(store, now))
        });
        self.registered |= done.is_ok();
        done
    }

    /// Runs a step that only reads, in one transaction that waits for nobody.
    pub(super) fn read<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Step<'_, 'c>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        BUSY_DEADLINE.set(Some(deadline));
        run(&self.sql.begin_reading)?;
        self.step(|store, now| {
            if !store.registered {
                (store.ns, store.session) = (store.namespace()?.unwrap_or(0), 0);
            }
            work(&mut Step::new(store, now))
        })
    }

    /// Rolls back what a step that panicked left open.
    pub(super) fn abandon(&self) {
        if !self.opened.conn.is_autocommit() {
            let _ = run(&self.sql.rollback);
        }
    }

    /// Removes the session, so that nobody has to find out that it ended.
    pub(super) fn close(&mut self) {
        if !self.registered {
            return;
        }
        let deadline = Instant::now() + Duration::from_millis(200);
        let closed = self.write(deadline, |step| {
            let mut leave = step.sql.leave_session.get()?;
            let freed = leave.query_map([step.session], |row| row.get(0))?.collect::<Result<Vec<_>, _>>()?;
            drop(leave);
            step.sql.remove_session.get()?.execute([step.session])?;
            step.freed.extend(freed);
            step.serve()
        });
        if let Err(error) = closed {
            // Whoever meets the session finds that its process ended, or stopped giving signs of life.
            let path = self.opened.settings.path.display();
            tracing::debug!(%path, %error, "the session could not be removed");
        }
    }

    /// Works in the transaction that was begun, and ends it.
    fn step<T>(
        &mut self,
        work: impl FnOnce(&mut Self, Now) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let now = self.opened.now();
        let result = self.check(now.at).and_then(|()| work(self, now));
        if result.is_err() {
            self.abandon();
            return result;
        }
        let Err(StoreError::Sqlite(source)) = run(&self.sql.commit) else {
            return result;
        };
        // A transaction that is still open and can be rolled back did not take place - unless the device
        // failed: then a recovery may find it in the log all the same.
        let rolled_back = !self.opened.conn.is_autocommit() && run(&self.sql.rollback).is_ok();
        Err(StoreError::Commit { rolled_back: rolled_back && !error::is_io(&source), source })
    }

    /// Looks from time to time whether the file is still the one at the path, and its schema one that we know.
    fn check(&mut self, now: i64) -> Result<(), StoreError> {
        if (0..FILE_CHECK).contains(&(now - self.looked)) {
            return Ok(());
        }
        self.opened.check_file()?;
        schema::require(self)?;
        self.looked = now;
        Ok(())
    }

    /// Makes this DAO a session of its namespace, unless it is one.
    fn register(&mut self, now: Now) -> Result<(), StoreError> {
        if self.registered {
            return Ok(());
        }
        self.sql.add_namespace.get()?.execute([&self.opened.settings.namespace])?;
        self.ns = self.namespace()?.ok_or(StoreError::Corrupt("the table of namespaces"))?;
        let process = &self.opened.process;
        let (space, version) = (process.space.as_deref().unwrap_or("?"), env!("CARGO_PKG_VERSION"));
        let session = params![self.ns, now.boot, space, process.pid, process.start, now.at, version];
        self.sql.add_session.get()?.execute(session)?;
        self.session = self.opened.conn.last_insert_rowid();
        Ok(())
    }

    fn namespace(&self) -> Result<Option<i64>, StoreError> {
        let mut namespace = self.sql.namespace.get()?;
        Ok(namespace.query_row([&self.opened.settings.namespace], |row| row.get(0)).optional()?)
    }
}

/// Runs a statement that has no parameters.
pub(super) fn run(statement: &Kept<'_>) -> Result<(), StoreError> {
    statement.get()?.execute([])?;
    Ok(())
}

/// Lets every statement wait for the file's lock until the deadline of its operation. (Whether this needs the connection
/// alone depends on the version of rusqlite.)
fn wait_for_others(conn: &mut Connection) -> Result<(), StoreError> {
    Ok(conn.busy_handler(Some(wait_for_lock))?)
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

/// Opens the file, and says which one it is.
fn open_file(settings: &Settings) -> Result<(Connection, FileId), StoreError> {
    let path = &*settings.path;
    if let FileSystem::Network(name) = file::file_system(path).map_err(StoreError::File)? {
        return Err(StoreError::NetworkFile(name));
    }
    if settings.create {
        file::create(path).map_err(StoreError::File)?;
    }
    let file = file::id(path).map_err(StoreError::File)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    if file::id(path).map_err(StoreError::File)? != file {
        return Err(StoreError::Replaced);
    }
    Ok((conn, file))
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
