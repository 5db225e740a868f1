//! Locks among the tasks and threads of one process, and the store of unit tests: add `lockcore` and `lockcore-memory`, the latter among
//! the `dev-dependencies` if only tests use it. It has no features.
//!
//! [`MemoryLockDao`] is a real backend, not a double: whole sets are taken atomically, exclusively,
//! shared or by slots, with a lease or for ever; waiters are served in order, across sets that overlap,
//! and get the locks handed over; unused ids take no memory. Tests can inspect the
//! [current locks](MemoryLockDao::current) and, if enabled, a [history](MemoryLockDao::with_history).
//!
//! Time is tokio's, so that leases follow the paused time of tests. [`SimulatedLockDao`] has a store that fails as a test wants
//! it to: outages, late answers and locks that vanish.
//!
//! ```
//! use lockcore_memory::MemoryLockDao;
//!
//! let dao = MemoryLockDao::<String>::new();
//! assert!(dao.is_empty());
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod clock;
mod dao;
mod history;
mod simulated;
mod step;
mod table;
mod tombstones;

pub use dao::MemoryLockDao;
pub use history::{Event, What};
pub use simulated::{Fault, SimulatedLockDao, Step};
