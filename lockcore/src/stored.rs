//! From what a backend keeps in stored form to the types of its callers.

use crate::{
    AcquireRequest, BreakRecord, Conflict, ConflictReason, ContextId, Grant, HeldBy, Holder, Ident,
    Inspection, LossReason, LostLock, StoredContext, Target, WaitingFor,
};

impl<S: AsRef<str>> StoredContext<S> {
    /// Converts a context in stored form to the caller's type; one that is not of that type is foreign.
    ///
    /// ```
    /// use lockcore::{StoredContext, Uuid};
    ///
    /// let stored = StoredContext::Known("another program".to_owned());
    /// assert_eq!(stored.typed::<Uuid>(), StoredContext::Foreign("another program".to_owned()));
    /// ```
    #[must_use]
    pub fn typed<C: ContextId>(&self) -> StoredContext<C> {
        match self {
            StoredContext::Known(stored) => StoredContext::read(stored.as_ref()),
            StoredContext::Foreign(stored) => StoredContext::read(stored),
        }
    }
}

impl<S: AsRef<str>> ConflictReason<S> {
    /// Converts a reason whose contexts are in stored form.
    #[must_use]
    pub fn typed<C: ContextId>(self) -> ConflictReason<C> {
        match self {
            ConflictReason::Held { holders, count, in_use } => {
                let holders = holders.into_iter().map(|holder| Holder {
                    context: holder.context.typed(),
                    owner: holder.owner,
                    mode: holder.mode,
                    fence: holder.fence,
                    remaining: holder.remaining,
                });
                ConflictReason::Held { holders: holders.collect(), count, in_use }
            }
            ConflictReason::QueuedBehind { head, count } => {
                ConflictReason::QueuedBehind { head: head.typed(), count }
            }
            ConflictReason::Frozen => ConflictReason::Frozen,
        }
    }
}

impl Inspection<String, String> {
    /// Converts an inspection whose target and contexts are in stored form.
    #[must_use]
    pub fn typed<I: Ident, C: ContextId>(self) -> Inspection<I, C> {
        let target = match self.target {
            Ok(target) => target.stored().into_owned(),
            Err(stored) => stored,
        };
        let holders = self.holders.into_iter().map(|holder| HeldBy {
            context: holder.context.typed(),
            owner: holder.owner,
            mode: holder.mode,
            permits: holder.permits,
            fence: holder.fence,
            since: holder.since,
            lease: holder.lease,
            remaining: holder.remaining,
            broken: holder.broken,
        });
        let waiters = self.waiters.into_iter().map(|waiter| WaitingFor {
            context: waiter.context.typed(),
            owner: waiter.owner,
            mode: waiter.mode,
            since: waiter.since,
        });
        let breaks = self.breaks.into_iter().map(|broken| BreakRecord {
            context: broken.context.typed(),
            fence: broken.fence,
            by: broken.by,
            at: broken.at,
            now: broken.now,
        });
        Inspection {
            holders: holders.collect(),
            waiters: waiters.collect(),
            frozen: self.frozen,
            breaks: breaks.collect(),
            unreadable: self.unreadable,
            target: Target::from_stored(&target).ok_or(target),
        }
    }
}

impl<I: Ident, C: ContextId> AcquireRequest<I, C> {
    /// Returns the conflicts of this request, of which the position of the claim and the reason are known.
    #[must_use]
    pub fn conflicts<S: AsRef<str>>(&self, reasons: Vec<(usize, ConflictReason<S>)>) -> Vec<Conflict<I, C>> {
        let conflict = |(position, reason): (usize, ConflictReason<S>)| Conflict {
            target: self.claims[position].target.clone(),
            reason: reason.typed(),
        };
        reasons.into_iter().map(conflict).collect()
    }
}

impl<I: Ident, C> Grant<I, C> {
    /// Returns what was lost of this grant, of which the position of the lock and the reason are known.
    #[must_use]
    pub fn losses(&self, losses: Vec<(usize, LossReason)>) -> Vec<LostLock<I>> {
        losses.into_iter().map(|(position, reason)| self.locks[position].lost(reason)).collect()
    }
}
