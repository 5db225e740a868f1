//! Withdrawing a try: what it got is undone, and a request of it that arrives late is refused.

use lockcore::{
    Granted, Mode, Withdraw,
    rules::{self, InUse},
};
use smallvec::SmallVec;

use crate::{
    acquire::Ask, clock::Now, config::TRANSACTION, decide, error::StoreError, row::Row, send::Written,
    store::Store, write::Write,
};

/// Marks end at multiples of this, in microseconds.
const MARKS_END: u64 = 5_000_000;

impl Store {
    /// Ends an attempt. `None`: it left; otherwise what it holds.
    ///
    /// Reads first, to see what is to be undone. Where nothing is, and the item already remembers other attempts, the
    /// write adds this one whatever others do meanwhile: so many withdrawals of one id at once do not race each other.
    /// Everything else is written under the condition that nothing changed.
    pub(crate) async fn withdraw(
        &self,
        ask: &Ask,
        how: Withdraw,
    ) -> Result<Option<SmallVec<[Granted; 1]>>, StoreError> {
        self.remember_refusal(ask.attempt, false);
        if how == Withdraw::KeepIfGranted
            && let Some(granted) = self.what_it_holds(ask).await?
        {
            return Ok(Some(granted));
        }
        for claims in ask.claims.chunks(TRANSACTION) {
            self.undo(&ask.part(claims), how == Withdraw::Undo).await?;
        }
        Ok(None)
    }

    /// The whole set, if it is held and this attempt got something of it.
    async fn what_it_holds(&self, ask: &Ask) -> Result<Option<SmallVec<[Granted; 1]>>, StoreError> {
        let keys: Vec<String> = ask.claims.iter().map(|claim| claim.key.clone()).collect();
        let rows = self.read(&keys, self.deadline()).await?;
        let now = self.now()?;
        let (mut all, mut of_attempt) = (SmallVec::new(), false);
        for (claim, row) in ask.claims.iter().zip(&rows) {
            let Some(row) = row else { return Ok(None) };
            let Some(granted) = decide::holds(row, &ask.context, claim.mode, now) else { return Ok(None) };
            of_attempt |= row.holder(&ask.context).is_some_and(|own| own.attempt == ask.attempt);
            all.push(granted);
        }
        Ok(of_attempt.then_some(all))
    }

    /// Undoes, in one transaction, what the attempt got, and marks its ids if a late request is to be refused.
    pub(crate) async fn undo(&self, ask: &Ask, mark: bool) -> Result<(), StoreError> {
        let deadline = self.deadline();
        let keys: Vec<String> = ask.claims.iter().map(|claim| claim.key.clone()).collect();
        let mut rows = self.read(&keys, deadline).await?;
        for round in 0.. {
            let now = self.now()?;
            let (mut writes, mut positions) = (Vec::new(), Vec::new());
            for (position, (key, old)) in keys.iter().zip(&rows).enumerate() {
                let mut row = old.clone().unwrap_or_default();
                let undone = undo(&mut row, ask, now);
                if mark && !row.was_withdrawn(ask.attempt) {
                    // A request is on its way for no longer than its tries take.
                    let patience = micros(self.settings.timeout + self.settings.attempt_timeout) * 10;
                    let until = now.hi.saturating_add(ask.lease.max(patience));
                    // Withdrawals of one id at about the same time need the same end of its item: one moves it for all.
                    let until = until.checked_next_multiple_of(MARKS_END).unwrap_or(until);
                    let added = old
                        .as_ref()
                        .and_then(|old| Write::mark(key, old, &ask.context, ask.attempt, until, now));
                    if let Some(added) = added {
                        writes.push(added);
                        positions.push(position);
                        continue;
                    }
                    row.marks.push((ask.attempt, until));
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

/// Removes what the attempt got from an item, and puts back what it replaced; tells whether there was anything.
fn undo(row: &mut Row, ask: &Ask, now: Now) -> bool {
    let of_attempt = row.holder(&ask.context).is_some_and(|own| own.attempt == ask.attempt);
    if !of_attempt {
        return false;
    }
    let Some(own) = row.remove(&ask.context) else { return false };
    let Some(mut prior) = own.prior.filter(|prior| !prior.certainly_ended(now)) else { return true };
    if let Mode::Slots { .. } = prior.mode {
        // Fewer permits may have let somebody in meanwhile who needs the rest: then they stay as few.
        if !InUse::of(row.holders.iter().map(|(_, entry)| entry.mode)).fits(prior.mode) {
            prior.mode = own.mode;
        }
        let taken = row.holders.iter().flat_map(|(_, entry)| entry.permits.iter().copied());
        prior.permits = rules::lowest_free(taken, prior.mode.permits());
    }
    let position = row.holders.partition_point(|(context, _)| *context < ask.context);
    row.holders.insert(position, (ask.context.clone(), *prior));
    true
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
