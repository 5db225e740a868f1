//! lockcore's backend on Redis.

mod admin;
mod config;
mod dao;
mod doctor;
mod error;
mod inbox;
mod link;
mod reply;
mod scripts;
mod session;
mod store;
mod target;

pub use config::RedisBuilder;
pub use dao::{CAPABILITIES, RedisLockDao};
