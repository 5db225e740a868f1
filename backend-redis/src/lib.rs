//! lockcore's backend on Redis.

mod config;
mod dao;
mod target;

pub use config::RedisBuilder;
pub use dao::RedisLockDao;
