//! Locks by plain statements: those of Postgres; see [`cells`](crate::cells) for how they are used.

use std::{collections::HashMap, fmt, time::Duration};

use bytes::Bytes;
use lockcore::{BackendError, ContextId, Ident, LockDao, forward_lock_dao};
use lockcore_cell::CellLockDao;
use sqlx::{
    AssertSqlSafe, Row as _,
    postgres::{PgListener, PgRow},
};
use uuid::Uuid;

use super::{
    config::PostgresBuilder,
    engine::{LEVEL, Postgres},
    error::{failed, is_out_of_range},
    form,
    link::{Argument, Link, Statement},
    listen, schema,
};
use crate::{
    cells::{self, PAGE, Row, Selected, SqlCells, Statements, hash},
    server::{Form, Server, ServerError, Settings, tried},
};

/// The time, in microseconds since 1970.
const CLOCK: &str = "(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::int8";

/// Locks in a PostgreSQL database, or one that speaks its protocol, by plain statements without routines; see
/// [`open_without_routines`](PostgresBuilder::open_without_routines).
#[derive(Debug)]
pub struct PostgresStatementsLockDao<I = String, C = Uuid>(CellLockDao<PostgresCells, I, C>);

/// The adapter.
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it"))]
pub type PostgresCells = SqlCells<PostgresStatements>;

/// A server that speaks the protocol of Postgres, as the adapter sees it.
#[cfg_attr(
    not(feature = "testing"),
    expect(unreachable_pub, reason = "it is part of a type that tests name")
)]
pub struct PostgresStatements(Postgres);

forward_lock_dao! {
    { impl<I: Ident, C: ContextId> LockDao<I, C> for PostgresStatementsLockDao<I, C> }
    self => self.0
}

impl<I: Ident, C: ContextId> PostgresBuilder<I, C> {
    /// Connects, and locks by plain statements instead of routines: for servers that have none, or whose users may not create them.
    /// Creates two tables if they are missing. The engine of [`lockcore_cell`] decides in this process; a step takes two exchanges or
    /// three. Leases are 1 s at least.
    ///
    /// A namespace is locked in one way only, which its first program chooses: the other way is refused. Connections are our own also
    /// where a [`pool`](Self::pool) is set. A commit is as durable as the server makes it, whatever [`commit`](Self::commit) says.
    ///
    /// # Errors
    /// As [`open`](Self::open), but that any isolation level will do; [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) also if
    /// the namespace is locked by routines.
    pub async fn open_without_routines(self) -> Result<PostgresStatementsLockDao<I, C>, BackendError> {
        let (cells, step) = self.open_cells().await?;
        let settings = cells::dao_settings(&cells, step);
        Ok(PostgresStatementsLockDao(CellLockDao::open(cells, settings).await?))
    }

    /// For tests: opens the adapter alone.
    ///
    /// # Errors
    /// As [`open_without_routines`](Self::open_without_routines).
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn cells(self) -> Result<PostgresCells, BackendError> {
        Ok(self.open_cells().await?.0)
    }

    /// Returns the adapter, and the time for a step.
    async fn open_cells(self) -> Result<(PostgresCells, Duration), BackendError> {
        let user = self.user_of_process();
        let (source, listen, mut options) = self.checked()?;
        let own = options.cells.clone();
        let step = cells::prepare("postgres", &mut options.settings, &own)?;
        let server = PostgresStatements(Postgres::new(source, listen, options));
        let cells = cells::opened(server, &own, step).await.map_err(|error| tried(user.as_deref(), error))?;
        Ok((cells, step))
    }
}

impl PostgresStatements {
    fn table(&self) -> String {
        self.0.names.quoted("cell")
    }

