//! Administration: listing, inspecting, breaking, freezing, sweeping.

use std::{collections::BinaryHeap, sync::Arc, time::Duration};

use lockcore::{
    BreakMode, BreakRecord, Broken, ContextId, Finding, HeldBy, Ident, Inspection, Listing, Page, Severity,
    StoredContext, Swept, Target, WaitingFor,
};

use crate::{
    MemoryLockDao, What,
    clock::{Clock, Lease, StoreTime},
    entry::Entry,
    handoff::Step,
    spot::Spot,
};

/// The progress of the sweep.
#[derive(Debug, Default)]
pub(crate) struct Sweeping {
    /// When the last sweep ended.
    last: Option<StoreTime>,
    /// The shard at which the next batch begins.
    shard: usize,
}

impl<I: Ident, C: ContextId> MemoryLockDao<I, C> {
    /// Lists all ids that are held, queued for or frozen, ordered by stored form.
    pub fn current(&self) -> Vec<Inspection<I, C>> {
        self.list_now(&Page { after: None, limit: usize::MAX }).ids
    }

    pub(crate) fn list_now(&self, page: &Page) -> Listing<I, C> {
        let now = self.clock.now();
        let after = page.after.as_deref();
        // The lowest stored forms, the highest of them on top: one more than requested shows that there is a next page.
        let mut lowest: BinaryHeap<String> = BinaryHeap::new();
        for shard in 0..self.tables.shard_count() {
            let mut locked = self.tables.lock(1 << shard);
            for entry in locked.tables().flat_map(|table| table.entries()) {
                let stored = entry.target.stored();
                let listed = after.is_none_or(|after| stored.as_bytes() > after.as_bytes())
                    && (entry.is_frozen()
                        || entry.has_waiters()
                        || entry.holders.iter().any(|h| h.expires > now));
                let full = lowest.len() > page.limit;
                if listed && !(full && lowest.peek().is_some_and(|highest| *stored >= **highest)) {
                    lowest.push(stored.into_owned());
                    if full {
                        lowest.pop();
                    }
                }
            }
        }
        let mut stored = lowest.into_sorted_vec();
        let more = stored.len() > page.limit;
        stored.truncate(page.limit);
        let next = if more { stored.last().cloned() } else { None };
        let ids = stored.iter().filter_map(|stored| Target::from_stored(stored));
        let ids = ids.map(|target| self.inspect_now(&target));
        // Ids that were released meanwhile are not listed.
        let ids = ids.filter(|id| id.frozen || !id.holders.is_empty() || !id.waiters.is_empty()).collect();
        Listing { ids, next }
    }

    pub(crate) fn inspect_now(&self, target: &Target<I>) -> Inspection<I, C> {
        let now = self.clock.now();
        let mut spot = self.tables.spot(target);
        let mut locked = self.tables.lock(Spot::shards(&[spot]));
        locked.locate(&mut spot, target);
        let table = &*locked.table(&spot);
        let mut inspection = Inspection {
            target: Ok(target.clone()),
            holders: Vec::new(),
            waiters: Vec::new(),
            frozen: false,
            breaks: table.losses.breaks_of(target).cloned().collect(),
            unreadable: None,
        };
        if let Some(slot) = spot.slot() {
            let entry = table.at(slot);
            inspection.holders = holders(entry, &self.clock, now);
            inspection.waiters = waiters(entry, &self.clock);
            inspection.frozen = entry.is_frozen();
        }
        inspection
    }

