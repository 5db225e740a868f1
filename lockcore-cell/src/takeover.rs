//! Sessions of other processes, as far as they matter to a step: what has to be read of them, which locks have to be closed to
//! renewal before a step may take over, and what that evidence says of a lease or a place. Pure, as a step is.
//!
//! This is the one place that says what the cell of a session means for a lease or a place: one that is there, absent, or unreadable, and a
//! renewal that a clock that was set back has left in the future. `clean` writes into the table what follows from it for others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockcore::{backend::ServiceTime, protocol, rules};

use crate::{
    request::Request,
    session::{Close, Session, is_from_the_future, is_old},
    table::{Held, Place, Table, micros},
};

/// The time for which a heartbeat, and a new place without one, counts.
pub(crate) const ALIVE: u64 = micros(protocol::HEARTBEAT_LASTS);

/// The time after which a sweep looks again whether the waiters of a session are alive, or whether it can be read, in microseconds.
const SWEPT: u64 = 60_000_000;

/// The sessions that were read, by name.
pub(crate) type Sessions = BTreeMap<String, Seen>;

/// A session as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) cell: SeenCell,
    /// The lower bound of the store's time before it was read.
    pub(crate) at: u64,
    /// The upper bound of the time after it was first read as it is.
    pub(crate) since: u64,
    /// The table said before that read that the cell was there: if it is absent, it was removed. By the order of what this process
    /// learned, as the store's clock may step.
    pub(crate) is_after_mark: bool,
}

/// The cell of a session as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SeenCell {
    There(Arc<Session>),
    /// There is no cell.
    Absent,
    /// It is not in a form that this program knows.
    Unreadable,
}

/// The meaning of a session that was seen absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Absence {
    /// It was never there: nothing was renewed in it.
    Never,
    /// It was seen absent before it was there, and not since.
    Unknown,
    /// It was removed, and is missed since this time at most.
    Since(u64),
}

/// The end of a lease by the table and by what is known of its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) until: u64,
    /// No renewal can succeed any more.
    pub(crate) is_final: bool,
}

impl Seen {
    pub(crate) fn session(&self) -> Option<&Arc<Session>> {
        match &self.cell {
            SeenCell::There(session) => Some(session),
            SeenCell::Absent | SeenCell::Unreadable => None,
        }
    }

    /// Returns whether a place of the session is certainly dead. Nothing is known of one whose cell cannot be read, or was read before
    /// the store's clock was set back.
    fn is_dead(&self, place: &Place, was_there: bool, now: ServiceTime) -> bool {
        self.cell != SeenCell::Unreadable && self.at <= now.hi && self.alive_until(place, was_there) < self.at
    }

    /// Returns whether a sweep has read it, and passes it for now.
    fn was_read_lately(&self, now: ServiceTime) -> bool {
        self.at <= now.hi && now.lo < self.at.saturating_add(SWEPT)
    }

    fn alive_until(&self, place: &Place, was_there: bool) -> u64 {
        // A heartbeat from the future was written before the store's clock was set back, and a cell that is missing was
        // there: for those the time counts from when this was seen first.
        let seen = self.since.saturating_add(ALIVE);
        let counted = |until: u64| if until > self.at.saturating_add(2 * ALIVE) { seen } else { until };
        let beat = match &self.cell {
            SeenCell::There(session) => counted(session.alive),
            SeenCell::Absent if was_there => seen,
            SeenCell::Absent | SeenCell::Unreadable => 0,
        };
        beat.max(counted(place.since.saturating_add(ALIVE)))
    }
}

impl Table {
    /// Returns the end of the lease of a holder of `id`.
    ///
    /// The table and the session both say when it ends, and the later counts. A lock that is closed is renewed in the table only. So is
    /// one whose session was there and is absent; its holder may have renewed there until it was removed, so that the longest lease
    /// counts from when it was missed first.
    pub(crate) fn end(&self, id: &str, held: &Held, sessions: &Sessions, now: ServiceTime) -> End {
        let grant = &held.grant;
        let by_table = End { until: held.until, is_final: false };
        let Some(seen) = sessions.get(&grant.session) else { return by_table };
        match &seen.cell {
            SeenCell::Unreadable => End { until: now.hi.saturating_add(held.lease), is_final: false },
            SeenCell::Absent => match self.absence(&grant.session, seen) {
                Absence::Never => by_table,
                Absence::Unknown => End { until: now.hi.saturating_add(held.lease), is_final: false },
                Absence::Since(since) => {
                    End { until: held.until.max(since.saturating_add(held.lease)), is_final: true }
                }
            },
            SeenCell::There(session) => match session.closed_until(held.fence, id) {
                Some(closed) if self.of.is_some() && is_old(closed, now) => {
                    // It may be forgotten by now: it is closed again.
                    let renewed = session.renewed_until(held.fence, held.ignored, now).unwrap_or(0);
                    End { until: held.until.max(closed).max(renewed), is_final: false }
                }
                Some(closed) if closed == held.ignored => End { until: held.until, is_final: true },
                Some(closed) if is_from_the_future(closed, held.lease, now) => {
                    End { until: now.hi.saturating_add(held.lease), is_final: true }
                }
                Some(closed) => End { until: held.until.max(closed), is_final: true },
                None => {
                    let renewed = session.renewed_until(held.fence, held.ignored, now).unwrap_or(0);
                    End { until: held.until.max(renewed), is_final: false }
                }
            },
        }
    }

