//! The table: all that is known of a namespace, and its form in JSON.
//!
//! It is data only; `step` decides. Times are the service's, in microseconds since 1970; only the bound of numbers that can be read goes
//! by this host's clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockcore::{MAX_PERMITS, Mode, protocol};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::{
    error::StoreError,
    format::{FORMAT, Rest, check, is_none, is_zero},
};

/// The longest form of a table after a step that adds to it, in bytes: each step writes all of it.
pub(crate) const MAX_BYTES: usize = 3 << 18;

/// The longest form after a request of a holder: those who wait for what it holds do not keep it from its end.
pub(crate) const MAX_BYTES_NESTED: usize = 1 << 20;

/// The most bytes that a claim takes more when it is held than in the queue, with numbers as they usually are. Its permits come on top.
const HELD: u64 = 102;

/// The most tombstones that are kept: they must not fill the table.
const TOMBSTONES: usize = 4096;

/// Everything that is locked, queued for, frozen or withdrawn in a namespace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    /// The ids that it has all of; `None`: all. With some, each id has a cell of its own, and renewals are written there.
    #[serde(skip)]
    pub(crate) of: Option<BTreeSet<String>>,
    format: u32,
    /// The oldest version of a program that may use the namespace.
    #[serde(default, skip_serializing_if = "is_none")]
    oldest_program: u32,
    /// The last write: no two versions have the same bytes, so that none has the entity tag of another.
    pub(crate) stamp: Stamp,
    /// The highest fence that was granted.
    pub(crate) high: u64,
    /// The ticket of the next place.
    pub(crate) ticket: u64,
    /// The time at which the namespace was swept.
    #[serde(default)]
    pub(crate) swept: u64,
    /// The grants, by fence, as they are read and written: a step looks at those of the holders.
    pub(crate) grants: BTreeMap<u64, Grant>,
    /// The ids that are held, frozen, or have breaks on record, by stored form.
    pub(crate) ids: BTreeMap<String, Id>,
    /// The places in the queue, by ticket: in order of arrival.
    pub(crate) places: BTreeMap<u64, Place>,
    /// Withdrawn attempts, and until when each is refused.
    pub(crate) tombstones: BTreeMap<u64, u64>,
    /// The last write of each process, by which it recognizes its own though others wrote since.
    pub(crate) writes: BTreeMap<String, Write>,
    /// The sessions whose cells were there: the absence of one says that it was removed, and not that nothing was renewed. Where each id
    /// has a cell of its own, those that are missed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) there: BTreeMap<String, There>,
    /// The way on which the store was seen to refuse writes whose condition does not hold: on another it is probed again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) probed: String,
    #[serde(flatten)]
    rest: Rest,
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
    /// The time for which it is kept, if that is longer than usual.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) kept: u64,
    #[serde(flatten)]
    pub(crate) rest: Rest,
}

/// A session whose cell was there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct There {
    /// When it was missed first, if it was.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) missed: u64,
    #[serde(flatten)]
    rest: Rest,
}

/// The part that the ids of a grant have in common.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) context: String,
    pub(crate) attempt: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) owner: String,
    /// The session that renews it.
    pub(crate) session: String,
    pub(crate) since: u64,
    /// The number of ids that were granted under its fence, if each has a cell of its own.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) ids: u32,
    #[serde(flatten)]
    pub(crate) rest: Rest,
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
    /// The withdrawn attempts, and until when each is refused, if the id has a cell of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tombstones: BTreeMap<u64, u64>,
    #[serde(flatten)]
    pub(crate) rest: Rest,
}

/// One holder of an id.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The key of its grant.
    pub(crate) fence: u64,
    #[serde(skip)]
    pub(crate) grant: Arc<Grant>,
    #[serde(with = "ModeForm")]
    pub(crate) mode: Mode,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) permits: Vec<u32>,
    /// The units in use of the id when it was granted.
    pub(crate) in_use: u32,
    pub(crate) lease: u64,
    /// The end of the lease, unless the session of the grant renewed it.
    pub(crate) until: u64,
    /// A renewal from the future, which does not count: the service's clock was set back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) ignored: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) broken: bool,
    /// The lock that the context held of the id before this attempt, to go back to if that is withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prior: Option<Box<Held>>,
    #[serde(flatten)]
    pub(crate) rest: Rest,
}

/// The record of a break.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Break {
    pub(crate) context: String,
    pub(crate) fence: u64,
    pub(crate) by: String,
    pub(crate) at: u64,
    pub(crate) now: bool,
    #[serde(flatten)]
    pub(crate) rest: Rest,
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
    #[serde(flatten)]
    pub(crate) rest: Rest,
}

