//! Distributed locks in a bucket: add `lockcore`, and `lockcore-object` with the feature of its kind: `s3`, the default, `gcs` or `azure`.
//! They take S3, Google Cloud Storage, Azure Blob Storage, and what speaks their protocols and has conditional writes.
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
//! This is [`lockcore_cell`], the engine for stores with a compare-and-set, over the objects of a bucket: its page has the protocol.
//! - **One object holds the table of a namespace**: `PREFIX/NAMESPACE/table`. A set of any size is taken or freed in one write, on
//!   condition of the version that was read; what many tasks of a process request meanwhile goes into the next one.
//! - **Renewals** are written to an object of the process, `PREFIX/NAMESPACE/session/NAME`, all in one write.
//! - **Time** is the service's, by the `Date` of each response that has an id of the service: an interval, see
//!   [`ServiceClock`](lockcore::backend::ServiceClock). No wall clock of any machine counts.
//!
//! # What to know
//! - Leases are 10 s at least, 30 s on Google's store and Cloudflare's R2, which take one write a second and object.
//! - A request after which the table would be longer than 768 KiB, some thousand grants, is refused with
//!   [`Busy`](lockcore::BackendErrorKind::Busy), and for good if its set fits into no table. A request of a caller
//!   that holds locks already has room up to 1 MiB. What the waiters will hold counts towards these limits.
//! - A store that ignores the conditions of writes is refused when it is opened.
//! - A bucket that keeps versions keeps each version of the table: give it a lifecycle rule that deletes noncurrent versions
//!   below the prefix. Object lock should not be on: it keeps them all.
//! - If the table is deleted its locks vanish; each holder learns it from its next renewal. Fences go on above the service's
//!   time, which is known to a second or so: unless more time than that has passed since the last grant, the next fence of an
//!   id may be lower.
//! - If the object of a session is deleted others wait for a lease before they take what it renewed, and its process goes on in the
//!   table, under another name.
//! - A process that waits writes its object each 1.2 s.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "s3")]
mod aws;
mod bucket;
mod config;
mod dao;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
mod dated;
mod error;
mod seen;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use bucket::Bucket;
pub use config::ObjectBuilder;
pub use dao::{CAPABILITIES, ObjectLockDao};
pub use object_store::ObjectStore;
