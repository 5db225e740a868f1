//! Grants: the locks that one call obtained, and the reasons why a lock was lost.

use std::{fmt, time::Duration};

use crate::{ClaimSet, Mode, Target, Uuid};

/// The backend's decision on one claim of a granted set, in the order of the claims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Granted {
    /// The mode in which the id is held: the mode wanted, or a stronger one that the context held before.
    pub mode: Mode,
    /// Strictly greater than the fence of every earlier grant of the id. It fits into an `i64`, the BIGINT of databases: microseconds
    /// of the store's clock, or one more than the fence before.
    pub fence: u64,
    /// The indexes of the permits held, the lowest that were free, from 0; empty unless for slots.
    pub permits: Vec<u32>,
    /// The number of units of the id in use after this grant: permits, or holders where it is shared.
    pub in_use: u32,
}

/// A granted claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lock<I = String> {
    /// The target that is held.
    pub target: Target<I>,
    /// The mode and the permits with which it is held, and its fence.
    pub granted: Granted,
}

impl<I: Clone> Lock<I> {
    /// Returns the report that it is lost.
    pub(crate) fn lost(&self, reason: LossReason) -> LostLock<I> {
        LostLock { target: self.target.clone(), fence: self.granted.fence, reason }
    }
}

/// The grant that one call obtained: a context and its locks with their fences.
///
/// Release and renewal name the grant, so that they never touch what a later grant of the same context,
/// or any other, holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant<I = String, C = Uuid> {
    /// The holder.
    pub context: C,
    /// The locks, ordered by the stored forms of their targets.
    pub locks: Vec<Lock<I>>,
    /// The length of each renewal; `None` is for ever. At least the backend's
    /// [`min_lease`](crate::Capabilities::min_lease).
    pub lease: Option<Duration>,
}

impl<I: crate::Ident, C> Grant<I, C> {
    /// Puts what was claimed and what was granted together. Both have the same length and order; the service refuses
    /// the answer of a backend that grants another number than was claimed. What has no counterpart is left out.
    pub fn new(context: C, claims: ClaimSet<I>, granted: Vec<Granted>, lease: Option<Duration>) -> Self {
        let both = claims.into_claims().into_iter().zip(granted);
        let locks = both.map(|(claim, granted)| Lock { target: claim.target, granted }).collect();
        Grant { context, locks, lease }
    }
}

/// A grant that the store pushed to a waiter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The grants, in the order of the claims.
    pub granted: Vec<Granted>,
    /// The time for which the offer certainly lasts unless it is renewed, from when it is
    /// [sent](crate::WakeSender::send) or from the [moment](crate::WakeSender::send_as_of) given with it; `None` only
    /// if the locks are permanent.
    pub remaining: Option<Duration>,
}

/// The reason why a lock is no longer held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ended before it was renewed.
    Expired,
    /// An administrator broke the lock.
    Broken,
    /// The store no longer knows of it: another program removed it, or the store lost its data.
    Vanished,
    /// No renewal succeeded until the lease had to be taken as ended: the store did not answer, or refused.
    Unreachable,
    /// It was released here: a handle that outlives the locks says so.
    Released,
    /// This process was forked by the one that holds it, and has only a copy of what is known of it.
    Forked,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::Expired => "its lease ended",
            LossReason::Broken => "it was broken by an administrator",
            LossReason::Vanished => "it vanished from the store",
            LossReason::Unreachable => "it could not be renewed until its lease ended",
            LossReason::Released => "it was released",
            LossReason::Forked => "it is held by the process that forked this one",
        })
    }
}

/// A lock that is no longer held, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostLock<I = String> {
    /// The target that was held.
    pub target: Target<I>,
    /// The fence it was held under.
    pub fence: u64,
    /// The reason why it is gone.
    pub reason: LossReason,
}
