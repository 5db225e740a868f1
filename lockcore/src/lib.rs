//! Locks for sets of ids, in a store that has none of its own.
//!
//! A [`LockingService`] locks a set of ids under one context, runs a callback, and releases whatever happens: success,
//! error, panic, or a caller that goes away. Its result says which it was. Where the locks live is a backend's business:
//! anything that implements [`LockDao`].
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
//! | what | where |
//! | --- | --- |
//! | the ways to run something under locks, and their options | [`LockingService`], [`Call`], [`blocking`] |
//! | how a set is wanted | [`Claim`]: exclusive, shared, slots |
//! | how long to wait | [`Wait`] |
//! | what came of it | [`LockingError`], [`Ended`], [`Event`] |
//! | what is held; writes that a former holder cannot make | [`Held`], [`FenceGuard`] |
//! | administration | [`LockingService::admin`] |
//! | a backend of one's own | [`LockDao`], [`Capabilities`], [`rules`], [`StoreVersion`], [`protocol`], [`AnyLockDao`] |
//!
//! # Features
//! - `metrics`: counts and times through the `metrics` facade, under names that begin with `lockcore_`: `acquired_total`,
//!   `refused_total`, `wait_seconds`, `held_seconds`, `renewed_total`, `renewal_lag_seconds`, `renewal_failed_total`,
//!   `lost_total`, `released_late_total`, `release_failed_total`, `withdraw_failed_total`, `sweep_failed_total`.
//!   Identifiers are in none of them.
//!
//! # Forked processes
//! A child made by `fork` without `exec` has a copy of its parent's services and guards, but not the thread that renews. A
//! service that was made before the fork refuses every call there ([`BadRequest::Forked`]), and a copied guard or callback
//! releases nothing: the parent goes on holding the locks. A service that is made in the child, over a backend that is
//! opened there, works: it starts over with a thread and contexts of its own.
//!
//! # A backend of one's own
//! A backend implements [`LockDao`] and runs the suite of the crate `lockcore-conformance`, which tests what it declares
//! and that it refuses what it does not. This is a complete one:
#![doc = concat!("```\n", include_str!("../../tests/tests/third_party.rs"), "\n# fn main() {}\n```")]

mod admin;
mod background;
pub mod blocking;
mod capabilities;
mod claim;
mod clock;
mod conflict;
mod context;
mod dao;
mod erased;
mod error;
mod fence;
mod grant;
mod ident;
mod list;
mod process;
pub mod protocol;
pub mod rules;
mod service;
mod store_clock;
mod store_version;
mod wait;
mod waiters;
mod wakeup;

pub use admin::*;
pub use background::handle as library_runtime;
pub use capabilities::Capabilities;
pub use claim::{Claim, ClaimSet, Ids, IntoClaim, MAX_PERMITS, Mode};
pub use clock::Moment;
pub use conflict::{Conflict, ConflictReason, Holder, MAX_HOLDERS_LISTED};
pub use context::{
    AttemptId, ContextId, FreshContext, MAX_CONTEXT_BYTES, MAX_OWNER_BYTES, Owner, StoredContext,
};
pub use dao::{AcquireRequest, Acquired, LockDao, Released, Renewed, Withdraw, Withdrawn};
pub use erased::AnyLockDao;
pub use error::{
    BackendError, BackendErrorKind, BadRequest, CallbackError, Failure, LockError, LockLost, LockingError,
    Phase, TimedOut,
};
pub use fence::{ExclusiveFence, FenceGuard, SharedFence, StaleFence};
pub use grant::{Grant, Granted, Lock, LossReason, LostLock, Offer};
pub use ident::{Ident, MAX_ID_BYTES, Target};
pub use list::{List, ListIter};
pub use service::{
    Admin, Builder, Call, CallbackResult, Ended, ErrOf, Event, Held, LockGuard, LockingService, OkOf,
    renew_all,
};
pub use store_clock::StoreClock;
pub use store_version::{ProgramTooOld, StoreFit, StoreVersion};
pub use wait::{Backoff, Exponential, Interval, Wait};
pub use waiters::Waiters;
pub use wakeup::{Wake, WakeSender, Wakeup};
