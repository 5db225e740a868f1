//! One attempt to take a set, from the checked request to the hold, and its withdrawal on every other way.

use std::{any::TypeId, sync::Arc, time::Duration};

use uuid::Uuid;

use super::{
    Inner,
    cleanup::Cleanup,
    door::Forked,
    hold::{Hold, ServiceRef},
    hold_core::HoldCore,
    keep_for::KeepFor,
    lease::Lease,
    metrics::{Stopwatch, count},
    nesting,
    observe::{CallSpan, Event},
    open::Ticket,
    settings::Settings,
};
use crate::{
    AcquireRequest, Acquired, AttemptId, BackendError, BadRequest, Capabilities, ClaimSet, Conflict,
    ContextId, Failure, Grant, Granted, Ident, List, LockDao, LockError, LockingError, MAX_CONTEXT_BYTES,
    Mode, Offer, Phase, TimedOut, Withdraw, Withdrawn,
    claim::Claim,
    clock::{Moment, within},
    rules::InUse,
    wait::Strategy,
};

/// For how long a caller whose time is over waits for the answer what it leaves with.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Why a request has no answer.
pub(crate) enum Unanswered {
    Failed(BackendError),
    TimedOut,
}

/// One attempt on its way. Dropping it withdraws what is not settled.
///
/// Invariant A1: from before a request is sent until its answer settles it, `in_doubt` is set; so on every way out,
/// also if the future is dropped, either the answer is known or the attempt is withdrawn.
pub(crate) struct Attempt<'s, I: Ident, C: ContextId, D: LockDao<I, C>> {
    /// `None` once it became a hold.
    service: Option<ServiceRef<'s, I, C, D>>,
    request: Option<AcquireRequest<I, C>>,
    /// `None` once it became a hold.
    ticket: Option<Ticket>,
    in_doubt: bool,
    /// A request of it failed in doubt: it may still arrive, whatever a later one was answered.
    unsettled: bool,
    /// The last answer was a place in the queue.
    queued: bool,
    max_hold: Option<Duration>,
    /// Of the hold; that of the request is longer if the set is to be kept for longer.
    lease: Option<Duration>,
    keep_for: Option<Duration>,
    /// Measured where a lease or a limit needs it.
    sent: Option<Box<Sent>>,
    stopwatch: Stopwatch,
    pub(crate) span: CallSpan,
}

/// When requests were about to be sent.
struct Sent {
    first: Moment,
    last: Moment,
}

impl<'s, I: Ident, C: ContextId, D: LockDao<I, C>> Attempt<'s, I, C, D> {
    /// Checks what is asked for, before anything is sent.
    // Inlined, so that the attempt is made where it stays.
    #[inline(always)]
    pub(crate) fn new(
        service: ServiceRef<'s, I, C, D>,
        claims: Result<ClaimSet<I>, BadRequest>,
        settings: &Settings<C>,
    ) -> Result<Self, LockError<I, C>> {
        let claims = claims?;
        let Begun { context, given, nested } = service.begin(&claims, settings)?;
        let request = AcquireRequest {
            context,
            attempt: AttemptId::fresh(),
            claims,
            // What is kept for longer lasts for that time from the start, so that nothing has to succeed later.
            lease: settings.lease.map(|lease| lease.max(settings.keep_for.unwrap_or_default())),
            owner: settings.owner.clone(),
            queue: matches!(settings.wait.0, Strategy::Queue { .. }) && service.capabilities.fifo,
            nested,
            // What stays locked after the release may outlive this process.
            detached: settings.detached || settings.keep_for.is_some(),
        };
        let span = CallSpan::new(service.capabilities.backend, service.log_ids, &request);
        // Last of all: nothing that can panic may come between the ticket and the attempt that gives it back.
        let ticket = service.opened(&request.context, given)?;
        Ok(Attempt {
            service: Some(service),
            request: Some(request),
            ticket: Some(ticket),
            in_doubt: false,
            unsettled: false,
            queued: false,
            max_hold: settings.max_hold,
            lease: settings.lease,
            keep_for: settings.keep_for,
            sent: None,
            stopwatch: Stopwatch::start(),
            span,
        })
    }

    pub(crate) fn service(&self) -> &Arc<Inner<I, C, D>> {
        self.service.as_deref().expect("taken only when the attempt ends")
    }

