//! A request: what precedes its step, and what becomes of it where there is no room to write.

use std::sync::Arc;

use lockcore::backend::Moment;

use crate::{
    cell::Cell,
    error::StoreError,
    request::Request,
    step::{Step, Verdict},
    store::{Prepared, Store, hosted},
    table::{MAX_BYTES, MAX_BYTES_NESTED},
    takeover::Scope,
};

impl<C: Cell> Store<C> {
    /// Takes a step after what precedes it: the sessions in its way are read, and closed if they are over. Again, if the table was
    /// newer than what was prepared for and the request is `refused`. Goes on only while the caller waits: a step that came after the
    /// withdrawal of its attempt might outlast the tombstone.
    pub(crate) async fn acquire(self: &Arc<Self>, request: &Arc<Request>) -> Result<Verdict, StoreError> {
        let (scope, begun) = (Scope::of(request), Moment::now());
        let (parts, most) = (self.parts(request.ids()), self.most(request));
        // Each permit takes a digit and a comma at least. To look for millions that are free would take long.
        let permits: usize = request.claims.iter().map(|claim| claim.mode.permits() as usize).sum();
        let max = if self.is_apart() { self.cell.most_bytes() } else { most };
        if 2 * permits > max {
            return Err(StoreError::TooLarge { bytes: 2 * permits, max });
        }
        // A set whose cells are not known is free, as a rule: nothing is read for that.
        let mut is_first = self.is_apart() && self.known(&parts).is_none();
        loop {
            let prepared = match std::mem::take(&mut is_first) {
                true => Prepared::default(),
                false => self.prepared(&scope).await?,
            };
            let asked = request.clone();
            let verdict = match self.submit_up_to(most, parts.clone(), move |step| step.acquire(&asked)).await
            {
                Err(full @ StoreError::Full { in_doubt: false, .. }) => {
                    // In a box, as it is seldom needed: it would be a part of every caller's future.
                    match Box::pin(self.acquire_without_room(request, full)).await? {
                        Some(verdict) => verdict,
                        // It is another request by now.
                        None => continue,
                    }
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

    /// Decides about a request whose write is too long. A refusal needs no write, and the step of a request that has a place or holds its
    /// set makes the cells hardly longer, unless places have to be put back. Returns `None` if it lost that, or if the session was replaced,
    /// so that it has to start again.
    async fn acquire_without_room(
        self: &Arc<Self>,
        request: &Arc<Request>,
        full: StoreError,
    ) -> Result<Option<Verdict>, StoreError> {
        if request.nested && self.is_apart() {
            let (asked, parts) = (request.clone(), self.parts(request.ids()));
            let first = move |step: &mut Step<'_>| step.acquire_before_waiters(&asked);
            match self.submit_up_to(self.most(request), parts, first).await {
                Err(StoreError::Full { in_doubt: false, .. }) => {}
                decided => return decided.map(Some),
            }
        }
        let (store, asked, parts) = (self.clone(), request.clone(), self.parts(request.ids()));
        // The driver has looked at the parts for this request.
        let decided = async move {
            if asked.is_new(&store.view(&parts).table) {
                return Ok::<_, StoreError>(None);
            }
            let (is_known, verdict) =
                store.by(&parts, |step| (step.knows(&asked), step.acquire(&asked))).await?;
            // Its grant is of the session whose cell is there now.
            let session = if is_known && store.is_apart() { Some(store.begin().await?) } else { None };
            Ok(Some((is_known, verdict, session)))
        };
        let Some((is_known, verdict, session)) = hosted(decided).await? else {
            return Err(self.or_never(full, request));
        };
        match verdict {
            Verdict::Refused(_) | Verdict::Withdrawn => return Ok(Some(verdict)),
            Verdict::Granted(_) | Verdict::Queued(_) if !is_known => return Err(self.or_never(full, request)),
            Verdict::Granted(_) | Verdict::Queued(_) => {}
        }
        let asked = request.clone();
        let again = move |step: &mut Step<'_>| {
            let is_begun = session.as_ref().is_none_or(|session| step.session == session);
            (is_begun && step.knows(&asked)).then(|| step.acquire(&asked))
        };
        let parts = self.parts(request.ids());
        // Places that this request puts back take no room of holders.
        let most = match verdict {
            Verdict::Queued(_) if !self.view(&parts).has_whole_place(request) => self.most(request),
            _ => usize::MAX,
        };
        match self.submit_up_to(most, parts.clone(), again).await {
            Err(full @ StoreError::Full { in_doubt: false, .. }) if matches!(verdict, Verdict::Queued(_)) => {
                // Its place stays as it is. If there is no room to put places back where they were removed, it is given up: others
                // pass it there, and it must not keep out those behind it where it is left.
                match self.view(&parts).has_whole_place(request) {
                    true => Ok(Some(verdict)),
                    false => Err(full),
                }
            }
            submitted => submitted,
        }
    }

    /// Returns the bytes that each cell may have after a request.
    fn most(&self, request: &Request) -> usize {
        let most = if request.nested { MAX_BYTES_NESTED } else { MAX_BYTES };
        most.min(self.cell.most_bytes())
    }

    /// Returns the error of a set that was not taken, and whether it never will be: then waiting for room would never end.
    fn or_never(&self, full: StoreError, request: &Request) -> StoreError {
        let (bytes, max) = match self.is_apart() {
            true => (
                request.claims.chunks(1).map(|claim| request.size_alone(claim)).sum(),
                self.cell.most_bytes(),
            ),
            false => (request.size_alone(&request.claims), self.most(request)),
        };
        if bytes > max { StoreError::TooLarge { bytes, max } } else { full }
    }
}
