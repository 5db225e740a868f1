//! Freeing and renewing what a grant holds: one conditional write, and one more for each round of losses.

use std::collections::BTreeMap;

use lockcore::LossReason;

use crate::{
    acquire::PERMITS_NAMED,
    clock::Now,
    error::StoreError,
    item::up,
    row::{Entry, Row},
    send::Written,
    store::Store,
    write::Write,
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
}

/// By position in the grant: what was lost.
pub(crate) type Losses = Vec<(usize, LossReason)>;

/// What a release found; `failed`: the positions from which on nothing is known to have been freed.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) lost: Losses,
    pub(crate) failed: Option<(usize, StoreError)>,
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
    Leave(Entry),
    /// It is to be extended, which moves no end that others see.
    RenewWithin,
    /// It is to be written so.
    Change(Row),
    /// The same, though the lock was lost before.
    ChangeLost(Row, LossReason),
    Lost(LossReason),
}

impl Store {
    /// Frees what the grant holds. What it lost does not keep the rest from being freed.
    pub(crate) async fn release(&self, hold: &Hold) -> Result<Freed, StoreError> {
        let mut lost = Losses::new();
        let chunk = self.settings.chunk();
        for (number, locks) in hold.locks.chunks(chunk).enumerate() {
            let start = number * chunk;
            match self.change(hold, locks, Doing::Free).await {
                Ok(losses) => lost.extend(losses.into_iter().map(|(at, reason)| (start + at, reason))),
                Err(error) if start == 0 => return Err(error),
                Err(error) => return Ok(Freed { lost, failed: Some((start, error)) }),
            }
        }
        Ok(Freed { lost, failed: None })
    }

    /// Extends what the grant still holds to a whole lease from now.
    pub(crate) async fn renew(&self, hold: &Hold) -> Result<Losses, StoreError> {
        let mut lost = Losses::new();
        let chunk = self.settings.chunk();
        for (number, locks) in hold.locks.chunks(chunk).enumerate() {
            let losses = self.change(hold, locks, Doing::Renew).await?;
            lost.extend(losses.into_iter().map(|(at, reason)| (number * chunk + at, reason)));
        }
        Ok(lost)
    }

    /// Writes without having read: that nothing is unusual is part of the condition. What is found where it does not hold
    /// decides what happens there.
    async fn change(&self, hold: &Hold, locks: &[Held], doing: Doing) -> Result<Losses, StoreError> {
        let deadline = self.deadline();
        let mut known: BTreeMap<usize, Row> = BTreeMap::new();
        let mut losses: BTreeMap<usize, LossReason> = BTreeMap::new();
        let mut in_doubt = false;
        for round in 0.. {
            let now = self.now()?;
            let (mut writes, mut positions) = (Vec::new(), Vec::new());
            for (position, held) in locks.iter().enumerate() {
                let Held { key, fence, .. } = held;
                let write = match known.get(&position) {
                    None => blind(hold, held, doing, now),
                    Some(row) => match step(row, hold, *fence, doing, now) {
                        Step::Blind => blind(hold, held, doing, now),
                        Step::Leave(own) => Write::leave(key, &hold.context, own),
                        Step::RenewWithin => Write::renew_within(key, &hold.context, *fence, hold.lease, now),
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
                Ok(Written::Refused { found, doubt }) => {
                    in_doubt |= doubt;
                    for (at, item) in found {
                        losses.remove(&positions[at]);
                        let row = item.map(|item| Row::read(item, self.names())).transpose()?;
                        known.insert(positions[at], row.unwrap_or_default());
                    }
                }
                Err(error) if in_doubt => return Err(error.in_doubt_now()),
                Err(error) => return Err(error),
            }
            if round > 0 {
                self.rest(round - 1, deadline, in_doubt).await?;
            }
        }
        unreachable!("the loop ends by returning")
    }
}

fn blind<'a>(hold: &'a Hold, Held { key, fence, exclusive }: &'a Held, doing: Doing, now: Now) -> Write<'a> {
    match doing {
        Doing::Free => Write::free(key, &hold.context, *fence, *exclusive, now),
        Doing::Renew => Write::renew(key, &hold.context, *fence, hold.lease, now),
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
        Doing::Free if all_live && holders == 1 && !row.frozen => Step::Blind,
        Doing::Free if all_live && holders > 1 && own.permits.len() <= PERMITS_NAMED => {
            Step::Leave(own.clone())
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
            own.until = own.until.max(until);
            own.lease = hold.lease;
            new.prune(now);
            Step::Change(new)
        }
    }
}
