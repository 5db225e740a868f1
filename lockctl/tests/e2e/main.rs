//! `lockctl` as real processes on a SQLite file.

mod administration;
mod contention;
mod dying;
mod losing;
mod mistakes;
mod running;
mod signals;
mod store;
mod terminal;
mod tokens;