    async fn rows(
        &self,
        link: &mut Link,
        sql: String,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<PgRow>, ServerError> {
        Statement { sql, arguments }.rows(link, self.0.options.prepared).await
    }

    async fn execute(
        &self,
        link: &mut Link,
        sql: String,
        arguments: &[Argument<'_>],
    ) -> Result<u64, ServerError> {
        Statement { sql, arguments }.execute(link, self.0.options.prepared).await
    }

    /// Returns the channel of a namespace.
    fn channel(&self, ns: &str) -> String {
        format!("lockcore_{:016x}", hash(&format!("{} {ns}", self.table())))
    }
}

impl Server for PostgresStatements {
    type Conn = Link;

    const NAME: &'static str = Postgres::NAME;

    fn settings(&self) -> &Settings {
        self.0.settings()
    }

    async fn connect(&self, _own: bool) -> Result<Link, ServerError> {
        let is_serializable = self.0.options.cells.serializable;
        self.0.connect_plain(if is_serializable { "serializable" } else { LEVEL }).await
    }

    fn keeps(&self, link: &Link) -> bool {
        link.is_own()
    }

    fn address(&self) -> &str {
        self.0.address()
    }

    fn location(&self) -> String {
        self.0.location()
    }
}

impl Statements for PostgresStatements {
    type Listener = PgListener;

    async fn select(
        &self,
        link: &mut Link,
        ns: &str,
        names: &[&str],
        known: &[i64],
    ) -> Result<Selected, ServerError> {
        // The join gives a row also where there is no cell: the time is asked for.
        let sql = format!(
            "SELECT {CLOCK}, c.name, c.version, CASE WHEN c.version = ANY ($3) THEN NULL ELSE c.content END \
             FROM (SELECT 1) AS one LEFT JOIN {} AS c ON c.ns = $1 AND c.name = ANY ($2)",
            self.table()
        );
        let arguments = [Argument::Plain(ns), Argument::EachPlain(names), Argument::ManyInts(Some(known))];
        let mut selected = Selected { now: 0, rows: HashMap::with_capacity(names.len()) };
        for row in self.rows(link, sql, &arguments).await? {
            let time: i64 = row.try_get(0).map_err(failed)?;
            selected.now = selected.now.max(time.unsigned_abs());
            if let Some(name) = row.try_get::<Option<String>, _>(1).map_err(failed)? {
                let version = row.try_get(2).map_err(failed)?;
                let content: Option<Vec<u8>> = row.try_get(3).map_err(failed)?;
                selected.rows.insert(name, (version, content.map(Bytes::from)));
            }
        }
        Ok(selected)
    }

    async fn insert(&self, link: &mut Link, ns: &str, row: &Row<'_>) -> Result<bool, ServerError> {
        let sql = format!(
            "INSERT INTO {} (ns, name, version, previous, written, content) VALUES ($1, $2, $3, 0, {CLOCK}, $4) \
             ON CONFLICT (ns, name) DO NOTHING",
            self.table()
        );
        let arguments = [
            Argument::Plain(ns),
            Argument::Plain(row.name),
            Argument::Int(row.version),
            Argument::Bytes(row.content),
        ];
        Ok(self.execute(link, sql, &arguments).await? == 1)
    }

    async fn update(&self, link: &mut Link, ns: &str, row: &Row<'_>) -> Result<bool, ServerError> {
        let sql = format!(
            "UPDATE {} SET version = $3, previous = $4, written = {CLOCK}, content = $5 \
             WHERE ns = $1 AND name = $2 AND version = $4",
            self.table()
        );
        let arguments = [
            Argument::Plain(ns),
            Argument::Plain(row.name),
            Argument::Int(row.version),
            Argument::Int(row.previous),
            Argument::Bytes(row.content),
        ];
        Ok(self.execute(link, sql, &arguments).await? == 1)
    }

    async fn write_all(&self, link: &mut Link, ns: &str, rows: &[Row<'_>]) -> Result<bool, ServerError> {
        // Not a division of constants: those are computed before any row is looked at.
        let sql = format!(
            "INSERT INTO {} AS c (ns, name, version, previous, written, content) \
             SELECT $1::text, n.name, n.version, n.previous, {CLOCK}, n.content \
             FROM unnest($2::text[], $3::int8[], $4::int8[], $5::bytea[]) AS n (name, version, previous, content) \
             ON CONFLICT (ns, name) DO UPDATE SET \
             version = CASE WHEN c.version = excluded.previous THEN excluded.version ELSE c.version + 9223372036854775807 END, \
             previous = excluded.previous, written = excluded.written, content = excluded.content",
            self.table()
        );
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        let versions: Vec<i64> = rows.iter().map(|row| row.version).collect();
        let previous: Vec<i64> = rows.iter().map(|row| row.previous).collect();
        let contents: Vec<&[u8]> = rows.iter().map(|row| row.content).collect();
        let arguments = [
            Argument::Plain(ns),
            Argument::EachPlain(&names),
            Argument::ManyInts(Some(&versions)),
            Argument::ManyInts(Some(&previous)),
            Argument::EachBytes(&contents),
        ];
        match self.execute(link, sql, &arguments).await {
            Err(error) if is_out_of_range(&error) => Ok(false),
            // A trigger of the table may have left out a row.
            Ok(written) if written != rows.len() as u64 => {
                let what = format!("{written} of {} rows were written", rows.len());
                Err(ServerError::Answer { backend: Self::NAME, what })
            }
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
        let all = [Argument::Plain(ns), Argument::Plain(name), Argument::Int(version.unwrap_or(0))];
        let sql = format!("DELETE FROM {} WHERE ns = $1 AND name = $2", self.table());
        let (sql, arguments) = match version {
            Some(_) => (format!("{sql} AND version = $3"), &all[..]),
            None => (sql, &all[..2]),
        };
        self.execute(link, sql, arguments).await.map(drop)
    }

    async fn list(
        &self,
        link: &mut Link,
        ns: &str,
        [after, before]: [&str; 2],
        inner: &str,
    ) -> Result<Vec<(String, u64)>, ServerError> {
        let sql = format!(
            "SELECT name, written FROM {} WHERE ns = $1 AND name > $2 AND name < $3 AND name NOT LIKE $4 \
             ORDER BY name LIMIT {}",
            self.table(),
            PAGE + 1
        );
        let arguments = [ns, after, before, inner].map(Argument::Plain);
        let rows = self.rows(link, sql, &arguments).await?;
        let cell = |row: &PgRow| Ok((row.try_get(0)?, row.try_get::<i64, _>(1)?.unsigned_abs()));
        rows.iter().map(|row| cell(row).map_err(failed)).collect()
    }

    async fn enter(&self, link: &mut Link) -> Result<(), ServerError> {
        form::enter(&self.0.names, Form::Statements, self.settings(), link).await?;
        // The other table may be missing alone.
        link.run(AssertSqlSafe(format!("SELECT 1 FROM {} LIMIT 0", self.table()))).await
    }

    async fn make(&self, link: &mut Link) -> Result<(), ServerError> {
        schema::make_for_statements(&self.0.names, link).await
    }

    async fn version(&self, link: &mut Link) -> Result<String, ServerError> {
        let row = sqlx::raw_sql("SELECT pg_catalog.version()").fetch_one(link.raw()).await;
        row.and_then(|row| row.try_get(0)).map_err(failed)
    }

    async fn listen(&self, ns: &str) -> Result<Option<PgListener>, ServerError> {
        match self.listens() {
            true => self.0.listen_to(&self.channel(ns)).await.map(Some),
            false => Ok(None),
        }
    }

    async fn receive(&self, listener: &mut PgListener) -> Result<String, ServerError> {
        listen::receive(listener).await
    }

    async fn probe(&self, listener: &mut PgListener) -> Result<(), ServerError> {
        listen::probe(listener).await
    }

    async fn notify(&self, link: &mut Link, ns: &str, text: &str) -> Result<(), ServerError> {
        let channel = self.channel(ns);
        // A hint is not worth a flush.
        let sql = "SELECT pg_catalog.pg_notify($1, $2) \
                   FROM pg_catalog.set_config('synchronous_commit', 'off', true)"
            .to_owned();
        self.execute(link, sql, &[&*channel, text].map(Argument::Plain)).await.map(drop)
    }

    fn listens(&self) -> bool {
        self.settings().listens()
    }
}

impl fmt::Debug for PostgresStatements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
