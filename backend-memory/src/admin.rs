//! Administration: listing, inspecting, breaking, freezing, sweeping.

use std::{collections::BinaryHeap, time::Duration};

use lockcore::{
    BreakMode, BreakRecord, Broken, ContextId, Finding, HeldBy, Ident, Inspection, Listing, Page, Severity,
    StoredContext, Swept, Target, WaitingFor, engine,
};

use crate::{
    clock::{Clock, Lease, StoreTime},
    history::What,
    step::Step,
    table::Table,
};

impl<I: Ident, C: ContextId> Table<I, C> {
    /// Lists what is held, waited for or frozen.
    pub(crate) fn list(&self, page: &Page, now: StoreTime, clock: &Clock) -> Listing<I, C> {
        let after = page.after.as_deref();
        // The lowest stored forms, the highest of them on top: one more than requested shows that there is a next page.
        let mut lowest: BinaryHeap<String> = BinaryHeap::new();
        for (target, id) in &self.ids {
            let stored = target.stored();
            let listed = after.is_none_or(|after| stored.as_bytes() > after.as_bytes())
                && (id.frozen || id.waiting.is_some() || id.holders.values().any(|holder| holder.ends > now));
            let full = lowest.len() > page.limit;
            if listed && !(full && lowest.peek().is_some_and(|highest| *stored >= **highest)) {
                lowest.push(stored.into_owned());
                if full {
                    lowest.pop();
                }
            }
        }
        let mut stored = lowest.into_sorted_vec();
        let more = stored.len() > page.limit;
        stored.truncate(page.limit);
        let next = if more { stored.last().cloned() } else { None };
        let targets = stored.iter().filter_map(|stored| Target::from_stored(stored));
        Listing { ids: targets.map(|target| self.inspect(&target, now, clock)).collect(), next }
    }

    /// Returns all that is known of an id. Holders whose lease is over are left out.
    pub(crate) fn inspect(&self, target: &Target<I>, now: StoreTime, clock: &Clock) -> Inspection<I, C> {
        let id = self.ids.get(target);
        let live = id.into_iter().flat_map(|id| id.holders.values()).filter(|holder| holder.ends > now);
        let mut holders: Vec<HeldBy<C>> = live
            .map(|holder| HeldBy {
                context: StoredContext::Known(holder.context.clone()),
                owner: holder.owner.clone(),
                mode: holder.mode,
                permits: holder.permits.clone(),
                fence: holder.fence,
                since: clock.calendar(holder.since),
                lease: holder.lease.duration(),
                remaining: holder.ends.remaining(now),
                broken: holder.broken,
            })
            .collect();
        holders.sort_by_key(|holder| holder.fence);
        let turns = self.queue(target).map(|queue| queue.turns()).unwrap_or_default();
        let waiters = turns.iter().filter_map(|turn| {
            let place = self.places.get(&turn.ticket)?;
            Some(WaitingFor {
                context: StoredContext::Known(place.request.context.clone()),
                owner: place.request.owner.clone(),
                mode: turn.mode,
                since: clock.calendar(place.since),
            })
        });
        Inspection {
            target: Ok(target.clone()),
            holders,
            waiters: waiters.collect(),
            frozen: id.is_some_and(|id| id.frozen),
            breaks: self.losses.breaks_of(target).cloned().collect(),
            unreadable: None,
        }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let ok = |check, detail: String| Finding::new(Severity::Ok, check, detail);
        let held: usize = self.ids.values().map(|id| id.holders.len()).sum();
        let frozen = self.ids.values().filter(|id| id.frozen).count();
        let waiting: usize = self.places.values().map(|place| place.request.claims.len()).sum();
        vec![
            ok("store", "in memory: excludes within this process only, and ends with it".to_owned()),
            ok("in use", format!("{held} locks, {waiting} places in queues, {frozen} frozen ids")),
        ]
    }
}

impl<I: Ident, C: ContextId> Step<'_, I, C> {
    /// Frees all that a context holds, and takes it from every queue; returns the ids that were held.
    pub(crate) fn release_context(&mut self, context: &C) -> Vec<Target<I>> {
        let places = self.table.places.iter().filter(|(_, place)| place.request.context == *context);
        let places: Vec<_> = places.map(|(ticket, place)| (*ticket, place.request.clone())).collect();
        for (ticket, request) in places {
            let Ok(()) = engine::leave(self, &*request, ticket);
        }
        let held = self.table.ids.iter().filter(|(_, id)| id.holders.contains_key(context));
        let mut held: Vec<_> = held.map(|(target, _)| target.clone()).collect();
        held.retain(|target| {
            self.remove_ended_of(target, usize::MAX);
            let Some(holder) = self.remove(target, context) else { return false };
            self.record(What::Released, context, || vec![(target.clone(), Some(holder.fence))]);
            true
        });
        held
    }

    /// Breaks the lock that is held under `fence`, and records that `by` did.
    pub(crate) fn break_lock(&mut self, target: &Target<I>, fence: u64, how: BreakMode, by: &str) -> Broken {
        self.remove_ended_of(target, usize::MAX);
        let mut holders = self.table.ids.get_mut(target).into_iter().flat_map(|id| id.holders.values_mut());
        match holders.find(|holder| holder.fence == fence) {
            None => Broken::NotHeld,
            Some(holder) => {
                let frees = how == BreakMode::Now;
                let is_new = frees || !holder.broken;
                holder.broken = true;
                let (context, left) = (holder.context.clone(), holder.ends.remaining(self.now));
                if is_new {
                    self.record(What::Broken, &context, || vec![(target.clone(), Some(fence))]);
                    let at = self.clock.calendar(self.now);
                    let known = StoredContext::Known(context.clone());
                    let record = BreakRecord { context: known, fence, by: by.into(), at, now: frees };
                    self.table.losses.add_break(target.clone(), record);
                }
                if frees {
                    self.remove(target, &context);
                }
                if frees { Broken::Freed } else { Broken::Within(left) }
            }
        }
    }

    /// Freezes an id, or thaws it and serves its waiters.
    pub(crate) fn freeze(&mut self, target: &Target<I>, frozen: bool) {
        if frozen {
            self.table.id_or_new(target).frozen = true;
        } else {
            self.table.change(target, |id| id.frozen = false);
            engine::Table::room(self, target, 0);
        }
    }

    /// Removes at most `batch` locks that have expired.
    pub(crate) fn sweep(&mut self, batch: usize, unless_within: Option<Duration>) -> Swept {
        let is_early = |last: StoreTime, within| self.now < last.after(Lease::of(Some(within)));
        if let (Some(last), Some(within)) = (self.table.swept, unless_within)
            && is_early(last, within)
        {
            return Swept { elsewhere: true, ..Swept::default() };
        }
        self.table.swept = Some(self.now);
        self.table.withdrawals.age(self.now);
        let over = self.table.ids.iter().filter(|(_, id)| id.first_end <= self.now);
        // It may be that none of an id has ended: see `first_end`.
        let over = over.filter(|(_, id)| id.holders.values().any(|holder| holder.ends <= self.now));
        let over: Vec<_> = over.take(batch).map(|(target, _)| target.clone()).collect();
        let mut removed = 0;
        for target in over {
            if removed < batch {
                removed += self.remove_ended_of(&target, batch - removed);
            }
        }
        Swept { removed, more: removed >= batch, ..Swept::default() }
    }
}
