//! Distributed locks in etcd: add `lockcore` and `lockcore-etcd`, which has no features for users. They go over the gateway of etcd's v3
//! interface: HTTP and JSON, on the port that clients use.
//!
//! ```no_run
//! use lockcore::LockingService;
//! use lockcore_etcd::EtcdLockDao;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let dao = EtcdLockDao::<String>::builder().url("etcds://app:secret@a.example,b.example,c.example/locks").open().await?;
//! let locks = LockingService::new(dao);
//! let sum = locks.with_locks(["objects/7"], async || -> std::io::Result<_> { Ok(40 + 2) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! This is [`lockcore_cell`], the engine for stores with a compare-and-set: its page has the protocol. A cell is a key,
//! as `PREFIX/NAMESPACE/id/xHEX` or `PREFIX/NAMESPACE/session/NAME`, and its version the key's `mod_revision`. A write is one transaction
//! that compares those of up to 128 keys, as `--max-txn-ops` of the members is by default, of up to 1.5 MiB together, as
//! `--max-request-bytes` is. What takes several reads is read at the revision of the first. No lease of etcd is used: the engine has leases of its own, which end by the store's time.
//!
//! - **E1**: a write is sent to another member only after one has certainly not taken it: there was no connection, or the member
//!   refused it as it has no leader, has no such interface, or does not know the token. After anything else it is in doubt, and the engine
//!   looks for it. NOSPACE leaves a write in doubt: etcd applies the one that exceeds the quota and still reports an error.
//! - **E2**: reads are linearizable, by whatever member. What one does not answer is asked of the next.
//! - **E3**: the store's time is the middle between the fastest and the slowest clock of the members, each of which is within half of
//!   [`clock_difference`](EtcdBuilder::clock_difference) of it. Each member has an estimate of its clock, from the `Date` of its
//!   responses of the last three seconds; whichever is used, it is widened by that half in both directions.
//! - **E4**: a cluster is known by its identity, and its state by its revision, which never falls. The response of another cluster, or
//!   of one that was restored to an earlier state, is refused, and so is all that follows, until the program opens it again. All members are asked for theirs when it is opened, and not waited for.
//!
//! # What to know
//! - A value begins with a line that says when it was written, in microseconds since 1970: etcd keeps no time. Listing sessions reads
//!   their values for it.
//! - While tasks of a process wait, it has one stream, which sends each new version of each id of the namespace. Streams may end and
//!   miss changes, so that waiters look by themselves as well.
//! - Leases are 10 s at least.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod client;
mod config;
mod dao;
mod error;
mod keys;
mod message;
mod watch;

pub use config::EtcdBuilder;
pub use dao::{CAPABILITIES, EtcdLockDao};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use keys::Keys;
