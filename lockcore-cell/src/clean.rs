//! Cleaning of a table beside what a step decides: leases that are over, and the places of the dead.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    session::is_from_the_future,
    step::Step,
    table::Held,
    takeover::{End, Scope, Seen, SeenCell},
};

impl Step<'_> {
    /// Removes what is over, lets leases from the future count from now, and hands over what became free.
    pub(crate) fn clean(&mut self) {
        self.remove_ended_up_to(usize::MAX);
        self.serve();
    }

    /// Returns whether there is anything to remove on these ids, or before these requests.
    pub(crate) fn has_ended(&self, scope: &Scope) -> bool {
        let on = |id: &String| self.table.ids.get(id).map(|id| &id.held[..]).unwrap_or_default();
        let is_over = |id: &String, held: &Held| {
            let End { until, is_final } = self.table.end(id, held, self.sessions, self.now);
            is_final && until < self.now.lo
        };
        let any_held = scope.ids.iter().any(|id| on(id).iter().any(|held| is_over(id, held)));
        any_held
            || self.table.places.values().any(|place| {
                place.claims.iter().any(|claim| scope.ids.contains(&claim.id))
                    && self.table.is_dead(place, self.sessions, self.now)
            })
    }

    /// Removes at most `most` holders whose lease is over, and the places of the dead; returns how many, and whether there are
    /// more.
    pub(crate) fn remove_ended_up_to(&mut self, most: usize) -> (usize, bool) {
        let (now, sessions, mut removed, mut more) = (self.now, self.sessions, 0, false);
        let mut over: Vec<(String, u64)> = Vec::new();
        for (id, state) in &self.table.ids {
            for held in &state.held {
                let End { until, is_final } = self.table.end(id, held, sessions, now);
                if is_final && until < now.lo {
                    match removed < most {
                        true => over.push((id.clone(), held.fence)),
                        false => more = true,
                    }
                    removed += usize::from(removed < most);
                }
            }
        }
        for (id, fence) in over {
            if let Some(state) = self.table.ids.get_mut(&id) {
                state.held.retain(|held| held.fence != fence);
            }
            self.rooms.push((id, 0));
        }
        self.count_from_now();
        let dead = self.table.places.iter().filter(|(_, place)| self.table.is_dead(place, sessions, now));
        let dead: BTreeSet<u64> = dead.map(|(ticket, _)| *ticket).collect();
        if !dead.is_empty() {
            removed += dead.len();
            self.remove_places(|ticket, _| dead.contains(&ticket));
        }
        (removed, more)
    }

    /// Lets what was written before the store's clock was set back last for a lease from now, where the session was read as well: the
    /// grant and its renewal are found out together.
    fn count_from_now(&mut self) {
        let (now, sessions, is_apart) = (self.now, self.sessions, self.table.of.is_some());
        if is_apart {
            let is_absent =
                |session: &&str| sessions.get(*session).is_some_and(|seen| seen.cell == SeenCell::Absent);
            let absent: Vec<String> =
                self.table.sessions().into_iter().filter(is_absent).map(str::to_owned).collect();
            for session in absent {
                self.table.there.entry(session).or_default();
            }
        }
        for (session, there) in &mut self.table.there {
            let Some(seen) = sessions.get(session).filter(|seen| seen.cell == SeenCell::Absent) else {
                continue;
            };
            if is_apart || seen.is_after_mark {
                // Said to all, as a process that asks once has no time to wait.
                let since = seen.since.min(now.hi);
                there.missed = if there.missed > 0 { there.missed.min(since) } else { since };
            }
        }
        for (id, state) in &mut self.table.ids {
            for held in &mut state.held {
                let Some(seen) = sessions.get(&held.grant.session) else { continue };
                let future = seen.session().and_then(|session| session.future(held, id, now));
                if future.is_some() || is_from_the_future(held.until, held.lease, now) {
                    held.until = now.hi.saturating_add(held.lease);
                    held.ignored = future.unwrap_or(held.ignored);
                }
            }
        }
    }

    /// Returns what is left of a lease until it is certainly over, at most all of it.
    pub(crate) fn left(&self, id: &str, held: &Held) -> Duration {
        let until = self.table.until(id, held, self.sessions, self.now);
        let session = self.sessions.get(&held.grant.session).and_then(Seen::session);
        let renewal = session.and_then(|session| session.renewals.get(&held.fence));
        let lease = renewal.map_or(0, |renewal| renewal.lease).max(held.lease);
        Duration::from_micros(until.saturating_sub(self.now.lo).min(lease))
    }
}
