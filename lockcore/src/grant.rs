//! What is held: locks, the grant that one call obtained, and why a lock was lost.

use std::{fmt, time::Duration};

use crate::{Claim, ClaimSet, List, Mode, Target, Uuid};

/// What a backend decided for one claim of a granted set, in the order of the claims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Granted {
    /// How the id is held: the mode wanted, or a stronger one that the context held before.
    pub mode: Mode,
    /// Strictly greater than the fence of every earlier grant of the id.
    pub fence: u64,
    /// The indexes of the permits held, the lowest that were free, from 0; empty unless for slots.
    pub permits: List<u32>,
    /// How many units of the id are in use after this grant: permits, or holders where it is shared.
    pub in_use: u32,
}

/// A granted claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lock<I = String> {
    /// What is held.
    pub target: Target<I>,
    /// How it is held, and by which permits.
    pub granted: Granted,
}

impl<I: Clone> Lock<I> {
    /// That it is lost.
    pub(crate) fn lost(&self, reason: LossReason) -> LostLock<I> {
        LostLock { target: self.target.clone(), fence: self.granted.fence, reason }
    }
}

/// What one call obtained: a context and its locks with their fences.
///
/// Release and renewal name the grant, so that they never touch what a later grant of the same context,
/// or any other, holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant<I = String, C = Uuid> {
    /// The holder.
    pub context: C,
    /// The locks, ordered by the stored forms of their targets.
    pub locks: List<Lock<I>>,
    /// How long each renewal lasts; `None` is for ever. At least the backend's
    /// [`min_lease`](crate::Capabilities::min_lease).
    pub lease: Option<Duration>,
}

impl<I: crate::Ident, C> Grant<I, C> {
    /// Puts what was claimed and what was granted together. Both have the same length and order; the service refuses
    /// the answer of a backend that grants another number than was claimed. What has no counterpart is left out.
    #[inline(always)]
    pub fn new(context: C, claims: ClaimSet<I>, mut granted: List<Granted>, lease: Option<Duration>) -> Self {
        let mut claims = claims.into_claims();
        // Most sets have one id, and popping it is cheaper than an iterator.
        if claims.len() == 1
            && let (Some(claim), Some(granted)) = (claims.pop(), granted.pop())
        {
            let lock = Lock { target: claim.target, granted };
            return Grant { context, locks: List::one(lock), lease };
        }
        Grant { context, locks: join(claims, granted), lease }
    }
}

#[inline(never)]
fn join<I>(claims: List<Claim<I>>, granted: List<Granted>) -> List<Lock<I>> {
    // Exactly as many: the next power of two is often beyond the allocator's fast sizes.
    let mut locks = List::with_capacity(claims.len());
    let both = claims.into_iter().zip(granted);
    locks.extend(both.map(|(claim, granted)| Lock { target: claim.target, granted }));
    locks
}

/// A grant that the store pushed to a waiter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// What was granted, in the order of the claims.
    pub granted: List<Granted>,
    /// How long the offer certainly lasts unless it is renewed, from when it is [sent](crate::WakeSender::send) or from
    /// the [moment](crate::WakeSender::send_as_of) given with it; `None` only if the locks are permanent.
    pub remaining: Option<Duration>,
}

/// Why a lock is no longer held.
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
    /// What was held.
    pub target: Target<I>,
    /// The fence it was held under.
    pub fence: u64,
    /// Why it is gone.
    pub reason: LossReason,
}
