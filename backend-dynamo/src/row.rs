//! A row: the state of an id, as this library and as other clients write it.

use std::time::Duration;

use lockcore::{
    LossReason, Mode, Owner,
    backend::{ServiceTime, StoreVersion},
    protocol,
};

/// One second in the unit of this crate's times.
pub(crate) const SECOND: u64 = 1_000_000;

/// The version of the items that this program writes, and that a namespace without a record has: the first program that
/// migrates it writes the record.
pub(crate) const VERSION: StoreVersion = StoreVersion { version: 1, oldest_program: 1 };

/// The context that other clients see where an id is shared or held by slots.
pub(crate) const MANY: &str = "lockcore:several";

/// The context that other clients see where an id is frozen and free.
pub(crate) const FROZEN: &str = "lockcore:frozen";

/// The most that another process's upper bound of the service's time may be above ours, in microseconds.
pub(crate) const FUTURE: u64 = 5_000_000;

/// The state of an id: an item in typed form.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Row {
    /// The number of our last write; `None` if another client wrote last.
    pub(crate) rev: Option<u64>,
    /// The highest fence that was granted.
    pub(crate) fence: u64,
    /// The holders by context, in order of context.
    pub(crate) holders: Vec<(String, Entry)>,
    /// Another client's lock; then `holders` is empty.
    pub(crate) foreign: Option<Foreign>,
    /// Tombstones: withdrawn attempts, and until when each is refused, in microseconds. Stored as `marks`.
    pub(crate) tombstones: Vec<(u64, u64)>,
    pub(crate) frozen: bool,
    /// The item lists the taken permits one by one, for conditions.
    pub(crate) has_slots: bool,
    pub(crate) breaks: Vec<Break>,
    /// The attributes that other clients see, as they were read: for conditions.
    pub(crate) seen: Seen,
}

/// The attributes of other clients; the times as they were read.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) context: Option<String>,
    pub(crate) created: Option<String>,
    pub(crate) expires: Option<String>,
}

/// A lock that another client wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Foreign {
    pub(crate) context: String,
    /// In microseconds.
    pub(crate) since: u64,
    /// In microseconds; `None` never ends.
    pub(crate) until: Option<u64>,
}

/// One holder. Times are the service's, in microseconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) mode: Mode,
    pub(crate) permits: Vec<u32>,
    pub(crate) fence: u64,
    pub(crate) attempt: u64,
    pub(crate) lease: u64,
    pub(crate) until: u64,
    pub(crate) since: u64,
    pub(crate) owner: Owner,
    pub(crate) broken: bool,
    /// The lock that the context held before this attempt, to go back to if it is withdrawn.
    pub(crate) prior: Option<Box<Entry>>,
}

/// The record of a break.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Break {
    pub(crate) context: String,
    pub(crate) fence: u64,
    pub(crate) by: Owner,
    pub(crate) at: u64,
    pub(crate) now: bool,
}

impl Entry {
    /// Returns whether the lease has not ended, wherever the service's time is within its bounds.
    pub(crate) fn certainly_lasts(&self, now: ServiceTime) -> bool {
        self.until >= now.hi
    }

    /// Extends the end to at least `lease` from now. A longer lease is not cut short, and stays recorded as such: an end that is
    /// later than the lease allows is from the future.
    pub(crate) fn extend(&mut self, lease: u64, now: ServiceTime) {
        self.until = self.until.max(now.hi.saturating_add(lease));
        self.lease = lease.max(self.until.saturating_sub(now.hi));
    }

    /// Returns what is left of the lease: never more than all of it, although it takes longer until its end is certainly past.
    pub(crate) fn left(&self, now: ServiceTime) -> Duration {
        left(self.until, now).min(Duration::from_micros(self.lease))
    }

    /// Returns whether the lease has ended, wherever the service's time is within its bounds.
    pub(crate) fn certainly_ended(&self, now: ServiceTime) -> bool {
        self.until < now.lo
    }
}

impl Foreign {
    pub(crate) fn certainly_ended(&self, now: ServiceTime) -> bool {
        self.until.is_some_and(|until| until < now.lo)
    }
}

impl Row {
    /// Returns the end that other clients see, in seconds, where this library wrote it.
    pub(crate) fn seen_until(&self) -> Option<u64> {
        self.seen.expires.as_ref()?.parse().ok()
    }

