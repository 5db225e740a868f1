//! The cell of a session, by which one heartbeat renews all grants of a process, and its form in JSON. Times are the service's, in
//! microseconds since 1970.

use std::collections::BTreeMap;

use lockcore::backend::ServiceTime;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::{
    error::StoreError,
    format::{FORMAT, Rest, check, is_none, is_zero},
    table::{Held, Stamp, Table},
};

/// A cell is kept for so long after its last write, in microseconds: for longer than a renewal takes from its look at the table to
/// its write, so that none finds its cell gone, and the closed grants with it, in between. A process whose session has been idle for
/// a quarter of it goes on under another name.
pub(crate) const KEPT: u64 = 4 * 3600 * 1_000_000;

/// The renewal of a grant.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Renewal {
    pub(crate) until: u64,
    pub(crate) lease: u64,
    #[serde(flatten)]
    rest: Rest,
}

/// The cell of a session: how far its grants were renewed, and how long its waiters are alive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    format: u32,
    #[serde(default, skip_serializing_if = "is_none")]
    oldest_program: u32,
    pub(crate) stamp: Stamp,
    /// The end of its last heartbeat: until then those who wait in this session are alive.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) alive: u64,
    /// The last renewal of grants, by fence.
    pub(crate) renewals: BTreeMap<u64, Renewal>,
    /// The locks that are not renewed any more, by fence and id, and when their lease ends: it had ended and another process
    /// takes over, or an administrator broke them. A renewal and this are writes of one cell, each on condition of the version
    /// it was made for: only one of them succeeds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) closed: BTreeMap<u64, BTreeMap<String, u64>>,
    #[serde(flatten)]
    rest: Rest,
}

/// A lock to be closed to renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Close {
    pub(crate) id: String,
    pub(crate) fence: u64,
    /// The end of its lease unless it was renewed.
    pub(crate) until: u64,
    /// The renewal from the future that does not count, see [`Held::ignored`].
    pub(crate) ignored: u64,
    /// The end from which on it is left open: it was renewed meanwhile.
    pub(crate) unless_after: u64,
    /// Set where it is forgotten after some time that a lock was closed, see [`Session::forget_old`].
    pub(crate) forgets: bool,
}

/// The time after its end for which it is kept that a lock was closed, where it is not known which grants there are.
pub(crate) const OLD: u64 = 600_000_000;

/// Returns whether a lock that was closed with this end may be closed no more: then it has to be closed again.
pub(crate) fn is_old(closed: u64, now: ServiceTime) -> bool {
    closed.saturating_add(OLD / 2) < now.lo
}

/// The most that another process's upper bound of the store's time may be above ours.
const FUTURE: u64 = 5_000_000;

/// Returns whether a lease of this length that ends then was written before the store's clock was set back.
pub(crate) fn is_from_the_future(until: u64, lease: u64, now: ServiceTime) -> bool {
    until > now.hi.saturating_add(lease).saturating_add(FUTURE)
}

impl Default for Session {
    fn default() -> Self {
        Session {
            format: FORMAT,
            oldest_program: 0,
            stamp: Stamp::default(),
            alive: 0,
            renewals: BTreeMap::new(),
            closed: BTreeMap::new(),
            rest: Map::new(),
        }
    }
}

impl Session {
    /// Returns when a closed lock ends; `None` if it is not closed.
    pub(crate) fn closed_until(&self, fence: u64, id: &str) -> Option<u64> {
        self.closed.get(&fence)?.get(id).copied()
    }

    /// Returns the end of the last renewal of a grant. One from the future lasts a lease from now, until the table says that it was
    /// found out; from then on it is `ignored`.
    pub(crate) fn renewed_until(&self, fence: u64, ignored: u64, now: ServiceTime) -> Option<u64> {
        let &Renewal { until, lease, .. } =
            self.renewals.get(&fence).filter(|renewal| renewal.until != ignored)?;
        let is_future = is_from_the_future(until, lease, now);
        Some(if is_future { now.hi.saturating_add(lease) } else { until })
    }

    /// Returns the end of a lock by this session if it is from the future and was not found out before: that of a closed one, or of
    /// the last renewal.
    pub(crate) fn future(&self, held: &Held, id: &str, now: ServiceTime) -> Option<u64> {
        let closed = self.closed_until(held.fence, id).map(|until| (until, held.lease));
        let renewed = || self.renewals.get(&held.fence).map(|renewal| (renewal.until, renewal.lease));
        let (until, lease) = closed.or_else(renewed)?;
        (until != held.ignored && is_from_the_future(until, lease, now)).then_some(until)
    }