    /// The backend for the request.
    pub(crate) fn dao(&self) -> Result<&D, Forked> {
        self.service().dao_for(self.request().lease)
    }

    pub(crate) fn request(&self) -> &AcquireRequest<I, C> {
        self.request.as_ref().expect("taken only when the attempt ends")
    }

    /// Sends the request and waits for the answer.
    pub(crate) async fn ask(&mut self) -> Result<Acquired<I, C>, Unanswered> {
        if self.unsettled && self.keep_for.is_some() {
            self.start_over().await.map_err(Unanswered::Failed)?;
        }
        self.asking();
        let answer = match self.dao() {
            Ok(dao) => dao.acquire(self.request()).await,
            Err(forked) => Err(forked.into()),
        };
        self.answered(answer)
    }

    /// Withdraws a request that may still arrive, and goes on with another attempt. A set that is kept is not left to be withdrawn
    /// in the end: by then none may be there to do so.
    async fn start_over(&mut self) -> Result<(), BackendError> {
        self.dao()?.withdraw(self.request(), Withdraw::Undo).await?;
        self.request.as_mut().expect("taken only when the attempt ends").attempt = AttemptId::fresh();
        (self.in_doubt, self.unsettled, self.queued) = (false, false, false); // A1
        Ok(())
    }

    pub(crate) fn asking(&mut self) {
        if self.request().lease.is_some() {
            self.sending();
        }
        self.in_doubt = true; // A1
    }

    pub(crate) fn answered(
        &mut self,
        answer: Result<Acquired<I, C>, BackendError>,
    ) -> Result<Acquired<I, C>, Unanswered> {
        match answer.and_then(|answer| answer.checked(self.request().claims.len())) {
            Ok(answer) => {
                self.queued = matches!(answer, Acquired::Queued { .. });
                self.in_doubt = self.unsettled || !matches!(answer, Acquired::Refused(_)); // A1
                Ok(answer)
            }
            Err(error) => {
                self.unsettled |= error.in_doubt();
                // A place that was taken before may still stand; without one there is nothing to withdraw.
                self.in_doubt = self.unsettled || self.queued;
                Err(Unanswered::Failed(error))
            }
        }
    }

    /// The same, but waits no longer than what is left of `limit`, which counts from the first request.
    pub(crate) async fn ask_within(&mut self, limit: Duration) -> Result<Acquired<I, C>, Unanswered> {
        self.sending();
        let left = self.left_of(limit);
        within(left, self.ask()).await.unwrap_or(Err(Unanswered::TimedOut))
    }

    /// How much is left of `limit`, which counts from the first request.
    pub(crate) fn left_of(&self, limit: Duration) -> Duration {
        self.sent.as_ref().map_or(limit, |sent| sent.first.left_of(limit))
    }

    fn sending(&mut self) {
        self.counts_from(Moment::now());
    }

    /// What is granted next counts from `now`.
    fn counts_from(&mut self, now: Moment) {
        match &mut self.sent {
            Some(sent) => sent.last = now,
            None => self.sent = Some(Box::new(Sent { first: now, last: now })),
        }
    }

