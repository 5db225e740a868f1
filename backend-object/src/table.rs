//! The table: all that is known of a namespace, and its form in JSON.
//!
//! It is data only; `step` decides. Times are the service's, in microseconds since 1970.

use std::collections::{BTreeMap, BTreeSet};

use lockcore::{ConflictReason, Mode};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// The version of the format. A program refuses an object of another one, and leaves it as it is.
const FORMAT: u32 = 1;

/// The longest form of a table, in bytes: each step writes all of it.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// How many breaks of one id are kept.
const MOST_BREAKS: usize = 16;

/// A refusal: for each claim in the way, its position in the set and the reason.
pub(crate) type Conflicts = Vec<(usize, ConflictReason<String>)>;

/// Everything that is locked, queued for, frozen or withdrawn in a namespace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    format: u32,
    /// The last write: no two versions have the same bytes, so that none has the entity tag of another.
    pub(crate) stamp: Stamp,
    /// The highest fence that was granted.
    pub(crate) high: u64,
    /// The ticket of the next place.
    pub(crate) ticket: u64,
    /// When the namespace was swept.
    #[serde(default)]
    pub(crate) swept: u64,
    /// The grants, by fence.
    pub(crate) grants: BTreeMap<u64, Grant>,
    /// The ids that are held, frozen, or have breaks on record, by stored form.
    pub(crate) ids: BTreeMap<String, Id>,
    /// The places in the queue, by ticket: in order of arrival.
    pub(crate) places: BTreeMap<u64, Place>,
    /// Withdrawn attempts, and until when each is refused.
    pub(crate) tombstones: BTreeMap<u64, u64>,
    /// The last write of each session, by which a session recognizes its own though others wrote since.
    pub(crate) writes: BTreeMap<String, Write>,
}

/// A write of a session.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) session: String,
    pub(crate) number: u64,
}

/// The last write of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Write {
    pub(crate) number: u64,
    pub(crate) at: u64,
}

/// What the ids of a grant have in common.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) context: String,
    pub(crate) attempt: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) owner: String,
    /// The session that renews it.
    pub(crate) session: String,
    pub(crate) since: u64,
}

/// An id.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Id {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) held: Vec<Held>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) frozen: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) breaks: Vec<Break>,
}

/// One holder of an id.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The key of its grant.
    pub(crate) fence: u64,
    #[serde(with = "ModeForm")]
    pub(crate) mode: Mode,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) permits: Vec<u32>,
    /// The units in use of the id when it was granted.
    pub(crate) in_use: u32,
    pub(crate) lease: u64,
    /// When the lease ends, unless the session of the grant renewed it.
    pub(crate) until: u64,
    /// A renewal from the future, which does not count: the service's clock was set back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) ignored: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) broken: bool,
    /// What the context held of the id before this attempt, to go back to if that is withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prior: Option<Box<Held>>,
}

/// The record of a break.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Break {
    pub(crate) context: String,
    pub(crate) fence: u64,
    pub(crate) by: String,
    pub(crate) at: u64,
    pub(crate) now: bool,
}

/// A place in the queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) context: String,
    pub(crate) attempt: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) owner: String,
    pub(crate) session: String,
    pub(crate) since: u64,
    pub(crate) lease: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) nested: bool,
    pub(crate) claims: Vec<Claim>,
}

/// One id of a set, and how it is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) id: String,
    #[serde(with = "ModeForm")]
    pub(crate) mode: Mode,
}

/// The form of a [`Mode`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Mode", rename_all = "lowercase")]
enum ModeForm {
    Shared,
    Slots { permits: u32, limit: u32 },
    Exclusive,
}

impl Default for Table {
    fn default() -> Self {
        Table {
            format: FORMAT,
            stamp: Stamp::default(),
            high: 0,
            ticket: 1,
            swept: 0,
            grants: BTreeMap::new(),
            ids: BTreeMap::new(),
            places: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            writes: BTreeMap::new(),
        }
    }
}

