//! Releasing and renewing a grant: one conditional write, and one more for each round of losses.

use std::{collections::BTreeMap, ops::Range};

use lockcore::{
    LossReason, Mode,
    backend::{List, ServiceTime},
};
use tokio::time::Instant;

use crate::{
    acquire::PERMITS_NAMED,
    config::TRANSACTION,
    error::StoreError,
    row::Row,
    send::Written,
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
    /// Whether it excludes all other holders.
    pub(crate) exclusive: bool,
    pub(crate) permits: List<u32>,
    /// Whether there were other holders when it was granted.
    pub(crate) beside_others: bool,
}

/// Lost locks by position in the grant.
pub(crate) type Losses = Vec<(usize, LossReason)>;

/// The result of a release.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) lost: Losses,
    /// The positions that may not have been freed.
    pub(crate) failed: Vec<(Range<usize>, StoreError)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Free,
    Renew,
}

/// The write for one lock whose item was read.
enum Step {
    /// The same write as without having read.
    Blind,
    /// There are other holders: only this one is removed.
    Leave(List<u32>),
    /// Extends the lock without moving the end that other clients see.
    RenewWithin,
    /// Replaces the row by this one.
    Change(Row),
    /// The same, although the lock was lost before.
    ChangeLost(Row, LossReason),
    Lost(LossReason),
}

impl Store {
    /// Frees the locks of a grant. Locks that were lost or cannot be freed do not prevent that of the others.
    pub(crate) async fn release(&self, grant: &StoredGrant) -> Result<Freed, StoreError> {
        let mut freed = Freed { lost: Losses::new(), failed: Vec::new() };
        // One deadline for all chunks: after it each is tried once.
        let deadline = self.deadline();
        for (number, locks) in grant.locks.chunks(TRANSACTION).enumerate() {
            let start = number * TRANSACTION;
            match self.change(grant, locks, Action::Free, deadline).await {
                Ok(losses) => freed.lost.extend(losses.into_iter().map(|(at, reason)| (start + at, reason))),
                Err(error) if grant.locks.len() <= TRANSACTION => return Err(error),
                Err(error) => freed.failed.push((start..start + locks.len(), error)),
            }
        }
        Ok(freed)
    }

    /// Extends the locks that the grant still holds to a whole lease from now.
    pub(crate) async fn renew(&self, grant: &StoredGrant) -> Result<Losses, StoreError> {
        let mut lost = Losses::new();
        for (number, locks) in grant.locks.chunks(TRANSACTION).enumerate() {
            let losses = self.change(grant, locks, Action::Renew, self.deadline()).await?;
            lost.extend(losses.into_iter().map(|(at, reason)| (number * TRANSACTION + at, reason)));
        }
        Ok(lost)
    }

