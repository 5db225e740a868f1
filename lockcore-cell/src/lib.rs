//! Distributed locks in every store with a compare-and-set: for a store of your own add `lockcore` and `lockcore-cell`; for a bucket, etcd
//! or a file share add their backends. Implement [`Cell`] - read, replace if unchanged, remove, list, time - and [`CellLockDao`] is a backend with all
//! promises of [`LockDao`](lockcore::LockDao).
//!
//! # How it works
//! - **One cell holds the table of a namespace**, `table`, in JSON. A step takes the table that is known from the step before, decides
//!   by [`lockcore::engine`] in this process, and replaces the cell on condition of the version that it read. So a set of any size
//!   is taken or freed in one write, all or nothing.
//! - **Where a store replaces several cells in one step** ([`Cell::at_once`]), each id has a cell of its own, `id/xHEX`, with the part of the
//!   table that is about it. A step works on a table that is put together from the cells of its ids, and of the other ids of those
//!   whom it may serve, and replaces all that it looked at, or nothing. Sets that share no id never meet. A set that is not known is
//!   guessed to be free: a pair of new ids is two writes without a read. Cells that are not used go after some hours.
//! - **A step reads and writes the table only.** What it needs of other processes is fetched before, by the caller who wants it: many
//!   cells at once, bounded in number and time. A failure of that concerns only the ids that it is about.
//! - **Group commit.** What many tasks of a process request while a write is in flight goes into the next one.
//! - **One heartbeat a process.** Renewals are written to a cell of the process, `session/NAME`, beside the table, where they would
//!   take the turns of others: one write renews all that the process holds, and shows that its waiters live. A process that takes over
//!   from a holder whose lease is over closes the grant in that cell first, on condition of its version, so that a late renewal fails.
//!   The places of a process without a heartbeat are removed, all of them together.
//! - **The state of another's session is weighed in one place**, `takeover`: a session that is absent is unknown, not over; one that cannot be
//!   read keeps its own ids; a renewal from before the store's clock was set back does not count.
//! - **Time** is the store's, an interval: a lease is written to end at its upper bound, and taken over after its lower one.
//! - **Fences** are numbers of the table, or of the cells of the ids: `max(highest + 1, store's time in microseconds)`, one for each grant.
//! - **Lost answers.** The table names the last write of each process, so that one whose answer was lost knows its own write though
//!   others wrote since. Each version of a cell has bytes of its own, and a late write never succeeds.
//! - **A withdrawn attempt** leaves a tombstone in the table, and any late write of it was made for a version that is gone.
//! - **Waiting** is one conditional read for all waiters of a process, each 0.2 s after a change and up to each 2 s later, or as the
//!   store tells of [changes](Cell::changed). Order is that of arrival; a released lock is offered to the next waiter in the write that
//!   frees it.
//!
//! # Limits
//! - A request after which the table would be longer than 768 KiB, some thousand grants, is refused with
//!   [`Busy`](lockcore::BackendErrorKind::Busy), and for good if its set fits into no table. What the waiters will hold
//!   counts towards these limits. A request of a caller that holds locks already has room up to 1 MiB. No other step is refused for its
//!   length.
//! - Where each id has a cell, that is the limit of each of them, and [`most_bytes`](Cell::most_bytes) the limit of
//!   all in one write. A request whose place would be too long for a write waits without one. A set that is granted to a caller that holds
//!   locks, and that is too long because of waiters, removes their places from the cells of its ids: others may pass them there. A release,
//!   a renewal or a withdrawal that is too long is made in several.
//! - If the table is removed its locks vanish; each holder learns it from its next renewal. Fences go on above the store's time.
//! - A process that waits writes its session each 1.2 s, and where each id has a cell each process that locks writes it once. None removes
//!   it when it ends: a sweep collects sessions some hours later.
//! - A refusal shows what is left of a lease at least: renewals are read only for [`inspect`](lockcore::LockDao::inspect) and
//!   [`list`](lockcore::LockDao::list).
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod admin;
#[cfg(test)]
mod cases_tests;
mod cell;
mod clean;
mod collect;
mod dao;
mod doctor;
mod driver;
mod error;
mod format;
mod halves;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod model_tests;
mod modified;
mod order;
mod own;
mod parts;
mod pause;
mod poll;
mod probe;
mod progress;
mod queue;
mod renewals;
mod request;
mod session;
mod sessions;
mod state;
mod step;
mod store;
mod table;
mod takeover;
mod verify;
#[cfg(test)]
mod verify_tests;
mod whole;

pub use cell::{Cell, CellPage, Change, Found, Written};
pub use dao::{CellLockDao, CellSettings};
pub use modified::ModifiedClock;
