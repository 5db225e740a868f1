//! Freeing and renewing what a grant holds: one conditional write, and one more for each round of losses.

use std::{collections::BTreeMap, ops::Range};

use lockcore::{LossReason, Mode};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::{
    acquire::PERMITS_NAMED,
    clock::Now,
    config::TRANSACTION,
    error::StoreError,
    item::up,
    row::Row,
    send::Written,
    store::Store,
    write::{Holder, Write},
};

/// A grant in stored forms.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) context: String,
    pub(crate) locks: Vec<Held>,
    /// In microseconds.
    pub(crate) lease: u64,
}

/// One lock of a grant.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) key: String,
    pub(crate) fence: u64,
    /// Nobody else holds it while this lasts.
    pub(crate) exclusive: bool,
    pub(crate) permits: SmallVec<[u32; 2]>,
    /// When it was granted others held it too.
    pub(crate) beside_others: bool,
}

/// By position in the grant: what was lost.
pub(crate) type Losses = Vec<(usize, LossReason)>;

/// What a release found.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) lost: Losses,
    /// The positions of which nothing is known to have been freed.
    pub(crate) failed: Vec<(Range<usize>, StoreError)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Free,
    Renew,
}

/// What an item that was read means to one lock.
enum Step {
    /// As without a look: nothing is unusual.
    Blind,
    /// Others hold it too: only this holder goes.
    Leave(SmallVec<[u32; 2]>),
    /// It is to be extended, which moves no end that others see.
    RenewWithin,
    /// It is to be written so.
    Change(Row),
    /// The same, though the lock was lost before.
    ChangeLost(Row, LossReason),
    Lost(LossReason),
}

impl Store {
    /// Frees what the grant holds. What it lost, or cannot be freed, does not keep the rest from being freed.
    pub(crate) async fn release(&self, hold: &Hold) -> Result<Freed, StoreError> {
        let mut freed = Freed { lost: Losses::new(), failed: Vec::new() };
        // One for all: after it every chunk is tried once.
        let deadline = self.deadline();
        for (number, locks) in hold.locks.chunks(TRANSACTION).enumerate() {
            let start = number * TRANSACTION;
            match self.change(hold, locks, Doing::Free, deadline).await {
                Ok(losses) => freed.lost.extend(losses.into_iter().map(|(at, reason)| (start + at, reason))),
                Err(error) if hold.locks.len() <= TRANSACTION => return Err(error),
                Err(error) => freed.failed.push((start..start + locks.len(), error)),
            }
        }
        Ok(freed)
    }

    /// Extends what the grant still holds to a whole lease from now.
    pub(crate) async fn renew(&self, hold: &Hold) -> Result<Losses, StoreError> {
        let mut lost = Losses::new();
        for (number, locks) in hold.locks.chunks(TRANSACTION).enumerate() {
            let losses = self.change(hold, locks, Doing::Renew, self.deadline()).await?;
            lost.extend(losses.into_iter().map(|(at, reason)| (number * TRANSACTION + at, reason)));
        }
        Ok(lost)
    }

    /// Writes without having read: that nothing is unusual - of a lock that was had beside others, that it still is - is part
    /// of the condition. What is found where it does not hold decides what happens there.
    async fn change(
        &self,
        hold: &Hold,
        locks: &[Held],
        doing: Doing,
        deadline: Instant,
    ) -> Result<Losses, StoreError> {
        let mut known: BTreeMap<usize, Row> = BTreeMap::new();
        let mut losses: BTreeMap<usize, LossReason> = BTreeMap::new();
        let mut doubt = None;
        for round in 0.. {
            let now = self.now()?;
            let (mut writes, mut positions) = (Vec::new(), Vec::new());
            for (position, held) in locks.iter().enumerate() {
                let Held { key, fence, permits, exclusive, .. } = held;
                // A grant that was rebuilt from a token does not know its modes; an item that was read does.
                let own = known.get(&position).and_then(|row| row.holder(&hold.context));
                let exclusive = own.map_or(*exclusive, |own| own.mode == Mode::Exclusive);
                let holder = Holder { context: &hold.context, fence: *fence, exclusive };
                let write = match known.get(&position) {
                    None if doing == Doing::Free && held.beside_others && permits.len() <= PERMITS_NAMED => {
                        Write::leave(key, holder, permits, now)
                    }
                    None => blind(key, holder, hold.lease, doing, now),
                    Some(row) => match step(row, hold, *fence, doing, now) {
                        Step::Blind => blind(key, holder, hold.lease, doing, now),
                        Step::Leave(permits) => Write::leave(key, holder, &permits, now),
                        Step::RenewWithin => Write::renew_within(key, holder, hold.lease, now),
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
                        let step = step(&row, hold, locks[position].fence, doing, now);
                        gone += usize::from(matches!(step, Step::Lost(LossReason::Vanished)));
                        known.insert(position, row);
                    }
                    // All are gone: freed by the try that had no answer, or lost before it. Nobody knows, so that it is no
                    // loss; and a release of which nothing else is known has no answer.
                    if let (Doing::Free, Some(failure), true) = (doing, &doubt, gone == positions.len()) {
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

fn blind<'a>(key: &'a str, holder: Holder<'a>, lease: u64, doing: Doing, now: Now) -> Write<'a> {
    match doing {
        Doing::Free => Write::free(key, holder, now),
        Doing::Renew => Write::renew(key, holder, lease, now),
    }
}

fn step(row: &Row, hold: &Hold, fence: u64, doing: Doing, now: Now) -> Step {
    let mut new = row.clone();
    let rebased = new.rebase(now);
    let all_live = !rebased && row.holders.iter().all(|(_, entry)| !entry.certainly_ended(now));
    let until = now.hi.saturating_add(hold.lease);
    let holders = row.holders.len();
    let Some(own) = new.holder_mut(&hold.context).filter(|own| own.fence == fence) else {
        let reason = if row.was_broken(fence) { LossReason::Broken } else { LossReason::Vanished };
        return Step::Lost(reason);
    };
    match doing {
        Doing::Free if all_live && holders == 1 && !row.frozen && row.marks.is_empty() => Step::Blind,
        Doing::Free if all_live && holders > 1 && own.permits.len() <= PERMITS_NAMED => {
            Step::Leave(own.permits.clone())
        }
        Doing::Free => {
            let ended = own.certainly_ended(now);
            new.remove(&hold.context);
            new.prune(now);
            match ended {
                true => Step::ChangeLost(new, LossReason::Expired),
                false => Step::Change(new),
            }
        }
        // What may have ended is not brought back, whoever's estimate says so.
        Doing::Renew if !own.certainly_lasts(now) => Step::Lost(LossReason::Expired),
        Doing::Renew if own.broken => Step::Lost(LossReason::Broken),
        Doing::Renew if all_live && own.until <= until && row.seen_until() >= Some(up(until)) => {
            Step::RenewWithin
        }
        Doing::Renew => {
            own.extend(hold.lease, now);
            new.prune(now);
            Step::Change(new)
        }
    }
}
