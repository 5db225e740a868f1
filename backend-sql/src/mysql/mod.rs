//! Locks in a MySQL or MariaDB database: for any number of hosts, beside the data of the application.

mod config;
mod doctor;
mod engine;
mod error;
mod flavor;
mod link;
mod listen;
mod schema;

pub use config::MysqlBuilder;
pub use engine::{Mysql, MysqlLockDao, capabilities};
pub use flavor::Flavor;
pub use schema::schema_sql;
