//! Conflicts, the reasons why a set was refused: per id, who is in the way.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use crate::{ContextId, Ident, Mode, Owner, StoredContext, Target, Uuid};

/// The most holders that a [`Conflict`] lists; it always counts all of them.
pub const MAX_HOLDERS_LISTED: usize = 8;

/// A holder as a refusal shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder<C> {
    /// The holder's context.
    pub context: StoredContext<C>,
    /// The owner label, empty if there is none.
    pub owner: Owner,
    /// The mode in which it holds the id.
    pub mode: Mode,
    /// The fence it is held under; 0 for a foreign holder that has none.
    pub fence: u64,
    /// The rest of its lease, unless it is renewed, when the store answered or the wait ended; `None` is for ever.
    pub remaining: Option<Duration>,
}

impl<C> Holder<C> {
    /// Returns when it was granted the id, by the store's clock: the fence says so, which is the time in microseconds unless an earlier
    /// one was higher. Where only an estimate of the store's clock is known it may be some seconds too late. `None` for a foreign holder
    /// that has no fence.
    pub fn since(&self) -> Option<SystemTime> {
        let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(self.fence));
        since.filter(|_| self.fence > 0)
    }
}

/// One id of a refused set that was in the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict<I = String, C = Uuid> {
    /// The id.
    pub target: Target<I>,
    /// The reason why the claim was not granted.
    pub reason: ConflictReason<C>,
}

/// The reason why a claim was not granted. Contention only: that a backend failed is a
/// [`BackendError`](crate::BackendError).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConflictReason<C> {
    /// Others hold it.
    Held {
        /// At most [`MAX_HOLDERS_LISTED`] of them, those first whose lease ends last.
        holders: Vec<Holder<C>>,
        /// The number of holders.
        count: usize,
        /// The number of units in use: permits, or holders where it is shared.
        in_use: u32,
    },
    /// The claim would fit, but earlier waiters come first.
    QueuedBehind {
        /// The waiter at the head.
        head: StoredContext<C>,
        /// The number of waiters that come first.
        count: usize,
    },
    /// An administrator froze it: it is granted to no other context until it is thawed.
    Frozen,
}

impl<I: Ident, C: ContextId> fmt::Display for Conflict<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.target, self.reason)
    }
}

impl<C: ContextId> fmt::Display for ConflictReason<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConflictReason::Held { holders, count, in_use } => {
                f.write_str("held by ")?;
                for (position, holder) in holders.iter().enumerate() {
                    let comma = if position == 0 { "" } else { ", " };
                    write!(f, "{comma}{}", holder.context)?;
                    if !holder.owner.label().is_empty() {
                        write!(f, " ({})", holder.owner)?;
                    }
                    write!(f, " {}", holder.mode)?;
                    match holder.remaining {
                        Some(Duration::ZERO) => f.write_str(" with no lease left")?,
                        Some(remaining) => write!(f, " for {remaining:.1?} more")?,
                        None => {}
                    }
                }
                match count.saturating_sub(holders.len()) {
                    0 => {}
                    more => write!(f, " and {more} more holders")?,
                }
                write!(f, ", {in_use} in use")
            }
            ConflictReason::QueuedBehind { head, count } => {
                write!(f, "free but queued for {count} earlier waiters, {head} first")
            }
            ConflictReason::Frozen => f.write_str("frozen by an administrator"),
        }
    }
}
