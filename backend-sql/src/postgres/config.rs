//! Settings.

use std::{fmt, marker::PhantomData, str::FromStr, time::Duration};

#[cfg(feature = "testing")]
use lockcore::backend::StoreVersion;
use lockcore::{Capabilities, ContextId, Ident};
use sqlx::{ConnectOptions, PgPool, postgres::PgConnectOptions};

use super::schema::VERSION;
use crate::{
    cells::CellOptions,
    server::{ServerError, Settings, check_name, names_user, without_brackets},
};

/// Says which commits have to be on the disk before they are answered; a durable one is as durable as the server's own
/// `synchronous_commit` makes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Commit {
    /// All.
    Durable,
    /// All but releases that hand nothing over: if the *server* crashes within the next moments, such a lock may be
    /// held again until its lease ends.
    #[default]
    ReleaseAsync,
    /// None: a crash of the server may forget grants of the last moments, so that two may hold the same id.
    Async,
}

/// Settings of a [`PostgresLockDao`](super::PostgresLockDao), made by its
/// [`builder`](super::PostgresLockDao::builder).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use lockcore::LockingService;
/// use lockcore_sql::PostgresLockDao;
///
/// // Behind a pooler of transactions, and past it to listen.
/// let dao = PostgresLockDao::<String>::builder()
///     .url("postgres://app@pooler:6432/app")
///     .prepared(false)
///     .listen_url("postgres://app@server/app")
///     .namespace("billing")
///     .open()
///     .await?;
/// let locks = LockingService::new(dao);
/// # Ok(())
/// # }
/// ```
pub struct PostgresBuilder<I, C> {
    server: Server,
    listen_url: Option<String>,
    options: Options,
    types: PhantomData<fn() -> (I, C)>,
}

/// The address of the server.
enum Server {
    None,
    Url(String),
    Options(Box<PgConnectOptions>),
    Pool(PgPool),
}

/// The settings that the engine goes by.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) settings: Settings,
    pub(super) schema: String,
    pub(super) commit: Commit,
    pub(super) prepared: bool,
    pub(super) cells: CellOptions,
}

/// The source of connections. No `Debug`: sqlx shows passwords.
pub(super) enum Source {
    Own(Box<PgConnectOptions>),
    Pool(PgPool),
}

impl Source {
    /// Returns the options of connections of our own, beside those of a pool.
    pub(super) fn options(&self) -> PgConnectOptions {
        match self {
            Source::Own(options) => (**options).clone(),
            Source::Pool(pool) => quiet((*pool.connect_options()).clone()),
        }
    }
}

impl<I: Ident, C: ContextId> PostgresBuilder<I, C> {
    pub(super) fn new() -> Self {
        let options = Options {
            settings: Settings::new(VERSION),
            schema: "public".to_owned(),
            commit: Commit::default(),
            prepared: true,
            cells: CellOptions::default(),
        };
        PostgresBuilder { server: Server::None, listen_url: None, options, types: PhantomData }
    }

    /// Sets where the server is: `postgres://user:password@host:port/database?sslmode=require` and so on, as libpq has it.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.server = Server::Url(url.into());
        self
    }

    /// Sets where the server is, as sqlx has it.
    #[must_use]
    pub fn connect_options(mut self, options: PgConnectOptions) -> Self {
        self.server = Server::Options(Box::new(options));
        self
    }

    /// Borrows connections from the application's own pool, of sqlx 0.9, instead of keeping some. That costs what the pool costs - by default
    /// a ping each time - and `max_connections` is still how many are borrowed at once.
    ///
    /// Listening, and what the library does in the background - renewals, heartbeats, clean-up - have connections of their own,
    /// as a rule two, made with the pool's options: where the application has taken all of its pool, its locks are still renewed.
    #[must_use]
    pub fn pool(mut self, pool: PgPool) -> Self {
        self.server = Server::Pool(pool);
        self
    }

    /// Sets where to listen, if not at the same place: past a pooler, which would lose notifications.
    #[must_use]
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// Sets whether to keep a connection on which this process is notified, which is the default. Otherwise it polls
    /// for its waiters, every 20 to 200 ms.
    #[must_use]
    pub fn listen(mut self, listen: bool) -> Self {
        self.options.settings.listen = listen;
        self
    }

    /// Sets the namespace, which keeps applications and tenants in one database apart: 1 to 255 bytes, `"default"` by default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.options.settings.namespace = namespace.into();
        self
    }

    /// Sets the schema of all tables and routines, which is created if missing: any name of 1 to 40 bytes, `"public"` by default.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.options.schema = schema.into();
        self
    }

    /// Sets what the names of all tables and routines begin with: 1 to 40 bytes, `"lockcore_"` by default.
    #[must_use]
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.settings.prefix = prefix.into();
        self
    }

    /// Sets how many connections each tokio runtime of this process may have at once, apart from the one that listens: 1 to
    /// 1000, 10 by default. Operations wait for a free one within their [`timeout`](Self::timeout).
    #[must_use]
    pub fn max_connections(mut self, max: usize) -> Self {
        self.options.settings.max_connections = max;
        self
    }

    /// Sets how long an operation may take in all: waiting for a connection, making one, retrying after deadlocks, the
    /// answer. 10 ms to 1 h, 5 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.settings.timeout = timeout;
        self
    }

    /// Sets whether to create or migrate the schema on connecting, which is the default; nothing is done where it is
    /// current, so that a user without the right to create can use it.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.options.settings.migrate = migrate;
        self
    }

    /// Sets whether to open it for administration only: to inspect, break and sweep without creating anything, neither the schema
    /// nor a session that listens. Off by default; a missing schema is an error then, whatever
    /// [`migrate`](Self::migrate) says, and calls that wait poll for their turn.
    #[must_use]
    pub fn administration(mut self, administration: bool) -> Self {
        self.options.settings.administration = administration;
        self
    }

    /// For tests: a program of another version.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn program_version(mut self, program: StoreVersion) -> Self {
        self.options.settings.program = program;
        self
    }

    /// Sets which commits have to be on the disk before they are answered.
    #[must_use]
    pub fn commit(mut self, commit: Commit) -> Self {
        self.options.commit = commit;
        self
    }

    /// Sets whether to prepare statements, which is the default. Not behind a pooler that hands out another connection for
    /// each transaction (PgBouncer's `pool_mode=transaction` without `max_prepared_statements`): there everything is
    /// sent as text, in as many round trips.
    #[must_use]
    pub fn prepared(mut self, prepared: bool) -> Self {
        self.options.prepared = prepared;
        self
    }

    /// Sets by how much the clocks of any two nodes differ at most, where the server is several and each answers by its own clock; up
    /// to 1 min, none by default. Each lease is taken over so much later; with a larger difference two processes may hold a lock. All
    /// processes must have the same setting. Only [without routines](Self::open_without_routines).
    #[must_use]
    pub fn clock_difference(mut self, difference: Duration) -> Self {
        self.options.cells.clock_difference = difference;
        self
    }

    /// Sets whether each statement is serializable, for a server that has no other level. Off by default. Only
    /// [without routines](Self::open_without_routines).
    #[must_use]
    pub fn serializable(mut self, serializable: bool) -> Self {
        self.options.cells.serializable = serializable;
        self
    }

    /// For tests: goes by a clock that is so many microseconds ahead of the server's, from moment to moment.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn ahead(mut self, ahead: std::sync::Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.options.cells.ahead = ahead;
        self
    }
}