    /// Locks all shards at once, so that no lock of the context is missed.
    pub(crate) fn release_context_now(&self, context: &C) -> Vec<Target<I>> {
        let mut step = Step::new(&self.clock);
        let mut locked = self.tables.lock(self.tables.all());
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for entry in locked.tables().flat_map(|table| table.entries()) {
            if let Some(row) = entry.holders.row(context) {
                held.push((entry.target.clone(), row.fence));
            }
            let places = entry.queue().into_iter().flat_map(|queue| queue.iter());
            let own = places.filter(|place| place.waiter.request.context == *context);
            waiting.extend(own.map(|place| (place.waiter.number, Arc::clone(&place.waiter))));
        }
        waiting.sort_by_key(|(number, _)| *number);
        waiting.dedup_by_key(|(number, _)| *number);
        for (_, waiter) in &waiting {
            let targets = || waiter.request.claims.iter().map(|claim| &claim.target);
            let mut spots = self.tables.spots(targets());
            locked.locate_all(&mut spots, targets());
            self.leave(&mut locked, &spots, waiter, false, &mut step);
            spots.iter_mut().for_each(|spot| locked.tidy(spot));
        }
        let mut released = Vec::new();
        for (target, fence) in held {
            let mut spot = self.tables.spot(&target);
            locked.locate(&mut spot, &target);
            self.remove_expired(&mut locked, &spot, &target, &mut step);
            let Some(entry) = locked.entry(&spot) else { continue };
            if entry.holders.remove(context).is_some() {
                step.freed(&spot, entry);
                self.record(What::Released, context, || step.now(), || vec![(target.clone(), Some(fence))]);
                released.push(target.clone());
            }
            locked.tidy(&mut spot);
        }
        self.finish(locked, step);
        released
    }

    pub(crate) fn break_now(&self, target: &Target<I>, fence: u64, how: BreakMode, by: &str) -> Broken {
        let mut step = Step::new(&self.clock);
        let now = step.now();
        let mut spot = self.tables.spot(target);
        let mut locked = self.tables.lock(Spot::shards(&[spot]));
        locked.locate(&mut spot, target);
        self.remove_expired(&mut locked, &spot, target, &mut step);
        let row = locked.entry(&spot).and_then(|entry| {
            let row = entry.holders.iter().find(|row| row.fence == fence)?;
            Some((row.context.clone(), row.broken, row.expires))
        });
        let broken = match row {
            None => Broken::NotHeld,
            Some((context, broken_before, expires)) => {
                let entry = locked.entry(&spot).expect("it has the row found above");
                let now_free = how == BreakMode::Now;
                if now_free {
                    entry.holders.drop_row(&context);
                    step.freed(&spot, entry);
                } else {
                    entry.holders.mark_broken(&context);
                }
                if now_free || !broken_before {
                    self.record(What::Broken, &context, || now, || vec![(target.clone(), Some(fence))]);
                    let record = BreakRecord {
                        context: StoredContext::Known(context),
                        fence,
                        by: by.into(),
                        at: self.clock.calendar(now),
                        now: now_free,
                    };
                    locked.table(&spot).losses.add_break(target.clone(), record);
                }
                if now_free { Broken::Freed } else { Broken::Within(expires.remaining(now)) }
            }
        };
        locked.tidy(&mut spot);
        self.finish(locked, step);
        broken
    }

    pub(crate) fn freeze_now(&self, target: &Target<I>, frozen: bool) {
        let mut step = Step::new(&self.clock);
        let mut spot = self.tables.spot(target);
        let mut locked = self.tables.lock(Spot::shards(&[spot]));
        locked.locate(&mut spot, target);
        if frozen {
            locked.entry_or_new(&mut spot, target).extra_or_new().frozen = true;
        } else if let Some(entry) = locked.entry(&spot) {
            if let Some(extra) = &mut entry.extra {
                extra.frozen = false;
            }
            step.freed(&spot, entry);
        }
        locked.tidy(&mut spot);
        self.finish(locked, step);
    }

    pub(crate) fn sweep_now(&self, batch: usize, unless_within: Option<Duration>) -> Swept {
        let now = self.clock.now();
        let first = {
            let sweeping = self.sweeping.lock();
            if let (Some(last), Some(within)) = (sweeping.last, unless_within)
                && now < last.after(Lease::of(Some(within)))
            {
                return Swept { elsewhere: true, ..Swept::default() };
            }
            sweeping.shard
        };
        let shards = self.tables.shard_count();
        let mut swept = Swept::default();
        let mut next = first;
        for offset in 0..shards {
            next = (first + offset) % shards;
            swept.removed += self.sweep_shard(next, batch - swept.removed, now);
            if swept.removed >= batch {
                swept.more = true;
                break;
            }
        }
        let mut sweeping = self.sweeping.lock();
        sweeping.shard = next;
        sweeping.last = Some(now);
        swept
    }

