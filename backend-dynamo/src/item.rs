//! An item of the table as it is written and read.

use std::{collections::HashMap, fmt::Write as _};

use aws_sdk_dynamodb::types::AttributeValue;
use lockcore::{Mode, Owner};
use smallvec::SmallVec;

use crate::{
    clock::Now,
    config::Names,
    error::StoreError,
    row::{Break, Entry, Foreign, Row, Seen},
};

/// An item as the service gives and takes it.
pub(crate) type Item = HashMap<String, AttributeValue>;

/// The context that other clients see where several hold an id together.
pub(crate) const MANY: &str = "lockcore:several";

/// The context that other clients see where nobody may get an id.
pub(crate) const FROZEN: &str = "lockcore:frozen";

/// By how much a free item is dated back, in seconds: no other client's clock is that slow, and it is far less than the
/// five years after which the service's clean-up by TTL leaves an item alone.
pub(crate) const FREE_SINCE: u64 = 24 * 3600;

/// The end of what has none, in seconds: the year 9999.
const NEVER: u64 = 253_402_300_799;

pub(crate) const SECOND: u64 = 1_000_000;

impl Row {
    /// Reads an item.
    pub(crate) fn read(mut item: Item, names: &Names) -> Result<Row, StoreError> {
        let seen = Seen {
            context: match item.remove(&names.context) {
                None => None,
                Some(AttributeValue::S(context)) => Some(context),
                Some(_) => return Err(StoreError::Corrupt("the context is no string")),
            },
            created: item.remove(&names.created),
            expires: item.remove(&names.expires),
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
        if let Some(AttributeValue::M(marks)) = item.remove("marks") {
            for (attempt, until) in marks {
                let attempt = attempt.strip_prefix('x').and_then(|hex| u64::from_str_radix(hex, 16).ok());
                let attempt = attempt.ok_or(StoreError::Corrupt("a mark names no attempt"))?;
                row.marks.push((attempt, as_number(&until)?));
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

    /// Another client's lock, if the context that is seen is none that this library wrote.
    fn foreign(&self) -> Result<Option<Foreign>, StoreError> {
        let Some(context) = &self.seen.context else { return Ok(None) };
        let ours = self.rev.is_some()
            && (context == MANY
                || context == FROZEN
                || self.holders.iter().any(|(holder, _)| holder == context));
        if ours {
            return Ok(None);
        }
        let time = |value: &Option<AttributeValue>| value.as_ref().map(seconds).transpose();
        let (since, until) = (time(&self.seen.created)?.unwrap_or(0), time(&self.seen.expires)?);
        Ok(Some(Foreign { context: context.clone(), since, until }))
    }

    /// The item, as of our write `rev`.
    pub(crate) fn write(&self, key: &str, names: &Names, rev: u64, now: Now) -> Item {
        let mut item =
            Item::from([(names.id.clone(), AttributeValue::S(key.to_owned())), ("rev".to_owned(), n(rev))]);
        if self.fence > 0 {
            item.insert("fence".to_owned(), n(self.fence));
        }
        if !self.holders.is_empty() {
            let holders = self.holders.iter().map(|(context, entry)| (context.clone(), entry.write()));
            item.insert("holders".to_owned(), AttributeValue::M(holders.collect()));
            let permits: Vec<u32> =
                self.holders.iter().flat_map(|(_, entry)| entry.permits.iter().copied()).collect();
            if !permits.is_empty() {
                item.insert("slots".to_owned(), slots(&permits));
            }
        }
        if !self.marks.is_empty() {
            let marks = self.marks.iter().map(|(attempt, until)| (mark(*attempt), n(*until)));
            item.insert("marks".to_owned(), AttributeValue::M(marks.collect()));
        }
        if self.frozen {
            item.insert("frozen".to_owned(), AttributeValue::Bool(true));
        }
        if !self.breaks.is_empty() {
            let breaks = self.breaks.iter().map(Break::write).collect();
            item.insert("breaks".to_owned(), AttributeValue::L(breaks));
        }
        self.write_for_others(&mut item, names, now);
        item
    }

    fn write_for_others(&self, item: &mut Item, names: &Names, now: Now) {
        if self.foreign.is_some() {
            let Seen { context, created, expires } = &self.seen;
            let context = context.clone().map(AttributeValue::S);
            let seen = [
                (&names.context, context),
                (&names.created, created.clone()),
                (&names.expires, expires.clone()),
            ];
            item.extend(seen.into_iter().filter_map(|(name, value)| Some((name.clone(), value?))));
            return;
        }
        let until = self.holders.iter().map(|(_, entry)| up(entry.until)).max();
        let since = self.holders.iter().map(|(_, entry)| entry.since / SECOND).min();
        let context = match &self.holders[..] {
            [] if self.frozen => Some(FROZEN),
            [] => None,
            [(context, entry)] if entry.mode == Mode::Exclusive => Some(&context[..]),
            _ => Some(MANY),
        };
        let expires = match until {
            _ if self.frozen => NEVER,
            Some(until) => until,
            None => free_since(now),
        };
        item.insert(names.expires.clone(), n(expires));
        if let Some(context) = context {
            item.insert(names.context.clone(), AttributeValue::S(context.to_owned()));
            item.insert(names.created.clone(), n(since.unwrap_or(now.lo / SECOND)));
        }
    }
}

impl Entry {
    /// What conditions name stands by itself, the rest in one word after the other: an entry is written with every take.
    pub(crate) fn write(&self) -> AttributeValue {
        let mode = match self.mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Slots { .. } => "slots",
        };
        let mut is = String::with_capacity(64);
        // A string takes all.
        let _ = write!(is, "{mode} {} {} {}", self.attempt, self.since, self.owner);
        let mut map = HashMap::with_capacity(7);
        map.insert("is".to_owned(), AttributeValue::S(is));
        map.insert("fence".to_owned(), n(self.fence));
        map.insert("lease".to_owned(), n(self.lease));
        map.insert("ends".to_owned(), n(self.until));
        if let Mode::Slots { limit, .. } = self.mode {
            map.insert("limit".to_owned(), n(u64::from(limit)));
            let permits: Vec<String> = self.permits.iter().map(u32::to_string).collect();
            map.insert("permits".to_owned(), AttributeValue::S(permits.join(",")));
        }
        if self.broken {
            map.insert("broken".to_owned(), AttributeValue::Bool(true));
        }
        if let Some(prior) = &self.prior {
            map.insert("prior".to_owned(), prior.write());
        }
        AttributeValue::M(map)
    }

    fn read(value: &AttributeValue) -> Result<Entry, StoreError> {
        const CORRUPT: StoreError = StoreError::Corrupt("a holder is not as this library writes it");
        let AttributeValue::M(map) = value else { return Err(CORRUPT) };
        let needed = |name| number(map, name)?.ok_or(CORRUPT);
        let permits = match map.get("permits") {
            Some(AttributeValue::S(permits)) => permits.split(',').map(str::parse).collect::<Result<_, _>>(),
            _ => Ok(SmallVec::new()),
        };
        let permits: SmallVec<[u32; 2]> = permits.map_err(|_| CORRUPT)?;
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
    fn write(&self) -> AttributeValue {
        AttributeValue::M(HashMap::from([
            ("context".to_owned(), AttributeValue::S(self.context.clone())),
            ("fence".to_owned(), n(self.fence)),
            ("by".to_owned(), AttributeValue::S(self.by.to_string())),
            ("at".to_owned(), n(self.at)),
            ("now".to_owned(), AttributeValue::Bool(self.now)),
        ]))
    }

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

/// What an attempt's mark is called; a word that expressions can name.
pub(crate) fn mark(attempt: u64) -> String {
    format!("x{attempt:016x}")
}

/// What a permit that is taken is called; a word that expressions can name.
pub(crate) fn permit(permit: u32) -> String {
    format!("p{permit}")
}

/// The permits that are taken, each by itself, so that conditions can tell which are and how many.
pub(crate) fn slots(permits: &[u32]) -> AttributeValue {
    AttributeValue::M(
        permits.iter().map(|permit| (self::permit(*permit), AttributeValue::Bool(true))).collect(),
    )
}

/// A number for the service.
pub(crate) fn n(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Whole seconds, rounded up: as other clients see an end.
pub(crate) fn up(micros: u64) -> u64 {
    micros.div_ceil(SECOND)
}

/// The end that a free item has, in seconds.
pub(crate) fn free_since(now: Now) -> u64 {
    (now.lo / SECOND).saturating_sub(FREE_SINCE)
}

/// Seconds as a number of the service's, with a fraction.
pub(crate) fn fraction(micros: u64) -> AttributeValue {
    AttributeValue::N(format!("{}.{:06}", micros / SECOND, micros % SECOND))
}

/// What another client wrote as seconds, in microseconds; a fraction is rounded down.
fn seconds(value: &AttributeValue) -> Result<u64, StoreError> {
    const CORRUPT: StoreError = StoreError::Corrupt("a time is no number of seconds");
    let AttributeValue::N(number) = value else { return Err(CORRUPT) };
    let whole: i64 = match number.parse() {
        Ok(whole) => whole,
        Err(_) => number.parse::<f64>().map_err(|_| CORRUPT)? as i64,
    };
    Ok(u64::try_from(whole).unwrap_or(0).saturating_mul(SECOND))
}

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
