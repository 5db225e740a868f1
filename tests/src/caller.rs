//! Callers with a context each, and their places in queues.

use std::{sync::Arc, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, Claim, ClaimSet, Conflict, ConflictReason, FreshContext, Grant, Ids,
    LockDao, Mode, Owner, Released, Renewed, StoredContext,
    backend::{AcquireRequest, Acquired, AttemptId, Wake, Wakeup, Withdraw, Withdrawn},
};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::{
    PATIENCE, eventually,
    judge::{self, late},
    store::grant,
};

/// A caller that takes locks: a context, and what its requests have in common.
#[derive(Debug)]
pub struct Caller<D> {
    dao: Arc<D>,
    /// The context.
    pub context: Uuid,
    /// The lease of each request.
    pub lease: Duration,
    /// The owner label.
    pub owner: Owner,
    /// Whether the requests say that locks are already held.
    pub nested: bool,
}

impl<D> Clone for Caller<D> {
    fn clone(&self) -> Self {
        Caller {
            dao: self.dao.clone(),
            context: self.context,
            lease: self.lease,
            owner: self.owner.clone(),
            nested: self.nested,
        }
    }
}

impl<D> Caller<D> {
    /// A caller with a fresh context and this lease.
    pub fn new(dao: Arc<D>, lease: Duration) -> Self {
        Caller { dao, context: Uuid::fresh(), lease, owner: Owner::default(), nested: false }
    }
}

impl<D: LockDao<String, Uuid>> Caller<D> {
    /// The same context with another lease.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The same context, saying that it already holds locks.
    #[must_use]
    pub fn nested(mut self) -> Self {
        self.nested = true;
        self
    }

    /// The same context through another DAO.
    #[must_use]
    pub fn through<E: LockDao<String, Uuid>>(&self, dao: &Arc<E>) -> Caller<E> {
        let Caller { context, lease, owner, nested, .. } = self.clone();
        Caller { dao: dao.clone(), context, lease, owner, nested }
    }

    /// A request under a new attempt, which is refused rather than queued.
    pub fn request(&self, ids: impl Ids<String>) -> AcquireRequest<String, Uuid> {
        AcquireRequest {
            context: self.context,
            attempt: AttemptId::fresh(),
            claims: ClaimSet::new(ids, Mode::Exclusive).expect("the checks ask for valid claims"),
            lease: Some(self.lease),
            owner: self.owner.clone(),
            queue: false,
            nested: self.nested,
            detached: false,
        }
    }

    /// Sends a request; the store has to answer.
    pub async fn send(&self, request: &AcquireRequest<String, Uuid>) -> Acquired<String, Uuid> {
        answered("acquire", self.dao.acquire(request)).await
    }

    /// Asks once for the set.
    pub async fn try_take(
        &self,
        ids: impl Ids<String>,
    ) -> Result<Grant<String, Uuid>, Vec<Conflict<String, Uuid>>> {
        let request = self.request(ids);
        match self.send(&request).await {
            Acquired::Granted(granted) => Ok(grant(&request, granted)),
            Acquired::Refused(conflicts) => {
                assert!(!conflicts.is_empty(), "a refusal says what is in the way");
                Err(conflicts)
            }
            Acquired::Queued { .. } => panic!("queued, though the request said not to"),
        }
    }

    /// Takes the set, which has to be free.
    pub async fn take(&self, ids: impl Ids<String>) -> Grant<String, Uuid> {
        self.try_take(ids).await.unwrap_or_else(|conflicts| panic!("refused: {conflicts:?}"))
    }

    /// Asks for the set, which must not be free.
    pub async fn refused(&self, ids: impl Ids<String>) -> Vec<Conflict<String, Uuid>> {
        self.try_take(ids).await.map(|grant| panic!("granted: {grant:?}")).unwrap_or_else(|refused| refused)
    }

    /// Asks until the set is granted.
    pub async fn take_soon(&self, ids: impl Ids<String> + Clone) -> Grant<String, Uuid> {
        eventually("the set is granted", || async { self.try_take(ids.clone()).await.ok() }).await
    }

    /// Takes the set, or waits for it in the queue.
    pub async fn take_in_turn(&self, ids: impl Ids<String>) -> Grant<String, Uuid> {
        let mut request = self.request(ids);
        request.queue = true;
        match self.send(&request).await {
            Acquired::Granted(granted) => grant(&request, granted),
            Acquired::Queued { conflicts, wakeup, recheck } => {
                Place { caller: self.clone(), request, conflicts, wakeup, recheck }.granted().await
            }
            Acquired::Refused(conflicts) => panic!("refused, though it would wait: {conflicts:?}"),
        }
    }