    /// Renews grants, each for a lease from now. A lock that is closed stays so.
    pub(crate) fn extend(&mut self, leases: impl IntoIterator<Item = (u64, u64)>, now: ServiceTime) {
        for (fence, lease) in leases {
            let until = now.hi.saturating_add(lease);
            let renewal = self.renewals.entry(fence).or_default();
            // Always another end, as the table may say that the last one does not count.
            renewal.until = match is_from_the_future(renewal.until, renewal.lease, now) {
                true => until,
                false => until.max(renewal.until.saturating_add(1)),
            };
            // A shorter one that ends no earlier is as long as what is left: it is not from the future.
            renewal.lease = lease.max(renewal.until.saturating_sub(now.hi));
        }
    }

    /// Closes locks to renewal, as they are now; returns whether that changes anything.
    pub(crate) fn close(&mut self, locks: &[Close], now: ServiceTime) -> bool {
        let mut changed = false;
        if locks.iter().any(|lock| lock.forgets) {
            // The process of the session may be dead, and forget nothing any more.
            self.forget_closed(now);
        }
        for Close { id, fence, until, ignored, unless_after, forgets } in locks {
            let until =
                self.renewed_until(*fence, *ignored, now).map_or(*until, |renewed| renewed.max(*until));
            let closed = self.closed_until(*fence, id).filter(|closed| !(*forgets && is_old(*closed, now)));
            if until < *unless_after && closed.is_none() {
                // The time for which it stays closed counts from its end.
                let until =
                    if *forgets && is_old(until, now) { now.lo.saturating_sub(OLD / 8) } else { until };
                self.closed.entry(*fence).or_default().insert(id.clone(), until);
                changed = true;
            }
        }
        changed
    }

    /// Forgets the grants that were in the table once and are not any more.
    pub(crate) fn forget(&mut self, table: &Table) {
        let is_gone = |fence: u64| fence <= table.high && !table.grants.contains_key(&fence);
        self.renewals.retain(|fence, _| !is_gone(*fence));
        self.closed.retain(|fence, _| !is_gone(*fence));
    }

    /// Forgets what is over, but for what the process renews, where it is not known which grants there are. Without its renewal a lease
    /// is over as well; that it was closed counts for half of the time for which it is kept.
    pub(crate) fn forget_old(&mut self, is_renewed: impl Fn(u64) -> bool, now: ServiceTime) {
        self.renewals.retain(|fence, renewal| is_renewed(*fence) || renewal.until >= now.lo);
        self.forget_closed(now);
    }

    fn forget_closed(&mut self, now: ServiceTime) {
        self.closed.retain(|_, locks| locks.values().any(|until| until.saturating_add(OLD) >= now.lo));
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, StoreError> {
        check(bytes)?;
        serde_json::from_slice(bytes).map_err(|_| StoreError::corrupt("a session"))
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a form in JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused() {
        assert!(Session::read(br#"{"format":2,"anything":[]}"#).is_err());
        assert!(Session::read(br#"{"format":1,"oldest_program":2}"#).is_err());
    }

    /// A program of the next version adds fields, and this one goes on beside it.
    #[test]
    fn a_field_of_tomorrow_survives_a_heartbeat() {
        let session = r#"{"format":1,"stamp":{"session":"s","number":1},"of_session":1,
            "renewals":{"7":{"until":1,"lease":1,"of_renewal":2}}}"#;
        let mut session = Session::read(session.as_bytes()).expect("our own form");
        session.extend([(7, 5)], ServiceTime { lo: 1, hi: 1 });
        let written = String::from_utf8(session.write()).expect("it is JSON");
        assert!(written.contains("of_session") && written.contains("of_renewal"), "{written}");
    }

    /// A table that is older than a grant says nothing of it.
    #[test]
    fn what_is_closed_is_forgotten_once_its_grant_is_gone() {
        let mut session = Session::default();
        let locks = [5, 9].map(|fence| Close {
            id: "a".into(),
            fence,
            until: 1,
            ignored: 0,
            unless_after: 2,
            forgets: false,
        });
        assert!(session.close(&locks, ServiceTime { lo: 3, hi: 3 }));
        let mut table = Table::default();
        table.high = 7;
        session.forget(&table);
        assert_eq!((session.closed_until(5, "a"), session.closed_until(9, "a")), (None, Some(1)));
    }
}
