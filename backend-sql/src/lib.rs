//! lockcore's backends in SQL databases: one module and one cargo feature for each.
//!
//! | feature | module | what it is for |
//! | --- | --- | --- |
//! | `sqlite` (default) | [`sqlite`] | the embedded default: the processes of one host share a file |
//!
//! The databases share no code but `lockcore`: what is decided, and where, differs too much. With SQLite
//! this process decides, under the file's one write lock; with a server its routines do.

#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteBuilder, SqliteLockDao, Synchronous};
