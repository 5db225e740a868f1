//! Locks by plain statements: those of MySQL and MariaDB; see [`cells`](crate::cells) for how they are used.

use std::{collections::HashMap, convert::Infallible, fmt, time::Duration};

use bytes::Bytes;
use lockcore::{BackendError, ContextId, Ident, LockDao, forward_lock_dao};
use lockcore_cell::CellLockDao;
use sqlx::{Row as _, mysql::MySqlRow};
use uuid::Uuid;

use super::{
    config::MysqlBuilder,
    engine::{LEVEL, Mysql},
    error::{failed, is_duplicate, is_out_of_range},
    link::{Link, Statement},
    schema,
};
use crate::{
    cells::{self, CellOptions, PAGE, Row, Selected, SqlCells, Statements},
    server::{Form, Server, ServerError, Settings, column, tried},
};

/// The time, in microseconds since 1970, whatever the session's time zone. The same in all of a statement.
const CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

/// Locks in a MySQL or MariaDB database, or one that speaks its protocol, by plain statements without routines; see
/// [`open_without_routines`](MysqlBuilder::open_without_routines).
#[derive(Debug)]
pub struct MysqlStatementsLockDao<I = String, C = Uuid>(CellLockDao<MysqlCells, I, C>);

/// The adapter.
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it"))]
pub type MysqlCells = SqlCells<MysqlStatements>;

/// A server that speaks the protocol of MySQL, as the adapter sees it.
#[cfg_attr(
    not(feature = "testing"),
    expect(unreachable_pub, reason = "it is part of a type that tests name")
)]
pub struct MysqlStatements {
    server: Mysql,
    options: CellOptions,
}

forward_lock_dao! {
    { impl<I: Ident, C: ContextId> LockDao<I, C> for MysqlStatementsLockDao<I, C> }
    self => self.0
}

impl<I: Ident, C: ContextId> MysqlBuilder<I, C> {
    /// Connects, and locks by plain statements instead of routines: for servers that have none, or whose users may not create them.
    /// Creates two tables if they are missing. The engine of [`lockcore_cell`] decides in this process; a step takes two exchanges or
    /// three. Leases are 1 s at least. Waiters look for their turn, four to fifty times a second: to listen takes routines.
    ///
    /// A namespace is locked in one way only, which its first program chooses: the other way is refused. Connections are our own also
    /// where a [`pool`](Self::pool) is set.
    ///
    /// # Errors
    /// As [`open`](Self::open), but that any version of the server will do;
    /// [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) also if the namespace is locked by routines.
    pub async fn open_without_routines(self) -> Result<MysqlStatementsLockDao<I, C>, BackendError> {
        let (cells, step) = self.open_cells().await?;
        let settings = cells::dao_settings(&cells, step);
        Ok(MysqlStatementsLockDao(CellLockDao::open(cells, settings).await?))
    }

    /// For tests: opens the adapter alone.
    ///
    /// # Errors
    /// As [`open_without_routines`](Self::open_without_routines).
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn cells(self) -> Result<MysqlCells, BackendError> {
        Ok(self.open_cells().await?.0)
    }

    /// Returns the adapter, and the time for a step.
    async fn open_cells(mut self) -> Result<(MysqlCells, Duration), BackendError> {
        let (user, options) = (self.user_of_process()?, self.cells.clone());
        let step = cells::prepare("mysql", &mut self.settings, &options)?;
        let server = MysqlStatements { server: self.checked()?, options: options.clone() };
        let cells =
            cells::opened(server, &options, step).await.map_err(|error| tried(user.as_deref(), error))?;
        Ok((cells, step))
    }
}

impl MysqlStatements {
    fn table(&self) -> String {
        self.server.names().quoted("cell")
    }

    async fn form(&self, link: &mut Link, ns: &str) -> Result<Option<String>, ServerError> {
        let table = self.server.names().quoted("form");
        link.text(&format!("SELECT CAST(form AS CHAR CHARACTER SET ascii) FROM {table} WHERE ns = '{ns}'"))
            .await
    }
}

impl Server for MysqlStatements {
    type Conn = Link;

