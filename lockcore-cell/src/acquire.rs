//! A request: what precedes its step, and what becomes of it where there is no room to write.

use std::sync::Arc;

use lockcore::backend::Moment;

use crate::{
    cell::Cell,
    error::StoreError,
    step::{Request, Step, Verdict},
    store::{Prepared, Store, hosted},
    table::MAX_BYTES,
    takeover::Scope,
};

impl<C: Cell> Store<C> {
    /// Takes a step after what precedes it: the sessions in its way are read, and closed if they are over. Again, if the table was
    /// newer than what was prepared for and the request is `refused`. Goes on only while the caller waits: a step that came after the
    /// withdrawal of its attempt might outlast the tombstone.
    pub(crate) async fn acquire(self: &Arc<Self>, request: &Arc<Request>) -> Result<Verdict, StoreError> {
        let (scope, begun) = (Scope::of(request), Moment::now());
        let parts = self.parts(request.ids());
        // A set whose cells are not known is free, as a rule: nothing is read for that.
        let mut is_first = self.is_apart() && self.known(&parts).is_none();
        loop {
            let prepared = match std::mem::take(&mut is_first) {
                true => Prepared::default(),
                false => self.prepared(&scope).await?,
            };
            let asked = request.clone();
            let verdict = match self.submit(parts.clone(), true, move |step| step.acquire(&asked)).await {
                Err(full @ StoreError::Full { in_doubt: false, .. }) => {
                    // In a box, as it is seldom needed: it would be a part of every caller's future.
                    Box::pin(self.acquire_without_room(request, full)).await?
                }
                submitted => submitted?,
            };
            if !matches!(verdict, Verdict::Refused(_)) {
                return Ok(verdict);
            }
            if begun.elapsed() < self.timeout {
                let (store, scope, prepared) = (self.clone(), scope.clone(), prepared.clone());
                if hosted(async move { store.is_unprepared(&scope, &prepared).await }).await? {
                    continue;
                }
            }
            // A refusal is a fact only where what is in the way could be looked at.
            return match prepared.failed.into_values().next() {
                Some(error) if !matches!(error, StoreError::Session(_)) => Err(error),
                _ => Ok(verdict),
            };
        }
    }

    /// Decides about a request of which a write is `full`: one that is refused needs none, and one that is known makes it hardly longer.
    async fn acquire_without_room(
        self: &Arc<Self>,
        request: &Arc<Request>,
        full: StoreError,
    ) -> Result<Verdict, StoreError> {
        let (store, asked, parts) = (self.clone(), request.clone(), self.parts(request.ids()));
        let decided = async move {
            // The driver has looked at the parts for this request.
            let parts = store.parts(asked.ids());
            let decided = store.by(&parts, |step| (step.knows(&asked), step.acquire(&asked))).await?;
            if decided.0 && store.is_apart() {
                store.begin().await?;
            }
            Ok(decided)
        };
        let (is_known, verdict) = hosted(decided).await?;
        match verdict {
            Verdict::Refused(_) | Verdict::Withdrawn => return Ok(verdict),
            Verdict::Granted(_) | Verdict::Queued(_) if !is_known => return Err(self.or_never(full, request)),
            Verdict::Granted(_) | Verdict::Queued(_) => {}
        }
        let asked = request.clone();
        let again = move |step: &mut Step<'_>| step.knows(&asked).then(|| step.acquire(&asked));
        match self.submit(parts, false, again).await {
            // Its place stays as it is.
            Err(StoreError::Full { in_doubt: false, .. }) if matches!(verdict, Verdict::Queued(_)) => {
                Ok(verdict)
            }
            submitted => submitted?.ok_or(full),
        }
    }

    /// Returns the error of a set that was not taken, and whether it never will be: then waiting for room would never end.
    fn or_never(&self, full: StoreError, request: &Request) -> StoreError {
        let most = self.cell.most_bytes();
        let (bytes, max) = match self.is_apart() {
            true => (request.claims.chunks(1).map(|claim| request.size_alone(claim)).sum(), most),
            false => (request.size_alone(&request.claims), MAX_BYTES.min(most)),
        };
        if bytes > max { StoreError::TooLarge { bytes, max } } else { full }
    }
}
