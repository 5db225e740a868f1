//! Values of attributes.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use lockcore::Mode;

use crate::row::{Break, Entry, SECOND};

pub(crate) fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

pub(crate) fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Returns microseconds as seconds with a fraction.
pub(crate) fn seconds(micros: u64) -> AttributeValue {
    AttributeValue::N(format!("{}.{:06}", micros / SECOND, micros % SECOND))
}

/// Returns holders by context.
pub(crate) fn holders<'e>(holders: impl IntoIterator<Item = (&'e str, &'e Entry)>) -> AttributeValue {
    map(holders.into_iter().map(|(context, entry)| (context, entry.value())))
}

/// Returns taken permits, each an attribute, so that conditions can test and count them.
pub(crate) fn permits<'p>(permits: impl IntoIterator<Item = &'p u32>) -> AttributeValue {
    map(permits.into_iter().map(|permit| (permit_name(*permit), AttributeValue::Bool(true))))
}

/// Returns withdrawn attempts and the ends of their tombstones.
pub(crate) fn tombstones(tombstones: &[(u64, u64)]) -> AttributeValue {
    map(tombstones.iter().map(|(attempt, end)| (tombstone(*attempt), number(*end))))
}

/// Names an attempt's tombstone, as a word that expressions can contain.
pub(crate) fn tombstone(attempt: u64) -> String {
    format!("x{attempt:016x}")
}

/// Names a taken permit, as a word that expressions can contain.
pub(crate) fn permit_name(permit: u32) -> String {
    format!("p{permit}")
}

/// Lists the indexes of permits, as a holder's entry has them.
pub(crate) fn listed(permits: &[u32]) -> AttributeValue {
    AttributeValue::S(permits.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

/// Rounds up to whole seconds: other clients' unit.
pub(crate) fn up(micros: u64) -> u64 {
    micros.div_ceil(SECOND)
}

fn map<K: Into<String>>(values: impl IntoIterator<Item = (K, AttributeValue)>) -> AttributeValue {
    AttributeValue::M(values.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

impl Entry {
    /// Attributes that conditions name are separate, the rest is one text: an entry is written with every take.
    pub(crate) fn value(&self) -> AttributeValue {
        let mode = match self.mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Slots { .. } => "slots",
        };
        let is = format!("{mode} {} {} {}", self.attempt, self.since, &*self.owner);
        let mut entry = HashMap::from([
            ("is".to_owned(), AttributeValue::S(is)),
            ("fence".to_owned(), number(self.fence)),
            ("lease".to_owned(), number(self.lease)),
            ("ends".to_owned(), number(self.until)),
        ]);
        if let Mode::Slots { limit, .. } = self.mode {
            entry.insert("limit".to_owned(), number(u64::from(limit)));
            entry.insert("permits".to_owned(), listed(&self.permits));
        }
        if self.broken {
            entry.insert("broken".to_owned(), AttributeValue::Bool(true));
        }
        if let Some(prior) = &self.prior {
            entry.insert("prior".to_owned(), prior.value());
        }
        AttributeValue::M(entry)
    }
}

impl Break {
    pub(crate) fn value(&self) -> AttributeValue {
        let now = self.now.then_some(("now", AttributeValue::Bool(true)));
        let of = [
            ("context", text(&self.context)),
            ("fence", number(self.fence)),
            ("by", text(&self.by)),
            ("at", number(self.at)),
        ];
        map(of.into_iter().chain(now))
    }
}