    /// Writes without having read, under the condition of the usual state: held alone, or beside other holders as when it was
    /// granted. Where the condition does not grant, the item that the service returns decides.
    async fn change(
        &self,
        grant: &StoredGrant,
        locks: &[StoredLock],
        action: Action,
        deadline: Instant,
    ) -> Result<Losses, StoreError> {
        let mut known: BTreeMap<usize, Row> = BTreeMap::new();
        let mut losses: BTreeMap<usize, LossReason> = BTreeMap::new();
        let mut doubt = None;
        for round in 0.. {
            let now = self.now()?;
            let (mut writes, mut positions) = (Vec::new(), Vec::new());
            for (position, lock) in locks.iter().enumerate() {
                let StoredLock { key, fence, permits, exclusive, .. } = lock;
                // A grant that was rebuilt from a token has no modes; a row that was read does.
                let own = known.get(&position).and_then(|row| row.holder(&grant.context));
                let exclusive = own.map_or(*exclusive, |own| own.mode == Mode::Exclusive);
                let holder = HeldLock { context: &grant.context, fence: *fence, exclusive };
                let write = match known.get(&position) {
                    None if action == Action::Free
                        && lock.beside_others
                        && permits.len() <= PERMITS_NAMED =>
                    {
                        Write::leave(key, holder, permits, now)
                    }
                    None => blind(key, holder, grant.lease, action, now),
                    Some(row) => match step(row, grant, *fence, action, now) {
                        Step::Blind => blind(key, holder, grant.lease, action, now),
                        Step::Leave(permits) => Write::leave(key, holder, &permits, now),
                        Step::RenewWithin => Write::renew_within(key, holder, grant.lease, now),
                        Step::Change(new) => Write::replace(key, Some(row), new, now),
                        Step::ChangeLost(new, reason) => {
                            losses.insert(position, reason);
                            Write::replace(key, Some(row), new, now)
                        }
                        Step::Lost(reason) => {
                            losses.insert(position, reason);
                            continue;
                        }
                    },
                };
                writes.push(write);
                positions.push(position);
            }
            if writes.is_empty() {
                return Ok(losses.into_iter().collect());
            }
            match self.write(&writes, deadline).await {
                Ok(Written::Done) => return Ok(losses.into_iter().collect()),
                Ok(Written::Refused { found, doubt: earlier }) => {
                    doubt = doubt.or(earlier);
                    let mut gone = 0;
                    for (at, item) in found {
                        let position = positions[at];
                        losses.remove(&position);
                        let row = item.map(|item| Row::read(item, self.names())).transpose()?;
                        let row = row.unwrap_or_default();
                        let step = step(&row, grant, locks[position].fence, action, now);
                        gone += usize::from(matches!(step, Step::Lost(LossReason::Vanished)));
                        known.insert(position, row);
                    }
                    // All are gone: freed by the request without a response, or lost before it. It is not known which, so that they
                    // are not reported as lost; if nothing else is known, the outcome is in doubt.
                    if let (Action::Free, Some(failure), true) = (action, &doubt, gone == positions.len()) {
                        return match losses.is_empty() {
                            true => Err(StoreError::Service(failure.clone())),
                            false => Ok(losses.into_iter().collect()),
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

fn blind<'a>(key: &'a str, holder: HeldLock<'a>, lease: u64, action: Action, now: ServiceTime) -> Write<'a> {
    match action {
        Action::Free => Write::free(key, holder, now),
        Action::Renew => Write::renew(key, holder, lease, now),
    }
}

fn step(row: &Row, grant: &StoredGrant, fence: u64, action: Action, now: ServiceTime) -> Step {
    let mut new = row.clone();
    let rebased = new.rebase(now);
    let all_live = !rebased && row.holders.iter().all(|(_, entry)| !entry.certainly_ended(now));
    let until = now.hi.saturating_add(grant.lease);
    let holders = row.holders.len();
    let Some(own) = new.holder_mut(&grant.context).filter(|own| own.fence == fence) else {
        let reason = if row.was_broken(fence) { LossReason::Broken } else { LossReason::Vanished };
        return Step::Lost(reason);
    };
    match action {
        Action::Free if all_live && holders == 1 && !row.frozen && row.tombstones.is_empty() => Step::Blind,
        Action::Free if all_live && holders > 1 && own.permits.len() <= PERMITS_NAMED => {
            Step::Leave(own.permits.clone())
        }
        Action::Free => {
            let ended = own.certainly_ended(now);
            new.remove(&grant.context);
            new.prune(now);
            match ended {
                true => Step::ChangeLost(new, LossReason::Expired),
                false => Step::Change(new),
            }
        }
        // A lease that may have ended is not revived, whichever estimate is right.
        Action::Renew if !own.certainly_lasts(now) => Step::Lost(LossReason::Expired),
        Action::Renew if own.broken => Step::Lost(LossReason::Broken),
        Action::Renew if all_live && own.until <= until && row.seen_until() >= Some(up(until)) => {
            Step::RenewWithin
        }
        Action::Renew => {
            own.extend(grant.lease, now);
            new.prune(now);
            Step::Change(new)
        }
    }
}
