//! The state of a namespace, as a step reads and writes it.

use std::{borrow::Borrow, hash::Hash, time::Duration};

use crate::{
    AcquireRequest, AttemptId, ContextId, Ident, LossReason, Mode, Target,
    rules::{Admission, InUse},
};

/// One try to take a set, in the forms of a backend.
pub trait Request {
    /// An id.
    type Id;
    /// A holder of ids.
    type Context;

    /// Returns who asks.
    fn context(&self) -> &Self::Context;

    /// Returns which try of the context this is.
    fn attempt(&self) -> AttemptId;

    /// Returns whether the caller already holds locks: it obeys holders only.
    fn nested(&self) -> bool;

    /// Returns whether it takes a place instead of a refusal.
    fn queue(&self) -> bool;

    /// Returns what is wanted, each id once.
    fn claims(&self) -> impl Iterator<Item = (&Self::Id, Mode)>;
}

impl<I: Ident, C: ContextId> Request for AcquireRequest<I, C> {
    type Id = Target<I>;
    type Context = C;

    fn context(&self) -> &C {
        &self.context
    }

    fn attempt(&self) -> AttemptId {
        self.attempt
    }

    fn nested(&self) -> bool {
        self.nested
    }

    fn queue(&self) -> bool {
        self.queue
    }

    fn claims(&self) -> impl Iterator<Item = (&Target<I>, Mode)> {
        self.claims.iter().map(|claim| (&claim.target, claim.mode))
    }
}

/// The outline of an id: enough to know what else to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Look {
    /// Some hold it.
    pub held: bool,
    /// Some wait for it.
    pub waited_for: bool,
    /// An administrator froze it.
    pub frozen: bool,
}

/// One holder of an id, as others see it.
#[derive(Clone, Copy, Debug)]
pub struct Held<'t, C> {
    /// Its context.
    pub context: &'t C,
    /// The owner label.
    pub owner: &'t str,
    /// The mode in which the id is held.
    pub mode: Mode,
    /// The indexes of its permits.
    pub permits: &'t [u32],
    /// The fence it is held under.
    pub fence: u64,
    /// The rest of the lease; `None` is for ever.
    pub remaining: Option<Duration>,
}

/// The lock that the asking context has on an id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Own {
    /// The attempt that was granted it.
    pub attempt: AttemptId,
    /// The mode in which the id is held.
    pub mode: Mode,
    /// The indexes of its permits.
    pub permits: Vec<u32>,
    /// The fence it is held under.
    pub fence: u64,
    /// The lease lasts for certain. Otherwise it may have ended: it keeps others out, and its context cannot go on with it.
    pub lasts: bool,
    /// An administrator broke it: it is not extended.
    pub broken: bool,
}

/// A new lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct New {
    /// The fence of the grant.
    pub fence: u64,
    /// The mode in which the id is held.
    pub mode: Mode,
    /// The indexes of its permits.
    pub permits: Vec<u32>,
    /// The units in use with it.
    pub in_use: u32,
}

/// The state that an id of a context goes back to if a grant is undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Back {
    /// Nothing: what it may hold of the id is over.
    ToNothing,
    /// The lock that it holds now.
    ToOwn,
    /// The lock before that one, which the same attempt was granted.
    ToBeforeOwn,
}

/// The terms on which a set is granted.
#[derive(Debug)]
pub struct Terms<'r, R> {
    /// The request.
    pub request: &'r R,
    /// It is handed over to the waiter with this ticket, who has to confirm it.
    pub offer: Option<u64>,
}

/// A waiter in the queue of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Its place in every queue, from 1; lower is earlier.
    pub ticket: u64,
    /// The mode in which it wants the id.
    pub mode: Mode,
}

/// The state of a namespace.
///
/// Leases are the table's: it decides when one is over, and what is over it neither shows nor leaves in the way. Where it comes
/// upon such a holder it removes it, and notes the [room](Self::room) that this makes. A table that knows of dead processes
/// does so with their holders and waiters too, when it is asked.
pub trait Table {
    /// The reason why the state cannot be read or written.
    type Error;
    /// An id.
    type Id: Clone + Eq + Hash;
    /// A holder of ids.
    type Context: Clone + Eq;
    /// A request for ids.
    type Request: Request<Id = Self::Id, Context = Self::Context>;
    /// The request of a waiter.
    type Waiter: Borrow<Self::Request>;

    /// Looks at an id. Holders whose lease is over are removed before.
    fn look(&mut self, id: &Self::Id) -> Result<Look, Self::Error>;

    /// Returns the holders of an id.
    fn holders(
        &mut self,
        id: &Self::Id,
    ) -> Result<impl Iterator<Item = Held<'_, Self::Context>>, Self::Error>;

    /// Returns what the holders of an id, or all but one of them, use together.
    fn in_use(&mut self, id: &Self::Id, but: Option<&Self::Context>) -> Result<InUse, Self::Error> {
        let others = self.holders(id)?.filter(|held| but != Some(held.context));
        Ok(InUse::of(others.map(|held| held.mode)))
    }

