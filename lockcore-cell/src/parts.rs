//! The parts of the table: where a store replaces one cell in a step, it is one cell; where it replaces several, each id has a cell of
//! its own, and a step works on a table that is put together from those of its ids.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use lockcore::backend::Moment;

use crate::{
    request::Request,
    table::{Place, Table},
};

/// The cell with the table, or with what is said of no id.
const TABLE: &str = "table";

/// The folder with the cells of ids.
pub(crate) const IDS: &str = "id";

/// A cell with a part of the table, by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Part(String);

impl Part {
    /// Returns the part of no id.
    pub(crate) fn rest() -> Self {
        Part(TABLE.to_owned())
    }

    pub(crate) fn of(id: &str) -> Self {
        // The first letter makes a name of the empty one, too.
        let digits = |byte: u8| {
            [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        };
        let mut name = format!("{IDS}/x");
        name.extend(id.bytes().flat_map(digits));
        Part(name)
    }

    /// Returns the part with this name, if it is one of an id.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let part = Part(name.to_owned());
        part.id().map(|_| part)
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Returns the id that it is about, in stored form.
    pub(crate) fn id(&self) -> Option<String> {
        let digits = self.0.strip_prefix(IDS)?.strip_prefix("/x")?.as_bytes();
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
        String::from_utf8(digits.chunks(2).map(byte).collect::<Option<_>>()?).ok()
    }
}

/// A version of a part of the table.
#[derive(Clone, Debug)]
pub(crate) struct Known<V> {
    /// `None`: there is no cell yet.
    pub(crate) version: Option<V>,
    pub(crate) table: Arc<Table>,
    /// The order of two reads, see [`order`](crate::order).
    pub(crate) order: u64,
    /// The number at which the read or the write began: what was asked for before is true of it.
    pub(crate) begun: u64,
    /// The moment at which that began.
    pub(crate) at: Moment,
}

/// Some parts, as far as they are known.
pub(crate) struct View<V> {
    pub(crate) parts: Vec<(Part, Option<Arc<Known<V>>>)>,
    /// The table of all of them.
    pub(crate) table: Arc<Table>,
    /// The number at which the oldest look at one of them began, 0 if one was never looked at.
    pub(crate) begun: u64,
}

impl<V> View<V> {
    /// Returns whether each place of a session is in the cells of all its ids that were looked at, and no other place is in them. It was
    /// removed from one of them if the process was taken for dead, or to make room for a set that was granted to a holder.
    pub(crate) fn has_whole_places(&self, own: &str) -> bool {
        self.parts.iter().all(|(part, known)| {
            let (Some(id), Some(known)) = (part.id(), known) else { return true };
            let is_of = |(_, place): &(&u64, &Place)| place.session == own && place.claims(&id);
            self.table.places.iter().filter(is_of).all(|place| has(&known.table, place))
        }) && !self.has_left_places()
    }

    /// Returns whether the place of a request is in the cells of all its ids.
    pub(crate) fn has_whole_place(&self, request: &Request) -> bool {
        let has_place =
            |known: &Arc<Known<V>>| known.table.ticket_of(&request.context, request.attempt).is_some();
        self.parts.iter().all(|(_, known)| known.as_ref().is_some_and(has_place))
    }

    /// Returns whether a place is in one of the cells that is none any more: it was withdrawn, or another one came with the same ticket. A
    /// write takes it out.
    pub(crate) fn has_left_places(&self) -> bool {
        let cells = self.parts.iter().filter_map(|(_, known)| known.as_ref());
        cells.flat_map(|known| &known.table.places).any(|place| !has(&self.table, place))
    }

    /// Returns the number of the last write of a process, if it is among these.
    pub(crate) fn last_write(&self, writer: &str, among: &[u64]) -> Option<u64> {
        let known = self.parts.iter().filter_map(|(_, known)| known.as_ref());
        let mut last = known.filter_map(|known| known.table.writes.get(writer).map(|write| write.number));
        last.find(|number| among.contains(number))
    }

