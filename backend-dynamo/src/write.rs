//! Conditional writes: what each changes, and under which condition.

use std::{borrow::Cow, collections::HashMap, fmt::Write as _};

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValuesOnConditionCheckFailure, Update};
use lockcore::{
    Mode,
    backend::{ServiceTime, unique},
};

use crate::{
    config::Settings,
    item::{UNCOLLECTED, free_since},
    row::{Entry, MANY, Row, SECOND, Seen},
    value::{self, number, text, up},
};

/// A conditional write of one item. Every retry sends the same.
///
/// Expressions have placeholders where names can be chosen, as these may be reserved words.
#[derive(Debug)]
pub(crate) struct Write {
    key: String,
    /// Identifies this write in the item; 0 where the item has none.
    rev: u64,
    change: Cow<'static, str>,
    condition: Cow<'static, str>,
    /// The holder that `#h` stands for.
    holder: Option<String>,
    /// The values of change and condition.
    values: Vec<(&'static str, AttributeValue)>,
}

/// A lock as its grant names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldLock<'a> {
    pub(crate) context: &'a str,
    pub(crate) fence: u64,
    pub(crate) exclusive: bool,
}

impl<'a> HeldLock<'a> {
    /// Returns the context that other clients see while this lasts. A client that changes items in place leaves `holders`
    /// unchanged: only here it shows that it took the id over.
    fn seen(self) -> &'a str {
        if self.exclusive { self.context } else { MANY }
    }
}

impl Write {
    /// Begins a write that sets `rev`, the value `:r`.
    fn new(key: &str, change: impl Into<Cow<'static, str>>, condition: impl Into<Cow<'static, str>>) -> Self {
        let (rev, change, condition) = (unique().max(1), change.into(), condition.into());
        Write { key: key.to_owned(), rev, change, condition, holder: None, values: vec![(":r", number(rev))] }
    }

    fn of(mut self, holder: &str) -> Self {
        self.holder = Some(holder.to_owned());
        self
    }

