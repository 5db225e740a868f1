//! The DAO's type, and how it is opened.

use lockcore::{BackendError, ContextId, Ident, LockDao, forward_lock_dao};
use uuid::Uuid;

use super::{
    config::{self, MysqlBuilder, Server},
    engine::{Mysql, Source},
};
use crate::server::{ServerError, ServerLockDao, names_user, tried};

/// Locks in a MySQL or MariaDB database; see the [module](super) for how it works.
#[derive(Debug)]
pub struct MysqlLockDao<I = String, C = Uuid>(ServerLockDao<I, C, Mysql>);

forward_lock_dao! {
    { #[deny(clippy::missing_trait_methods)] impl<I: Ident, C: ContextId> LockDao<I, C> for MysqlLockDao<I, C> }
    self => self.0
}

impl<I: Ident, C: ContextId> MysqlLockDao<I, C> {
    /// Connects to the server at `url` with default settings.
    ///
    /// ```no_run
    /// use lockcore::LockingService;
    /// use lockcore_sql::MysqlLockDao;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockingService::new(MysqlLockDao::<String>::open("mysql://app@db.internal/app").await?);
    /// locks.run_locked(["report.csv"], async || ()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`MysqlBuilder::open`].
    pub async fn open(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).open().await
    }

    /// Returns settings to choose before connecting.
    pub fn builder() -> MysqlBuilder<I, C> {
        MysqlBuilder::new()
    }

    /// Returns a condition with which the application's own statements check a fence. It has three `?`: the namespace, the
    /// id and the fence, bound as bytes, bytes and a number. It is true if the id is held exclusively under that fence and
    /// its lease lasts; and then no other context gets it before the application's transaction ends. In the `WHERE` of a
    /// write it makes the late write of a former holder change nothing:
    ///
    /// ```no_run
    /// # async fn write(locks: lockcore::LockingService, dao: &lockcore_sql::MysqlLockDao, pool: sqlx::MySqlPool)
    /// # -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let write = format!("UPDATE account SET balance = 41 WHERE id = 7 AND {}", dao.fence_check());
    /// let guard = locks.lock(["account/7"]).await?;
    /// let fence = guard.held().exclusive_fence("account/7").expect("held exclusively").number() as i64;
    /// let write = sqlx::query(sqlx::AssertSqlSafe(write)).bind(&b"default"[..]).bind(&b"account/7"[..]).bind(fence);
    /// assert_eq!(write.execute(&pool).await?.rows_affected(), 1, "otherwise another context may hold it by now");
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It is not a function, because a server with a binary log lets only privileged users create those. So its user needs
    /// `SELECT` on the tables of the namespaces, ids and claims, and `UPDATE` or `LOCK TABLES` to lock what is read.
    /// The transaction should be short: a renewal waits for its end, as do all that want the id. Without any
    /// dependence on the tables of the locks the same is had by a column for the highest fence seen, beside the data:
    /// `UPDATE account SET balance = 41, fence = ? WHERE id = 7 AND fence <= ?`.
    pub fn fence_check(&self) -> String {
        self.0.engine().names().fence_check()
    }
}

impl<I: Ident, C: ContextId> MysqlBuilder<I, C> {
    /// Connects, and creates or migrates the schema.
    ///
    /// # Errors
    /// [`BadSetting`](lockcore::BackendErrorKind::BadSetting) names the setting and its value;
    /// [`Misconfigured`](lockcore::BackendErrorKind::Misconfigured) says that the server is too old, or the schema missing or
    /// for newer programs; [`Unavailable`](lockcore::BackendErrorKind::Unavailable) and
    /// [`Denied`](lockcore::BackendErrorKind::Denied) if the server cannot be used.
    pub async fn open(self) -> Result<MysqlLockDao<I, C>, BackendError> {
        self.cells.refuse("mysql")?;
        let user = self.user_of_process()?;
        let opened = ServerLockDao::over(self.checked()?).await;
        opened.map(MysqlLockDao).map_err(|error| tried(user.as_deref(), error))
    }
    /// Returns the user that is tried though the URL names none.
    pub(super) fn user_of_process(&self) -> Result<Option<String>, ServerError> {
        match &self.server {
            Server::Url(url) if !names_user(url) => Ok(Some(config::parse(url)?.get_username().to_owned())),
            _ => Ok(None),
        }
    }

    /// Checks the settings of this database.
    pub(super) fn checked(self) -> Result<Mysql, ServerError> {
        config::check_prefix(&self.settings.prefix)?;
        let source = match self.server {
            Server::None => return Err(config::refused("url", "it must name a server")),
            Server::Url(url) => Source::Own(Box::new(config::parse(&url)?)),
            Server::Options(options) => Source::Own(Box::new(config::plain(*options))),
            Server::Pool(pool) => Source::Pool(pool),
        };
        Mysql::new(source, self.settings)
    }
}