    /// Returns whether it is shared, as other clients see it too, and no holder's lease has ended.
    pub(crate) fn is_shared_by_the_living(&self, now: ServiceTime) -> bool {
        self.foreign.is_none()
            && self.seen.context.as_deref() == Some(MANY)
            && self.holders.iter().all(|(_, entry)| !entry.certainly_ended(now))
    }

    /// Returns whether any client would find the item free: no holder in the attributes that other libraries read, not
    /// frozen, no tombstone.
    pub(crate) fn is_free_for_all(&self, now: ServiceTime) -> bool {
        let is_over = self.seen.context.is_none()
            || self.seen_until().is_some_and(|until| until.saturating_mul(SECOND) < now.lo);
        is_over && !self.frozen && self.tombstones.is_empty()
    }

    pub(crate) fn holder(&self, context: &str) -> Option<&Entry> {
        self.holders.iter().find(|(holder, _)| holder == context).map(|(_, entry)| entry)
    }

    pub(crate) fn holder_mut(&mut self, context: &str) -> Option<&mut Entry> {
        self.holders.iter_mut().find(|(holder, _)| holder == context).map(|(_, entry)| entry)
    }

    pub(crate) fn remove(&mut self, context: &str) -> Option<Entry> {
        let position = self.holders.iter().position(|(holder, _)| holder == context)?;
        Some(self.holders.remove(position).1)
    }

    /// Adds a holder, in order of context; it may not hold anything yet.
    pub(crate) fn insert(&mut self, context: &str, entry: Entry) {
        let position = self.holders.partition_point(|(holder, _)| holder.as_str() < context);
        self.holders.insert(position, (context.to_owned(), entry));
    }

    pub(crate) fn was_withdrawn(&self, attempt: u64) -> bool {
        self.tombstones.iter().any(|(withdrawn, _)| *withdrawn == attempt)
    }

    /// Returns why nothing is held under a fence.
    pub(crate) fn why_missing(&self, fence: u64) -> LossReason {
        match self.breaks.iter().any(|broken| broken.fence == fence) {
            true => LossReason::Broken,
            false => LossReason::Vanished,
        }
    }

    pub(crate) fn record(&mut self, broken: Break) {
        self.breaks.push(broken);
        let over = self.breaks.len().saturating_sub(protocol::BREAKS_KEPT);
        self.breaks.drain(..over);
    }

    /// Removes holders and tombstones whose end is certainly past.
    pub(crate) fn prune(&mut self, now: ServiceTime) {
        self.holders.retain(|(_, entry)| !entry.certainly_ended(now));
        self.tombstones.retain(|(_, until)| *until >= now.lo);
        self.foreign.take_if(|foreign| foreign.certainly_ended(now));
    }

    /// Lets leases from the future, after the service's clock was set back, count from now; returns whether there were any.
    pub(crate) fn rebase(&mut self, now: ServiceTime) -> bool {
        let mut rebased = false;
        for (_, entry) in &mut self.holders {
            let latest = now.hi.saturating_add(entry.lease);
            if entry.until > latest.saturating_add(FUTURE) {
                entry.until = latest;
                entry.since = now.lo;
                rebased = true;
            }
        }
        rebased
    }
}

/// Returns how long it takes until an end is certainly past.
pub(crate) fn left(until: u64, now: ServiceTime) -> Duration {
    Duration::from_micros(until.saturating_sub(now.lo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_from_the_future_count_from_now() {
        let now = ServiceTime { lo: 1_795_000_000_500_000, hi: 1_795_000_001_500_000 };
        let entry = Entry {
            mode: Mode::Shared,
            permits: Vec::new(),
            fence: 42,
            attempt: 1,
            lease: 30_000_000,
            until: now.hi + 30_000_000,
            since: now.lo,
            owner: Owner::default(),
            broken: false,
            prior: None,
        };
        let mut row = Row { holders: vec![("a".to_owned(), entry)], ..Row::default() };
        assert!(!row.rebase(now), "a lease from now is none");
        row.holders[0].1.until += 3_600_000_000;
        assert!(row.rebase(now));
        assert_eq!(row.holders[0].1.until, now.hi + 30_000_000);
    }
}