    fn with(mut self, values: impl IntoIterator<Item = (&'static str, AttributeValue)>) -> Self {
        self.values.extend(values);
        self
    }

    /// Takes an id without having read it, if it is free or its leases have ended, it is not frozen, and has no tombstone; under a
    /// fence above the last one.
    pub(crate) fn take(key: &str, context: &str, entry: &Entry, now: ServiceTime) -> Self {
        let (change, seen) = match entry.mode {
            Mode::Exclusive => ("SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h", context),
            // Permits of expired holders would count with those of new ones.
            Mode::Shared => ("SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h REMOVE slots", MANY),
            Mode::Slots { .. } => ("SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h,slots=:s", MANY),
        };
        let condition = "(attribute_not_exists(#c) OR #e<:n) AND (attribute_not_exists(fence) OR fence<:f) \
                         AND attribute_not_exists(frozen) AND attribute_not_exists(marks)";
        let slots = matches!(entry.mode, Mode::Slots { .. });
        Write::new(key, change, condition).with(slots.then(|| (":s", value::permits(&entry.permits)))).with([
            (":c", text(seen)),
            (":t", number(entry.since / SECOND)),
            (":e", number(up(entry.until))),
            (":f", number(entry.fence)),
            (":h", value::holders([(context, entry)])),
            (":n", value::seconds(now.lo)),
        ])
    }

    /// Adds a holder to a shared id, whatever other holders do meanwhile. Permits of slots must still be free, and leave room within
    /// the limit.
    pub(crate) fn join(key: &str, old: &Row, context: &str, entry: &Entry) -> Self {
        let mut change = "SET holders.#h=:h,fence=:f,rev=:r".to_owned();
        let mut condition = format!(
            "#c=:c AND attribute_not_exists(holders.#h) AND fence<:f AND attribute_not_exists(frozen) \
             AND attribute_not_exists(marks.{})",
            value::tombstone(entry.attempt)
        );
        // The end that other clients see moves to an earlier time only where the whole item was read.
        if old.seen_until().is_some_and(|seen| seen > up(entry.until)) {
            condition += " AND #e>=:e";
        } else {
            change += ",#e=:e";
            condition += " AND #e<=:e";
        }
        let mut values = vec![
            (":c", text(MANY)),
            (":h", entry.value()),
            (":f", number(entry.fence)),
            (":e", number(up(entry.until))),
        ];
        match entry.mode {
            Mode::Slots { permits, limit } if old.has_slots => {
                for permit in &entry.permits {
                    let permit = value::permit_name(*permit);
                    let _ = write!(change, ",slots.{permit}=:p");
                    let _ = write!(condition, " AND attribute_not_exists(slots.{permit})");
                }
                condition += " AND size(slots)<=:m";
                values.push((":p", AttributeValue::Bool(true)));
                values.push((":m", number(u64::from(limit - permits))));
            }
            Mode::Slots { .. } => {
                change += ",slots=:p";
                condition += " AND attribute_not_exists(slots)";
                values.push((":p", value::permits(&entry.permits)));
            }
            _ => {}
        }
        Write::new(key, change, condition).of(context).with(values)
    }

    /// Adds the tombstone of an attempt to those of an item, whatever others write meanwhile. `None` if only a replacement will
    /// do: the item has none yet, or most of them have ended; it has another client's lock; the context holds it.
    pub(crate) fn tombstone(
        key: &str,
        old: &Row,
        context: &str,
        attempt: u64,
        until: u64,
        now: ServiceTime,
    ) -> Option<Self> {
        let ended = old.tombstones.iter().filter(|(_, until)| *until < now.lo).count();
        if 2 * ended >= old.tombstones.len() || old.foreign.is_some() || old.holder(context).is_some() {
            return None;
        }
        let mut change = format!("SET marks.{}=:u,rev=:r", value::tombstone(attempt));
        let mut condition = "attribute_exists(marks) AND attribute_not_exists(holders.#h)".to_owned();
        // Invariant T1.
        let end = match (old.seen_until()?, &old.seen.context) {
            (end, _) if end == UNCOLLECTED || end >= up(until) => {
                condition += " AND (#e=:z OR #e>=:m)";
                (":z", number(UNCOLLECTED))
            }
            (_, Some(seen)) => {
                change += ",#e=:m";
                condition += " AND #c=:c AND #e<:m";
                (":c", text(seen))
            }
            (_, None) => return None,
        };
        let values = [(":u", number(until)), (":m", number(up(until))), end];
        Some(Write::new(key, change, condition).of(context).with(values))
    }

    /// Extends a lock whose lease certainly lasts, if no other holder's end is later.
    pub(crate) fn renew(key: &str, holder: HeldLock<'_>, lease: u64, now: ServiceTime) -> Self {
        let change = "SET holders.#h.ends=:u,holders.#h.lease=:l,#e=:e,rev=:r";
        let condition = "#c=:c AND holders.#h.fence=:f AND holders.#h.ends>=:n AND #e<=:e \
                         AND attribute_not_exists(holders.#h.broken) AND attribute_not_exists(frozen)";
        Write::new(key, change, condition).renewing(holder, lease, now)
    }

    /// Extends a lock whose lease certainly lasts, where another holder's end, or a freeze, is later.
    pub(crate) fn renew_within(key: &str, holder: HeldLock<'_>, lease: u64, now: ServiceTime) -> Self {
        let change = "SET holders.#h.ends=:u,holders.#h.lease=:l,rev=:r";
        let condition = "#c=:c AND holders.#h.fence=:f AND holders.#h.ends>=:n AND #e>=:e \
                         AND attribute_not_exists(holders.#h.broken)";
        Write::new(key, change, condition).renewing(holder, lease, now)
    }

    fn renewing(self, holder: HeldLock<'_>, lease: u64, now: ServiceTime) -> Self {
        let until = now.hi.saturating_add(lease);
        self.of(holder.context).with([
            (":u", number(until)),
            (":l", number(lease)),
            (":e", number(up(until))),
            (":c", text(holder.seen())),
            (":f", number(holder.fence)),
            (":n", number(now.hi)),
        ])
    }

    /// Frees a lock that has no other holders, as an exclusive one has. The item stays for its fence until TTL collects it: it must
    /// have no tombstones.
    pub(crate) fn free(key: &str, holder: HeldLock<'_>, now: ServiceTime) -> Self {
        let mut condition = Cow::Borrowed(
            "#c=:c AND holders.#h.fence=:f AND holders.#h.ends>=:n AND attribute_not_exists(frozen) \
             AND attribute_not_exists(marks)",
        );
        let others = (!holder.exclusive).then(|| {
            condition += " AND size(holders)=:o";
            (":o", number(1))
        });
        let end = (":e", number(free_since(now)));
        let change = "SET #e=:e,rev=:r REMOVE #c,#t,holders,slots";
        Write::new(key, change, condition).ending(holder, now).with([end]).with(others)
    }

    /// Removes a holder and its permits from an id with other holders, whatever those do meanwhile. Other clients may see it held
    /// until what was the last end so far.
    pub(crate) fn leave(key: &str, holder: HeldLock<'_>, permits: &[u32], now: ServiceTime) -> Self {
        let mut change = "SET rev=:r REMOVE holders.#h".to_owned();
        for permit in permits {
            let _ = write!(change, ",slots.{}", value::permit_name(*permit));
        }
        let mut condition =
            Cow::Borrowed("#c=:c AND holders.#h.fence=:f AND holders.#h.ends>=:n AND size(holders)>:o");
        // A withdrawn attempt to take more may have left other permits under the same fence.
        let permits = (!permits.is_empty()).then(|| {
            condition += " AND holders.#h.permits=:p";
            (":p", value::listed(permits))
        });
        Write::new(key, change, condition).ending(holder, now).with([(":o", number(1))]).with(permits)
    }

    fn ending(self, holder: HeldLock<'_>, now: ServiceTime) -> Self {
        self.of(holder.context).with([
            (":c", text(holder.seen())),
            (":f", number(holder.fence)),
            (":n", number(now.lo)),
        ])
    }

    /// Replaces `old` by `new`, if the item is still as it was read.
    pub(crate) fn replace(key: &str, old: Option<&Row>, new: &Row, now: ServiceTime) -> Self {
        let (condition, unchanged) = unchanged(old);
        let (mut change, mut removed) = ("SET rev=:r".to_owned(), String::new());
        let mut values = Vec::new();
        for ((name, value), placeholder) in new.attributes(now).into_iter().zip(NEW) {
            match value {
                Some(value) => {
                    let _ = write!(change, ",{name}={placeholder}");
                    values.push((placeholder, value));
                }
                None => {
                    let comma = if removed.is_empty() { " REMOVE " } else { "," };
                    let _ = write!(removed, "{comma}{name}");
                }
            }
        }
        Write::new(key, change + &removed, condition).with(unchanged).with(values)
    }

    /// Records a fence in the item that is for nothing else.
    pub(crate) fn fence(key: &str, fence: u64) -> Self {
        let condition = "attribute_not_exists(fence) OR fence<:f";
        let values = vec![(":f", number(fence))];
        Write { rev: 0, values, ..Write::new(key, "SET fence=:f", condition) }
    }

    pub(crate) fn rev(&self) -> u64 {
        self.rev
    }

    /// Returns the update as the service takes it. If the condition does not hold, the service returns the item.
    pub(crate) fn update(self, settings: &Settings) -> Update {
        let names = &settings.names;
        let chosen =
            [("#i", &names.id), ("#c", &names.context), ("#t", &names.created), ("#e", &names.expires)];
        // The service refuses names that are not used, and empty maps.
        let placeholders =
            [&self.change, &self.condition].into_iter().flat_map(|text| text.split('#').skip(1));
        let used: Vec<u8> = placeholders.filter_map(|from| from.bytes().next()).collect();
        let is_used = |placeholder: &str| used.contains(&placeholder.as_bytes()[1]);
        let names: HashMap<String, String> = chosen
            .into_iter()
            .filter(|(placeholder, _)| is_used(placeholder))
            .map(|(placeholder, name)| (placeholder.to_owned(), name.clone()))
            .chain(self.holder.map(|holder| ("#h".to_owned(), holder)))
            .collect();
        let values = self.values.into_iter().map(|(placeholder, value)| (placeholder.to_owned(), value));
        Update::builder()
            .table_name(&settings.table)
            .key(&settings.names.id, AttributeValue::S(self.key))
            .update_expression(self.change)
            .condition_expression(self.condition)
            .set_expression_attribute_names((!names.is_empty()).then_some(names))
            .set_expression_attribute_values(Some(values.collect()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .expect("all that is required is set")
    }
}

/// Placeholders of the new attributes, beside those of the condition.
const NEW: [&str; 9] = [":0", ":1", ":2", ":3", ":4", ":5", ":6", ":7", ":8"];

/// Returns the condition that an item is still as it was read, and its values.
fn unchanged(old: Option<&Row>) -> (String, Vec<(&'static str, AttributeValue)>) {
    let Some(old) = old else { return ("attribute_not_exists(#i)".to_owned(), Vec::new()) };
    let Seen { context, expires, .. } = &old.seen;
    let mut values = Vec::new();
    let mut condition = match old.rev {
        Some(rev) => {
            values.push((":g", number(rev)));
            "rev=:g".to_owned()
        }
        None => "attribute_exists(#i) AND attribute_not_exists(rev)".to_owned(),
    };
    // Another client may have changed its attributes and left `rev`.
    for (is, is_not, placeholder, value) in [
        (" AND #c=:c", " AND attribute_not_exists(#c)", ":c", context.as_deref().map(text)),
        (" AND #e=:e", " AND attribute_not_exists(#e)", ":e", expires.clone().map(AttributeValue::N)),
    ] {
        condition += if value.is_some() { is } else { is_not };
        values.extend(value.map(|value| (placeholder, value)));
    }
    (condition, values)
}