    /// Takes a place in the queue for the set, which must not be free.
    pub async fn queue(&self, ids: impl Ids<String>) -> Place<D> {
        let mut request = self.request(ids);
        request.queue = true;
        match self.send(&request).await {
            Acquired::Queued { conflicts, wakeup, recheck } => {
                assert!(!conflicts.is_empty(), "a queued request says what is in the way");
                Place { caller: self.clone(), request, conflicts, wakeup, recheck }
            }
            other => panic!("not queued: {other:?}"),
        }
    }

    /// Releases; the store has to answer.
    pub async fn release(&self, grant: &Grant<String, Uuid>) -> Released<String> {
        answered("release", self.dao.release(grant)).await
    }

    /// Releases what is held as the grant says.
    pub async fn free(&self, grant: &Grant<String, Uuid>) {
        let released = self.release(grant).await;
        assert!(released.lost.is_empty() && released.failed.is_empty(), "not freed: {released:?}");
    }

    /// Renews; the store has to answer.
    pub async fn renew(&self, grant: &Grant<String, Uuid>) -> Renewed<String> {
        answered("renew", self.dao.renew(grant)).await
    }

    /// Renews what is held as the grant says.
    pub async fn keep(&self, grant: &Grant<String, Uuid>) {
        let renewed = self.renew(grant).await;
        assert!(renewed.lost.is_empty(), "lost: {renewed:?}");
    }

    /// Withdraws; the store has to answer.
    pub async fn withdraw(&self, request: &AcquireRequest<String, Uuid>, how: Withdraw) -> Withdrawn {
        answered("withdraw", self.dao.withdraw(request, how)).await
    }

    /// Sends a request that was withdrawn before: the store has to refuse it.
    pub async fn refused_as_withdrawn(&self, request: &AcquireRequest<String, Uuid>) {
        match self.dao.acquire(request).await {
            Err(error) if error.kind() == BackendErrorKind::Withdrawn => assert!(!error.in_doubt()),
            other => panic!("a withdrawn request was not refused as such: {other:?}"),
        }
    }
}

/// A place in the queue.
#[derive(Debug)]
pub struct Place<D> {
    /// Who waits.
    pub caller: Caller<D>,
    /// What was asked for.
    pub request: AcquireRequest<String, Uuid>,
    /// What was in the way.
    pub conflicts: Vec<Conflict<String, Uuid>>,
    wakeup: Wakeup,
    recheck: Option<Duration>,
}

impl<D: LockDao<String, Uuid>> Place<D> {
    /// What an answer of [`Acquired::Queued`] means to `caller`.
    pub fn new(
        caller: Caller<D>,
        request: AcquireRequest<String, Uuid>,
        conflicts: Vec<Conflict<String, Uuid>>,
        wakeup: Wakeup,
        recheck: Option<Duration>,
    ) -> Self {
        Place { caller, request, conflicts, wakeup, recheck }
    }

    /// Waits for a message, and does nothing about it.
    pub async fn notified(&mut self) -> Wake {
        self.wakeup.recv().await
    }

    /// Waits for the turn as the service does; an offer is confirmed.
    pub async fn granted(&mut self) -> Grant<String, Uuid> {
        self.granted_within(PATIENCE).await
    }

    /// The same for one whose turn may take longer: many are before it.
    pub async fn granted_within(&mut self, patience: Duration) -> Grant<String, Uuid> {
        timeout(patience, self.wait()).await.unwrap_or_else(|_| late("the turn of a waiter comes"))
    }

    /// The set was granted in the step that was taken last, and this waiter is notified of it without ever asking again,
    /// where push is declared; else waits for the turn. To be called right after a step that makes room.
    pub async fn served(&mut self) -> Grant<String, Uuid> {
        if !self.caller.dao.capabilities().push {
            return self.granted().await;
        }
        self.was_handed_over().await;
        self.offered().await
    }

    /// The same, but without another request on its ids in between, which would serve the waiters too.
    pub async fn pushed(&mut self) -> Grant<String, Uuid> {
        let declared = self.caller.dao.capabilities();
        if declared.push && declared.listing {
            self.was_handed_over().await;
        }
        if declared.push { self.offered().await } else { self.granted().await }
    }

    /// By the store's own account the set is this waiter's. Looked at without another request on its ids where that can be done,
    /// which would serve the waiters too.
    async fn was_handed_over(&self) {
        if self.caller.dao.capabilities().listing {
            for claim in self.request.claims.iter() {
                let seen = answered("inspect", self.caller.dao.inspect(&claim.target)).await;
                let me = StoredContext::Known(self.caller.context);
                let waits = seen.waiters.iter().any(|waiter| waiter.context == me);
                if waits {
                    late(format_args!(
                        "{} is handed over in the step that made room: {seen:?}",
                        claim.target
                    ));
                }
                if !seen.holders.iter().any(|holder| holder.context == me) {
                    late(format_args!("the offer is over by now: {seen:?}"));
                }
            }
            return;
        }
        let targets = || self.request.claims.iter().map(|claim| claim.target.clone());
        let mut prober = self.caller.clone();
        prober.context = Uuid::fresh();
        let probe: Vec<_> = targets().map(|target| Claim { target, mode: Mode::Exclusive }).collect();
        let Err(conflicts) = prober.try_take(probe).await else {
            late("an offer lasts until it is looked at")
        };
        let me = StoredContext::Known(self.caller.context);
        for target in targets() {
            let of_target = conflicts.iter().find(|conflict| conflict.target == target);
            let mine = of_target.is_some_and(|conflict| match &conflict.reason {
                ConflictReason::Held { holders, .. } => holders.iter().any(|holder| holder.context == me),
                _ => false,
            });
            assert!(mine, "{target} was not handed over in the step that made room: {conflicts:?}");
        }
    }

