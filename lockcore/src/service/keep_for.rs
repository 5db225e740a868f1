//! Locks that stay locked after their release: [`Call::keep_for`](crate::Call::keep_for).

use std::{sync::Arc, time::Duration};

use super::{Inner, cleanup::patience, hold_core::HoldCore, observe::Event, open::Ticket};
use crate::{
    ContextId, Grant, Ident, LockDao, LostLock, background,
    clock::{self, Moment},
};

/// For how long a set stays locked at least.
#[derive(Clone, Copy)]
pub(crate) struct KeepFor {
    granted: Moment,
    at_least: Duration,
}

impl KeepFor {
    pub(crate) fn from_now(at_least: Duration) -> Self {
        KeepFor { granted: Moment::now(), at_least }
    }

    /// How much longer it is.
    pub(crate) fn left(&self) -> Duration {
        self.granted.left_of(self.at_least)
    }
}

/// A set that was released and stays locked for the rest of the time.
pub(crate) struct Kept<I: Ident, C: ContextId, D: LockDao<I, C>> {
    pub(crate) service: Arc<Inner<I, C, D>>,
    pub(crate) core: Arc<HoldCore<I, C>>,
    pub(crate) keep_for: KeepFor,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Kept<I, C, D> {
    /// Has the lease last for what is left, so that the set stays locked though this process ends. Returns what was lost before.
    pub(crate) async fn extend(&self) -> Vec<LostLock<I>> {
        let Kept { service, core, .. } = self;
        let left = self.keep_for.left();
        let lasts = core.lease.as_ref().is_none_or(|lease| lease.left() >= left);
        if lasts {
            return Vec::new();
        }
        let grant = Grant { lease: Some(left.max(service.capabilities.min_lease)), ..core.grant.clone() };
        let error = match clock::within(patience(core.grant.lease), service.dao.renew(&grant)).await {
            Some(Ok(renewed)) => return renewed.lost,
            Some(Err(error)) => Some(error),
            None => None,
        };
        service.observe(|| Event::RenewalFailed { grant: &core.grant, failures: 1, error: error.as_ref() });
        Vec::new()
    }

    /// Releases the set when the time is over, in the background, after it was extended. A failure is reported; the lease ends then
    /// or soon after. Until then the context is in use, which no shutdown waits for.
    pub(crate) fn release_later(self, ticket: Ticket, is_extended: bool) {
        self.service.open.set_aside(&ticket);
        background::shared().spawn(async move {
            if !is_extended {
                self.extend().await;
            }
            clock::sleep(self.keep_for.left()).await;
            let Kept { service, core, .. } = self;
            if let Err(error) = service.dao.release(&core.grant).await {
                service.observe(|| Event::ReleaseFailed { grant: &core.grant, error: &error });
            }
            service.ended(ticket);
        });
    }
}