impl Table {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, StoreError> {
        check_format(bytes)?;
        let table: Table = serde_json::from_slice(bytes).map_err(|_| StoreError::Corrupt("the table"))?;
        let known = |held: &Held| {
            let prior = held.prior.as_deref();
            [Some(held), prior].into_iter().flatten().all(|held| table.grants.contains_key(&held.fence))
        };
        let all_known = table.ids.values().flat_map(|id| &id.held).all(known);
        // There are numbers left to go on with, for longer than any clock goes on.
        let is_endless = |number: u64| number < u64::MAX / 2;
        match (all_known, is_endless(table.high) && is_endless(table.ticket)) {
            (true, true) => Ok(table),
            (false, _) => Err(StoreError::Corrupt("a grant of the table")),
            (true, false) => Err(StoreError::Corrupt("a number of the table")),
        }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a form in JSON")
    }

    /// Returns the context of a holder.
    pub(crate) fn context_of(&self, held: &Held) -> &str {
        &self.grants[&held.fence].context
    }

    /// Returns the ticket of an attempt, if it has a place.
    pub(crate) fn ticket_of(&self, context: &str, attempt: u64) -> Option<u64> {
        let mut places = self.places.iter();
        let place = places.find(|(_, place)| place.attempt == attempt && place.context == context);
        place.map(|(ticket, _)| *ticket)
    }

    /// Forgets grants of which nothing is held, ids of which nothing is to be known, and what has had its time.
    pub(crate) fn prune(&mut self, lo: u64, writes_kept: u64) {
        self.ids.retain(|_, id| !id.held.is_empty() || id.frozen || !id.breaks.is_empty());
        let all = self.ids.values().flat_map(|id| &id.held);
        let used: BTreeSet<u64> = all
            .flat_map(|held| std::iter::once(held.fence).chain(held.prior.as_ref().map(|prior| prior.fence)))
            .collect();
        self.grants.retain(|fence, _| used.contains(fence));
        self.tombstones.retain(|_, until| *until >= lo);
        self.writes.retain(|_, write| write.at.saturating_add(writes_kept) >= lo);
    }
}

impl Id {
    pub(crate) fn was_broken(&self, fence: u64) -> bool {
        self.breaks.iter().any(|broken| broken.fence == fence)
    }

    pub(crate) fn record(&mut self, broken: Break) {
        self.breaks.push(broken);
        let over = self.breaks.len().saturating_sub(MOST_BREAKS);
        self.breaks.drain(..over);
    }
}

/// The renewal of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Renewal {
    pub(crate) until: u64,
    pub(crate) lease: u64,
}

/// The object of a session: how far its grants were renewed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    format: u32,
    pub(crate) stamp: Stamp,
    /// The last renewal of grants, by fence.
    pub(crate) renewals: BTreeMap<u64, Renewal>,
    /// The locks that are not renewed any more, by fence and id, and when their lease ends: it had ended and another process
    /// takes over, or an administrator broke them. A renewal and this are writes of one object, each on condition of the version
    /// it was made for: only one of them succeeds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) closed: BTreeMap<u64, BTreeMap<String, u64>>,
    /// There is an object, and it cannot be read: what it renewed is not known, and counts as renewed now.
    #[serde(skip)]
    pub(crate) unreadable: bool,
}

/// A lock to be closed to renewal.
pub(crate) struct Close {
    pub(crate) id: String,
    pub(crate) fence: u64,
    /// When its lease ends unless it was renewed.
    pub(crate) until: u64,
    /// Not if it was renewed to this or later.
    pub(crate) unless_after: u64,
}

impl Default for Session {
    fn default() -> Self {
        Session {
            format: FORMAT,
            stamp: Stamp::default(),
            renewals: BTreeMap::new(),
            closed: BTreeMap::new(),
            unreadable: false,
        }
    }
}

