//! The store of who holds what: the one trait that a backend implements.

use std::{fmt, time::Duration};

use crate::{
    AttemptId, BackendError, BackendErrorKind, BreakMode, Broken, Capabilities, ClaimSet, Conflict,
    ContextId, Finding, Grant, Granted, Ident, Inspection, Listing, LostLock, Moment, Owner, Page, Swept,
    Target, Uuid, Wakeup,
};

/// One try to take a whole set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcquireRequest<I, C> {
    /// The context that asks.
    pub context: C,
    /// The attempt of the context. A request sent again with the same attempt is the same try: it
    /// keeps its place in the queue and finds what was granted to it in the meantime, which from then on lasts
    /// for a whole lease, though it was offered for less.
    pub attempt: AttemptId,
    /// The claims: all of them are granted or none.
    pub claims: ClaimSet<I>,
    /// The time for which the locks last unless renewed; `None` is for ever, where
    /// [`permanent`](Capabilities::permanent) is declared.
    pub lease: Option<Duration>,
    /// For people to read: a worker's name, host, purpose. At most
    /// [`MAX_OWNER_BYTES`](crate::MAX_OWNER_BYTES) bytes.
    pub owner: Owner,
    /// Take a place in the queue instead of a refusal. Only where [`fifo`](Capabilities::fifo) is declared.
    pub queue: bool,
    /// The caller already holds locks: it obeys holders but no queue, otherwise nesting and queueing
    /// deadlock.
    pub nested: bool,
    /// The locks belong to no process: only their lease ends them, not the death of who took them.
    pub detached: bool,
}

/// The outcome of an [`AcquireRequest`].
#[derive(Debug)]
pub enum Acquired<I, C> {
    /// All of it is held; in the order of the claims.
    Granted(Vec<Granted>),
    /// Nothing of it was taken, and what the context held before is as it was. Every id that is in the
    /// way is listed.
    Refused(Vec<Conflict<I, C>>),
    /// Nothing of it was taken yet: the request has a place in the queue.
    Queued {
        /// Every id that is in the way.
        conflicts: Vec<Conflict<I, C>>,
        /// Wakes when the turn has come.
        wakeup: Wakeup,
        /// Ask again with the same attempt after this long though nothing woke, to keep the place and as
        /// a safety net; `None` where the place needs no keeping and no wake-up is ever missed.
        recheck: Option<Duration>,
    },
}

impl<I, C> Acquired<I, C> {
    /// Returns it, unless it grants another number of claims than were asked for.
    pub(crate) fn checked(self, claims: usize) -> Result<Self, BackendError> {
        match &self {
            Acquired::Granted(granted) if granted.len() != claims => {
                let bug =
                    format!("a bug of the backend: {} locks granted for {claims} claims", granted.len());
                // Whatever it holds by now is withdrawn.
                Err(BackendError::new(BackendErrorKind::Other, bug).possibly_done())
            }
            _ => Ok(self),
        }
    }
}

/// The way to withdraw a try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Withdraw {
    /// Leave the queue, but keep the set if it was granted by now.
    KeepIfGranted,
    /// Leave the queue, free what the attempt got, and refuse the request if it arrives only now.
    Undo,
}

/// The outcome of a withdrawal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Withdrawn {
    /// The attempt has no place and holds nothing.
    Left,
    /// It was granted before it could leave (only with [`Withdraw::KeepIfGranted`]), in the order of the
    /// claims. The lease runs from some time before now: renew at once.
    Holds(Vec<Granted>),
}

/// The outcome of a renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewed<I = String> {
    /// The locks that were not extended, and why. Everything else lasts for a whole lease from [`since`](Self::since).
    pub lost: Vec<LostLock<I>>,
    /// The moment from which that lease counts, if an earlier request of this process extended it together with others; `None`: from
    /// the call. It is not further back than a fifth of the lease.
    pub since: Option<Moment>,
}

impl<I> Renewed<I> {
    /// Returns the outcome of a renewal that was made for this call.
    pub fn now(lost: Vec<LostLock<I>>) -> Self {
        Renewed { lost, since: None }
    }
}

/// The outcome of a release.
#[derive(Clone, Debug)]
pub struct Released<I = String> {
    /// The locks that the grant no longer held, and why: released before, expired, broken, vanished.
    pub lost: Vec<LostLock<I>>,
    /// The targets that are still held because they could not be freed.
    pub failed: Vec<(Target<I>, BackendError)>,
}

