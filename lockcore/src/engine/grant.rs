//! Granting: what a context holds from now on, and what it goes back to.

use std::collections::HashSet;

use super::{Back, New, Request, Table, Terms, weigh::Stance};
use crate::{Granted, Mode, rules};

/// Grants the set, against which nothing may stand.
pub(super) fn grant<T: Table>(
    table: &mut T,
    stances: &[Stance],
    terms: &Terms<'_, T::Request>,
) -> Result<Vec<Granted>, T::Error> {
    let fence = match stances.iter().all(|stance| *stance == Stance::Keep) {
        true => None,
        false => Some(table.new_fence(terms)?),
    };
    let mut granted = Vec::with_capacity(stances.len());
    for ((id, mode), stance) in terms.request.claims().zip(stances) {
        granted.push(match (stance, fence) {
            (Stance::Keep, _) | (_, None) => keep(table, id, terms)?,
            (_, Some(fence)) => hold(table, id, mode, *stance, fence, terms)?,
        });
    }
    Ok(granted)
}

/// Grants an id, in place of what the context holds of it. That comes back if the grant is undone.
fn hold<T: Table>(
    table: &mut T,
    id: &T::Id,
    mode: Mode,
    stance: Stance,
    fence: u64,
    terms: &Terms<'_, T::Request>,
) -> Result<Granted, T::Error> {
    let context = terms.request.context();
    let own = table.own(id, context)?;
    let back = match &own {
        // A repeated attempt goes back to what was held before its first grant.
        Some(own) if stance == Stance::Change && own.attempt == terms.request.attempt() => Back::ToBeforeOwn,
        Some(_) if stance == Stance::Change => Back::ToOwn,
        _ => Back::ToNothing,
    };
    let permits = match mode.permits() {
        0 => Vec::new(),
        wanted => {
            let others = table.holders(id)?.filter(|held| held.context != context);
            rules::lowest_free(others.flat_map(|held| held.permits.iter().copied()), wanted)
        }
    };
    let in_use = table.in_use(id, Some(context))?.plus(mode).units();
    table.hold(id, New { fence, mode, permits: permits.clone(), in_use }, back, terms)?;
    if own.is_some() {
        // It may have had more permits, which lets others in.
        table.room(id, 0);
    }
    Ok(Granted { mode, fence, permits, in_use })
}

/// Goes on holding what the context holds.
fn keep<T: Table>(table: &mut T, id: &T::Id, terms: &Terms<'_, T::Request>) -> Result<Granted, T::Error> {
    table.keep(id, terms)?;
    let own = table.own(id, terms.request.context())?.expect("only what the context holds is kept");
    let in_use = table.in_use(id, None)?.units();
    Ok(Granted { mode: own.mode, fence: own.fence, permits: own.permits, in_use })
}

/// Removes what an attempt got of an id, and gives back what that replaced, so far as it still lasts.
pub(super) fn undo<T: Table>(table: &mut T, request: &T::Request, id: &T::Id) -> Result<(), T::Error> {
    let context = request.context();
    if table.own(id, context)?.is_none_or(|own| own.attempt != request.attempt()) {
        return Ok(());
    }
    let restores = match table.replaced(id, context)? {
        None => false,
        Some(before) => {
            // Where there were fewer permits for a while, others may have some of them by now, or need the rest: then it is lost.
            let permits: HashSet<u32> = before.permits.iter().copied().collect();
            let mut others = table.holders(id)?.filter(|held| held.context != context);
            let is_taken = others.any(|held| held.permits.iter().any(|permit| permits.contains(permit)));
            drop(others);
            !is_taken && table.in_use(id, Some(context))?.fits(before.mode)
        }
    };
    table.undo(id, context, restores)?;
    table.room(id, 0);
    Ok(())
}
