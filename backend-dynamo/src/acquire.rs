//! Taking a set: one conditional write of all its items, and what is found if that is refused.

use lockcore::{ConflictReason, Granted, Mode, Owner, rules::InUse};
use smallvec::SmallVec;

use crate::{
    clock::Now,
    config::TRANSACTION,
    decide::{self, Asker, Verdict},
    error::StoreError,
    row::Row,
    send::Written,
    store::Store,
    write::Write,
};

/// A request in stored forms.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) context: String,
    pub(crate) attempt: u64,
    pub(crate) claims: Vec<Wanted>,
    /// In microseconds.
    pub(crate) lease: u64,
    pub(crate) owner: Owner,
}

/// One claim in stored form.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) key: String,
    pub(crate) mode: Mode,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(SmallVec<[Granted; 1]>),
    /// By position in the set.
    Refused(Vec<(usize, ConflictReason<String>)>),
}

impl Ask {
    pub(crate) fn asker(&self) -> Asker<'_> {
        Asker { context: &self.context, attempt: self.attempt, lease: self.lease, owner: &self.owner }
    }

    /// The same request for a part of its set.
    pub(crate) fn part(&self, claims: &[Wanted]) -> Ask {
        Ask { claims: claims.to_vec(), ..self.clone() }
    }
}

/// How many permits are named in a condition; more are taken under the condition that nothing changed.
pub(crate) const PERMITS_NAMED: usize = 20;

/// What is known of an item: nothing yet, or what was read.
type Known = Option<Option<Row>>;

impl Store {
    /// Takes the whole set or nothing of it.
    pub(crate) async fn acquire(&self, ask: &Ask) -> Result<Outcome, StoreError> {
        let chunk = self.settings.chunk();
        if ask.claims.len() <= chunk {
            return self.acquire_at_once(ask).await;
        }
        let mut all = SmallVec::new();
        for (number, claims) in ask.claims.chunks(chunk).enumerate() {
            match self.acquire_at_once(&ask.part(claims)).await {
                Ok(Outcome::Granted(granted)) => all.extend(granted),
                Ok(Outcome::Refused(conflicts)) => {
                    self.give_back(ask, number * chunk).await.map_err(StoreError::in_doubt_now)?;
                    let conflicts = conflicts.into_iter().map(|(at, reason)| (number * chunk + at, reason));
                    let mut conflicts: Vec<_> = conflicts.collect();
                    conflicts.extend(self.look_for_conflicts(ask, (number + 1) * chunk).await?);
                    return Ok(Outcome::Refused(conflicts));
                }
                Err(error) if number == 0 => return Err(error),
                Err(error) => {
                    // If that fails too, the caller's withdrawal frees what was taken.
                    let given_back = self.give_back(ask, number * chunk).await.is_ok();
                    return Err(if given_back { error } else { error.in_doubt_now() });
                }
            }
        }
        Ok(Outcome::Granted(all))
    }

    /// Takes at most as many ids as one transaction can.
    async fn acquire_at_once(&self, ask: &Ask) -> Result<Outcome, StoreError> {
        let deadline = self.deadline();
        let mut known: Vec<Known> = vec![None; ask.claims.len()];
        // An answer also tells the service's time.
        if self.was_refused(ask.attempt) || self.now()?.is_wide() {
            let keys: Vec<String> = ask.claims.iter().map(|claim| claim.key.clone()).collect();
            known = self.read(&keys, deadline).await?.into_iter().map(Some).collect();
        }
        let (mut above, mut in_doubt) = (0, None);
        for round in 0.. {
            let now = self.now()?;
            above = known.iter().flatten().flatten().map(|row| row.fence).max().unwrap_or(0).max(above);
            let step = self.plan(ask, &known, now, self.clock.fence(now, above))?;
            if !step.conflicts.is_empty() {
                // A try without an answer may still arrive: this is not the last word on the attempt.
                if let Some(failure) = in_doubt {
                    return Err(StoreError::Service(failure));
                }
                if !step.rebased.is_empty() {
                    // Whoever changed them in between did the same.
                    self.write(&step.rebased, deadline).await?;
                }
                self.remember_refusal(ask.attempt, true);
                return Ok(Outcome::Refused(step.conflicts));
            }
            match self.write(&step.writes, deadline).await {
                Ok(Written::Done) => {
                    if round > 0 || self.was_refused(ask.attempt) {
                        self.remember_refusal(ask.attempt, false);
                    }
                    return Ok(Outcome::Granted(step.granted));
                }
                Ok(Written::Refused { found, doubt }) => {
                    in_doubt = in_doubt.or(doubt);
                    for (position, item) in found {
                        let row = item.map(|item| Row::read(item, self.names())).transpose()?;
                        match known.get_mut(position) {
                            Some(known) => *known = Some(row),
                            // An item that is for its fence alone.
                            None => above = above.max(row.map_or(0, |row| row.fence)),
                        }
                    }
                }
                Err(error) if in_doubt.is_some() => return Err(error.in_doubt_now()),
                Err(error) => return Err(error),
            }
            // The first refusal tells what stands there; only further ones are a race with others.
            if round > 0 {
                self.rest(round - 1, deadline, in_doubt.is_some()).await?;
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// What to write to grant the set under `fence`, or what is in the way.
    fn plan<'a>(&self, ask: &'a Ask, known: &[Known], now: Now, fence: u64) -> Result<Plan<'a>, StoreError> {
        let asker = ask.asker();
        let mut plan = Plan::default();
        let mut fences = Vec::new();
        for (position, (claim, known)) in ask.claims.iter().zip(known).enumerate() {
            let Wanted { key, mode } = claim;
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
                Verdict::Withdrawn => return Err(StoreError::Withdrawn),
                Verdict::Blocked(reason) => {
                    if rebased {
                        plan.rebased.push(Write::replace(key, old.as_ref(), row, now));
                    }
                    plan.conflicts.push((position, reason));
                }
                Verdict::Granted(granted) => {
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
                        // Nobody is there any more: whoever comes next, the same condition as without a look holds.
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

    /// Gives back what the attempt got of the first `count` ids; what the context held before stays.
    async fn give_back(&self, ask: &Ask, count: usize) -> Result<(), StoreError> {
        for claims in ask.claims[..count].chunks(TRANSACTION) {
            self.undo(&ask.part(claims), false).await?;
        }
        Ok(())
    }

    /// What is in the way of the ids from the position `from` on: nothing is taken.
    async fn look_for_conflicts(
        &self,
        ask: &Ask,
        from: usize,
    ) -> Result<Vec<(usize, ConflictReason<String>)>, StoreError> {
        let Some(rest) = ask.claims.get(from..).filter(|rest| !rest.is_empty()) else {
            return Ok(Vec::new());
        };
        let keys: Vec<String> = rest.iter().map(|claim| claim.key.clone()).collect();
        let known: Vec<Known> = self.read(&keys, self.deadline()).await?.into_iter().map(Some).collect();
        let now = self.now()?;
        let rest = ask.part(rest);
        let plan = self.plan(&rest, &known, now, self.clock.fence(now, 0))?;
        Ok(plan.conflicts.into_iter().map(|(at, reason)| (from + at, reason)).collect())
    }
}

/// A step of an acquire.
#[derive(Default)]
struct Plan<'a> {
    writes: Vec<Write<'a>>,
    granted: SmallVec<[Granted; 1]>,
    conflicts: Vec<(usize, ConflictReason<String>)>,
    /// Items in the way with a lease from the future, counted from now instead.
    rebased: Vec<Write<'a>>,
}
