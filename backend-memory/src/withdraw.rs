//! Withdrawing an attempt: it leaves the queue, or its grant is undone.

use lockcore::{
    ContextId, Granted, Ident,
    backend::{AcquireRequest, List, Withdraw, Withdrawn},
};

use crate::{
    MemoryLockDao, What,
    acquire::{as_granted, ids, waiting},
    clock::{Lease, StoreTime},
    entry::Stance,
    handoff::Step,
    spot::Spot,
    table::Locked,
};

impl<I: Ident, C: ContextId> MemoryLockDao<I, C> {
    pub(crate) fn withdraw_now(&self, request: &AcquireRequest<I, C>, how: Withdraw) -> Withdrawn {
        if request.claims.is_empty() {
            return Withdrawn::Left;
        }
        let mut step = Step::new(&self.clock);
        let now = step.now();
        let (mut locked, mut spots) = self.tables.lock_set(request.claims.iter().map(|claim| &claim.target));
        let mut withdrawn = Withdrawn::Left;
        if how == Withdraw::Undo {
            locked.table(&spots[0]).withdrawals.add(request.attempt, &request.context, now);
        }
        if let Some(waiter) = waiting(&mut locked, &spots, request) {
            self.leave(&mut locked, &spots, &waiter, false, &mut step);
            self.record(What::Withdrawn, &request.context, || now, || ids(&request.claims));
        }
        for (spot, claim) in spots.iter().zip(request.claims.iter()) {
            self.remove_expired(&mut locked, spot, &claim.target, &mut step);
        }
        let granted = match how {
            Withdraw::Undo => None,
            Withdraw::KeepIfGranted => held(&mut locked, &spots, request),
        };
        match granted {
            Some(granted) => {
                let expires = now.after(Lease::of(request.lease));
                refresh(&mut locked, &spots, request, expires, &mut step);
                withdrawn = Withdrawn::Holds(granted);
            }
            // A part of the set is not kept, where the rest has expired or was released.
            None => self.undo(&mut locked, &spots, request, &mut step),
        }
        for spot in &mut spots {
            locked.tidy(spot);
        }
        self.finish(locked, step);
        withdrawn
    }

    /// Frees what the attempt was granted, and restores what the context held by an earlier one.
    fn undo(
        &self,
        locked: &mut Locked<'_, I, C>,
        spots: &[Spot],
        request: &AcquireRequest<I, C>,
        step: &mut Step<'_, I, C>,
    ) {
        let now = step.now();
        let mut undone = Vec::new();
        for (spot, claim) in spots.iter().zip(request.claims.iter()) {
            let Some(entry) = locked.entry(spot) else { continue };
            let own = entry.holders.row(&request.context);
            if own.is_none_or(|own| own.attempt != request.attempt) {
                continue;
            }
            let Some(own) = entry.holders.remove(&request.context) else { continue };
            undone.push((claim.target.clone(), Some(own.fence)));
            if let Some(before) = own.before.filter(|before| before.expires > now) {
                entry.holders.restore(*before);
            }
            step.freed(spot, entry);
        }
        if !undone.is_empty() {
            self.record(What::Withdrawn, &request.context, || now, || undone);
        }
    }
}

/// Returns what the attempt holds, if it was granted.
fn held<I: Ident, C: ContextId>(
    locked: &mut Locked<'_, I, C>,
    spots: &[Spot],
    request: &AcquireRequest<I, C>,
) -> Option<List<Granted>> {
    let mut by_this_attempt = false;
    let mut granted = List::new();
    for (spot, claim) in spots.iter().zip(request.claims.iter()) {
        let entry = locked.entry(spot)?;
        if entry.stance(claim.mode, &request.context) != Stance::Keep {
            return None;
        }
        let own = entry.holders.row(&request.context)?;
        by_this_attempt |= own.attempt == request.attempt;
        granted.push(as_granted(own, entry.holders.in_use().units()));
    }
    by_this_attempt.then_some(granted)
}

/// Extends what the attempt holds to a whole lease: its waiter has confirmed it.
fn refresh<I: Ident, C: ContextId>(
    locked: &mut Locked<'_, I, C>,
    spots: &[Spot],
    request: &AcquireRequest<I, C>,
    expires: StoreTime,
    step: &mut Step<'_, I, C>,
) {
    for spot in spots {
        let Some(entry) = locked.entry(spot) else { continue };
        let own = entry.holders.row(&request.context);
        if own.is_some_and(|own| own.attempt == request.attempt) {
            entry.holders.extend(&request.context, Lease::of(request.lease), expires);
            step.note_expiry(entry, expires);
        }
    }
}
