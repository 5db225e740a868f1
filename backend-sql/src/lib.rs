//! Distributed locks in SQL databases: add `lockcore`, and `lockcore-sql` with the feature of the database. SQLite is the default; leave it
//! out by `default-features = false`. A program whose store is configured adds `lockcore-any` instead.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # #[cfg(feature = "sqlite")] {
//! use lockcore::LockingService;
//! use lockcore_sql::SqliteLockDao;
//!
//! let locks = LockingService::new(SqliteLockDao::<String>::open("/var/lib/app/locks.db").await?);
//! let sum = locks.with_locks(["accounts/7"], async || -> std::io::Result<_> { Ok(40 + 2) }).await?;
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! | feature | module | what it is for |
//! | --- | --- | --- |
//! | `mysql` | [`mysql`] | many hosts, beside the data of the application, on MySQL or MariaDB |
//! | `postgres` | [`postgres`] | many hosts, beside the data of the application |
//! | `sqlite` (default) | [`sqlite`] | the embedded default: the processes of one host share a file |
//!
//! SQLite and the servers differ in where decisions are made: with SQLite this process decides, under the file's one
//! write lock; with a server its routines do, each call of which is one round trip. Where a server has no routines, this process
//! decides as well, and plain statements write it: see [`PostgresStatementsLockDao`](postgres::PostgresStatementsLockDao) and
//! [`MysqlStatementsLockDao`](mysql::MysqlStatementsLockDao). The code that the servers share on this side is private.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod cells;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(feature = "mysql")]
pub use mysql::{MysqlBuilder, MysqlLockDao};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresBuilder, PostgresLockDao};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteBuilder, SqliteLockDao, Synchronous};