    /// Returns what it means that a session was seen absent.
    fn absence(&self, session: &str, seen: &Seen) -> Absence {
        let missed = match self.there.get(session) {
            _ if !self.was_there(session) => return Absence::Never,
            Some(_) if self.of.is_none() && !seen.is_after_mark => return Absence::Unknown,
            there => there.map_or(0, |there| there.missed),
        };
        Absence::Since(if missed > 0 { missed.min(seen.since) } else { seen.since })
    }

    pub(crate) fn until(&self, id: &str, held: &Held, sessions: &Sessions, now: ServiceTime) -> u64 {
        self.end(id, held, sessions, now).until
    }

    /// Returns whether the session of a place is known to be dead.
    pub(crate) fn is_dead(&self, place: &Place, sessions: &Sessions, now: ServiceTime) -> bool {
        let was_there = self.was_there(&place.session);
        sessions.get(&place.session).is_some_and(|seen| seen.is_dead(place, was_there, now))
    }

    /// Returns whether the session of a place has to be read to know whether it is alive.
    fn is_overdue(&self, place: &Place, sessions: &Sessions, now: ServiceTime) -> bool {
        match sessions.get(&place.session) {
            // It was seen before the clock was set back.
            Some(seen) => {
                let was_there = self.was_there(&place.session);
                seen.alive_until(place, was_there) < now.hi || seen.at > now.hi
            }
            None => place.since.saturating_add(ALIVE) < now.hi || place.since > now.hi,
        }
    }

    /// Returns the first place before `before` that keeps this claim from being served, with its ticket.
    pub(crate) fn blocker(&self, id: &str, mode: lockcore::Mode, before: u64) -> Option<(u64, &Place)> {
        let keeps_out = |place: &Place| {
            place.claims.iter().any(|claim| claim.id == id && !rules::passes(mode, claim.mode))
        };
        let mut places = self.places.range(..before).map(|(ticket, place)| (*ticket, place));
        places.find(|(_, place)| keeps_out(place))
    }
}

/// The part of a table that a request is about.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// The holders of these ids.
    pub(crate) ids: Vec<String>,
    /// The holders of all ids.
    pub(crate) all: bool,
    /// The leases are shown, so that their renewals are read although they seem to last.
    pub(crate) shows: bool,
    /// The lock that the step closes to renewal, by id and fence.
    pub(crate) closes: Option<(String, u64)>,
    /// At most so many sessions are read, and so many closed.
    pub(crate) most: usize,
    /// The claims whose waiters before them matter, with the ticket of the request if it has a place.
    pub(crate) waits: Vec<Arc<Request>>,
}

impl Default for Scope {
    fn default() -> Self {
        let (ids, waits) = (Vec::new(), Vec::new());
        Scope { ids, all: false, shows: false, closes: None, most: usize::MAX, waits }
    }
}

impl Scope {
    pub(crate) fn of(request: &Arc<Request>) -> Self {
        let ids = request.claims.iter().map(|claim| claim.id.clone()).collect();
        Scope { ids, waits: vec![request.clone()], ..Scope::default() }
    }
}

/// The reads and writes of sessions that have to precede a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// The sessions to read: a lease that seems to be over may have been renewed, a waiter without a heartbeat may have one.
    pub(crate) read: BTreeSet<String>,
    /// The locks to close to renewal, by session: their leases are over, or an administrator breaks them.
    pub(crate) close: BTreeMap<String, Vec<Close>>,
}

impl Needs {
    pub(crate) fn of(table: &Table, known: &Sessions, now: ServiceTime, scope: &Scope) -> Self {
        let mut needs = Needs::default();
        let Scope { ids, all, .. } = scope;
        let in_scope: Vec<(&String, &crate::table::Id)> = match all {
            true => table.ids.iter().collect(),
            false => ids.iter().filter_map(|id| table.ids.get_key_value(id)).collect(),
        };
        for (id, held) in
            in_scope.iter().flat_map(|(id, state)| state.held.iter().map(move |held| (*id, held)))
        {
            needs.add_holder(table, id, held, known, now, scope);
        }
        for request in &scope.waits {
            needs.add_waiters(table, request, known, now);
        }
        if *all && !scope.shows {
            // Those that live are overdue again within seconds: each has its turn.
            let was_read =
                |place: &&Place| known.get(&place.session).is_some_and(|seen| seen.was_read_lately(now));
            let overdue = table.places.values().filter(|place| table.is_overdue(place, known, now));
            needs.read.extend(overdue.filter(|place| !was_read(place)).map(|place| place.session.clone()));
        }
        needs
    }

