//! lockcore's backend in memory: locks among the tasks and threads of one process.
//!
//! [`MemoryLockDao`] is a real backend, not a double: whole sets are taken atomically, exclusively,
//! shared or by slots, with a lease or for ever; waiters are served in order, across sets that overlap,
//! and get the locks handed over; nothing is kept of an id that nobody uses. It shows what tests want to
//! see: the [current locks](MemoryLockDao::current) and, if asked for, a
//! [history](MemoryLockDao::with_history).
//!
//! Time is tokio's, so that leases end when a test with paused time says so.
//!
//! ```
//! use lockcore_memory::MemoryLockDao;
//!
//! let dao = MemoryLockDao::<String>::new();
//! assert!(dao.is_empty());
//! ```

mod acquire;
mod admin;
mod clock;
mod dao;
mod entry;
mod handoff;
mod history;
mod holders;
mod line;
mod marks;
mod queue;
mod release;
mod shortcuts;
mod sync;
mod table;
mod withdraw;

pub use dao::MemoryLockDao;
pub use history::{Event, What};
