//! Acquiring a set: one conditional write of all its items, and a decision about what it found if that is refused.

use lockcore::{
    ConflictReason, Granted, Mode, Owner,
    backend::{List, ServiceTime},
    rules::InUse,
};

use crate::{
    config::TRANSACTION,
    decide::{self, Asker, ClaimDecision},
    error::StoreError,
    row::Row,
    send::Written,
    store::Store,
    write::Write,
};

/// A request in stored form.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) context: String,
    pub(crate) attempt: u64,
    pub(crate) claims: Vec<StoredClaim>,
    /// In microseconds.
    pub(crate) lease: u64,
    pub(crate) owner: Owner,
}

/// One claim in stored form.
#[derive(Clone, Debug)]
pub(crate) struct StoredClaim {
    pub(crate) key: String,
    pub(crate) mode: Mode,
}

/// The decision about a request.
#[derive(Debug)]
pub(crate) enum Decision {
    Granted(List<Granted>),
    /// By position in the set.
    Refused(Vec<(usize, ConflictReason<String>)>),
}

impl Request {
    pub(crate) fn asker(&self) -> Asker<'_> {
        Asker { context: &self.context, attempt: self.attempt, lease: self.lease, owner: &self.owner }
    }

    /// The same request for a part of its set.
    pub(crate) fn part(&self, claims: &[StoredClaim]) -> Request {
        Request { claims: claims.to_vec(), ..self.clone() }
    }
}

/// The most permits that one condition names; more are taken under the condition that nothing changed.
pub(crate) const PERMITS_NAMED: usize = 20;

/// An item: not read yet, or the row that was read, if there is one.
type ReadRow = Option<Option<Row>>;

impl Store {
    /// Takes the whole set or none of it.
    pub(crate) async fn acquire(&self, request: &Request) -> Result<Decision, StoreError> {
        let chunk = self.settings.chunk();
        if request.claims.len() <= chunk {
            return self.acquire_at_once(request).await;
        }
        let mut all = List::new();
        for (number, claims) in request.claims.chunks(chunk).enumerate() {
            match self.acquire_at_once(&request.part(claims)).await {
                Ok(Decision::Granted(granted)) => all.extend(granted),
                Ok(Decision::Refused(conflicts)) => {
                    self.give_back(request, number * chunk).await.map_err(StoreError::in_doubt_now)?;
                    let conflicts = conflicts.into_iter().map(|(at, reason)| (number * chunk + at, reason));
                    let mut conflicts: Vec<_> = conflicts.collect();
                    conflicts.extend(self.find_conflicts(request, (number + 1) * chunk).await?);
                    return Ok(Decision::Refused(conflicts));
                }
                Err(error) if number == 0 => return Err(error),
                Err(error) => {
                    // If that fails too, the caller's withdrawal frees the ids.
                    let given_back = self.give_back(request, number * chunk).await.is_ok();
                    return Err(if given_back { error } else { error.in_doubt_now() });
                }
            }
        }
        Ok(Decision::Granted(all))
    }

    /// Takes at most as many ids as one transaction can.
    async fn acquire_at_once(&self, request: &Request) -> Result<Decision, StoreError> {
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
                    self.write(&plan.rebased, deadline).await?;
                }
                self.remember_refusal(request.attempt, true);
                return Ok(Decision::Refused(plan.conflicts));
            }
            match self.write(&plan.writes, deadline).await {
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

    /// Plans the writes that grant the set under `fence`, or lists the conflicts.
    fn plan<'a>(
        &self,
        request: &'a Request,
        known: &[ReadRow],
        now: ServiceTime,
        fence: u64,
    ) -> Result<Plan<'a>, StoreError> {
        let asker = request.asker();
        let mut plan = Plan::default();
        let mut fences = Vec::new();
        for (position, (claim, known)) in request.claims.iter().zip(known).enumerate() {
            let StoredClaim { key, mode } = claim;
            let Some(old) = known else {
                let entry = asker.entry(*mode, &[], fence, now);
                plan.granted.push(Granted {
                    mode: *mode,
                    fence,
                    permits: entry.permits.clone(),
                    in_use: InUse::of([*mode]).units(),
                });
                plan.writes.push(Write::take(key, asker, entry, now));
                fences.push(key);
                continue;
            };
            let mut row = old.clone().unwrap_or_default();
            let rebased = row.rebase(now);
            match decide::take(&mut row, asker, *mode, fence, now) {
                ClaimDecision::Withdrawn => return Err(StoreError::Withdrawn),
                ClaimDecision::Blocked(reason) => {
                    if rebased {
                        plan.rebased.push(Write::replace(key, old.as_ref(), row, now));
                    }
                    plan.conflicts.push((position, reason));
                }
                ClaimDecision::Granted(granted) => {
                    if granted.fence == fence {
                        fences.push(key);
                    }
                    plan.writes.push(match (old, row.holder(asker.context)) {
                        (Some(old), Some(own))
                            if granted.mode != Mode::Exclusive
                                && granted.permits.len() <= PERMITS_NAMED
                                && old.holder(asker.context).is_none()
                                && !rebased
                                && old.is_shared_by_the_living(now) =>
                        {
                            Write::join(key, old, asker, own.clone())
                        }
                        // Free by now: the same condition as without having read holds, whatever others write next.
                        (Some(old), Some(own)) if !rebased && old.is_free_for_all(now) => {
                            Write::take(key, asker, own.clone(), now)
                        }
                        _ => Write::replace(key, old.as_ref(), row, now),
                    });
                    plan.granted.push(granted);
                }
            }
        }
        if self.settings.strict_fence {
            let noted = fences.into_iter().map(|key| Write::fence(self.keys.fence_of(key), fence));
            plan.writes.extend(noted);
        }
        Ok(plan)
    }

    /// Undoes the attempt's grants of the first `count` ids; what the context held before stays.
    async fn give_back(&self, request: &Request, count: usize) -> Result<(), StoreError> {
        for claims in request.claims[..count].chunks(TRANSACTION) {
            self.undo(&request.part(claims), false).await?;
        }
        Ok(())
    }

    /// Lists the conflicts of the ids from the position `from` on, and takes none.
    async fn find_conflicts(
        &self,
        request: &Request,
        from: usize,
    ) -> Result<Vec<(usize, ConflictReason<String>)>, StoreError> {
        let Some(rest) = request.claims.get(from..).filter(|rest| !rest.is_empty()) else {
            return Ok(Vec::new());
        };
        let keys: Vec<String> = rest.iter().map(|claim| claim.key.clone()).collect();
        let known: Vec<ReadRow> = self.read(&keys, self.deadline()).await?.into_iter().map(Some).collect();
        let now = self.now()?;
        let rest = request.part(rest);
        let plan = self.plan(&rest, &known, now, self.fence(now, 0))?;
        Ok(plan.conflicts.into_iter().map(|(at, reason)| (from + at, reason)).collect())
    }
}

/// The writes of one round of an acquire.
#[derive(Default)]
struct Plan<'a> {
    writes: Vec<Write<'a>>,
    granted: List<Granted>,
    conflicts: Vec<(usize, ConflictReason<String>)>,
    /// Conflicting items with a lease from the future, which counts from now instead.
    rebased: Vec<Write<'a>>,
}