    /// Returns what a step of a session makes of each part, if it makes this of the table.
    pub(crate) fn split(
        &self,
        mut table: Table,
        own: &str,
    ) -> impl Iterator<Item = (&Part, Option<&V>, Table)> {
        let is_one = self.parts.len() == 1;
        self.parts.iter().map(move |(part, known)| {
            let version = known.as_ref().and_then(|known| known.version.as_ref());
            let part_of = match &known {
                _ if is_one => std::mem::take(&mut table),
                Some(known) => table.part(part.id(), &known.table, own),
                None => table.part(part.id(), &Table::default(), own),
            };
            (part, version, part_of)
        })
    }
}

impl Place {
    fn claims(&self, id: &str) -> bool {
        self.claims.iter().any(|claim| claim.id == id)
    }
}

/// Returns whether a place is in a table.
fn has(table: &Table, (ticket, place): (&u64, &Place)) -> bool {
    table.places.get(ticket).is_some_and(|of| of.attempt == place.attempt)
}

impl Table {
    /// Adds a part. A place is in the parts of all its ids, but for those from which it was removed beside others: it is where it is in
    /// one. Two places may have come at the same time, and have the same ticket: one of them goes, and its waiter asks again.
    pub(crate) fn add(&mut self, part: &Table) {
        self.high = self.high.max(part.high);
        self.ticket = self.ticket.max(part.ticket);
        for (session, there) in &part.there {
            let known = self.there.entry(session.clone()).or_insert_with(|| there.clone());
            // The earliest at which it was missed.
            if there.missed > 0 && (known.missed == 0 || there.missed < known.missed) {
                known.missed = there.missed;
            }
        }
        self.of.iter_mut().for_each(|of| of.extend(part.of.iter().flatten().cloned()));
        self.ids.extend(part.ids.iter().map(|(id, state)| (id.clone(), state.clone())));
        for (ticket, place) in &part.places {
            match self.places.entry(*ticket) {
                Entry::Vacant(free) => {
                    free.insert(place.clone());
                }
                Entry::Occupied(mut other) => {
                    if place.attempt < other.get().attempt {
                        other.insert(place.clone());
                    }
                }
            }
        }
    }

    /// Drops the places of attempts that were withdrawn from another cell: that of this one could not be written.
    pub(crate) fn drop_withdrawn(&mut self) {
        let withdrawn: BTreeSet<u64> =
            self.ids.values().flat_map(|id| id.tombstones.keys().copied()).collect();
        if !withdrawn.is_empty() {
            self.places.retain(|_, place| !withdrawn.contains(&place.attempt));
        }
    }

    /// Returns the part of an id, which was like this before. Only a process itself puts a place back: another one may know that it is
    /// dead, and both would write against each other.
    fn part(&self, id: Option<String>, before: &Table, own: &str) -> Table {
        let id = id.unwrap_or_default();
        let stays = |place: &(&u64, &Place)| place.1.session == own || has(before, *place);
        let places = self.places.iter().filter(|place| place.1.claims(&id) && stays(place));
        let places: BTreeMap<_, _> = places.map(|(ticket, place)| (*ticket, place.clone())).collect();
        let ids = self.ids.get_key_value(&id).map(|(id, state)| (id.clone(), state.clone()));
        let mut part = before.clone();
        part.there.clone_from(&self.there);
        (part.places, part.ids) = (places, ids.into_iter().collect());
        (part.of, part.high, part.ticket) = (Some([id].into()), self.high, self.ticket);
        part
    }

    /// Returns whether the table has all that is known of an id.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.of.as_ref().is_none_or(|of| of.contains(id))
    }

    /// Returns whether nothing is held, waited for or known of its ids any more, so that its cell may go.
    pub(crate) fn is_over(&self) -> bool {
        self.ids.is_empty() && self.places.is_empty()
    }
}
