//! The service over a backend whose steps go wrong as a test wants it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cancellation;
mod leading;
mod messages;
#[cfg(feature = "metrics")]
mod metrics;
mod nesting;
mod outcomes;
mod renewal;
pub(crate) mod rigged;
mod sweeping;
mod waiting;
mod watching;
