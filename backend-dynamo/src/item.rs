//! Reads items of the table into rows, and lists the attributes that a row is written as.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use lockcore::{Mode, Owner, backend::ServiceTime};

use crate::{
    config::Names,
    error::{InItem, StoreError},
    row::{Break, Entry, FROZEN, Foreign, MANY, Row, SECOND, Seen},
    value::{self, up},
};

/// An item as the service gives and takes it.
pub(crate) type Item = HashMap<String, AttributeValue>;

/// The time by which the end of a free item is dated back, in seconds: no other client's clock is that slow, and TTL
/// still collects it, which ignores what ended more than five years ago.
pub(crate) const FREE_SINCE: u64 = 24 * 3600;

/// The end of a free item with tombstones, in seconds: other clients may take it, and TTL, which ignores what ended more than
/// five years ago, does not collect it. The next take or release after the tombstones ended dates it back.
pub(crate) const UNCOLLECTED: u64 = 0;

/// The end of a frozen item, in seconds: the year 9999.
const NEVER: u64 = 253_402_300_799;

impl Row {
    /// Reads an item.
    pub(crate) fn read(mut item: Item, names: &Names) -> Result<Row, StoreError> {
        let key = item.remove(&names.id);
        Row::of_attributes(item, names).map_err(|error| match (error, key) {
            (StoreError::Corrupt(what), Some(AttributeValue::S(key))) => {
                StoreError::Unreadable { what, item: InItem(key) }
            }
            (error, _) => error,
        })
    }

