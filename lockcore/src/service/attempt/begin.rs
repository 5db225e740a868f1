//! The beginning of an attempt: its request, from checked arguments.

use std::{any::TypeId, sync::Arc};

use uuid::Uuid;

use super::{
    super::{
        Inner, hold::ServiceRef, hold_core::HoldCore, metrics::Stopwatch, nesting, observe::CallSpan,
        settings::Settings,
    },
    Attempt,
};
use crate::{
    AcquireRequest, AttemptId, BadRequest, Capabilities, ClaimSet, ContextId, Ident, LockDao, LockError,
    LockingError, MAX_CONTEXT_BYTES, Mode, claim::Claim, rules::InUse, wait::Strategy,
};

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
            // With `keep_for` the set lasts for that time from the start, so that nothing has to succeed later.
            lease: settings.lease.map(|lease| lease.max(settings.keep_for.unwrap_or_default())),
            owner: settings.owner.clone(),
            queue: matches!(settings.wait.0, Strategy::Queue { .. })
                && service.capabilities.fifo
                && !settings.once,
            nested,
            // A set that stays locked after the release may outlive this process.
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
            once: settings.once,
            ran: None,
            sent: None,
            stopwatch: Stopwatch::start(),
            span,
        })
    }
}

/// The context that asks, checked.
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

    /// Checks the number of ids and their modes against the backend's capabilities.
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
