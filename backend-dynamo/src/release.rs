//! Releasing and renewing a grant: one conditional write, and one more for each round of losses.

use std::collections::{BTreeMap, HashSet};

use lockcore::{LossReason, Mode, backend::ServiceTime, engine};

use crate::{
    acquire::PERMITS_NAMED,
    error::StoreError,
    row::Row,
    send::Written,
    state::Step,
    store::Store,
    value::up,
    write::{HeldLock, Write},
};

/// A grant in stored form.
#[derive(Clone, Debug)]
pub(crate) struct StoredGrant {
    pub(crate) context: String,
    pub(crate) locks: Vec<StoredLock>,
    /// In microseconds.
    pub(crate) lease: u64,
}

/// One lock of a grant, in stored form.
#[derive(Clone, Debug)]
pub(crate) struct StoredLock {
    pub(crate) key: String,
    pub(crate) fence: u64,
    /// Set if it excludes all other holders.
    pub(crate) exclusive: bool,
    pub(crate) permits: Vec<u32>,
    /// Set if there were other holders when it was granted.
    pub(crate) beside_others: bool,
}

/// Lost locks by position in the grant.
pub(crate) type Losses = Vec<(usize, LossReason)>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Free,
    Renew,
}

impl Store {
    /// Frees the locks of a grant. Locks that were lost do not prevent that of the others.
    pub(crate) async fn release(&self, grant: &StoredGrant) -> Result<Losses, StoreError> {
        self.change(grant, Action::Free).await
    }

    /// Extends the locks that the grant still holds to a whole lease from now.
    pub(crate) async fn renew(&self, grant: &StoredGrant) -> Result<Losses, StoreError> {
        self.change(grant, Action::Renew).await
    }

    /// Writes without having read, under the condition of the usual state: held alone, or beside other holders as when it was
    /// granted. Where the condition does not grant, the item that the service returns decides.
    async fn change(&self, grant: &StoredGrant, action: Action) -> Result<Losses, StoreError> {
        let deadline = self.deadline();
        let mut known: BTreeMap<usize, Row> = BTreeMap::new();
        let mut doubt = None;
        for round in 0.. {
            let now = self.now()?;
            let (losses, writes, positions) = plan(grant, &known, action, now);
            if writes.is_empty() {
                return Ok(losses.into_iter().collect());
            }
            match self.write(writes, deadline).await {
                Ok(Written::Done) => return Ok(losses.into_iter().collect()),
                Ok(Written::Refused { found, doubt: earlier }) => {
                    doubt = doubt.or(earlier);
                    let mut gone = 0;
                    for (at, item) in found {
                        let (position, row) = (positions[at], item.map(|item| Row::read(item, self.names())));
                        let (row, fence) =
                            (row.transpose()?.unwrap_or_default(), grant.locks[position].fence);
                        let is_held = row.holder(&grant.context).is_some_and(|own| own.fence == fence);
                        gone += usize::from(!is_held && row.why_missing(fence) == LossReason::Vanished);
                        known.insert(position, row);
                    }
                    // Some are gone and others are not: no request that frees all of them was done, nor will be.
                    if (1..positions.len()).contains(&gone) {
                        doubt = None;
                    }
                    // All are gone: freed by the request without a response, or lost before it. It is not known which, so that they
                    // are not reported as lost; if nothing else is known, the outcome is in doubt.
                    if let (Action::Free, Some(failure), true) = (action, &doubt, gone == positions.len()) {
                        let others: Losses = losses
                            .into_iter()
                            .filter(|(position, _)| !positions.contains(position))
                            .collect();
                        return match others.is_empty() {
                            true => Err(StoreError::Service(failure.clone())),
                            false => Ok(others),
                        };
                    }
                }
                Err(error) if doubt.is_some() => return Err(error.in_doubt_now()),
                Err(error) => return Err(error),
            }
            if round > 0 {
                self.rest(round - 1, deadline, doubt.is_some()).await?;
            }
        }
        unreachable!("the loop ends by returning")
    }
}

/// Decides about the locks whose items were read, and returns what is lost, and the writes for the rest, with their positions.
fn plan(
    grant: &StoredGrant,
    known: &BTreeMap<usize, Row>,
    action: Action,
    now: ServiceTime,
) -> (BTreeMap<usize, LossReason>, Vec<Write>, Vec<usize>) {
    let StoredGrant { context, locks, lease } = grant;
    let mut rebased = HashSet::new();
    let rows = known.iter().map(|(position, row)| {
        let mut row = row.clone();
        if row.rebase(now) {
            rebased.insert(*position);
        }
        (locks[*position].key.clone(), row)
    });
    let mut step = Step::new(rows, now);
    let held = known.keys().map(|position| (&locks[*position].key, locks[*position].fence));
    let Ok(lost) = match action {
        Action::Free => engine::release(&mut step, context, held),
        Action::Renew => engine::renew(&mut step, context, held, |step, key, _| {
            step.extend(key, context, *lease);
            Ok(())
        }),
    };
    let read: Vec<usize> = known.keys().copied().collect();
    let losses: BTreeMap<_, _> = lost.into_iter().map(|(at, reason)| (read[at], reason)).collect();
    let (mut writes, mut positions) = (Vec::new(), Vec::new());
    for (position, lock) in locks.iter().enumerate() {
        let StoredLock { key, fence, permits, exclusive, beside_others } = lock;
        let old = known.get(&position);
        let own = old.and_then(|row| row.holder(context));
        // A grant that was rebuilt from a token has no modes; a row that was read does.
        let exclusive = own.map_or(*exclusive, |own| own.mode == Mode::Exclusive);
        let holder = HeldLock { context, fence: *fence, exclusive };
        writes.push(match (old.zip(own), losses.get(&position), action) {
            // An expired lock still stands there.
            (_, Some(reason), _) if action == Action::Renew || *reason != LossReason::Expired => continue,
            (None, _, Action::Free) if *beside_others && permits.len() <= PERMITS_NAMED => {
                Write::leave(key, holder, permits, now)
            }
            (None, _, Action::Free) => Write::free(key, holder, now),
            (None, _, Action::Renew) => Write::renew(key, holder, *lease, now),
            (Some((row, own)), _, _) => {
                let until = now.hi.saturating_add(*lease);
                let all_live = !rebased.contains(&position)
                    && row.holders.iter().all(|(_, entry)| !entry.certainly_ended(now));
                match (action, row.holders.len()) {
                    (Action::Free, 1) if all_live && !row.frozen && row.tombstones.is_empty() => {
                        Write::free(key, holder, now)
                    }
                    (Action::Free, 2..) if all_live && own.permits.len() <= PERMITS_NAMED => {
                        Write::leave(key, holder, &own.permits, now)
                    }
                    (Action::Renew, _)
                        if all_live && own.until <= until && row.seen_until() >= Some(up(until)) =>
                    {
                        Write::renew_within(key, holder, *lease, now)
                    }
                    _ => Write::replace(key, Some(row), &step.pruned(key), now),
                }
            }
        });
        positions.push(position);
    }
    (losses, writes, positions)
}
