//! Withdrawing an attempt: its grants are undone, and a request of it that arrives late is refused.

use std::collections::HashSet;

use lockcore::{
    Granted,
    backend::{List, ServiceTime, Withdraw},
    rules::InUse,
};

use crate::{
    acquire::Request,
    config::TRANSACTION,
    decide,
    error::StoreError,
    row::{Entry, Row},
    send::Written,
    store::Store,
    write::Write,
};

/// Tombstones end at multiples of this, in microseconds.
const TOMBSTONE_ENDS: u64 = 5_000_000;

impl Store {
    /// Ends an attempt. Returns what it holds, or `None` if it left.
    ///
    /// Reads first, to find what is to be undone. Where that is nothing, and the item has other tombstones, the write adds one
    /// whatever others write meanwhile: so concurrent withdrawals of one id do not race. Everything else is written under
    /// the condition that nothing changed.
    pub(crate) async fn withdraw(
        &self,
        request: &Request,
        how: Withdraw,
    ) -> Result<Option<List<Granted>>, StoreError> {
        self.remember_refusal(request.attempt, false);
        if how == Withdraw::KeepIfGranted
            && let Some(granted) = self.what_it_holds(request).await?
        {
            return Ok(Some(granted));
        }
        for claims in request.claims.chunks(TRANSACTION) {
            self.undo(&request.part(claims), how == Withdraw::Undo).await?;
        }
        Ok(None)
    }

    /// Returns the whole set, if it is held and this attempt was granted a part of it.
    async fn what_it_holds(&self, request: &Request) -> Result<Option<List<Granted>>, StoreError> {
        let keys: Vec<String> = request.claims.iter().map(|claim| claim.key.clone()).collect();
        let rows = self.read(&keys, self.deadline()).await?;
        let now = self.now()?;
        let (mut all, mut of_attempt) = (List::new(), false);
        for (claim, row) in request.claims.iter().zip(&rows) {
            let Some(row) = row else { return Ok(None) };
            let Some(granted) = decide::holds(row, &request.context, claim.mode, now) else {
                return Ok(None);
            };
            of_attempt |= row.holder(&request.context).is_some_and(|own| own.attempt == request.attempt);
            all.push(granted);
        }
        Ok(of_attempt.then_some(all))
    }

    /// Undoes the attempt's grants in one transaction, and adds tombstones if a late request is to be refused.
    pub(crate) async fn undo(&self, request: &Request, tombstone: bool) -> Result<(), StoreError> {
        let deadline = self.deadline();
        let keys: Vec<String> = request.claims.iter().map(|claim| claim.key.clone()).collect();
        let mut rows = self.read(&keys, deadline).await?;
        for round in 0.. {
            let now = self.now()?;
            let (mut writes, mut positions) = (Vec::new(), Vec::new());
            for (position, (key, old)) in keys.iter().zip(&rows).enumerate() {
                let mut row = old.clone().unwrap_or_default();
                let undone = undo(&mut row, request, now);
                if tombstone && !row.was_withdrawn(request.attempt) {
                    // Ten times as long as the request is retried: no request is on its way for so long.
                    let patience = micros(self.settings.timeout + self.settings.attempt_timeout) * 10;
                    let until = now.hi.saturating_add(request.lease.max(patience));
                    // Rounded, so that withdrawals at about the same time need the same end of the item, which one moves for all.
                    let until = until.checked_next_multiple_of(TOMBSTONE_ENDS).unwrap_or(until);
                    let added = old.as_ref().and_then(|old| {
                        Write::tombstone(key, old, &request.context, request.attempt, until, now)
                    });
                    if let Some(added) = added {
                        writes.push(added);
                        positions.push(position);
                        continue;
                    }
                    row.tombstones.push((request.attempt, until));
                } else if !undone {
                    continue;
                }
                row.prune(now);
                writes.push(Write::replace(key, old.as_ref(), row, now));
                positions.push(position);
            }
            if writes.is_empty() {
                return Ok(());
            }
            match self.write(&writes, deadline).await? {
                Written::Done => return Ok(()),
                Written::Refused { found, .. } => {
                    for (at, item) in found {
                        let row = item.map(|item| Row::read(item, self.names())).transpose()?;
                        rows[positions[at]] = row;
                    }
                }
            }
            self.rest(round, deadline, false).await?;
        }
        unreachable!("the loop ends by returning")
    }
}

/// Removes the attempt's grant from a row, and restores what it replaced; returns whether there was one.
pub(crate) fn undo(row: &mut Row, request: &Request, now: ServiceTime) -> bool {
    let of_attempt = row.holder(&request.context).is_some_and(|own| own.attempt == request.attempt);
    if !of_attempt {
        return false;
    }
    let Some(own) = row.remove(&request.context) else { return false };
    let Some(prior) = own.prior.filter(|prior| !prior.certainly_ended(now)) else { return true };
    // Where there were fewer permits for a while, others may have some of them by now, or need the rest: then it is lost.
    let permits: HashSet<u32> = prior.permits.iter().copied().collect();
    let is_taken = |entry: &Entry| entry.permits.iter().any(|permit| permits.contains(permit));
    if row.holders.iter().any(|(_, entry)| is_taken(entry))
        || !InUse::of(row.holders.iter().map(|(_, entry)| entry.mode)).fits(prior.mode)
    {
        return true;
    }
    let position = row.holders.partition_point(|(context, _)| *context < request.context);
    row.holders.insert(position, (request.context.clone(), *prior));
    true
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
