//! Settings: plain data.

use std::{fmt, marker::PhantomData, str::FromStr, time::Duration};

#[cfg(feature = "testing")]
use lockcore::backend::StoreVersion;
use lockcore::{Capabilities, ContextId, Ident};
use sqlx::{ConnectOptions, MySqlPool, mysql::MySqlConnectOptions};

use super::schema::VERSION;
use crate::{
    cells::CellOptions,
    server::{ServerError, Settings, without_brackets},
};

/// Settings of a [`MysqlLockDao`](super::MysqlLockDao), made by its `builder`.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use lockcore::LockingService;
/// use lockcore_sql::MysqlLockDao;
///
/// let dao = MysqlLockDao::<String>::builder().url("mysql://app@server/app").namespace("billing").open().await?;
/// let locks = LockingService::new(dao);
/// # Ok(())
/// # }
/// ```
pub struct MysqlBuilder<I, C> {
    pub(super) server: Server,
    pub(super) settings: Settings,
    pub(super) cells: CellOptions,
    types: PhantomData<fn() -> (I, C)>,
}

/// The address of the server. No `Debug`: sqlx shows passwords.
pub(super) enum Server {
    None,
    Url(String),
    Options(Box<MySqlConnectOptions>),
    Pool(MySqlPool),
}

impl<I: Ident, C: ContextId> MysqlBuilder<I, C> {
    pub(super) fn new() -> Self {
        let (settings, cells) = (Settings::new(VERSION), CellOptions::default());
        MysqlBuilder { server: Server::None, settings, cells, types: PhantomData }
    }

    /// Sets the address of the server: `mysql://user:password@host:port/database?ssl-mode=required`, or the same with
    /// `mariadb`. Tables and routines are in the database named.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.server = Server::Url(url.into());
        self
    }

    /// Sets all of this as sqlx's options.
    #[must_use]
    pub fn connect_options(mut self, options: MySqlConnectOptions) -> Self {
        self.server = Server::Options(Box::new(options));
        self
    }

    /// Borrows connections from the application's own pool, instead of keeping some. That costs what the pool
    /// costs - by default a ping each time - and one more round trip that asks for the namespace. The connections must
    /// be in autocommit mode and in no transaction. `max_connections` is still how many are borrowed at once.
    ///
    /// Listening, and what the library does in the background - renewals, heartbeats, clean-up - have connections of their own,
    /// as a rule three, made with the pool's options: where the application has taken all of its pool, its locks are still
    /// renewed.
    #[must_use]
    pub fn pool(mut self, pool: MySqlPool) -> Self {
        self.server = Server::Pool(pool);
        self
    }

    /// Sets whether to keep a connection on which waiters of this process are notified, which is the default. Otherwise they
    /// poll, up to fifty times a second.
    #[must_use]
    pub fn listen(mut self, listen: bool) -> Self {
        self.settings.listen = listen;
        self
    }

    /// Keeps applications and tenants in one database apart; 1 to 255 bytes, `"default"` by default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// Sets what the names of all tables and routines begin with; 1 to 40 bytes, `"lockcore_"` by default.
    #[must_use]
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Sets how many connections each tokio runtime of this process may have at once, apart from the two for listening; 1 to
    /// 1000, 10 by default. Operations wait for a free one within their [`timeout`](Self::timeout).
    #[must_use]
    pub fn max_connections(mut self, max: usize) -> Self {
        self.settings.max_connections = max;
        self
    }

    /// Sets how long an operation may take in all: waiting for a connection, making one, retrying after deadlocks, the
    /// answer. 10 ms to 1 h, 5 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Sets whether to create or migrate the schema on connecting, which is the default; nothing is done where it is current,
    /// so that a user without the right to create can use it.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.settings.migrate = migrate;
        self
    }

    /// Sets whether to open it for administration only: to inspect, break and sweep without creating anything, neither the
    /// schema nor a session that listens. Off by default; a missing schema is an error then, whatever
    /// [`migrate`](Self::migrate) says, and calls that wait poll for their turn.
    #[must_use]
    pub fn administration(mut self, administration: bool) -> Self {
        self.settings.administration = administration;
        self
    }

    /// Sets by how much the clocks of any two nodes differ at most, where the server is several and each answers by its own clock; up
    /// to 1 min, none by default. Each lease is taken over so much later; with a larger difference two processes may hold a lock. All
    /// processes must have the same setting. Only [without routines](Self::open_without_routines).
    #[must_use]
    pub fn clock_difference(mut self, difference: Duration) -> Self {
        self.cells.clock_difference = difference;
        self
    }

    /// Sets whether each statement is serializable, for a server that has no other level. Off by default. Only
    /// [without routines](Self::open_without_routines).
    #[must_use]
    pub fn serializable(mut self, serializable: bool) -> Self {
        self.cells.serializable = serializable;
        self
    }

    /// For tests: goes by a clock that is so many microseconds ahead of the server's, from moment to moment.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn ahead(mut self, ahead: std::sync::Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.cells.ahead = ahead;
        self
    }

    /// For tests: a program of another version.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn program_version(mut self, program: StoreVersion) -> Self {
        self.settings.program = program;
        self
    }
}

/// Returns what the backend can do, on either server.
pub fn capabilities() -> Capabilities {
    Capabilities {
        push: true,
        shortening: true,
        // The clock counts microseconds; but a lease has to be renewed at a third of it, by a durable commit.
        min_lease: Duration::from_millis(100),
        // The verdict on a set has one letter for each id, in a text that may be limited to 1024.
        max_ids: 1000,
        ..Capabilities::shared_store("mysql")
    }
}

impl<I, C> fmt::Debug for MysqlBuilder<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

/// Refuses characters that the servers do not have in names, quoted or not.
pub(super) fn check_prefix(prefix: &str) -> Result<(), ServerError> {
    if prefix.chars().all(|char| char as u32 <= 0xFFFF) {
        return Ok(());
    }
    let value = prefix.chars().take(64).collect();
    let expected = "it must have no character beyond U+FFFF";
    Err(ServerError::Setting { backend: "mysql", key: "table_prefix", value, expected })
}

pub(super) fn parse(url: &str) -> Result<MySqlConnectOptions, ServerError> {
    // The error's own text is not shown: it may quote parts of the URL.
    let options = MySqlConnectOptions::from_str(url);
    let options = options.map_err(|_| refused("url", "it must be like mysql://user@host:3306/database"))?;
    let host = without_brackets(options.get_host()).to_owned();
    Ok(plain(options.host(&host)))
}

/// Turns off the log, since ids may be secret, and what sqlx sets in sessions by default.
pub(super) fn plain(options: MySqlConnectOptions) -> MySqlConnectOptions {
    options.disable_statement_logging().pipes_as_concat(false).no_engine_substitution(false).timezone(None)
}

pub(super) fn refused(key: &'static str, expected: &'static str) -> ServerError {
    ServerError::Setting { backend: "mysql", key, value: "..".to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv6_is_dialled_without_brackets() {
        for (url, host) in [
            ("mysql://u@[::1]:1/d", "::1"),
            ("mysql://u@127.0.0.1/d", "127.0.0.1"),
            ("mysql://u@db.example/d", "db.example"),
        ] {
            assert_eq!(parse(url).expect("a good URL").get_host(), host);
        }
    }
}
