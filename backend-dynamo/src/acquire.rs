//! Acquiring a set: one conditional write of all its items, and a decision about what it found if that is refused.

use lockcore::{
    ConflictReason, Granted, Mode,
    backend::ServiceTime,
    engine::{self, Verdict},
};

use crate::{
    error::StoreError,
    request::{Request, StoredClaim},
    row::Row,
    send::Written,
    state::Step,
    store::Store,
    write::Write,
};

/// The decision about a request.
#[derive(Debug)]
pub(crate) enum Decision {
    Granted(Vec<Granted>),
    /// By position in the set.
    Refused(Vec<(usize, ConflictReason<String>)>),
}

/// The most permits that one condition names; more are taken under the condition that nothing changed.
pub(crate) const PERMITS_NAMED: usize = 20;

/// An item: not read yet, or the row that was read, if there is one.
type ReadRow = Option<Option<Row>>;

impl Store {
    /// Takes the whole set or none of it.
    pub(crate) async fn acquire(&self, request: &Request) -> Result<Decision, StoreError> {
        let deadline = self.deadline();
        let mut known: Vec<ReadRow> = vec![None; request.claims.len()];
        // A response also brings the service's time.
        if self.was_refused(request.attempt) || self.now()?.is_wide() {
            let keys: Vec<String> = request.claims.iter().map(|claim| claim.key.clone()).collect();
            known = self.read(&keys, deadline).await?.into_iter().map(Some).collect();
        }
        let (mut above, mut in_doubt) = (0, None);
        for round in 0.. {
            let now = self.now()?;
            above = known.iter().flatten().flatten().map(|row| row.fence).max().unwrap_or(0).max(above);
            let plan = self.plan(request, &known, now, self.fence(now, above))?;
            if !plan.conflicts.is_empty() {
                // A request without a response may still arrive: the outcome of the attempt stays in doubt.
                if let Some(failure) = in_doubt {
                    return Err(StoreError::Service(failure));
                }
                if !plan.rebased.is_empty() {
                    // A concurrent change of them did the same.
                    self.write(plan.rebased, deadline).await?;
                }
                self.remember_refusal(request.attempt, true);
                return Ok(Decision::Refused(plan.conflicts));
            }
            match self.write(plan.writes, deadline).await {
                Ok(Written::Done) => {
                    if round > 0 || self.was_refused(request.attempt) {
                        self.remember_refusal(request.attempt, false);
                    }
                    return Ok(Decision::Granted(plan.granted));
                }
                Ok(Written::Refused { found, doubt }) => {
                    in_doubt = in_doubt.or(doubt);
                    for (position, item) in found {
                        let row = item.map(|item| Row::read(item, self.names())).transpose()?;
                        match known.get_mut(position) {
                            Some(known) => *known = Some(row),
                            // An item that only keeps a fence.
                            None => above = above.max(row.map_or(0, |row| row.fence)),
                        }
                    }
                }
                Err(error) if in_doubt.is_some() => return Err(error.in_doubt_now()),
                Err(error) => return Err(error),
            }
            // The first refusal brings the items; only further ones are a race with other clients.
            if round > 0 {
                self.rest(round - 1, deadline, in_doubt.is_some()).await?;
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Decides about the set, and plans the writes that grant it under `fence`; or lists the conflicts.
    fn plan(
        &self,
        request: &Request,
        known: &[ReadRow],
        now: ServiceTime,
        fence: u64,
    ) -> Result<Plan, StoreError> {
        let Request { context, claims, .. } = request;
        let (mut rows, mut rebased) = (Vec::new(), Vec::new());
        for (claim, known) in claims.iter().zip(known) {
            let mut row = known.clone().flatten().unwrap_or_default();
            rebased.push(row.rebase(now));
            rows.push((claim.key.clone(), row));
        }
        let mut step = Step::new(rows, now).granting(fence);
        let Ok(verdict) = engine::acquire(&mut step, request);
        let old = |position: usize| known[position].as_ref().and_then(Option::as_ref);
        let mut plan = Plan::default();
        match verdict {
            Verdict::Withdrawn => return Err(StoreError::Withdrawn),
            Verdict::Refused(reasons) | Verdict::Queued(reasons) => {
                for (position, reason) in reasons {
                    let key = &claims[position].key;
                    if rebased[position] {
                        plan.rebased.push(Write::replace(key, old(position), step.row(key), now));
                    }
                    plan.conflicts.push((position, step.named(key, reason)));
                }
            }
            Verdict::Granted(granted) => {
                for (position, (StoredClaim { key, .. }, granted)) in claims.iter().zip(&granted).enumerate()
                {
                    let (row, rebased) = (step.row(key), rebased[position]);
                    let own = row.holder(context).expect("it was granted");
                    plan.writes.push(match (&known[position], old(position)) {
                        (None, _) => Write::take(key, context, own, now),
                        (_, Some(old))
                            if granted.mode != Mode::Exclusive
                                && granted.permits.len() <= PERMITS_NAMED
                                && old.holder(context).is_none()
                                && !rebased
                                && old.is_shared_by_the_living(now) =>
                        {
                            Write::join(key, old, context, own)
                        }
                        // Free by now: the same condition as without having read holds, whatever others write next.
                        (_, Some(old)) if !rebased && old.is_free_for_all(now) => {
                            Write::take(key, context, own, now)
                        }
                        (_, old) => Write::replace(key, old, row, now),
                    });
                }
                if self.settings.strict_fence {
                    let new = claims.iter().zip(&granted).filter(|(_, granted)| granted.fence == fence);
                    let noted = new.map(|(claim, _)| Write::fence(&self.keys.fence_of(&claim.key), fence));
                    plan.writes.extend(noted);
                }
                plan.granted = granted;
            }
        }
        Ok(plan)
    }
}

/// The writes of one round of an acquire.
#[derive(Default)]
struct Plan {
    writes: Vec<Write>,
    granted: Vec<Granted>,
    conflicts: Vec<(usize, ConflictReason<String>)>,
    /// Conflicting items with a lease from the future, which counts from now instead.
    rebased: Vec<Write>,
}