    /// Waits for an offer, without ever asking again.
    pub async fn offered(&mut self) -> Grant<String, Uuid> {
        match timeout(PATIENCE, self.wakeup.recv())
            .await
            .unwrap_or_else(|_| late("a waiter is notified of its turn"))
        {
            Wake::Offer(offer) => self.confirm(offer).await,
            Wake::Recheck => late("an offer comes while it lasts"),
        }
    }

    /// Asks again: the place is kept, and nothing was granted.
    pub async fn still_waits(&mut self) {
        if let Some(grant) = self.ask().await {
            panic!("granted out of turn: {grant:?}");
        }
    }

    /// Asks again with the same attempt: what is held by now.
    pub async fn ask(&mut self) -> Option<Grant<String, Uuid>> {
        match self.caller.send(&self.request).await {
            Acquired::Granted(granted) => Some(grant(&self.request, granted)),
            Acquired::Queued { conflicts, wakeup, recheck } => {
                self.conflicts = conflicts;
                self.wakeup = wakeup;
                self.recheck = recheck;
                None
            }
            Acquired::Refused(conflicts) => panic!("a waiter was refused: {conflicts:?}"),
        }
    }

    /// Waits for the turn by asking alone, without regard to offers.
    pub async fn asking(&mut self) -> Grant<String, Uuid> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(grant) = self.ask().await {
                return grant;
            }
            if Instant::now() >= deadline {
                late("the turn of a waiter comes");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Gives up; it must not have been granted.
    pub async fn leave(self) {
        let left = self.caller.withdraw(&self.request, Withdraw::KeepIfGranted).await;
        assert_eq!(left, Withdrawn::Left, "it was not granted, and can leave");
    }

    /// How long the place is kept without asking again; `None` is for ever.
    pub fn recheck(&self) -> Option<Duration> {
        self.recheck
    }

    async fn wait(&mut self) -> Grant<String, Uuid> {
        loop {
            let woken = match self.recheck {
                Some(recheck) => timeout(recheck, self.wakeup.recv()).await.unwrap_or(Wake::Recheck),
                None => self.wakeup.recv().await,
            };
            if let Wake::Offer(offer) = woken {
                return self.confirm(offer).await;
            }
            if let Some(grant) = self.ask().await {
                return grant;
            }
        }
    }

    async fn confirm(&self, offer: lockcore::backend::Offer) -> Grant<String, Uuid> {
        let grant = grant(&self.request, offer.granted);
        if offer.remaining.is_some() {
            let lost = self.caller.renew(&grant).await.lost;
            if !lost.is_empty() {
                late(format_args!("an offer was lost before it was confirmed: {lost:?}"));
            }
        }
        grant
    }
}

/// Waits for the store's answer. How long that took is part of how fast the machine was, on which the server may run, too. One that has no
/// time for the call is late, and fails where the machine kept up otherwise: it may have stopped for good.
async fn answered<T>(what: &str, answer: impl Future<Output = Result<T, BackendError>>) -> T {
    // Not in virtual time.
    let asked = std::time::Instant::now();
    match timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => {
            judge::answered(asked.elapsed());
            answer
        }
        Ok(Err(error)) if error.is_retryable() => late(format_args!("{what} fails: {error:?}")),
        Ok(Err(error)) => panic!("{what} fails: {error:?}"),
        Err(_) => late(format_args!("{what} answers")),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use futures_util::FutureExt;

    use super::*;
    use crate::judge::LATE;

    /// How a call panics whose store answers with a failure of this kind.
    async fn panics(kind: BackendErrorKind) -> String {
        let call = answered("acquire", async { Err::<(), _>(BackendError::new(kind, "no room")) });
        let panic = AssertUnwindSafe(call).catch_unwind().await.expect_err("it panics");
        judge::message(&*panic)
    }

    /// A store that had no time is late, one that cannot do it has failed.
    #[tokio::test]
    async fn a_busy_store_is_late() {
        let late = async |kind| panics(kind).await.starts_with(LATE);
        assert!(late(BackendErrorKind::Busy).await);
        assert!(!late(BackendErrorKind::Corrupt).await);
    }
}
