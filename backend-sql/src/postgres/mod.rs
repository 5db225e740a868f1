//! Locks in a PostgreSQL database: for any number of hosts, beside the data of the application.

mod config;
mod doctor;
mod engine;
mod error;
mod link;
mod listen;
mod schema;

pub use config::{Commit, PostgresBuilder};
pub use engine::{Postgres, PostgresLockDao, capabilities};
pub use schema::schema_sql;
