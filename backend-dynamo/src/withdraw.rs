//! Withdrawing an attempt: its grants are undone, and a request of it that arrives late is refused.

use lockcore::{Granted, backend::Withdraw, engine};

use crate::{
    error::StoreError, request::Request, row::Row, send::Written, state::Step, store::Store, write::Write,
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
    ) -> Result<Option<Vec<Granted>>, StoreError> {
        self.remember_refusal(request.attempt, false);
        let Request { context, attempt, .. } = request;
        let deadline = self.deadline();
        let keys: Vec<String> = request.claims.iter().map(|claim| claim.key.clone()).collect();
        let mut rows = self.read(&keys, deadline).await?;
        for round in 0.. {
            let now = self.now()?;
            // Ten times as long as the request is retried: no request is on its way for so long.
            let patience = micros(self.settings.timeout + self.settings.attempt_timeout) * 10;
            let until = now.hi.saturating_add(request.lease.max(patience));
            // Rounded, so that withdrawals at about the same time need the same end of the item, which one moves for all.
            let until = until.checked_next_multiple_of(TOMBSTONE_ENDS).unwrap_or(until);
            let found = keys.iter().cloned().zip(rows.iter().map(|row| row.clone().unwrap_or_default()));
            let mut step = Step::new(found, now).withdrawing(context, until);
            let Ok(kept) = engine::withdraw(&mut step, request, how);
            if kept.is_some() {
                // Nothing is written: the caller renews it before it relies on it.
                return Ok(kept);
            }
            let (mut writes, mut positions) = (Vec::new(), Vec::new());
            for (position, (key, old)) in keys.iter().zip(&rows).enumerate() {
                let row = step.row(key);
                let own = |row: &Row| row.holder(context).cloned();
                let adds = row.was_withdrawn(*attempt)
                    && !old.as_ref().is_some_and(|old| old.was_withdrawn(*attempt));
                let added = old
                    .as_ref()
                    .filter(|_| adds)
                    .and_then(|old| Write::tombstone(key, old, context, *attempt, until, now));
                if adds || own(row) != old.as_ref().and_then(own) {
                    let replaced = || Write::replace(key, old.as_ref(), &step.pruned(key), now);
                    writes.push(added.unwrap_or_else(replaced));
                    positions.push(position);
                }
            }
            if writes.is_empty() {
                return Ok(None);
            }
            match self.write(writes, deadline).await? {
                Written::Done => return Ok(None),
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

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