impl Session {
    /// Returns when a closed lock ends; `None` if it is not closed.
    pub(crate) fn closed_until(&self, fence: u64, id: &str) -> Option<u64> {
        self.closed.get(&fence)?.get(id).copied()
    }

    /// Renews grants; returns whether that changes anything. A lock that is closed stays so.
    pub(crate) fn extend(&mut self, fences: &[u64], renewal: Renewal) -> bool {
        let mut changed = false;
        for fence in fences {
            let last = self.renewals.entry(*fence).or_default();
            if last.until < renewal.until {
                *last = renewal;
                changed = true;
            }
        }
        changed
    }

    /// Closes locks to renewal, as they are now; returns whether that changes anything.
    pub(crate) fn close(&mut self, locks: &[Close]) -> bool {
        let mut changed = false;
        for Close { id, fence, until, unless_after } in locks {
            let renewed = self.renewals.get(fence).map_or(0, |renewal| renewal.until);
            let until = renewed.max(*until);
            if until < *unless_after && self.closed_until(*fence, id).is_none() {
                self.closed.entry(*fence).or_default().insert(id.clone(), until);
                changed = true;
            }
        }
        changed
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, StoreError> {
        check_format(bytes)?;
        serde_json::from_slice(bytes).map_err(|_| StoreError::Corrupt("a session"))
    }

    /// What stands for an object that cannot be read.
    pub(crate) fn unreadable() -> Self {
        Session { unreadable: true, ..Session::default() }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a form in JSON")
    }
}

/// The first thing to read of an object: what follows may have any form.
fn check_format(bytes: &[u8]) -> Result<(), StoreError> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|_| StoreError::Corrupt("an object"))?;
    match head.format {
        FORMAT => Ok(()),
        found => Err(StoreError::Format { found, known: FORMAT }),
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_format_is_refused_and_named() {
        let newer = br#"{"format":2,"anything":[]}"#;
        let refused = Table::read(newer).expect_err("it is another format").to_string();
        assert!(refused.contains('2') && refused.contains("newer program"), "{refused}");
        assert!(Session::read(newer).is_err());
        assert!(Table::read(b"{}").is_err() && Table::read(b"locked by me").is_err());
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let mut table = Table::default();
        let grant = Grant {
            context: "c".into(),
            attempt: u64::MAX,
            owner: String::new(),
            session: "s".into(),
            since: 1,
        };
        table.grants.insert(7, grant);
        let held = |mode, prior| Held {
            fence: 7,
            mode,
            permits: vec![0, 2],
            in_use: 2,
            lease: 3,
            until: 4,
            ignored: 0,
            broken: true,
            prior,
        };
        for mode in [Mode::Shared, Mode::Exclusive, Mode::Slots { permits: 2, limit: 3 }] {
            let prior = Some(Box::new(held(Mode::Shared, None)));
            table.ids.entry(format!("\u{1f512} \"{mode}\"")).or_default().held.push(held(mode, prior));
        }
        let claims = vec![Claim { id: "a".into(), mode: Mode::Shared }];
        let (context, session) = ("d".to_owned(), "s".to_owned());
        let (owner, attempt, since, lease, nested) = (String::new(), 1, 2, 3, true);
        table.places.insert(1, Place { context, attempt, owner, session, since, lease, nested, claims });
        assert_eq!(Table::read(&table.write()).expect("our own form"), table);
    }

    /// A holder without its grant has no context: it cannot be decided about.
    #[test]
    fn a_holder_without_a_grant_is_refused() {
        let mut table = Table::default();
        let held = Held {
            fence: 7,
            mode: Mode::Exclusive,
            permits: Vec::new(),
            in_use: 1,
            lease: 3,
            until: 4,
            ignored: 0,
            broken: false,
            prior: None,
        };
        table.ids.entry("a".into()).or_default().held.push(held);
        assert!(Table::read(&table.write()).is_err());
    }
}
