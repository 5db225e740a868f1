//! Leases that have ended: the sessions that a step has to read, and the locks that it has to close to renewal before it takes
//! over. Pure, as a step is.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use lockcore::backend::ServiceTime;

use crate::{
    step::{Sessions, Step},
    table::{Close, Held, Renewal, Table},
};

/// By how much another process's upper bound of the service's time may be above ours.
const FUTURE: u64 = 5_000_000;

/// The leases that matter to a step.
#[derive(Clone, Default)]
pub(crate) struct Scope {
    /// Those on these ids.
    pub(crate) ids: Vec<String>,
    /// Those on all ids.
    pub(crate) all: bool,
    /// Those on the ids that are waited for. Where one is over, the step takes over from its holder.
    pub(crate) takes_over: bool,
    /// The leases are shown, so that their renewals are read although they seem to last.
    pub(crate) shows: bool,
    /// The lock that the step closes to renewal, by id and fence.
    pub(crate) closes: Option<(String, u64)>,
    /// The table may be longer after it.
    pub(crate) grows: bool,
}

/// The holders that matter to steps on a table.
pub(crate) struct Concerned<'t> {
    table: &'t Table,
    held: Vec<(&'t str, &'t Held)>,
    takes_over: bool,
    shows: bool,
    /// The locks that are closed to renewal whether or not their lease has ended.
    closes: BTreeSet<(&'t str, u64)>,
}

impl<'t> Concerned<'t> {
    pub(crate) fn of(table: &'t Table, scopes: &'t [Scope]) -> Self {
        let mut ids: BTreeSet<&str> = BTreeSet::new();
        for scope in scopes {
            match scope.all {
                true => ids.extend(table.ids.keys().map(String::as_str)),
                false => ids.extend(scope.ids.iter().map(String::as_str)),
            }
        }
        let takes_over = scopes.iter().any(|scope| scope.takes_over);
        if takes_over {
            let waited_for = table.places.values().flat_map(|place| &place.claims);
            ids.extend(waited_for.map(|claim| claim.id.as_str()));
        }
        let found = table.ids.iter().filter(|(id, _)| ids.contains(id.as_str()));
        let held = found.flat_map(|(id, state)| state.held.iter().map(|held| (id.as_str(), held)));
        let closes = scopes.iter().filter_map(|scope| scope.closes.as_ref());
        let closes = closes.map(|(id, fence)| (id.as_str(), *fence)).collect();
        let shows = scopes.iter().any(|scope| scope.shows);
        Concerned { held: held.collect(), table, takes_over, shows, closes }
    }

    fn session_of(&self, held: &Held) -> &'t str {
        &self.table.grants[&held.fence].session
    }

    /// Returns the sessions to read: a lease that seems to be over may have been renewed.
    pub(crate) fn unsure(&self, known: &Sessions, now: ServiceTime) -> BTreeSet<&'t str> {
        let unsure = self.held.iter().filter(|(id, held)| {
            self.shows
                || self.closes.contains(&(*id, held.fence))
                || known.get(self.session_of(held)).is_some_and(|session| session.unreadable)
                || self.table.until(id, held, known, now) < now.hi
        });
        unsure.map(|(_, held)| self.session_of(held)).collect()
    }

    /// Returns the locks to close to renewal, by session.
    pub(crate) fn to_close(&self, known: &Sessions, now: ServiceTime) -> BTreeMap<&'t str, Vec<Close>> {
        let mut to_close: BTreeMap<_, Vec<Close>> = BTreeMap::new();
        for (id, held) in &self.held {
            let session = self.session_of(held);
            let is_over = self.takes_over && self.table.until(id, held, known, now) < now.lo;
            let is_closed =
                known.get(session).is_some_and(|known| known.closed_until(held.fence, id).is_some());
            let breaks = self.closes.contains(&(*id, held.fence));
            if (is_over || breaks) && !is_closed {
                let id = (*id).to_owned();
                // Renewed in the last moment, it is not taken over from.
                let unless_after = if breaks { u64::MAX } else { now.lo };
                let close = Close { id, fence: held.fence, until: held.until, unless_after };
                to_close.entry(session).or_default().push(close);
            }
        }
        to_close
    }
}

impl Table {
    /// Returns the end of the lease of a holder of `id`, by the table and what is known of its session.
    pub(crate) fn until(&self, id: &str, held: &Held, sessions: &Sessions, now: ServiceTime) -> u64 {
        let Some(session) = sessions.get(&self.grants[&held.fence].session) else { return held.until };
        if session.unreadable {
            return now.hi.saturating_add(held.lease);
        }
        if let Some(closed) = session.closed_until(held.fence, id) {
            return closed;
        }
        let renewal = session.renewals.get(&held.fence).copied().unwrap_or_default();
        match renewal.until == held.ignored || is_from_the_future(renewal.until, renewal.lease, now) {
            true => held.until,
            false => held.until.max(renewal.until),
        }
    }
}

fn is_from_the_future(until: u64, lease: u64, now: ServiceTime) -> bool {
    until > now.hi.saturating_add(lease).saturating_add(FUTURE)
}

impl Step<'_> {
    /// Removes what is over, lets leases from the future count from now, and hands over what became free.
    pub(crate) fn clean(&mut self) {
        self.remove_ended(usize::MAX);
        self.serve();
    }

    /// Removes at most `most` holders whose lease is over; returns how many, and whether there are more.
    pub(crate) fn remove_ended(&mut self, most: usize) -> (usize, bool) {
        let (now, sessions, mut removed, mut more) = (self.now, self.sessions, 0, false);
        let Table { ids, grants, .. } = &mut *self.table;
        for (id, state) in ids {
            state.held.retain_mut(|held| {
                let session = sessions.get(&grants[&held.fence].session);
                if let Some(closed) = session.and_then(|session| session.closed_until(held.fence, id)) {
                    let is_over = closed < now.lo;
                    more |= is_over && removed == most;
                    let goes = is_over && removed < most;
                    removed += usize::from(goes);
                    return !goes;
                }
                let renewal = session.and_then(|session| session.renewals.get(&held.fence));
                let Renewal { until, lease } = renewal.copied().unwrap_or_default();
                let is_renewal_new = until != held.ignored && is_from_the_future(until, lease, now);
                if is_renewal_new || is_from_the_future(held.until, held.lease, now) {
                    held.until = now.hi.saturating_add(held.lease);
                    held.ignored = if is_renewal_new { until } else { held.ignored };
                }
                true
            });
        }
        (removed, more)
    }

    /// Returns what is left of a lease until it is certainly over, at most all of it.
    pub(crate) fn left(&self, id: &str, held: &Held) -> Duration {
        let until = self.table.until(id, held, self.sessions, self.now);
        let session = self.sessions.get(&self.table.grants[&held.fence].session);
        let renewal = session.and_then(|session| session.renewals.get(&held.fence));
        let lease = renewal.map_or(0, |renewal| renewal.lease).max(held.lease);
        Duration::from_micros(until.saturating_sub(self.now.lo).min(lease))
    }
}