    fn add_holder(
        &mut self,
        table: &Table,
        id: &str,
        held: &Held,
        known: &Sessions,
        now: ServiceTime,
        scope: &Scope,
    ) {
        let session = &held.grant.session;
        let breaks = scope.closes.as_ref().is_some_and(|(of, fence)| of == id && *fence == held.fence);
        let End { until, is_final } = table.end(id, held, known, now);
        let is_unknown = |seen: &Seen| match seen.cell {
            SeenCell::Unreadable => true,
            SeenCell::Absent => table.absence(session, seen) == Absence::Unknown,
            SeenCell::There(_) => false,
        };
        let is_unknown = known.get(session).is_some_and(is_unknown);
        // Each of those that cannot be read has its turn in a sweep, once.
        let is_passed = |seen: &Seen| seen.cell == SeenCell::Unreadable && seen.was_read_lately(now);
        let is_passed = scope.all && !scope.shows && known.get(session).is_some_and(is_passed);
        let is_unsure = until < now.hi || is_from_the_future(until, held.lease, now);
        if scope.shows || breaks || ((is_unknown || (is_unsure && !is_final)) && !is_passed) {
            self.read.insert(session.clone());
        }
        // Of a session that was removed there is nothing to close: the table decides.
        let is_gone = |seen: &&Seen| seen.cell == SeenCell::Absent && table.was_there(session);
        let can_close = known.get(session).is_some_and(|seen| !is_gone(&seen));
        if !is_final && !scope.shows && (until < now.lo || breaks) && can_close {
            // Renewed in the last moment, it is not taken over from.
            let unless_after = if breaks { u64::MAX } else { now.lo };
            let (until, ignored) = (held.until, held.ignored);
            let (id, fence, forgets) = (id.to_owned(), held.fence, table.of.is_some());
            let close = Close { id, fence, until, ignored, unless_after, forgets };
            self.close.entry(session.clone()).or_default().push(close);
        }
    }

    /// Adds the session of the place that keeps a request from being served; if that is dead, those of all places before it, so
    /// that the dead are found together.
    fn add_waiters(&mut self, table: &Table, request: &Request, known: &Sessions, now: ServiceTime) {
        let before = table.ticket_of(&request.context, request.attempt).unwrap_or(u64::MAX);
        let is_overdue = |place: &&Place| table.is_overdue(place, known, now);
        for claim in &request.claims {
            let blocker = table.blocker(&claim.id, claim.mode, before).map(|(_, place)| place);
            let Some(blocker) = blocker.filter(is_overdue) else {
                continue;
            };
            self.read.insert(blocker.session.clone());
            if table.is_dead(blocker, known, now) {
                let others = table.places.range(..before).map(|(_, place)| place).filter(is_overdue);
                self.read.extend(others.map(|place| place.session.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock that was closed is forgotten after some time: until then it is closed again.
    #[test]
    fn a_lock_that_was_closed_long_ago_is_closed_again() {
        const NOW: u64 = 1_795_000_000_000_000;
        let mut session = Session::default();
        let at = |time| ServiceTime { lo: time, hi: time };
        let close = Close {
            id: "a".to_owned(),
            fence: 7,
            until: NOW,
            ignored: 0,
            unless_after: NOW + 1,
            forgets: true,
        };
        assert!(session.close(&[close], at(NOW + 1)));
        let mut table = Table::default();
        table.of = Some(["a".to_owned()].into());
        let text = r#"{"fence":7,"mode":"exclusive","in_use":1,"lease":1,"until":1795000000000000}"#;
        let mut held: Held = serde_json::from_str(text).expect("our own form");
        held.grant = Arc::new(crate::table::Grant { session: "s".to_owned(), ..Default::default() });
        let seen =
            Seen { cell: SeenCell::There(Arc::new(session)), at: NOW, since: NOW, is_after_mark: false };
        let sessions = Sessions::from([("s".to_owned(), seen)]);
        let is_final = |time| table.end("a", &held, &sessions, at(time)).is_final;
        assert!(is_final(NOW + 1));
        assert!(!is_final(NOW + crate::session::OLD));
    }

    #[test]
    fn a_place_is_judged_by_what_was_seen_since_the_clock_was_set_back() {
        const NOW: u64 = 1_795_000_000_000_000;
        let text =
            r#"{"context":"c","attempt":1,"session":"s","since":1795000000000000,"lease":1,"claims":[]}"#;
        let place: Place = serde_json::from_str(text).expect("our own form");
        let later = NOW + 3_600_000_000;
        let at = |time| ServiceTime { lo: time, hi: time };
        let seen = Seen { cell: SeenCell::Absent, at: later, since: later, is_after_mark: false };
        assert!(seen.is_dead(&place, false, at(later)), "it is an hour old");
        assert!(!seen.is_dead(&place, false, at(NOW)), "that was seen in the future");
    }
}
