//! A complete adapter: the cells are rows of a SQLite file, for all processes of a machine that open it.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use lockcore::{BackendError, BackendErrorKind, Capabilities, backend::ServiceTime};
use lockcore_cell::{Cell, CellLockDao, CellPage, CellSettings, Found, Written};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

/// A version is never given twice: SQLite takes no number of an `AUTOINCREMENT` again, and a row that is replaced gets a new one.
const TABLE: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS cell (
        version INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, content BLOB NOT NULL,
        millis INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)))";

/// The condition is a part of the statement, so that it holds at the moment of the write.
const CREATE: &str =
    "INSERT INTO cell (name, content) VALUES (?1, ?2) ON CONFLICT DO NOTHING RETURNING version";

const REPLACE: &str = "
    REPLACE INTO cell (name, content) SELECT name, ?2 FROM cell WHERE name = ?1 AND version = ?3 RETURNING version";

/// The cells of a folder and no subfolder: `0` is the letter after `/`.
const LIST: &str = "
    SELECT name, millis FROM cell
    WHERE name > ?2 AND name < ?1 || '0' AND instr(substr(name, length(?1) + 2), '/') = 0 ORDER BY name LIMIT ?3";

/// The most names in a page.
const PAGE: i64 = 1000;

/// The time for which a call waits until other processes have written.
const BUSY: Duration = Duration::from_secs(3);

/// The cells of a file.
#[derive(Clone, Debug)]
pub(crate) struct Rows(Arc<Mutex<Connection>>);

impl Rows {
    /// Opens a file, or makes it.
    pub(crate) fn open(file: &Path) -> Result<Self, BackendError> {
        let open = || {
            let connection = Connection::open(file)?;
            connection.busy_timeout(BUSY)?;
            connection.execute_batch(TABLE)?;
            Ok(connection)
        };
        open().map(|connection| Rows(Arc::new(Mutex::new(connection)))).map_err(failed)
    }

    /// Opens a file for locks.
    pub(crate) async fn locks(file: &Path) -> Result<CellLockDao<Self>, BackendError> {
        let settings = CellSettings::new("rows", file.display().to_string());
        // All processes have the file's clock, and writes are cheap: leases may be short.
        let capabilities = Capabilities { min_lease: Duration::from_millis(500), ..settings.capabilities };
        CellLockDao::open(Rows::open(file)?, CellSettings { capabilities, ..settings }).await
    }

    /// Runs a statement on a thread that may wait. It goes on though the caller is dropped.
    async fn run<T: Send + 'static>(
        &self,
        statement: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let connection = self.0.clone();
        let run = move || statement(&connection.lock().unwrap_or_else(PoisonError::into_inner));
        let ended =
            |error| BackendError::new(BackendErrorKind::Unavailable, format!("{error}")).possibly_done();
        tokio::task::spawn_blocking(run).await.map_err(ended)?.map_err(failed)
    }
}

/// An error promises that nothing was written, unless it is in doubt.
fn failed(error: rusqlite::Error) -> BackendError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            BackendError::new(BackendErrorKind::Busy, format!("{error}"))
        }
        _ => BackendError::new(BackendErrorKind::Unavailable, format!("{error}")).possibly_done(),
    }
}

impl Cell for Rows {
    type Version = i64;

    async fn read(&self, name: &str, known: Option<&i64>) -> Result<Found<i64>, BackendError> {
        let (name, known) = (name.to_owned(), known.copied());
        let found = self.run(move |rows| {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let found = rows.query_row("SELECT version, content FROM cell WHERE name = ?1", [name], row);
            found.optional()
        });
        Ok(match found.await? {
            None => Found::Absent,
            Some((version, _)) if known == Some(version) => Found::Unchanged,
            Some((version, content)) => Found::Changed(version, Bytes::from_owner::<Vec<u8>>(content)),
        })
    }

    async fn replace(
        &self,
        name: &str,
        at: Option<&i64>,
        content: Bytes,
    ) -> Result<Written<i64>, BackendError> {
        let (name, at) = (name.to_owned(), at.copied());
        let written = self.run(move |rows| {
            let version = |row: &rusqlite::Row<'_>| row.get(0);
            let written = match at {
                None => rows.query_row(CREATE, params![name, &*content], version),
                Some(at) => rows.query_row(REPLACE, params![name, &*content, at], version),
            };
            written.optional()
        });
        Ok(written.await?.map_or(Written::Refused, Written::Done))
    }

    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        let name = name.to_owned();
        self.run(move |rows| rows.execute("DELETE FROM cell WHERE name = ?1", [name])).await.map(drop)
    }

    async fn list(&self, folder: &str, after: Option<&str>) -> Result<CellPage, BackendError> {
        let folder = folder.to_owned();
        let after = after.map_or_else(|| format!("{folder}/"), str::to_owned);
        let listed = self.run(move |rows| {
            let mut list = rows.prepare(LIST)?;
            let row =
                |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs() * 1000));
            // One more than the page, to see whether there is more.
            let found = list.query_map(params![folder, after, PAGE + 1], row)?;
            found.collect::<rusqlite::Result<Vec<_>>>()
        });
        let mut cells = listed.await?;
        let more = cells.len() > PAGE as usize;
        cells.truncate(PAGE as usize);
        Ok(CellPage { cells, more })
    }

    async fn now(&self) -> Result<ServiceTime, BackendError> {
        let millis = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";
        let millis: i64 = self.run(move |rows| rows.query_row(millis, [], |row| row.get(0))).await?;
        let lo = millis.unsigned_abs() * 1000;
        Ok(ServiceTime { lo, hi: lo + 1000 })
    }
}