impl<I, C> PostgresBuilder<I, C> {
    /// Returns the user that is tried though the URL names none.
    pub(super) fn user_of_process(&self) -> Option<String> {
        let Server::Url(url) = &self.server else { return None };
        if names_a_user(url) { None } else { process_user() }
    }

    /// Checks the settings of this database: where connections come from, how to listen, and the rest.
    pub(super) fn checked(self) -> Result<(Source, PgConnectOptions, Options), ServerError> {
        check_name("postgres", "schema", &self.options.schema)?;
        let source = match self.server {
            Server::None => return Err(refused("url", "it must name a server")),
            Server::Url(url) => Source::Own(Box::new(parse("url", &url)?)),
            Server::Options(options) => Source::Own(Box::new(quiet(*options))),
            Server::Pool(pool) => Source::Pool(pool),
        };
        let listen = match &self.listen_url {
            Some(url) => parse("listen_url", url)?,
            None => source.options(),
        };
        Ok((source, listen, self.options))
    }
}

/// Declares what this backend can do.
pub fn capabilities() -> Capabilities {
    Capabilities {
        push: true,
        shortening: true,
        // An operation takes about a millisecond, and a lease has to be renewed at a third of it.
        min_lease: Duration::from_millis(100),
        max_ids: 1000,
        ..Capabilities::shared_store("postgres")
    }
}

impl<I, C> fmt::Debug for PostgresBuilder<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}

fn parse(key: &'static str, url: &str) -> Result<PgConnectOptions, ServerError> {
    // The error's own text is not shown: parts of the URL may stand in it.
    let options = PgConnectOptions::from_str(url);
    let options = options.map_err(|_| refused(key, "it must be like postgres://user@host:5432/database"))?;
    let options = match names_a_user(url) {
        true => options,
        false => options.username(&process_user().ok_or_else(|| refused(key, NO_NAME))?),
    };
    let host = without_brackets(options.get_host()).to_owned();
    Ok(quiet(options.host(&host)))
}

const NO_NAME: &str = "it must name a user, as this process has no name: postgres://user@host:5432/database";

/// Returns whether the URL or the environment names a user; otherwise it is the one of the process.
fn names_a_user(url: &str) -> bool {
    names_user(url) || std::env::var_os("PGUSER").is_some()
}

/// Returns the name of the user that this process runs as; the driver invents one.
fn process_user() -> Option<String> {
    #[cfg(unix)]
    return nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map(|user| user.name);
    #[cfg(not(unix))]
    std::env::var("USERNAME").ok()
}

/// Nothing of ours is logged, ids may be secret; and nothing is set at the start that a pooler does not know.
fn quiet(options: PgConnectOptions) -> PgConnectOptions {
    options.disable_statement_logging().extra_float_digits(None)
}

fn refused(key: &'static str, expected: &'static str) -> ServerError {
    ServerError::Setting { backend: "postgres", key, value: "..".to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv6_is_dialled_without_brackets() {
        for (url, host) in [
            ("postgres://u@[::1]:1/d", "::1"),
            ("postgres://u@127.0.0.1/d", "127.0.0.1"),
            ("postgres://u@db.example/d", "db.example"),
        ] {
            assert_eq!(parse("url", url).expect("a good URL").get_host(), host);
        }
    }
}
