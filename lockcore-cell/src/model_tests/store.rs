//! The store's answer to a conditional write, and the promises that no write may break.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{
    Fault, Setup,
    state::{Content, Message, Object, Phase, State},
};
use crate::table::{Held, Table};

impl State {
    /// The store carries a write out, or refuses it.
    pub(super) fn carry_out(&mut self, message: &Message, setup: &Setup) -> bool {
        match &message.write {
            Content::Table(new, _) => {
                if self.table.version != message.base {
                    return false;
                }
                self.judge(new);
                let version = self.version(new, setup);
                self.table = Object { version, content: (**new).clone() };
            }
            Content::Session(of, new) => {
                let is_renewal = *of == message.from;
                let is_blind = is_renewal && setup.fault == Fault::BlindRenewal;
                if self.sessions[*of].version != message.base && !is_blind {
                    return false;
                }
                let me = &self.processes[message.from];
                if let (Phase::Renews(held), true, true) = (&me.phase, is_renewal, message.awaited) {
                    let is_closed = new.closed.contains_key(&held.fence);
                    if !is_closed && !self.has(message.from, held.fence) {
                        self.broken = Some("a lock that is gone was renewed");
                    }
                }
                self.versions += 1;
                self.sessions[*of] = Object { version: self.versions, content: new.clone() };
            }
        }
        true
    }

    pub(super) fn version(&mut self, new: &Table, setup: &Setup) -> u64 {
        if setup.fault != Fault::EqualBytes {
            self.versions += 1;
            return self.versions;
        }
        let mut hasher = DefaultHasher::new();
        let mut plain = new.clone();
        (plain.stamp, plain.writes) = Default::default();
        plain.write().hash(&mut hasher);
        hasher.finish()
    }

    /// Judges what a write makes of the table.
    pub(super) fn judge(&mut self, new: &Table) {
        let old = &self.table.content;
        let new_grants: Vec<_> =
            new.grants.iter().filter(|(fence, _)| !old.grants.contains_key(fence)).collect();
        for (fence, grant) in new_grants {
            if *fence <= self.highest {
                self.broken = Some("a fence that is not above the one before");
            }
            self.highest = self.highest.max(*fence);
            // A claim on the same id that came before, and still waits.
            let ticket = old.ticket_of(&grant.context, grant.attempt).unwrap_or(u64::MAX);
            let taken =
                |id: &str| new.ids.get(id).is_some_and(|id| id.held.iter().any(|held| held.fence == *fence));
            let passed = old.places.range(..ticket).filter(|(before, _)| new.places.contains_key(before));
            if passed.flat_map(|(_, place)| &place.claims).any(|claim| taken(&claim.id)) {
                self.broken = Some("a request passed one that came before");
            }
        }
    }

    /// Returns the promise that is broken here, if one is.
    pub(super) fn broken(&self, setup: &Setup) -> Option<&'static str> {
        let held = |process: usize| match self.processes[process].phase {
            Phase::Holds(held) | Phase::Renews(held) if self.time() < held.before => Some(held),
            _ => None,
        };
        let all = 0..self.processes.len();
        for one in all.clone() {
            let Some(mine) = held(one) else { continue };
            let shares = |other: &usize| setup.sets[one].iter().any(|id| setup.sets[*other].contains(id));
            if all.clone().any(|other| other != one && held(other).is_some() && shares(&other)) {
                return Some("two holders");
            }
            if !self.has(one, mine.fence) {
                return Some("a holder of what is gone");
            }
        }
        let table = &self.table.content;
        let is_withdrawn = |held: &Held| self.withdrawn.contains(&held.grant.attempt);
        if table.ids.values().any(|id| id.held.iter().any(is_withdrawn)) {
            return Some("a withdrawn attempt holds");
        }
        self.broken
    }
}