    const NAME: &'static str = Mysql::NAME;

    fn settings(&self) -> &Settings {
        &self.server.settings
    }

    async fn connect(&self, _own: bool) -> Result<Link, ServerError> {
        self.server.connect_plain(if self.options.serializable { "SERIALIZABLE" } else { LEVEL }).await
    }

    fn keeps(&self, link: &Link) -> bool {
        link.is_own()
    }

    fn address(&self) -> &str {
        self.server.address()
    }

    fn location(&self) -> String {
        self.server.location()
    }
}

impl Statements for MysqlStatements {
    type Listener = Infallible;

    async fn select(
        &self,
        link: &mut Link,
        ns: &str,
        names: &[&str],
        known: &[i64],
    ) -> Result<Selected, ServerError> {
        let mut select = Statement::about(names.len().max(known.len()));
        if names.is_empty() {
            select.text(&format!("SELECT {CLOCK}, NULL, NULL, NULL"));
        } else {
            // The join gives a row also where there is no cell: the time is asked for.
            select.text(&format!("SELECT {CLOCK}, c.name, c.version, "));
            match known {
                [] => select.text("c.content"),
                known => {
                    select.text("CASE WHEN c.version IN (");
                    for (position, version) in known.iter().enumerate() {
                        select.text(if position > 0 { ", " } else { "" }).int(*version);
                    }
                    select.text(") THEN NULL ELSE c.content END")
                }
            };
            select.text(&format!(" FROM (SELECT 1) one LEFT JOIN {} c ON c.ns = ", self.table()));
            select.bytes(ns.as_bytes()).text(" AND c.name IN (");
            for (position, name) in names.iter().enumerate() {
                select.text(if position > 0 { ", " } else { "" }).bytes(name.as_bytes());
            }
            select.text(")");
        }
        let mut selected = Selected { now: 0, rows: HashMap::with_capacity(names.len()) };
        for row in select.rows(link).await? {
            let time: i64 = row.try_get_unchecked(0).map_err(failed)?;
            selected.now = selected.now.max(time.unsigned_abs());
            if let Some(name) = row.try_get_unchecked::<Option<String>, _>(1).map_err(failed)? {
                let version = row.try_get_unchecked(2).map_err(failed)?;
                let content: Option<Vec<u8>> = row.try_get_unchecked(3).map_err(failed)?;
                selected.rows.insert(name, (version, content.map(Bytes::from)));
            }
        }
        Ok(selected)
    }

    async fn insert(&self, link: &mut Link, ns: &str, row: &Row<'_>) -> Result<bool, ServerError> {
        let mut insert = Statement::about(1);
        insert.text(&format!(
            "INSERT INTO {} (ns, name, version, previous, written, content) VALUES (",
            self.table()
        ));
        insert.bytes(ns.as_bytes()).text(", ").bytes(row.name.as_bytes()).text(", ").int(row.version);
        insert.text(&format!(", 0, {CLOCK}, ")).bytes(row.content).text(")");
        match insert.execute(link).await {
            Err(error) if is_duplicate(&error) => Ok(false),
            inserted => inserted.map(|_| true),
        }
    }

    async fn update(&self, link: &mut Link, ns: &str, row: &Row<'_>) -> Result<bool, ServerError> {
        let mut update = Statement::about(1);
        update.text(&format!("UPDATE {} SET version = ", self.table())).int(row.version);
        update.text(", previous = ").int(row.previous).text(&format!(", written = {CLOCK}, content = "));
        update.bytes(row.content).text(" WHERE ns = ").bytes(ns.as_bytes());
        update.text(" AND name = ").bytes(row.name.as_bytes()).text(" AND version = ").int(row.previous);
        Ok(update.execute(link).await? == 1)
    }