    /// All of it is held, for a whole lease from the last request.
    pub(crate) fn hold(&mut self, granted: List<Granted>) -> Hold<'s, I, C, D> {
        let lasts = self.request().lease;
        self.become_hold(granted, lasts, false)
    }

    /// Whether something certainly is left of the offer; if not, the request is to be sent again.
    pub(crate) fn can_rely_on(&self, offer: &Offer, as_of: Option<Moment>) -> bool {
        if self.keep_for.is_some() {
            return false; // it is kept from the start, not once it was confirmed
        }
        if offer.granted.len() != self.request().claims.len() {
            return false; // the answer to the next request says what is wrong
        }
        match (self.request().lease, offer.remaining, as_of) {
            (None, ..) => true,
            (Some(_), Some(remaining), Some(as_of)) => !as_of.left_of(remaining).is_zero(),
            _ => false,
        }
    }

    /// All of it was pushed to this waiter, in an offer that [can be relied on](Self::can_rely_on): its lease counts
    /// from the moment at which so much was left of it (L1).
    pub(crate) fn hold_offer(&mut self, offer: Offer, as_of: Option<Moment>) -> Hold<'s, I, C, D> {
        if let Some(as_of) = as_of {
            self.counts_from(as_of);
        }
        let lasts = self.request().lease.and_then(|lease| Some(lease.min(offer.remaining?)));
        self.become_hold(offer.granted, lasts, true)
    }

    pub(crate) fn hold_nothing(&mut self) -> Hold<'s, I, C, D> {
        self.become_hold(List::new(), None, false)
    }

    #[inline(always)]
    fn become_hold(
        &mut self,
        granted: List<Granted>,
        lasts: Option<Duration>,
        offered: bool,
    ) -> Hold<'s, I, C, D> {
        let late = self.unsettled.then(|| self.request().clone());
        let service = self.service.take().expect("taken only here and at the end");
        let request = self.request.take().expect("taken only here and at the end");
        let ticket = self.ticket.take().expect("taken only here and at the end");
        let lease = lasts.and_then(|lasts| {
            let sent = self.sent.as_ref().expect("measured for every request with a lease").last;
            let length = self.lease?;
            Some(Box::new(Lease::new(length, service.margin, self.max_hold, sent, lasts, granted.len())))
        });
        let grant = Grant::new(request.context, request.claims, granted, self.lease);
        let keep_for = self.keep_for.map(KeepFor::from_now);
        // First of all a hold, which releases the set whatever goes wrong after this.
        let span = self.span.take();
        let mut hold = Hold::new(service, grant, lease, keep_for, offered, ticket, span);
        if let Some(late) = late {
            hold.withdraw_late(late);
        }
        let backend = hold.service.capabilities.backend;
        count("lockcore_acquired_total", backend, "granted");
        self.stopwatch.record("lockcore_wait_seconds", backend);
        hold.span.locked(offered);
        if hold.core.lease.is_some() {
            hold.service.start_sweeper();
        }
        hold
    }

    /// The outcome of a refusal.
    pub(crate) fn refused(&mut self, conflicts: Vec<Conflict<I, C>>) -> LockError<I, C> {
        self.not_locked(conflicts.into_iter().map(Failure::Conflict).collect(), None)
    }

    /// The outcome of a failure; what is in doubt is withdrawn in the background.
    pub(crate) fn failed(&mut self, error: BackendError) -> LockError<I, C> {
        self.not_locked(vec![Failure::Backend(error)], None)
    }

    /// The outcome of an attempt that ran out of time.
    pub(crate) fn timed_out(&mut self, failures: Vec<Failure<I, C>>) -> LockError<I, C> {
        let is_outage = failures.iter().any(|failure| matches!(failure, Failure::Backend(_)));
        let phase = if is_outage { Phase::Asking } else { Phase::Waiting };
        let after = self.sent.as_ref().map(|sent| sent.first.elapsed()).unwrap_or_default();
        self.not_locked(failures, Some(TimedOut { after, phase }))
    }

    pub(crate) fn not_locked(
        &mut self,
        failures: Vec<Failure<I, C>>,
        timed_out: Option<TimedOut>,
    ) -> LockError<I, C> {
        self.service().observe(|| Event::Refused { context: &self.request().context, failures: &failures });
        LockingError::NotLocked { failures, timed_out }
    }

    /// Leaves the queue, unless the set was granted by now: then it is held.
    pub(crate) async fn give_up(
        &mut self,
        failures: Vec<Failure<I, C>>,
    ) -> Result<Hold<'s, I, C, D>, LockError<I, C>> {
        if !self.in_doubt || self.unsettled && self.keep_for.is_some() {
            return Err(self.timed_out(failures));
        }
        match within(LAST_ANSWER, self.leave_queue()).await.flatten() {
            Some(granted) => Ok(self.hold(granted)),
            None => Err(self.timed_out(failures)),
        }
    }

    async fn leave_queue(&mut self) -> Option<List<Granted>> {
        let answer = {
            let (service, request) = (self.service(), self.request());
            service.dao_for(request.lease).ok()?.withdraw(request, Withdraw::KeepIfGranted).await
        };
        match answer {
            Ok(Withdrawn::Left) => {
                self.in_doubt = self.unsettled; // A1
                None
            }
            Ok(Withdrawn::Holds(granted)) if granted.len() == self.request().claims.len() => {
                self.confirm(&granted).await.then_some(granted)
            }
            // Another number is a bug of the backend.
            Ok(Withdrawn::Holds(_)) | Err(_) => None, // still in doubt
        }
    }

    /// Renews what was granted at an unknown time, before anything relies on it.
    async fn confirm(&mut self, granted: &List<Granted>) -> bool {
        let request = self.request();
        if request.lease.is_none() {
            return true;
        }
        let grant =
            Grant::new(request.context.clone(), request.claims.clone(), granted.clone(), request.lease);
        let sent = Moment::now();
        let Ok(dao) = self.dao() else { return false };
        let renewed = dao.renew(&grant).await;
        self.counts_from(sent);
        renewed.is_ok_and(|renewed| renewed.lost.is_empty())
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Drop for Attempt<'_, I, C, D> {
    fn drop(&mut self) {
        let (Some(service), Some(request), Some(ticket)) =
            (self.service.take(), self.request.take(), self.ticket.take())
        else {
            return; // it became a hold
        };
        if !self.in_doubt {
            return service.ended(ticket);
        }
        Cleanup::Withdraw { request }.start((*service).clone(), ticket);
    }
}