/// One id of a set, and how it is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) id: String,
    #[serde(with = "ModeForm")]
    pub(crate) mode: Mode,
    #[serde(flatten)]
    pub(crate) rest: Rest,
}

impl Claim {
    pub(crate) fn new(id: impl Into<String>, mode: Mode) -> Self {
        Claim { id: id.into(), mode, rest: Rest::new() }
    }
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
            of: None,
            format: FORMAT,
            oldest_program: 0,
            stamp: Stamp::default(),
            high: 0,
            ticket: 1,
            swept: 0,
            grants: BTreeMap::new(),
            ids: BTreeMap::new(),
            places: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            writes: BTreeMap::new(),
            there: BTreeMap::new(),
            probed: String::new(),
            rest: Map::new(),
        }
    }
}

impl Table {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, StoreError> {
        check(bytes)?;
        let mut table: Table = serde_json::from_slice(bytes).map_err(|_| StoreError::corrupt("the table"))?;
        let grants: BTreeMap<u64, Arc<Grant>> =
            table.grants.iter().map(|(fence, grant)| (*fence, Arc::new(grant.clone()))).collect();
        let link =
            |held: &mut Held| grants.get(&held.fence).map(|grant| held.grant = grant.clone()).is_some();
        // A prior lock has none itself, as a step would put it back.
        let known = |held: &mut Held| {
            let is_known = |prior: &mut Box<Held>| link(prior) && prior.prior.is_none();
            held.prior.as_mut().is_none_or(is_known) && link(held)
        };
        let all_known = table.ids.values_mut().flat_map(|id| &mut id.held).all(known);
        // To find free permits for more would take longer than a lease.
        let is_possible = |mode: Mode| !matches!(mode, Mode::Slots { permits, .. } if permits > MAX_PERMITS);
        let claims = table.places.values().flat_map(|place| &place.claims);
        if !claims.map(|claim| claim.mode).all(is_possible) {
            return Err(StoreError::corrupt("a claim of the table"));
        }
        let (most, tickets) = (latest(), table.places.last_key_value().map(|(ticket, _)| *ticket));
        let are_possible = [table.high, table.ticket].into_iter().chain(tickets).all(|number| number < most);
        match (all_known, are_possible) {
            (true, true) => Ok(table),
            (false, _) => Err(StoreError::corrupt("a grant of the table")),
            (true, false) => Err(StoreError::corrupt("a number of the table")),
        }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a form in JSON")
    }

