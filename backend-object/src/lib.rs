//! Locks in a bucket, for any number of programs and hosts: S3, Google Cloud Storage, Azure Blob Storage, and what speaks
//! their protocols and has conditional writes.
//!
//! ```no_run
//! use lockcore::LockingService;
//! use lockcore_object::ObjectLockDao;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # #[cfg(feature = "s3")] {
//! // region and credentials by the usual variables, or by the instance
//! let dao = ObjectLockDao::<String>::builder().s3("archive").prefix("locks").open().await?;
//! let locks = LockingService::new(dao);
//! let sum = locks.with_locks(["objects/7"], async || -> std::io::Result<_> { Ok(40 + 2) }).await?;
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! These are *coarse* locks: nothing but the bucket is needed, and a bucket takes some ten conditional writes of one object a
//! second. For more than that take Redis, DynamoDB or a database.
//!
//! # How it works
//! - **One object holds the table of a namespace**: `PREFIX/NAMESPACE/table`, JSON. A step reads it (usually it is known from
//!   the step before), decides by [`lockcore::rules`] in this process, and writes it on condition of the version that it read.
//!   So a set of any size is taken or freed in one write, all or nothing.
//! - **Group commit.** What many tasks of a process request while a write is in flight goes into the next one.
//! - **Renewals** are written to an object of the process, `PREFIX/NAMESPACE/session/NAME`: one write for all grants of the
//!   process, beside the table, where they would take the turns of others. A process that takes over from a holder whose
//!   lease is over closes the grant in that object first, on condition of its version, so that a late renewal fails.
//! - **Time** is the service's, by the `Date` of each response that has an id of the service: an interval, see
//!   [`ServiceClock`](lockcore::backend::ServiceClock). A lease is written to end at its upper bound, and taken over after its
//!   lower one. No wall clock of any machine counts.
//! - **Fences** are numbers of the table: `max(highest + 1, service's time in microseconds)`, one for each grant.
//! - **Lost responses.** The table names the last write of each session, so that a process whose response was lost knows its
//!   own write though others wrote since; likewise where a proxy sends a write twice and passes on the refusal of the second.
//!   Each version of the table has bytes of its own, so that none has the entity tag of another, and a late write never
//!   succeeds.
//! - **A withdrawn attempt** leaves a tombstone in the table, and any late write of it was made for a version that is gone.
//! - **Waiting** is one conditional read for all waiters of a process, each 0.2 s after a change and up to each 2 s later.
//!   Order is that of arrival; a released lock is offered to the next waiter in the write that frees it.
//!
//! # What to know
//! - Leases are 10 s at least, 30 s on Google's store, which takes one write a second and object.
//! - The table has 1 MiB at most, some thousand grants; a larger one is refused with [`Busy`](lockcore::BackendErrorKind::Busy).
//! - A store that ignores the conditions of writes is refused when it is opened.
//! - A bucket that keeps versions keeps each version of the table: give it a lifecycle rule that deletes noncurrent versions
//!   below the prefix. Object lock should not be on: it keeps them all.
//! - If the table is deleted its locks vanish; each holder learns it from its next renewal. Fences go on above the service's
//!   time, which is known to a second or so: unless more time than that has passed since the last grant, the next fence of an
//!   id may be lower.
//! - A refusal shows what is left of a lease at least: renewals are read only for [`inspect`](lockcore::LockDao::inspect) and
//!   [`list`](lockcore::LockDao::list).
//! - The place of a waiter that died is found out by an offer that lapses, two seconds later.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
#[cfg(feature = "s3")]
mod aws;
mod bucket;
mod cell;
mod collect;
mod config;
mod dao;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
mod dated;
mod doctor;
mod driver;
mod error;
mod grant;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod model_tests;
mod pause;
mod poll;
mod probe;
mod seen;
mod sessions;
mod step;
mod table;
mod takeover;
mod weigh;

pub use config::ObjectBuilder;
pub use dao::{CAPABILITIES, ObjectLockDao};
pub use object_store::ObjectStore;
