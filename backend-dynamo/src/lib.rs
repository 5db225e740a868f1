//! lockcore's backend on DynamoDB.

mod acquire;
mod admin;
mod clients;
mod clock;
mod config;
mod dao;
mod decide;
mod doctor;
mod error;
mod key;
mod release;
mod row;
mod schema;
mod store;
mod withdraw;
mod write;

pub use config::{DynamoBuilder, LargeSets};
pub use dao::DynamoLockDao;
pub use schema::Schema;
pub use store::Usage;