/// Who asks, checked.
struct Begun<C> {
    context: C,
    /// It comes from the user, who may give one twice.
    given: bool,
    nested: bool,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    fn begin(&self, claims: &ClaimSet<I>, settings: &Settings<C>) -> Result<Begun<C>, LockError<I, C>> {
        // Before anything that a thread of the parent may have locked at the fork.
        self.dao_for(settings.lease)?;
        self.check_settings(settings)?;
        self.check_claims(claims)?;
        let mut nested = settings.nested;
        let mut held = Vec::new();
        nesting::each_enclosing(self.identity(), |around: &Arc<HoldCore<I, C>>| {
            // Around a callback on a thread of its own it may be over by now.
            if !around.is_released() {
                // An empty set gives no right to pass waiters.
                nested |= !around.grant.locks.is_empty();
                held.extend(around.grant.locks.iter().map(|lock| (lock.target.clone(), lock.granted.mode)));
            }
        });
        let is_kept_out = |claim: &&Claim<I>| {
            let modes = held.iter().filter(|(target, _)| *target == claim.target).map(|(_, mode)| *mode);
            let in_use = InUse::of(modes.clone());
            // Of two calls that hold permits and wait for more of the same id, each would wait for the other.
            let asks_for_more = matches!(claim.mode, Mode::Slots { .. })
                && modes.clone().any(|mode| matches!(mode, Mode::Slots { .. }));
            in_use != InUse::default() && (asks_for_more || !in_use.fits(claim.mode))
        };
        if let Some(claim) = claims.iter().find(is_kept_out) {
            return Err(LockingError::SelfDeadlock { target: claim.target.clone() });
        }
        let given = settings.context.is_some() || self.contexts_may_repeat;
        let context = settings.context.clone().unwrap_or_else(|| (self.make_context)());
        // Those that the library makes are known to be right.
        if TypeId::of::<C>() != TypeId::of::<Uuid>() {
            check_context(&context)?;
        }
        Ok(Begun { context, given, nested })
    }

    /// Checks that the backend can keep a lease of this length.
    pub(super) fn check_claims(&self, claims: &ClaimSet<I>) -> Result<(), BadRequest> {
        let Capabilities { backend, max_ids, slots, shared, .. } = self.capabilities;
        if claims.len() > max_ids {
            return Err(BadRequest::TooManyIds { count: claims.len(), max: max_ids, backend });
        }
        for claim in claims.iter() {
            match claim.mode {
                Mode::Shared if !shared => {
                    return Err(BadRequest::Unsupported { what: "a shared claim", backend });
                }
                Mode::Slots { .. } if !slots => {
                    return Err(BadRequest::Unsupported { what: "a slot claim", backend });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn check_context<C: ContextId>(context: &C) -> Result<(), BadRequest> {
    let stored = context.stored();
    match (1..=MAX_CONTEXT_BYTES).contains(&stored.len()) {
        true => Ok(()),
        false => Err(BadRequest::ContextLength { context: stored.into_owned() }),
    }
}
