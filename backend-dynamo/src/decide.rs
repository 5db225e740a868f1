//! Decides about a claim on a row that was read, in this process, by the rules of the core.

use lockcore::{
    ConflictReason, Granted, Holder, MAX_HOLDERS_LISTED, Mode, Owner, StoredContext,
    backend::ServiceTime,
    rules::{self, Again, InUse},
};
use std::time::Duration;

use crate::row::{Entry, Row};

/// The requester of a claim, and its lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) context: &'a str,
    pub(crate) attempt: u64,
    /// In microseconds.
    pub(crate) lease: u64,
    pub(crate) owner: &'a Owner,
}

/// The decision about one claim of a request.
#[derive(Debug)]
pub(crate) enum ClaimDecision {
    /// The row is as it has to be written.
    Granted(Granted),
    Blocked(ConflictReason<String>),
    Withdrawn,
}

impl Asker<'_> {
    /// Returns a new holder.
    pub(crate) fn entry(&self, mode: Mode, taken: &[u32], fence: u64, now: ServiceTime) -> Entry {
        Entry {
            mode,
            permits: rules::lowest_free(taken.iter().copied(), mode.permits()),
            fence,
            attempt: self.attempt,
            lease: self.lease,
            until: self.until(now),
            since: now.lo,
            owner: self.owner.clone(),
            broken: false,
            prior: None,
        }
    }

    /// Returns the end of a lease that begins now: a whole one, wherever the service's time is within its bounds.
    pub(crate) fn until(&self, now: ServiceTime) -> u64 {
        now.hi.saturating_add(self.lease)
    }
}

/// Grants `wanted` on the row if the rules allow it. `fence` is above the item's.
pub(crate) fn take(
    row: &mut Row,
    asker: Asker<'_>,
    wanted: Mode,
    fence: u64,
    now: ServiceTime,
) -> ClaimDecision {
    if row.was_withdrawn(asker.attempt) {
        return ClaimDecision::Withdrawn;
    }
    row.prune(now);
    // A lease that may have ended becomes a new grant, so that none is ever revived.
    let own = row.holder(asker.context).filter(|own| own.certainly_lasts(now));
    let stance = own.map(|own| (own.broken, rules::again(own.mode, wanted)));
    match stance {
        Some((true, _)) => return ClaimDecision::Blocked(held(row, now, |_| true)),
        Some((false, Again::Keep)) => return ClaimDecision::Granted(keep(row, asker, now)),
        Some((false, Again::Change)) | None => {}
    }
    if row.frozen {
        return ClaimDecision::Blocked(ConflictReason::Frozen);
    }
    let others = row.holders.iter().filter(|(context, _)| context != asker.context);
    let foreign = row.foreign.iter().map(|_| Mode::Exclusive);
    let in_use = InUse::of(others.clone().map(|(_, entry)| entry.mode).chain(foreign));
    if !in_use.fits(wanted) {
        return ClaimDecision::Blocked(held(row, now, |context| context != asker.context));
    }
    let taken: Vec<u32> = others.flat_map(|(_, entry)| entry.permits.iter().copied()).collect();
    let mut entry = asker.entry(wanted, &taken, fence, now);
    let prior = row.remove(asker.context);
    if let (Some(prior), true) = (prior, stance.is_some()) {
        // A repeated attempt goes back to what was held before its first grant.
        entry.prior = if prior.attempt == asker.attempt { prior.prior } else { Some(Box::new(prior)) };
    }
    let granted = granted(&entry, in_use.plus(wanted));
    let position = row.holders.partition_point(|(context, _)| context.as_str() < asker.context);
    row.holders.insert(position, (asker.context.to_owned(), entry));
    row.fence = row.fence.max(fence);
    ClaimDecision::Granted(granted)
}

/// Renews a lock that is held already.
fn keep(row: &mut Row, asker: Asker<'_>, now: ServiceTime) -> Granted {
    let in_use = InUse::of(row.holders.iter().map(|(_, entry)| entry.mode));
    let own = row.holder_mut(asker.context).expect("the caller found it");
    own.extend(asker.lease, now);
    granted(own, in_use)
}

/// Returns what the context certainly holds of `wanted`.
pub(crate) fn holds(row: &Row, context: &str, wanted: Mode, now: ServiceTime) -> Option<Granted> {
    let own = row.holder(context)?;
    if own.broken || !own.certainly_lasts(now) || rules::again(own.mode, wanted) == Again::Change {
        return None;
    }
    let live = row.holders.iter().filter(|(_, entry)| !entry.certainly_ended(now));
    Some(granted(own, InUse::of(live.map(|(_, entry)| entry.mode))))
}

/// Describes the holders that `among` selects as a conflict.
fn held(row: &Row, now: ServiceTime, among: impl Fn(&str) -> bool) -> ConflictReason<String> {
    if let Some(foreign) = &row.foreign {
        let remaining = foreign.until.map(|until| left(until, now));
        let holder = Holder {
            context: StoredContext::Foreign(foreign.context.clone()),
            owner: Owner::default(),
            mode: Mode::Exclusive,
            fence: 0,
            remaining,
        };
        return ConflictReason::Held { holders: vec![holder], count: 1, in_use: 1 };
    }
    let mut blocking: Vec<_> = row.holders.iter().filter(|(context, _)| among(context)).collect();
    blocking.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.until));
    let in_use = InUse::of(row.holders.iter().map(|(_, entry)| entry.mode)).units();
    let listed = blocking.iter().take(MAX_HOLDERS_LISTED).map(|(context, entry)| Holder {
        context: StoredContext::Known(context.clone()),
        owner: entry.owner.clone(),
        mode: entry.mode,
        fence: entry.fence,
        remaining: Some(left_of(entry, now)),
    });
    ConflictReason::Held { holders: listed.collect(), count: blocking.len(), in_use }
}

/// Returns how long it takes until an end is certainly past.
pub(crate) fn left(until: u64, now: ServiceTime) -> Duration {
    Duration::from_micros(until.saturating_sub(now.lo))
}

/// Returns what is left of a lease: never more than all of it, although it takes longer until its end is certainly past.
pub(crate) fn left_of(entry: &Entry, now: ServiceTime) -> Duration {
    left(entry.until, now).min(Duration::from_micros(entry.lease))
}

fn granted(entry: &Entry, in_use: InUse) -> Granted {
    Granted { mode: entry.mode, fence: entry.fence, permits: entry.permits.clone(), in_use: in_use.units() }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
