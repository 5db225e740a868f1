//! Locks for sets of ids, in a store that has none of its own.
//!
//! Being built; see the modules.

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
pub mod rules;
mod service;
mod wait;
mod wakeup;

pub use admin::*;
pub use capabilities::Capabilities;
pub use claim::{Claim, ClaimSet, Ids, IntoClaim, Mode};
pub use conflict::{Conflict, ConflictReason, Holder, MAX_HOLDERS_LISTED};
pub use context::{
    AttemptId, ContextId, FreshContext, MAX_CONTEXT_BYTES, MAX_OWNER_BYTES, Owner, StoredContext,
};
pub use dao::{AcquireRequest, Acquired, LockDao, Released, Renewed, Withdraw, Withdrawn};
pub use erased::AnyLockDao;
pub use error::{
    BackendError, BackendErrorKind, BadRequest, Failure, LockError, LockLost, LockingError, Phase, TimedOut,
};
pub use fence::{ExclusiveFence, FenceGuard, SharedFence, StaleFence};
pub use grant::{Grant, Granted, Lock, LossReason, LostLock, Offer};
pub use ident::{Ident, MAX_ID_BYTES, Target};
pub use service::{
    Admin, Builder, Call, CallbackResult, Ended, ErrOf, Event, Held, LockGuard, LockingService, OkOf,
};
pub use wait::{Backoff, Exponential, Interval, Wait};
pub use wakeup::{Wake, WakeSender, Wakeup};