    fn of_attributes(mut item: Item, names: &Names) -> Result<Row, StoreError> {
        let seen = Seen {
            context: match item.remove(&names.context) {
                None => None,
                Some(AttributeValue::S(context)) => Some(context),
                Some(_) => return Err(StoreError::Corrupt("the context is no string")),
            },
            // Reported, and used for nothing else.
            created: item.remove(&names.created).and_then(|created| match created {
                AttributeValue::N(number) => Some(number),
                _ => None,
            }),
            expires: match item.remove(&names.expires) {
                None => None,
                Some(AttributeValue::N(number)) => Some(number),
                Some(_) => return Err(NO_TIME),
            },
        };
        let rev = number(&item, "rev")?;
        let mut row = Row {
            rev,
            fence: number(&item, "fence")?.unwrap_or(0),
            frozen: item.contains_key("frozen"),
            has_slots: item.contains_key("slots"),
            seen,
            ..Row::default()
        };
        if let (Some(_), Some(AttributeValue::M(holders))) = (rev, item.remove("holders")) {
            for (context, entry) in holders {
                row.holders.push((context, Entry::read(&entry)?));
            }
            row.holders.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        if let Some(AttributeValue::M(tombstones)) = item.remove("marks") {
            for (attempt, until) in tombstones {
                let attempt = attempt.strip_prefix('x').and_then(|hex| u64::from_str_radix(hex, 16).ok());
                let attempt = attempt.ok_or(StoreError::Corrupt("a tombstone names no attempt"))?;
                row.tombstones.push((attempt, as_number(&until)?));
            }
        }
        if let Some(AttributeValue::L(breaks)) = item.remove("breaks") {
            for found in &breaks {
                row.breaks.push(Break::read(found)?);
            }
        }
        row.foreign = row.foreign()?;
        if row.foreign.is_some() {
            row.holders.clear();
        }
        Ok(row)
    }

    /// Returns another client's lock, if the context that clients see was not written by this library.
    fn foreign(&self) -> Result<Option<Foreign>, StoreError> {
        let Some(context) = &self.seen.context else { return Ok(None) };
        let ours = self.rev.is_some()
            && (context == MANY
                || context == FROZEN
                || self.holders.iter().any(|(holder, _)| holder == context));
        if ours {
            return Ok(None);
        }
        let time = |value: &Option<String>| value.as_deref().map(seconds).transpose();
        let (since, until) = (time(&self.seen.created)?.unwrap_or(0), time(&self.seen.expires)?);
        Ok(Some(Foreign { context: context.clone(), since, until }))
    }

    /// Lists the attributes that a write sets, beside `rev`; `None` for those that it removes.
    pub(crate) fn attributes(&self, now: ServiceTime) -> Vec<(&'static str, Option<AttributeValue>)> {
        let mut attributes = Vec::with_capacity(9);
        // Attributes that another client wrote stay unchanged.
        if self.foreign.is_none() {
            attributes.extend(self.for_others(now));
        }
        let holders = self.holders.iter().map(|(context, entry)| (&context[..], entry));
        let permits = self.holders.iter().flat_map(|(_, entry)| &entry.permits);
        let breaks = self.breaks.iter().map(Break::value);
        attributes.extend([
            ("fence", (self.fence > 0).then(|| value::number(self.fence))),
            ("holders", (!self.holders.is_empty()).then(|| value::holders(holders))),
            ("slots", self.takes_permits().then(|| value::permits(permits))),
            ("marks", (!self.tombstones.is_empty()).then(|| value::tombstones(&self.tombstones))),
            ("frozen", self.frozen.then_some(AttributeValue::Bool(true))),
            ("breaks", (!self.breaks.is_empty()).then(|| AttributeValue::L(breaks.collect()))),
        ]);
        attributes
    }

    /// Context, start and end for other clients.
    fn for_others(&self, now: ServiceTime) -> [(&'static str, Option<AttributeValue>); 3] {
        let context = match &self.holders[..] {
            [] if self.frozen => Some(FROZEN),
            [] => None,
            [(context, entry)] if entry.mode == Mode::Exclusive => Some(&context[..]),
            _ => Some(MANY),
        };
        let since = self.holders.iter().map(|(_, entry)| entry.since / SECOND).min();
        let created = context.is_some().then(|| value::number(since.unwrap_or(now.lo / SECOND)));
        let expires = match self.holders.iter().map(|(_, entry)| up(entry.until)).max() {
            _ if self.frozen => NEVER,
            // Invariant T1: TTL collects no item before its tombstones have ended.
            Some(until) => self.tombstones.iter().map(|(_, until)| up(*until)).fold(until, u64::max),
            None if !self.tombstones.is_empty() => UNCOLLECTED,
            None => free_since(now),
        };
        [("#c", context.map(value::text)), ("#t", created), ("#e", Some(value::number(expires)))]
    }

    fn takes_permits(&self) -> bool {
        self.holders.iter().any(|(_, entry)| !entry.permits.is_empty())
    }
}

impl Entry {
    fn read(value: &AttributeValue) -> Result<Entry, StoreError> {
        const CORRUPT: StoreError = StoreError::Corrupt("a holder is not as this library writes it");
        let AttributeValue::M(map) = value else { return Err(CORRUPT) };
        let needed = |name| number(map, name)?.ok_or(CORRUPT);
        let permits = match map.get("permits") {
            Some(AttributeValue::S(permits)) => permits.split(',').map(str::parse).collect::<Result<_, _>>(),
            _ => Ok(Vec::new()),
        };
        let permits: Vec<u32> = permits.map_err(|_| CORRUPT)?;
        let is = map.get("is").and_then(|is| is.as_s().ok()).ok_or(CORRUPT)?;
        let [mode, attempt, since, owner] = is.splitn(4, ' ').collect::<Vec<_>>()[..] else {
            return Err(CORRUPT);
        };
        let word = |word: &str| word.parse().map_err(|_| CORRUPT);
        let mode = match mode {
            "exclusive" => Mode::Exclusive,
            "shared" => Mode::Shared,
            "slots" => Mode::Slots {
                permits: permits.len() as u32,
                limit: u32::try_from(needed("limit")?).map_err(|_| CORRUPT)?,
            },
            _ => return Err(CORRUPT),
        };
        Ok(Entry {
            mode,
            permits,
            fence: needed("fence")?,
            attempt: word(attempt)?,
            lease: needed("lease")?,
            until: needed("ends")?,
            since: word(since)?,
            owner: owner.into(),
            broken: map.contains_key("broken"),
            prior: map.get("prior").map(Entry::read).transpose()?.map(Box::new),
        })
    }
}

impl Break {
    fn read(value: &AttributeValue) -> Result<Break, StoreError> {
        const CORRUPT: StoreError = StoreError::Corrupt("a break is not as this library writes it");
        let AttributeValue::M(map) = value else { return Err(CORRUPT) };
        Ok(Break {
            context: text(map, "context").to_string(),
            fence: number(map, "fence")?.ok_or(CORRUPT)?,
            by: text(map, "by"),
            at: number(map, "at")?.ok_or(CORRUPT)?,
            now: map.get("now") == Some(&AttributeValue::Bool(true)),
        })
    }
}

/// The end of a free item, in seconds.
pub(crate) fn free_since(now: ServiceTime) -> u64 {
    (now.lo / SECOND).saturating_sub(FREE_SINCE)
}

/// Parses another client's seconds into microseconds; a fraction is rounded down.
fn seconds(number: &str) -> Result<u64, StoreError> {
    let whole: i64 = match number.parse() {
        Ok(whole) => whole,
        Err(_) => number.parse::<f64>().map_err(|_| NO_TIME)? as i64,
    };
    Ok(u64::try_from(whole).unwrap_or(0).saturating_mul(SECOND))
}

const NO_TIME: StoreError = StoreError::Corrupt("a time is no number of seconds");

fn number(item: &Item, name: &str) -> Result<Option<u64>, StoreError> {
    item.get(name).map(as_number).transpose()
}

fn as_number(value: &AttributeValue) -> Result<u64, StoreError> {
    let number = value.as_n().ok().and_then(|number| number.parse().ok());
    number.ok_or(StoreError::Corrupt("a number is not as this library writes it"))
}

fn text(item: &Item, name: &str) -> Owner {
    item.get(name)
        .and_then(|value| value.as_s().ok())
        .map_or_else(Owner::default, |text| text.as_str().into())
}

#[cfg(test)]
#[path = "item_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "model_tests.rs"]
mod model;
