//! Locks in a SQLite database: the embedded default, for all processes of one host.
//!
//! Being built.

mod acquire;
mod admin;
mod clock;
mod config;
mod dao;
mod doctor;
mod error;
mod grant;
mod handoff;
mod process;
mod release;
mod row;
mod schema;
mod statements;
mod step;
mod store;
mod sweep;
mod thread;
mod watch;
mod weigh;

pub use config::{SqliteBuilder, Synchronous};
pub use dao::SqliteLockDao;
pub use schema::schema_sql;
