//! Distributed locks for stores that have none, such as S3, a file share or an API: add `lockcore`, and `lockcore-any` with the feature of
//! the store that has the locks: `redis`, `postgres`, `mysql`, `dynamodb`, `etcd`, `s3` or `share`; memory and SQLite need none.
//!
//! A [`LockingService`] locks a set of ids under one context, runs a callback, and releases the set in every case: success,
//! error, panic, or a caller whose future is dropped. Its typed result says which it was. Where the locks are kept is up to a
//! backend, which implements [`LockDao`].
//!
//! ```
//! use lockcore::{LockingError, LockingService, Wait};
//! use lockcore_memory::MemoryLockDao;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = LockingService::new(MemoryLockDao::<String>::new());
//!
//! let size = locks
//!     .wait(Wait::up_to(Duration::from_secs(5)))
//!     .with_locks(["s3://archive/b1", "s3://archive/b2"], async || -> std::io::Result<u64> { Ok(42) })
//!     .await?;
//! assert_eq!(size, 42);
//!
//! let guard = locks.lock(["s3://archive/b1"]).await?;
//! match locks.with_locks(["s3://archive/b1"], || async {}).await {
//!     Err(LockingError::NotLocked { failures, .. }) => println!("{}", failures[0]),
//!     other => panic!("{other:?}"),
//! }
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! | to | take |
//! | --- | --- |
//! | run something under locks | [`LockingService`]; [`Call`] has the options and shows [which call to take](Call#which-call-do-i-take) |
//! | run a job on one of many hosts, once | [`LockingService::once`], [`LockingService::once_per`] |
//! | do so without an async runtime | [`blocking::LockingService`] |
//! | lock exclusively, shared, or a number of slots | [`Claim`] |
//! | wait, in a queue or by retries | [`Wait`] |
//! | react to what went wrong | [`LockingError`], [`Ended`], [`Event`] |
//! | refuse the late write of a former holder | [`Held::exclusive_fence`], [`FenceGuard`] |
//! | list, inspect, break, freeze, sweep | [`LockingService::admin`] |
//! | choose the backend at run time | [`AnyLockDao`], and the crate `lockcore-any` |
//! | write a backend | [`LockDao`], [`Capabilities`], [`backend`], [`rules`], [`protocol`] |
//!
//! # Features
//! | feature | default | adds |
//! | --- | --- | --- |
//! | `metrics` | no | gauges, counters and histograms through the `metrics` facade |
//!
//! Metrics have the label `backend`, and none has an identifier in it. They are described, with units, as soon as the first
//! service is created after a recorder was installed, and each counter is there with 0.
//!
//! | metric | kind | label `kind` | counts or measures |
//! | --- | --- | --- | --- |
//! | `lockcore_held` | gauge | | locks that this process holds |
//! | `lockcore_waiting` | gauge | | calls of this process that wait |
//! | `lockcore_acquired_total` | counter | `granted` | sets that were locked |
//! | `lockcore_refused_total` | counter | `contention`, `backend` | sets that were not locked |
//! | `lockcore_wait_seconds` | histogram | | from the call until the set was locked |
//! | `lockcore_held_seconds` | histogram | | from the grant until the release |
//! | `lockcore_renewed_total` | counter | `renewed` | renewals that extended a lease |
//! | `lockcore_renewal_lag_seconds` | histogram | | how much later than planned a renewal was done |
//! | `lockcore_renewal_failed_total` | counter | `backend` | renewals that failed; each is tried again |
//! | `lockcore_lost_total` | counter | `expired`, `broken`, `vanished`, `unreachable`, `released`, `forked` | locks lost while held |
//! | `lockcore_released_late_total` | counter | `expired` | releases that came or were answered after the lease had ended |
//! | `lockcore_release_failed_total` | counter | `backend` | releases that failed; each is tried again |
//! | `lockcore_withdraw_failed_total` | counter | `backend` | requests in doubt that could not be withdrawn |
//! | `lockcore_sweep_failed_total` | counter | `backend` | sweeps that failed |
//!
//! Histograms need buckets where the exporter has them: `0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300` seconds fit all three.
//!
//! # Forked processes
//! A child made by `fork` without `exec` has a copy of its parent's services and guards, but not the thread that renews. A
//! service that was made before the fork refuses every call there, administration and elections included
//! ([`BadRequest::Forked`]). Copied guards, handles and callbacks hold nothing ([`LossReason::Forked`]) and release nothing: the
//! parent goes on holding the locks. A service that is made in the child, over a backend that is
//! opened there, works: it starts over with a thread and contexts of its own.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod background;
pub mod blocking;
mod capabilities;
mod certificate;
mod claim;
mod clock;
mod conflict;
mod context;
mod dao;
pub mod election;
#[doc(hidden)]
pub mod engine;
mod erased;
mod error;
mod fence;
mod grant;
mod ident;
mod process;
pub mod protocol;
mod random;
pub mod rules;
mod service;
mod service_clock;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod simulated;
mod store_clock;
mod store_version;
mod stored;
mod wait;
mod waiters;
mod wakeup;
mod watch;

pub use admin::*;
pub use capabilities::Capabilities;
pub use claim::{Claim, ClaimSet, Ids, IntoClaim, MAX_PERMITS, Mode};
pub use conflict::{Conflict, ConflictReason, Holder, MAX_HOLDERS_LISTED};
pub use context::{ContextId, FreshContext, MAX_CONTEXT_BYTES, MAX_OWNER_BYTES, Owner, StoredContext};
pub use dao::{LockDao, Released, Renewed};
pub use erased::AnyLockDao;
pub use error::{
    BackendError, BackendErrorKind, BadRequest, CallbackError, Failure, LockError, LockLost, LockingError,
    Phase, TimedOut,
};
pub use fence::{ExclusiveFence, FenceGuard, SharedFence, StaleFence};
pub use grant::{Grant, Granted, Lock, LossReason, LostLock};
pub use ident::{Ident, MAX_ID_BYTES, Target};
pub use service::{
    Admin, Builder, Call, CallbackResult, Ended, ErrOf, Event, Held, LockGuard, LockingService, OkOf, Once,
    OnceCall, OnceGuard, Ran,
};
pub use uuid::Uuid;
pub use wait::{Backoff, Exponential, Interval, Wait};
pub use watch::{Change, EndedBy};

/// Items that only backends need: requests and answers of [`LockDao`], waking waiters, the store's clock and version.
///
/// A backend implements [`LockDao`] and runs the suite of the crate `lockcore-conformance`, which tests what the backend
/// declares, and that it refuses everything else. This is a complete one:
#[doc = concat!("```\n", include_str!("../tests/third_party.rs"), "\n# fn main() {}\n```")]
pub mod backend {
    pub use crate::{
        background::{handle as library_runtime, shared as shared_runtime},
        certificate::CertificateFault,
        clock::Moment,
        context::AttemptId,
        dao::{AcquireRequest, Acquired, Withdraw, Withdrawn},
        grant::Offer,
        random::{unique, unique_name},
        service::renew_all,
        service_clock::{ServiceClock, ServiceTime},
        store_clock::StoreClock,
        store_version::{ProgramTooOld, StoreFit, StoreVersion},
        waiters::Waiters,
        wakeup::{Wake, WakeSender, Wakeup},
    };
}

// For this crate's own modules.
use backend::{
    AcquireRequest, Acquired, AttemptId, Moment, Offer, Wake, WakeSender, Wakeup, Withdraw, Withdrawn,
};