    /// Returns the bytes to leave for what the waiters will hold: one step may grant all that can be held together.
    pub(crate) fn reserved(&self) -> usize {
        let mut ids: BTreeMap<&str, Wanted> = BTreeMap::new();
        for claim in self.places.values().flat_map(|place| &place.claims).filter(|claim| self.has(&claim.id))
        {
            ids.entry(&claim.id).or_default().add(claim.mode);
        }
        let held = |id| self.ids.get(id).map(|id| &id.held[..]).unwrap_or_default();
        let all = ids.into_iter().map(|(id, wanted)| wanted.bytes(held(id)));
        usize::try_from(all.sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Returns the sessions with a grant or a place.
    pub(crate) fn sessions(&self) -> BTreeSet<&str> {
        let grants = self.all_held().map(|held| held.grant.session.as_str());
        grants.chain(self.places.values().map(|place| place.session.as_str())).collect()
    }

    /// Returns all that is held, and what would come back.
    fn all_held(&self) -> impl Iterator<Item = &Held> {
        let all = self.ids.values().flat_map(|id| &id.held);
        all.flat_map(|held| std::iter::once(held).chain(held.prior.as_deref()))
    }

    /// Returns the grants of all that is held, and of what would come back, with their fences.
    pub(crate) fn grants_mut(&mut self) -> impl Iterator<Item = (u64, &mut Arc<Grant>)> {
        self.ids.values_mut().flat_map(|id| &mut id.held).flat_map(|Held { fence, grant, prior, .. }| {
            let prior = prior.as_deref_mut().map(|prior| (prior.fence, &mut prior.grant));
            std::iter::once((*fence, grant)).chain(prior)
        })
    }

    /// Returns whether the cell of a session was there once. Where each id has a cell of its own, that of a session precedes its first
    /// grant.
    pub(crate) fn was_there(&self, session: &str) -> bool {
        self.of.is_some() || self.there.contains_key(session)
    }

    /// Notes that the cell of a session is there.
    pub(crate) fn mark(&mut self, session: &str) {
        if !self.was_there(session) && self.sessions().contains(session) {
            self.there.insert(session.to_owned(), There::default());
        }
    }

    /// Returns the ticket of an attempt, if it has a place.
    pub(crate) fn ticket_of(&self, context: &str, attempt: u64) -> Option<u64> {
        let mut places = self.places.iter();
        let place = places.find(|(_, place)| place.attempt == attempt && place.context == context);
        place.map(|(ticket, _)| *ticket)
    }

    /// Forgets grants of which nothing is held, ids of which nothing is to be known, and what has had its time.
    pub(crate) fn prune(&mut self, lo: u64, writes_kept: u64) {
        self.ids.values_mut().for_each(|id| forget(&mut id.tombstones, lo));
        self.ids.retain(|_, id| {
            !id.held.is_empty() || id.frozen || !id.breaks.is_empty() || !id.tombstones.is_empty()
        });
        let mut grants = BTreeMap::new();
        for held in self.all_held() {
            // One for all the ids of a set.
            grants.entry(held.fence).or_insert_with(|| (*held.grant).clone());
        }
        self.grants = grants;
        let live: BTreeSet<String> = self.sessions().into_iter().map(str::to_owned).collect();
        self.there.retain(|session, _| live.contains(session));
        forget(&mut self.tombstones, lo);
        self.writes.retain(|_, write| write.at.saturating_add(writes_kept.max(write.kept)) >= lo);
    }
}

/// Returns the bound of fences and tickets, which follow the store's clock. It rises faster than they do: with one that stays the same, a
/// step on a number just below it would write what cannot be read, also into the cells of other ids.
fn latest() -> u64 {
    const CENTURIES: Duration = Duration::from_secs(1000 * 365 * 86_400);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    micros(now + CENTURIES)
}

/// The claims of the waiters for an id.
#[derive(Default)]
struct Wanted {
    exclusive: bool,
    shared: u64,
    slots: u64,
    permits: u64,
    /// The largest limit of the slots.
    limit: u64,
}

impl Wanted {
    fn add(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive = true,
            Mode::Shared => self.shared += 1,
            Mode::Slots { permits, limit } => {
                self.slots += 1;
                self.permits += u64::from(permits);
                self.limit = self.limit.max(limit.into());
            }
        }
    }

    /// Returns the bytes of what can be held of them together, beside what is held or instead of it.
    fn bytes(&self, held: &[Held]) -> u64 {
        let taken: u64 = held.iter().map(|held| held.permits.len() as u64).sum();
        let users = held.iter().filter(|held| !held.permits.is_empty()).count() as u64;
        let slots = self.slots.min(self.limit.saturating_sub(users));
        let exclusive = u64::from(self.exclusive && held.is_empty());
        // The lowest indexes are granted, with a comma after each.
        let permits = self.permits.min(self.limit.saturating_sub(taken));
        let digits =
            |count: u64| count + (1..10).map(|zeros| count.saturating_sub(10_u64.pow(zeros))).sum::<u64>();
        (self.shared + slots).max(exclusive) * HELD + digits(taken + permits) - digits(taken) + permits
    }
}

/// Returns a duration in the unit of the table.
pub(crate) const fn micros(duration: Duration) -> u64 {
    let micros = duration.as_micros();
    if micros > u64::MAX as u128 / 8 { u64::MAX / 8 } else { micros as u64 }
}

/// Forgets tombstones that have had their time, and those that would end first if there are too many: a request that is so late that
/// thousands were withdrawn since would have to be of a process that stood still.
fn forget(tombstones: &mut BTreeMap<u64, u64>, lo: u64) {
    tombstones.retain(|_, until| *until >= lo);
    let over = tombstones.len().saturating_sub(TOMBSTONES);
    if over > 0 {
        let mut all: Vec<(u64, u64)> = tombstones.iter().map(|(of, until)| (*until, *of)).collect();
        all.sort_unstable();
        for (_, attempt) in &all[..over] {
            tombstones.remove(attempt);
        }
    }
}

impl Id {
    pub(crate) fn was_broken(&self, fence: u64) -> bool {
        self.breaks.iter().any(|broken| broken.fence == fence)
    }