    async fn write_all(&self, link: &mut Link, ns: &str, rows: &[Row<'_>]) -> Result<bool, ServerError> {
        let mut write = Statement::about(rows.len());
        write.text(&format!(
            "INSERT INTO {} (ns, name, version, previous, written, content) VALUES ",
            self.table()
        ));
        for (position, row) in rows.iter().enumerate() {
            write.text(if position > 0 { ", (" } else { "(" }).bytes(ns.as_bytes());
            write
                .text(", ")
                .bytes(row.name.as_bytes())
                .text(", ")
                .int(row.version)
                .text(", ")
                .int(row.previous);
            write.text(&format!(", {CLOCK}, ")).bytes(row.content).text(")");
        }
        // From left to right: the version is compared before it is another.
        write.text(
            " ON DUPLICATE KEY UPDATE \
             version = IF(version = VALUES(previous), VALUES(version), version + 9223372036854775807), \
             previous = VALUES(previous), written = VALUES(written), content = VALUES(content)",
        );
        match write.execute(link).await {
            Err(error) if is_out_of_range(&error) => Ok(false),
            written => written.map(|_| true),
        }
    }

    async fn delete(
        &self,
        link: &mut Link,
        ns: &str,
        name: &str,
        version: Option<i64>,
    ) -> Result<(), ServerError> {
        let mut delete = Statement::about(1);
        delete.text(&format!("DELETE FROM {} WHERE ns = ", self.table())).bytes(ns.as_bytes());
        delete.text(" AND name = ").bytes(name.as_bytes());
        if let Some(version) = version {
            delete.text(" AND version = ").int(version);
        }
        delete.execute(link).await.map(drop)
    }

    async fn list(
        &self,
        link: &mut Link,
        ns: &str,
        [after, before]: [&str; 2],
        inner: &str,
    ) -> Result<Vec<(String, u64)>, ServerError> {
        let mut list = Statement::about(1);
        list.text(&format!("SELECT name, written FROM {} WHERE ns = ", self.table())).bytes(ns.as_bytes());
        list.text(" AND name > ").bytes(after.as_bytes()).text(" AND name < ").bytes(before.as_bytes());
        list.text(" AND name NOT LIKE ").bytes(inner.as_bytes());
        list.text(&format!(" ORDER BY name LIMIT {}", PAGE + 1));
        let cell = |row: &MySqlRow| {
            Ok((row.try_get_unchecked(0)?, row.try_get_unchecked::<i64, _>(1)?.unsigned_abs()))
        };
        list.rows(link).await?.iter().map(|row| cell(row).map_err(failed)).collect()
    }

    async fn enter(&self, link: &mut Link) -> Result<(), ServerError> {
        let (namespace, table) = (&self.settings().namespace, self.server.names().quoted("form"));
        let ns = column(namespace);
        let mut found = self.form(link, &ns).await?;
        if found.is_none() && !self.settings().administration {
            let word = Form::Statements.word();
            link.text(&format!(
                "INSERT INTO {table} (ns, form) VALUES ('{ns}', '{word}') ON DUPLICATE KEY UPDATE form = form"
            ))
            .await?;
            found = self.form(link, &ns).await?;
            Form::Statements.check_written(Self::NAME, namespace, found.as_deref())?;
        }
        Form::Statements.check(Self::NAME, namespace, found.as_deref())?;
        // The other table may be missing alone.
        link.text(&format!("SELECT 1 FROM {} LIMIT 0", self.table())).await.map(drop)
    }

    async fn make(&self, link: &mut Link) -> Result<(), ServerError> {
        for statement in schema::statements(self.server.names()) {
            link.text(&statement).await?;
        }
        Ok(())
    }

    async fn version(&self, link: &mut Link) -> Result<String, ServerError> {
        Ok(link.text("SELECT VERSION()").await?.unwrap_or_default())
    }

    async fn listen(&self, _ns: &str) -> Result<Option<Infallible>, ServerError> {
        Ok(None)
    }

    async fn receive(&self, listener: &mut Infallible) -> Result<String, ServerError> {
        match *listener {}
    }

    async fn probe(&self, listener: &mut Infallible) -> Result<(), ServerError> {
        match *listener {}
    }

    async fn notify(&self, _link: &mut Link, _ns: &str, _text: &str) -> Result<(), ServerError> {
        Ok(())
    }

    /// To interrupt a connection that waits takes user-level locks, which are none of the subset, and a routine.
    fn listens(&self) -> bool {
        false
    }
}

impl fmt::Debug for MysqlStatements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}