    /// Removes at most `batch` locks of one shard that have expired by `now`, which is the same for all shards of a sweep: so
    /// those that it leaves had not expired.
    fn sweep_shard(&self, shard: usize, batch: usize, now: StoreTime) -> usize {
        let mut step = Step::at(now, &self.clock);
        let mut locked = self.tables.lock(1 << shard);
        let mut targets = Vec::new();
        for table in locked.tables() {
            table.withdrawals.age(now);
            let over = table.entries().filter(|entry| entry.holders.iter().any(|row| row.expires <= now));
            targets.extend(over.take(batch).map(|entry| entry.target.clone()));
        }
        let mut removed = 0;
        for target in &targets {
            if removed >= batch {
                break;
            }
            let mut spot = self.tables.spot(target);
            locked.locate(&mut spot, target);
            removed += self.remove_expired_up_to(batch - removed, &mut locked, &spot, target, &mut step);
            locked.tidy(&mut spot);
        }
        self.finish(locked, step);
        removed
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let ok = |check, detail| Finding { severity: Severity::Ok, check, detail };
        let (mut held, mut waiting, mut frozen) = (0, 0, 0);
        for shard in 0..self.tables.shard_count() {
            let mut locked = self.tables.lock(1 << shard);
            for entry in locked.tables().flat_map(|table| table.entries()) {
                held += entry.holders.len();
                waiting += entry.queue().map_or(0, |queue| queue.len());
                frozen += usize::from(entry.is_frozen());
            }
        }
        vec![
            ok("store", "in memory: excludes within this process only, and ends with it".to_owned()),
            ok("in use", format!("{held} locks, {waiting} places in queues, {frozen} frozen ids")),
        ]
    }
}

fn holders<I: Ident, C: ContextId>(entry: &Entry<I, C>, clock: &Clock, now: StoreTime) -> Vec<HeldBy<C>> {
    let live = entry.holders.iter().filter(|row| row.expires > now);
    let mut holders: Vec<HeldBy<C>> = live
        .map(|row| HeldBy {
            context: StoredContext::Known(row.context.clone()),
            owner: row.owner.clone(),
            mode: row.mode,
            permits: row.permits.clone(),
            fence: row.fence,
            since: clock.calendar(row.since),
            lease: row.lease.duration(),
            remaining: row.expires.remaining(now),
            broken: row.broken,
        })
        .collect();
    holders.sort_by_key(|holder| holder.fence);
    holders
}

fn waiters<I: Ident, C: ContextId>(entry: &Entry<I, C>, clock: &Clock) -> Vec<WaitingFor<C>> {
    let places = entry.queue().into_iter().flat_map(|queue| queue.iter());
    places
        .map(|place| WaitingFor {
            context: StoredContext::Known(place.waiter.request.context.clone()),
            owner: place.waiter.request.owner.clone(),
            mode: place.mode,
            since: clock.calendar(place.waiter.since),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use lockcore::{
        ClaimSet, FreshContext, LockDao, Mode, Owner,
        backend::{AcquireRequest, Acquired, AttemptId},
    };
    use uuid::Uuid;

    use super::*;
    use crate::clock::stops;

    /// All locks of a set end at the same time: a sweep that finds some of them expired and others not would leave expired locks
    /// in the shards that it has passed.
    #[tokio::test]
    async fn a_sweep_compares_every_shard_with_the_same_moment() {
        const LEASE: Duration = Duration::from_secs(1);
        const HELD: usize = 500;
        let dao = MemoryLockDao::<String>::new();
        let request = AcquireRequest {
            context: Uuid::fresh(),
            attempt: AttemptId::fresh(),
            claims: ClaimSet::new((0..HELD).map(|number| number.to_string()), Mode::Exclusive)
                .expect("valid ids"),
            lease: Some(LEASE),
            owner: Owner::default(),
            queue: false,
            nested: false,
            detached: false,
        };
        let Ok(Acquired::Granted(_)) = dao.acquire(&request).await else { panic!("all are free") };
        // The leases end while the sweep is on its way through the shards.
        stops::after_each_look(LEASE / 16);
        let swept = dao.sweep_now(HELD + 1, None);
        stops::after_each_look(Duration::ZERO);
        assert!(swept.removed == 0 || swept.removed == HELD, "{swept:?}");
        tokio::time::sleep(LEASE).await;
        assert_eq!(dao.sweep_now(HELD + 1, None).removed + swept.removed, HELD);
    }
}
