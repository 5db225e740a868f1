//! Locks for sets of ids, in a store that has none of its own.
//!
//! Being built; see the modules.

mod admin;
mod capabilities;
mod claim;
mod conflict;
mod context;
mod dao;
mod error;
mod grant;
mod ident;
pub mod rules;
mod wakeup;

pub use admin::*;
pub use capabilities::Capabilities;
pub use claim::{Claim, ClaimSet, Ids, IntoClaim, Mode};
pub use conflict::{Conflict, ConflictReason, Holder, MAX_HOLDERS_LISTED};
pub use context::{
    AttemptId, ContextId, FreshContext, MAX_CONTEXT_BYTES, MAX_OWNER_BYTES, Owner, StoredContext,
};
pub use dao::{AcquireRequest, Acquired, LockDao, Released, Renewed, Withdraw, Withdrawn};
pub use error::{
    BackendError, BackendErrorKind, BadRequest, Failure, LockError, LockLost, LockingError, Phase, TimedOut,
};
pub use grant::{Grant, Granted, Lock, LossReason, LostLock, Offer};
pub use ident::{Ident, MAX_ID_BYTES, Target};
pub use wakeup::{Wake, WakeSender, Wakeup};
