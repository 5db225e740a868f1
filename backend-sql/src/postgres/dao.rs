//! The DAO of Postgres, and how it is opened.

use lockcore::{BackendError, ContextId, Ident, LockDao, forward_lock_dao};
use uuid::Uuid;

use super::{config::PostgresBuilder, engine::Postgres};
use crate::server::{ServerLockDao, tried};

/// Locks in a PostgreSQL database; see the [module](super) for what it does how.
#[derive(Debug)]
pub struct PostgresLockDao<I = String, C = Uuid>(ServerLockDao<I, C, Postgres>);

forward_lock_dao! {
    { #[deny(clippy::missing_trait_methods)] impl<I: Ident, C: ContextId> LockDao<I, C> for PostgresLockDao<I, C> }
    self => self.0
}

impl<I: Ident, C: ContextId> PostgresLockDao<I, C> {
    /// Connects to the server at `url` with default settings.
    ///
    /// ```no_run
    /// use lockcore::LockingService;
    /// use lockcore_sql::PostgresLockDao;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockingService::new(PostgresLockDao::<String>::open("postgres://app@db.internal/app").await?);
    /// locks.run_locked(["report.csv"], async || ()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`PostgresBuilder::open`].
    pub async fn open(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).open().await
    }

    /// Returns the quoted name of the function with which the application's own statements check a fence: `holds(namespace
    /// text, id text, fence bigint)` is true if the id is held exclusively under that fence and its lease lasts; and then no
    /// other context gets it before the application's transaction ends. In the `WHERE` of a write it makes the late write of
    /// a former holder change nothing:
    ///
    /// ```no_run
    /// # async fn write(locks: lockcore::LockingService, dao: &lockcore_sql::PostgresLockDao, pool: sqlx::PgPool)
    /// # -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let write = format!(
    ///     "UPDATE account SET balance = 41 WHERE id = 7 AND {}('default', 'account/7', $1)",
    ///     dao.fence_check()
    /// );
    /// let guard = locks.lock(["account/7"]).await?;
    /// let fence = guard.held().exclusive_fence("account/7").expect("held exclusively").number() as i64;
    /// let written = sqlx::query(sqlx::AssertSqlSafe(write)).bind(fence).execute(&pool).await?;
    /// assert_eq!(written.rows_affected(), 1, "otherwise another may hold it by now");
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The transaction should be short: a renewal waits for its end, as do all that want the id. Without any
    /// dependence on the tables of the locks the same is had by a column for the highest fence seen, beside the data:
    /// `UPDATE account SET balance = 41, fence = $1 WHERE id = 7 AND fence <= $1`.
    pub fn fence_check(&self) -> String {
        self.0.engine().fence_check()
    }

    /// Settings to choose before connecting.
    pub fn builder() -> PostgresBuilder<I, C> {
        PostgresBuilder::new()
    }
}

impl<I: Ident, C: ContextId> PostgresBuilder<I, C> {
    /// Connects, and creates or migrates the schema.
    ///
    /// # Errors
    /// [`BadSetting`](lockcore::BackendErrorKind::BadSetting) names the setting and its value;
    /// [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) says that the schema is missing or for newer programs, or that the
    /// role's isolation level is not `read committed` and cannot be set; [`Unavailable`](lockcore::BackendErrorKind::Unavailable) and
    /// [`Denied`](lockcore::BackendErrorKind::Denied) if the server cannot be used.
    pub async fn open(self) -> Result<PostgresLockDao<I, C>, BackendError> {
        let user = self.user_of_process();
        let (source, listen, options) = self.checked()?;
        options.cells.refuse("postgres")?;
        let opened = ServerLockDao::over(Postgres::new(source, listen, options)).await;
        opened.map(PostgresLockDao).map_err(|error| tried(user.as_deref(), error))
    }
}
