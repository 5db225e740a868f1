//! An open database: how it is opened and set up, and whether it still is the one at its path.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{
    busy,
    clock::{Clock, Now},
    config::{Settings, Synchronous},
    error::{self, StoreError},
    file::{self, FileSystem, Files},
    process::Process,
    statements::Statements,
};

/// The size of a page of a new file, in bytes.
const PAGE: i64 = 2048;

/// The number of prepared statements that the connection keeps: all of ours.
const PREPARED: usize = 128;

/// The pause before asking again where SQLite does not wait.
const NAP: Duration = Duration::from_millis(2);

/// An open database, and who this process is in it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) conn: Connection,
    pub(super) sql: Statements,
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) process: Process,
    /// `None` in memory.
    pub(super) files: Option<Files>,
}

impl Opened {
    /// Opens the database, and creates the file if that is wanted. Changes nothing of one that is there.
    pub(super) fn open(settings: Settings, deadline: Instant) -> Result<Self, StoreError> {
        let clock = Clock::of_this_host(settings.in_memory()).ok_or(StoreError::NoClock)?;
        let clock = clock.pretending(settings.boot, settings.ahead, settings.rebooted);
        let (mut conn, files) = match settings.in_memory() {
            true => (Connection::open_in_memory()?, None),
            false => open_file(&settings, deadline).map(|(conn, files)| (conn, Some(files)))?,
        };
        busy::install(&mut conn)?;
        conn.set_prepared_statement_cache_capacity(PREPARED);
        let sql = Statements::new(&settings.table_prefix);
        Ok(Opened { conn, sql, settings, clock, process: Process::this(), files })
    }

    /// Chooses how the database is written.
    pub(super) fn configure(&self, deadline: Instant) -> Result<(), StoreError> {
        if self.files.is_some() {
            // For a new file. A commit writes whole pages, and most sets are small: with the usual 4096 bytes a lock of one id
            // takes 8 % longer, of ten 5 %; one of a hundred takes 9 % less.
            self.conn.pragma_update(None, "page_size", PAGE)?;
            use_wal(&self.conn, deadline)?;
            self.checkpoint_after(0)?;
        }
        let synchronous = match self.settings.synchronous {
            Synchronous::Normal => "NORMAL",
            Synchronous::Full => "FULL",
        };
        Ok(self.conn.pragma_update(None, "synchronous", synchronous)?)
    }

    /// Lets a commit that leaves at least so many pages in the WAL copy them into the file, which waits for the disk; with
    /// 0 no commit does.
    pub(super) fn checkpoint_after(&self, pages: u32) -> Result<(), StoreError> {
        let pragma = format!("PRAGMA wal_autocheckpoint = {pages}");
        Ok(self.conn.query_row(&pragma, [], |_| Ok(()))?)
    }

    /// Runs a statement that has no parameters.
    pub(super) fn run(&self, statement: &str) -> Result<(), StoreError> {
        self.conn.prepare_cached(statement)?.execute([])?;
        Ok(())
    }

    /// Rolls back what a step left open.
    pub(super) fn roll_back(&self) {
        if !self.conn.is_autocommit() {
            let _ = self.run(&self.sql.rollback);
        }
    }

    /// Notes which log belongs to the file, once there is one.
    pub(super) fn identify_log(&mut self) -> Result<(), StoreError> {
        let Some(files) = &mut self.files else { return Ok(()) };
        files.identify_log().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::Replaced,
            _ => StoreError::File(error),
        })
    }

    /// Fails if the file or its log was removed or replaced: it must not go on to be ours, since others would lock in the new one.
    pub(super) fn check_files(&self) -> Result<(), StoreError> {
        match self.files.as_ref().map_or(Ok(true), Files::are_there) {
            Ok(true) => Ok(()),
            Ok(false) => Err(StoreError::Replaced),
            Err(error) => Err(StoreError::File(error)),
        }
    }

    /// Closes the database, so that it can be opened again. From then on it counts as replaced.
    pub(super) fn close(&mut self) -> Result<(), StoreError> {
        let Some(files) = &mut self.files else { return Ok(()) };
        if files.have_another_log() {
            // To close would write the log back and remove the other one, of which it knows the name only.
            self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        } else {
            // Writes back the log, which may have no name any more. As long as this has the file open, no other program
            // makes a new log.
            let written = self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
            if let Err(error) = written {
                tracing::debug!(path = %self.settings.path.display(), %error, "the log could not be written back");
            }
        }
        files.give_up();
        self.conn = Connection::open_in_memory()?;
        Ok(())
    }

    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }
}

/// Opens the file, and says which one it is.
fn open_file(settings: &Settings, deadline: Instant) -> Result<(Connection, Files), StoreError> {
    let path = &*settings.path;
    if let FileSystem::Network(name) = file::file_system(path).map_err(StoreError::File)? {
        return Err(StoreError::NetworkFile(name));
    }
    if settings.create {
        file::create(path).map_err(StoreError::File)?;
    }
    let files = Files::at(path).map_err(StoreError::File)?;
    if let Some(name) = file::other_name(path).map_err(StoreError::File)? {
        return Err(StoreError::OtherName(name));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || Connection::open_with_flags(path, flags);
    while !files.has_log() {
        match is_alone(open()?) {
            Ok(()) => break,
            Err(error) if error::is_busy(&error) && Instant::now() < deadline => thread::sleep(NAP),
            Err(error) if error::is_busy(&error) => return Err(StoreError::OtherLog(error)),
            Err(error) => return Err(error.into()),
        }
    }
    let conn = open()?;
    if !files.are_there().map_err(StoreError::File)? {
        return Err(StoreError::Replaced);
    }
    Ok((conn, files))
}

/// Fails as busy if another connection has the file open, in WAL mode or writing.
///
/// Without a log beside the name such a connection has its log elsewhere: it was removed, or lies beside another name. One that
/// opens the file at the same time has its log soon.
fn is_alone(conn: Connection) -> Result<(), rusqlite::Error> {
    // The caller asks again.
    conn.busy_timeout(Duration::ZERO)?;
    conn.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    conn.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))
}

/// Puts the database into WAL mode. Whether it may wait here SQLite does not ask the busy handler.
fn use_wal(conn: &Connection, deadline: Instant) -> Result<(), StoreError> {
    loop {
        let answer = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match answer {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => return Err(StoreError::JournalMode(mode)),
            Err(error) if error::is_busy(&error) && Instant::now() < deadline => {
                thread::sleep(NAP);
            }
            Err(error) if error::is_busy(&error) => return Err(StoreError::Busy(error)),
            Err(error) => return Err(error.into()),
        }
    }
}