    pub(crate) fn record(&mut self, broken: Break) {
        self.breaks.push(broken);
        let over = self.breaks.len().saturating_sub(protocol::BREAKS_KEPT);
        self.breaks.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_format_is_refused_and_named() {
        let newer = br#"{"format":2,"anything":[]}"#;
        let refused = Table::read(newer).expect_err("it is another format").to_string();
        assert!(refused.contains('2') && refused.contains("newer program"), "{refused}");
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
            ids: 0,
            rest: Map::new(),
        };
        let grant = Arc::new(grant);
        let held = |mode, prior| Held {
            fence: 7,
            grant: grant.clone(),
            mode,
            permits: vec![0, 2],
            in_use: 2,
            lease: 3,
            until: 4,
            ignored: 0,
            broken: true,
            prior,
            rest: Map::new(),
        };
        for mode in [Mode::Shared, Mode::Exclusive, Mode::Slots { permits: 2, limit: 3 }] {
            let prior = Some(Box::new(held(Mode::Shared, None)));
            table.ids.entry(format!("\u{1f512} \"{mode}\"")).or_default().held.push(held(mode, prior));
        }
        let claims = vec![Claim::new("a", Mode::Shared)];
        let (context, session) = ("d".to_owned(), "s".to_owned());
        let (owner, attempt, since, lease, nested) = (String::new(), 1, 2, 3, true);
        let rest = Map::new();
        table
            .places
            .insert(1, Place { context, attempt, owner, session, since, lease, nested, claims, rest });
        table.prune(0, 0);
        assert_eq!(Table::read(&table.write()).expect("our own form"), table);
    }

    /// A program of the next version adds fields, and this one goes on beside it.
    #[test]
    fn a_field_of_tomorrow_survives_a_step() {
        let text = r#"{"format":1,"oldest_program":1,"stamp":{"session":"s","number":1},"high":7,"ticket":2,"of_table":[1],
            "grants":{"7":{"context":"c","attempt":1,"session":"s","since":1,"of_grant":2}},
            "ids":{"a":{"held":[{"fence":7,"mode":"shared","in_use":1,"lease":5,"until":9,"of_held":3}],"of_id":4,
                "breaks":[{"context":"e","fence":6,"by":"me","at":1,"now":true,"of_break":8}]}},
            "places":{"1":{"context":"d","attempt":2,"session":"s","since":1,"lease":5,"of_place":5,
                "claims":[{"id":"b","mode":"shared","of_claim":6}]}},
            "tombstones":{},"writes":{"s":{"number":1,"at":1,"of_write":7}}}"#;
        let mut table = Table::read(text.as_bytes()).expect("our own form");
        table.prune(0, 0);
        let written = String::from_utf8(table.write()).expect("it is JSON");
        for field in
            ["of_table", "of_grant", "of_held", "of_id", "of_place", "of_claim", "of_write", "of_break"]
        {
            assert!(written.contains(field), "{field} is gone: {written}");
        }
    }

    /// A program that changes what a field means shuts out those that would misread it.
    #[test]
    fn a_namespace_of_newer_programs_is_refused_and_named() {
        let newer = br#"{"format":1,"oldest_program":2}"#;
        let refused = Table::read(newer).expect_err("it is for newer programs").to_string();
        assert!(refused.contains("version 2") && refused.contains("newer program"), "{refused}");
    }

    /// A step must end, and what it puts back must be decidable.
    #[test]
    fn a_table_that_no_step_makes_is_refused() {
        let text = |held: &str, claim: &str| {
            format!(
                r#"{{"format":1,"stamp":{{"session":"s","number":1}},"high":7,"ticket":2,"tombstones":{{}},"writes":{{}},
                "grants":{{"7":{{"context":"c","attempt":1,"session":"s","since":1}}}},
                "ids":{{"a":{{"held":[{{"fence":7,"mode":"shared","in_use":1,"lease":5,"until":9{held}}}]}}}},
                "places":{{"1":{{"context":"d","attempt":2,"session":"s","since":1,"lease":5,"claims":[{claim}]}}}}}}"#
            )
        };
        let one = r#","prior":{"fence":7,"mode":"shared","in_use":1,"lease":5,"until":9"#;
        let slots = |permits: u32| {
            format!(r#"{{"id":"b","mode":{{"slots":{{"permits":{permits},"limit":{permits}}}}}}}"#)
        };
        let reads = |held: &str, claim: &str| Table::read(text(held, claim).as_bytes()).is_ok();
        assert!(reads("", "") && reads(&format!("{one}}}"), &slots(MAX_PERMITS)));
        assert!(!reads(&format!("{one}{one}}}}}"), ""), "a prior lock of a prior lock");
        assert!(!reads("", &slots(u32::MAX)), "more permits than can be found");
    }

    /// A holder without its grant has no context: it cannot be decided about.
    #[test]
    fn a_holder_without_a_grant_is_refused() {
        let mut table = Table::default();
        let held = Held {
            fence: 7,
            grant: Arc::default(),
            mode: Mode::Exclusive,
            permits: Vec::new(),
            in_use: 1,
            lease: 3,
            until: 4,
            ignored: 0,
            broken: false,
            prior: None,
            rest: Map::new(),
        };
        table.ids.entry("a".into()).or_default().held.push(held);
        assert!(Table::read(&table.write()).is_err());
    }
}