/// The store of who holds what; one implementation per backend.
///
/// Everything else - waiting, callbacks, renewal, loss, outcomes - is the
/// [`LockingService`](crate::LockingService), written once over any implementation.
///
/// Requests reach a backend checked: claims are valid, unique, ordered by stored form and at most
/// [`max_ids`](Capabilities::max_ids), the lease is at least [`min_lease`](Capabilities::min_lease), and
/// nothing asks for what the backend does not declare (administration excepted, which the default bodies
/// refuse).
///
/// # Cancel safety
/// Any future of this trait may be dropped at any await point. The step then took place or not: after
/// [`acquire`](Self::acquire) the service sends [`withdraw`](Self::withdraw), after
/// [`release`](Self::release) it sends the release again.
pub trait LockDao<I: Ident = String, C: ContextId = Uuid>: fmt::Debug + Send + Sync + 'static {
    /// Returns what this backend can do. Never changes during the life of the value.
    fn capabilities(&self) -> Capabilities;

    /// Takes the whole set for the context, or nothing of it, in one atomic step and one round trip.
    ///
    /// - Expired holders are gone: of any number of contenders for what they held exactly one wins.
    /// - *Exclusive* excludes everything; *shared* excludes only exclusive; a *slot* claim is granted
    ///   while the id has no exclusive holder and the permits held by others plus its own are at most
    ///   its own limit. Earlier waiters come first, see [`rules::passes`](crate::rules::passes).
    /// - A context asking again in the same or a weaker mode (`Shared < Slots < Exclusive`; the same number
    ///   of permits) succeeds, keeps the stronger mode and its fence, refreshes the lease, takes no second
    ///   unit, and obeys no queue. A stronger mode or another number of permits is granted under a new
    ///   fence only if no other context blocks, and is never queued for.
    /// - Every new grant's fence is `max(previous + 1, store clock in microseconds)` or greater, chosen
    ///   when the id cannot be granted to another context; never lower than any earlier one of the id, though
    ///   it was released, expired, swept, broken, or the store restarted or lost its data.
    ///
    /// # Errors
    /// [`BackendError`] for anything but contention. Its [`in_doubt`](BackendError::in_doubt) says whether
    /// the set may have been taken all the same.
    fn acquire(
        &self,
        request: &AcquireRequest<I, C>,
    ) -> impl Future<Output = Result<Acquired<I, C>, BackendError>> + Send;

    /// Ends an attempt in one atomic step, whether its request arrived, arrives late, or never will.
    ///
    /// Afterwards it has no place in the queue. With [`Withdraw::Undo`] it holds nothing it got by itself -
    /// what the context held through an earlier attempt stays - and a request of the attempt that arrives
    /// later is refused. The next waiters are served in the same step. Idempotent. What an earlier attempt was granted comes back
    /// with the same permits, or is lost if others were granted some of them meanwhile.
    ///
    /// # Errors
    /// [`BackendError`]; the attempt may then still stand, and its lease bounds the damage.
    fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> impl Future<Output = Result<Withdrawn, BackendError>> + Send;

    /// Frees what the grant holds, in one round trip, and serves the next waiters in the same atomic step.
    ///
    /// Conditioned on context *and* fence: it never frees what another context, or a later grant of the same
    /// context, holds. Idempotent: what is not held is reported in [`Released::lost`] and is no error.
    ///
    /// # Errors
    /// [`BackendError`] if nothing is known to have been freed.
    fn release(&self, grant: &Grant<I, C>) -> impl Future<Output = Result<Released<I>, BackendError>> + Send;

    /// Extends what the grant still holds to a whole lease from now, in one round trip, and reports the
    /// rest. Never brings a lock back to life, nor lets one end sooner; after the release it changes nothing. A lock
    /// that was broken is not extended.
    ///
    /// # Errors
    /// [`BackendError`]; leases run on as they were, or as extended if it is in doubt.
    fn renew(&self, grant: &Grant<I, C>) -> impl Future<Output = Result<Renewed<I>, BackendError>> + Send;

    /// Has what the grant still holds end a whole lease from now, also if it would last longer, and reports the rest. As
    /// [`renew`](Self::renew) otherwise. Only a holder calls it that no longer relies on its lease.
    ///
    /// The default renews: what lasts longer goes on to do so. A backend that declares [`shortening`](Capabilities::shortening)
    /// cuts it short.
    ///
    /// # Errors
    /// [`BackendError`]; leases run on as they were, or as changed if it is in doubt.
    fn shorten(&self, grant: &Grant<I, C>) -> impl Future<Output = Result<Renewed<I>, BackendError>> + Send {
        self.renew(grant)
    }

    /// Frees everything that a context holds and takes it from every queue; for administration and
    /// restarts. Finds all of it, never through an eventually consistent read; may be slow.
    ///
    /// # Errors
    /// [`BackendError`]; `Unsupported` unless [`listing`](Capabilities::listing) is declared.
    fn release_context(
        &self,
        _context: &C,
    ) -> impl Future<Output = Result<Vec<Target<I>>, BackendError>> + Send {
        async { Err(BackendError::unsupported("release_context")) }
    }

    /// Lists the ids that are held, queued for or frozen, by pages. What cannot be read of one, as another program may have
    /// written it, is said in [`Inspection::unreadable`], and hides no other.
    ///
    /// # Errors
    /// [`BackendError`]; `Unsupported` unless [`listing`](Capabilities::listing) is declared.
    fn list(&self, _page: &Page) -> impl Future<Output = Result<Listing<I, C>, BackendError>> + Send {
        async { Err(BackendError::unsupported("list")) }
    }

    /// Everything that the store knows of one id.
    ///
    /// # Errors
    /// [`BackendError`]; `Unsupported` unless [`listing`](Capabilities::listing) is declared.
    fn inspect(
        &self,
        _target: &Target<I>,
    ) -> impl Future<Output = Result<Inspection<I, C>, BackendError>> + Send {
        async { Err(BackendError::unsupported("inspect")) }
    }

    /// Breaks the lock that is held on the id under exactly this fence, and records who did.
    ///
    /// # Errors
    /// [`BackendError`]; `Unsupported` unless [`breaking`](Capabilities::breaking) is declared.
    fn break_lock(
        &self,
        _target: &Target<I>,
        _fence: u64,
        _how: BreakMode,
        _by: &str,
    ) -> impl Future<Output = Result<Broken, BackendError>> + Send {
        async { Err(BackendError::unsupported("break_lock")) }
    }

    /// Freezes an id, so that it is granted to no other context (holders keep, renew and release it), or thaws it and
    /// serves its waiters.
    ///
    /// # Errors
    /// [`BackendError`]; `Unsupported` unless [`breaking`](Capabilities::breaking) is declared.
    fn freeze(
        &self,
        _target: &Target<I>,
        _frozen: bool,
    ) -> impl Future<Output = Result<(), BackendError>> + Send {
        async { Err(BackendError::unsupported("freeze")) }
    }

    /// Removes at most `batch` expired locks, places and marks; never a live one. With `unless_within`
    /// only if the namespace was not swept within that time, so that one process of many does it.
    ///
    /// # Errors
    /// [`BackendError`]; `Unsupported` unless [`sweeping`](Capabilities::sweeping) is declared.
    fn sweep(
        &self,
        _batch: usize,
        _unless_within: Option<Duration>,
    ) -> impl Future<Output = Result<Swept, BackendError>> + Send {
        async { Err(BackendError::unsupported("sweep")) }
    }

    /// Creates or migrates the schema; does nothing where it is current.
    ///
    /// # Errors
    /// [`BackendError`].
    fn migrate(&self) -> impl Future<Output = Result<(), BackendError>> + Send {
        async { Ok(()) }
    }

    /// Looks at the store for what would weaken a promise.
    ///
    /// # Errors
    /// [`BackendError`] if it could not be looked at.
    fn doctor(&self) -> impl Future<Output = Result<Vec<Finding>, BackendError>> + Send {
        async { Ok(Vec::new()) }
    }

    /// Tries for so long whether the store keeps its promises on the way from here, together with all processes that do so at the same
    /// time. It touches no lock.
    ///
    /// # Errors
    /// [`BackendError`] if it could not be tried; [`Unsupported`](crate::BackendErrorKind::Unsupported) where a server decides, whatever
    /// the way to it.
    fn verify(&self, _time: Duration) -> impl Future<Output = Result<Vec<Finding>, BackendError>> + Send {
        async { Err(BackendError::unsupported("verify")) }
    }
}