    /// Returns what a context holds of an id.
    fn own(&mut self, id: &Self::Id, context: &Self::Context) -> Result<Option<Own>, Self::Error>;

    /// Returns what the context held before its last grant of the id, if that could go on.
    fn replaced(&mut self, id: &Self::Id, context: &Self::Context) -> Result<Option<Own>, Self::Error>;

    /// Returns the ticket of an attempt, if it has a place.
    fn ticket(&mut self, request: &Self::Request) -> Result<Option<u64>, Self::Error>;

    /// Returns the first waiter for an id behind a ticket: of the nested ones, or of the others that `admission` admits.
    fn next(
        &mut self,
        id: &Self::Id,
        nested: bool,
        admission: Admission,
        behind: u64,
    ) -> Result<Option<Turn>, Self::Error>;

    /// Returns the first waiter for an id before a ticket, nested or not, that a claim in this mode may not
    /// [pass](crate::rules::passes).
    fn blocker(&mut self, id: &Self::Id, mode: Mode, before: u64) -> Result<Option<Turn>, Self::Error>;

    /// Counts these waiters.
    fn count_blockers(&mut self, id: &Self::Id, mode: Mode, before: u64) -> Result<usize, Self::Error>;

    /// Returns the context of a waiter, of whom the table told in this step.
    fn context_of(&mut self, ticket: u64) -> Result<Self::Context, Self::Error> {
        Ok(self.waiter(ticket)?.borrow().context().clone())
    }

    /// Returns what a waiter wants, of whom the table told in this step.
    fn waiter(&mut self, ticket: u64) -> Result<Self::Waiter, Self::Error>;

    /// Returns whether an attempt was withdrawn.
    fn is_withdrawn(&mut self, request: &Self::Request) -> Result<bool, Self::Error>;

    /// Returns why nothing is held of an id under a fence.
    fn why_missing(&mut self, id: &Self::Id, fence: u64) -> Result<LossReason, Self::Error>;

    /// Removes all holders whose lease is over, where that is not done by [`look`](Self::look).
    fn remove_ended(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Removes the holders of an id whose processes have ended, and returns whether there were any. Asked only of holders that are
    /// in the way.
    fn remove_dead(&mut self, _id: &Self::Id) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Returns whether the place of a waiter still counts. Otherwise it is removed, and the [room](Self::room) behind it is noted.
    fn still_waits(&mut self, _ticket: u64) -> Result<bool, Self::Error> {
        Ok(true)
    }

    /// Returns whether this step may hand over one more set. Otherwise the [room](Self::room) for others is left when it ends,
    /// and is to be served by another step: one that kept others out for long would cost them more than these wait for it.
    fn may_hand_over(&self) -> bool {
        true
    }

    /// Begins a grant, and returns its fence.
    fn new_fence(&mut self, terms: &Terms<'_, Self::Request>) -> Result<u64, Self::Error>;

    /// Has the context of a request hold an id, in place of what it may hold of it.
    fn hold(
        &mut self,
        id: &Self::Id,
        new: New,
        back: Back,
        terms: &Terms<'_, Self::Request>,
    ) -> Result<(), Self::Error>;

    /// Has the context go on holding an id for the lease of a request. A longer lease is not cut short. An offer may leave
    /// that to its confirmation.
    fn keep(&mut self, id: &Self::Id, terms: &Terms<'_, Self::Request>) -> Result<(), Self::Error>;

    /// Removes what a context holds of an id under a fence. Returns why it was not held any more, if so.
    fn free(
        &mut self,
        id: &Self::Id,
        context: &Self::Context,
        fence: u64,
    ) -> Result<Option<LossReason>, Self::Error>;

    /// Removes what a context holds of an id, and [what it replaced](Self::replaced), or `restores` that.
    fn undo(&mut self, id: &Self::Id, context: &Self::Context, restores: bool) -> Result<(), Self::Error>;

    /// Gives a request a place at the end of all its queues, or goes on with the one it has.
    fn queue(&mut self, request: &Self::Request, ticket: Option<u64>) -> Result<(), Self::Error>;

    /// Removes a place from all its queues.
    fn leave(&mut self, ticket: u64) -> Result<(), Self::Error>;

    /// Removes the place of a waiter whose set was granted, and notes that it is to be notified.
    fn hand_over(&mut self, ticket: u64, granted: Vec<crate::Granted>) -> Result<(), Self::Error>;

    /// Has later requests of an attempt refused.
    fn withdraw(&mut self, request: &Self::Request) -> Result<(), Self::Error>;

    /// Returns the notes of [room](Self::room).
    fn rooms(&mut self) -> &mut Vec<(Self::Id, u64)>;

    /// Notes that there is more room on an id for the waiters behind a ticket; those before it are no better off. An id without
    /// waiters may be left out.
    fn room(&mut self, id: &Self::Id, behind: u64) {
        let note = (id.clone(), behind);
        self.rooms().push(note);
    }
}
