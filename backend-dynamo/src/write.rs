//! Conditional writes: what each changes, and under which condition.

use std::{borrow::Cow, fmt::Write as _};

use lockcore::{Mode, backend::ServiceTime};

use crate::{
    decide::Asker,
    item::{UNCOLLECTED, free_since},
    row::{Entry, MANY, Row, SECOND, Seen},
    spelling::{Fixed, Spelling, Update},
    value::{self, Value, up},
};

/// One conditional write of one item. Every retry sends the same text.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    key: Cow<'a, str>,
    /// Identifies this write in the item; 0 where the item has none.
    rev: u64,
    what: What<'a>,
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

#[derive(Debug)]
enum What<'a> {
    Take { asker: Asker<'a>, entry: Entry, now: ServiceTime },
    Join { asker: Asker<'a>, entry: Entry, later_end: bool, has_slots: bool },
    Tombstone { context: &'a str, attempt: u64, until: u64, later_end: Option<String> },
    Renew { holder: HeldLock<'a>, lease: u64, within: bool, now: ServiceTime },
    Free { holder: HeldLock<'a>, now: ServiceTime },
    Leave { holder: HeldLock<'a>, permits: String, change: String, now: ServiceTime },
    Replace { old: Option<Box<Row>>, new: Box<Row>, now: ServiceTime },
    Fence(u64),
}

impl<'a> Write<'a> {
    fn new(key: impl Into<Cow<'a, str>>, what: What<'a>) -> Self {
        Write { key: key.into(), rev: fastrand::u64(1..), what }
    }

    /// Takes an id without having read it, if it is free or its leases have ended, it is not frozen, and has no tombstone; under a
    /// fence above the last one.
    pub(crate) fn take(key: &'a str, asker: Asker<'a>, entry: Entry, now: ServiceTime) -> Self {
        Write::new(key, What::Take { asker, entry, now })
    }

    /// Adds a holder to a shared id, whatever other holders do meanwhile. Permits of slots must still be free, and leave room within
    /// the limit.
    pub(crate) fn join(key: &'a str, old: &Row, asker: Asker<'a>, entry: Entry) -> Self {
        let later_end = old.seen_until().is_some_and(|seen| seen > up(entry.until));
        Write::new(key, What::Join { asker, entry, later_end, has_slots: old.has_slots })
    }

    /// Adds the tombstone of an attempt to those of an item, whatever others write meanwhile. `None` if only a replacement will
    /// do: the item has none yet, or most of them have ended; it has another client's lock; the context holds it.
    pub(crate) fn tombstone(
        key: &'a str,
        old: &Row,
        context: &'a str,
        attempt: u64,
        until: u64,
        now: ServiceTime,
    ) -> Option<Self> {
        let ended = old.tombstones.iter().filter(|(_, until)| *until < now.lo).count();
        if 2 * ended >= old.tombstones.len() || old.foreign.is_some() || old.holder(context).is_some() {
            return None;
        }
        // Invariant T1.
        let later_end = match (old.seen_until()?, &old.seen.context) {
            (end, _) if end == UNCOLLECTED || end >= up(until) => None,
            (_, Some(seen)) => Some(seen.clone()),
            (_, None) => return None,
        };
        Some(Write::new(key, What::Tombstone { context, attempt, until, later_end }))
    }

    /// Extends a lock whose lease certainly lasts, if no other holder's end is later.
    pub(crate) fn renew(key: &'a str, holder: HeldLock<'a>, lease: u64, now: ServiceTime) -> Self {
        Write::new(key, What::Renew { holder, lease, within: false, now })
    }

    /// Extends a lock whose lease certainly lasts, where another holder's end, or a freeze, is later.
    pub(crate) fn renew_within(key: &'a str, holder: HeldLock<'a>, lease: u64, now: ServiceTime) -> Self {
        Write::new(key, What::Renew { holder, lease, within: true, now })
    }

    /// Frees a lock that has no other holders, as an exclusive one has. The item stays for its fence until TTL collects it: it must
    /// have no tombstones.
    pub(crate) fn free(key: &'a str, holder: HeldLock<'a>, now: ServiceTime) -> Self {
        Write::new(key, What::Free { holder, now })
    }

    /// Removes a holder and its permits from an id with other holders, whatever those do meanwhile. Other clients may see it held
    /// until what was the last end so far.
    pub(crate) fn leave(key: &'a str, holder: HeldLock<'a>, permits: &[u32], now: ServiceTime) -> Self {
        let mut change = "SET rev=:r REMOVE holders.#h".to_owned();
        for permit in permits {
            let _ = write!(change, ",slots.{}", value::permit_name(*permit));
        }
        let permits = if permits.is_empty() { String::new() } else { value::listed(permits) };
        Write::new(key, What::Leave { holder, permits, change, now })
    }

    /// Replaces `old` by `new`, if the item is still as it was read.
    pub(crate) fn replace(key: &'a str, old: Option<&Row>, new: Row, now: ServiceTime) -> Self {
        Write::new(key, What::Replace { old: old.cloned().map(Box::new), new: Box::new(new), now })
    }

    /// Records a fence in the item that is for nothing else.
    pub(crate) fn fence(key: String, fence: u64) -> Self {
        Write { key: key.into(), rev: 0, what: What::Fence(fence) }
    }

    pub(crate) fn rev(&self) -> u64 {
        self.rev
    }

    /// Writes the update in the service's expressions.
    pub(crate) fn spelled<'w>(&'w self, spelling: &'w Spelling) -> Update<'w> {
        let rev = (":r", Value::Number(self.rev));
        match &self.what {
            What::Take { asker, entry, now } => {
                let context = match entry.mode {
                    Mode::Exclusive => asker.context,
                    _ => MANY,
                };
                let (change, slots) = match entry.mode {
                    Mode::Exclusive => (Fixed::Take, None),
                    Mode::Shared => (Fixed::TakeShared, None),
                    Mode::Slots { .. } => (Fixed::TakeSlots, Some((":s", Value::Permits(&entry.permits)))),
                };
                let values = [
                    (":c", Value::Text(context)),
                    (":t", Value::Number(entry.since / SECOND)),
                    (":e", Value::Number(up(entry.until))),
                    (":f", Value::Number(entry.fence)),
                    rev,
                    (":h", Value::Holder(asker.context, entry)),
                    (":n", Value::Seconds(now.lo)),
                ];
                let (change, condition) = (spelling.fixed(change), spelling.fixed(Fixed::TakeIf));
                self.update(change, condition, None, values.into_iter().chain(slots))
            }
            What::Join { asker, entry, later_end, has_slots } => {
                self.join_spelled(spelling, asker, entry, *later_end, *has_slots)
            }
            What::Tombstone { context, attempt, until, later_end } => {
                let tombstone = value::tombstone(*attempt);
                let mut change = format!("SET marks.{tombstone}=:u,rev=:r");
                let mut condition = "attribute_exists(marks) AND attribute_not_exists(holders.#h)".to_owned();
                let mut values = vec![(":u", Value::Number(*until)), (":m", Value::Number(up(*until))), rev];
                match later_end {
                    None => {
                        condition += " AND (#e=:z OR #e>=:m)";
                        values.push((":z", Value::Number(UNCOLLECTED)));
                    }
                    Some(seen) => {
                        change += ",#e=:m";
                        condition += " AND #c=:c AND #e<:m";
                        values.push((":c", Value::Text(seen)));
                    }
                }
                self.update(spelling.fit(&change), spelling.fit(&condition), Some(context), values)
            }
            What::Renew { holder, lease, within, now } => {
                let until = now.hi.saturating_add(*lease);
                let (change, condition) = match within {
                    false => (Fixed::Renew, Fixed::RenewIf),
                    true => (Fixed::RenewWithin, Fixed::RenewWithinIf),
                };
                let values = [
                    (":u", Value::Number(until)),
                    (":l", Value::Number(*lease)),
                    (":e", Value::Number(up(until))),
                    rev,
                    (":c", Value::Text(holder.seen())),
                    (":f", Value::Number(holder.fence)),
                    (":n", Value::Number(now.hi)),
                ];
                let (change, condition) = (spelling.fixed(change), spelling.fixed(condition));
                self.update(change, condition, Some(holder.context), values)
            }
            What::Free { holder, now } => {
                let condition = if holder.exclusive { Fixed::FreeIf } else { Fixed::FreeAloneIf };
                let values = [
                    (":e", Value::Number(free_since(*now))),
                    rev,
                    (":c", Value::Text(holder.seen())),
                    (":f", Value::Number(holder.fence)),
                    (":n", Value::Number(now.lo)),
                ];
                let one = (!holder.exclusive).then_some((":o", Value::Number(1)));
                let (change, condition) = (spelling.fixed(Fixed::Free), spelling.fixed(condition));
                self.update(change, condition, Some(holder.context), values.into_iter().chain(one))
            }
            What::Leave { holder, permits, change, now } => {
                let mut condition =
                    "#c=:c AND holders.#h.fence=:f AND holders.#h.ends>=:n AND size(holders)>:o".to_owned();
                // A withdrawn attempt to take more may have left other permits under the same fence.
                let permits = (!permits.is_empty()).then(|| {
                    condition += " AND holders.#h.permits=:p";
                    (":p", Value::Text(permits))
                });
                let values = [
                    rev,
                    (":c", Value::Text(holder.seen())),
                    (":f", Value::Number(holder.fence)),
                    (":n", Value::Number(now.lo)),
                    (":o", Value::Number(1)),
                ];
                let values = values.into_iter().chain(permits);
                self.update(change.as_str().into(), spelling.fit(&condition), Some(holder.context), values)
            }
            What::Replace { old, new, now } => {
                let (mut change, mut removed) = ("SET ".to_owned(), String::new());
                let (condition, mut values) = unchanged(old.as_deref());
                for ((name, value), placeholder) in new.attributes(self.rev, *now).into_iter().zip(NEW) {
                    match value {
                        Some(value) => {
                            let comma = if change.len() > 4 { "," } else { "" };
                            let _ = write!(change, "{comma}{name}={placeholder}");
                            values.push((placeholder, value));
                        }
                        None => {
                            let comma = if removed.is_empty() { " REMOVE " } else { "," };
                            let _ = write!(removed, "{comma}{name}");
                        }
                    }
                }
                let change = spelling.fit(&(change + &removed));
                self.update(change, spelling.fit(condition), None, values)
            }
            What::Fence(fence) => {
                let condition = "attribute_not_exists(fence) OR fence<:f".into();
                self.update("SET fence=:f".into(), condition, None, [(":f", Value::Number(*fence))])
            }
        }
    }

    fn join_spelled<'w>(
        &'w self,
        spelling: &'w Spelling,
        asker: &Asker<'w>,
        entry: &'w Entry,
        later_end: bool,
        has_slots: bool,
    ) -> Update<'w> {
        let mut change = "SET holders.#h=:h,fence=:f,rev=:r".to_owned();
        let mut condition =
            "#c=:c AND attribute_not_exists(holders.#h) AND fence<:f AND attribute_not_exists(frozen) \
             AND attribute_not_exists(marks."
                .to_owned();
        condition += &value::tombstone(asker.attempt);
        // The end that other clients see moves to an earlier time only where the whole item was read.
        if later_end {
            condition += ") AND #e>=:e";
        } else {
            change += ",#e=:e";
            condition += ") AND #e<=:e";
        }
        let mut values = vec![
            (":c", Value::Text(MANY)),
            (":h", Value::Entry(entry)),
            (":f", Value::Number(entry.fence)),
            (":r", Value::Number(self.rev)),
            (":e", Value::Number(up(entry.until))),
        ];
        match entry.mode {
            Mode::Slots { permits, limit } if has_slots => {
                for permit in &entry.permits {
                    let permit = value::permit_name(*permit);
                    let _ = write!(change, ",slots.{permit}=:p");
                    let _ = write!(condition, " AND attribute_not_exists(slots.{permit})");
                }
                condition += " AND size(slots)<=:m";
                values.push((":p", Value::True));
                values.push((":m", Value::Number(u64::from(limit - permits))));
            }
            Mode::Slots { .. } => {
                change += ",slots=:p";
                condition += " AND attribute_not_exists(slots)";
                values.push((":p", Value::Permits(&entry.permits)));
            }
            _ => {}
        }
        self.update(spelling.fit(&change), spelling.fit(&condition), Some(asker.context), values)
    }

    fn update<'w>(
        &'w self,
        change: Cow<'w, str>,
        condition: Cow<'w, str>,
        holder: Option<&'w str>,
        values: impl IntoIterator<Item = (&'static str, Value<'w>)>,
    ) -> Update<'w> {
        Update { key: &self.key, change, condition, holder, values: values.into_iter().collect() }
    }
}

/// Placeholders of the new attributes, beside those of the condition.
const NEW: [&str; 10] = [":0", ":1", ":2", ":3", ":4", ":5", ":6", ":7", ":8", ":9"];

/// The condition that an item is still as it was read, and its values.
fn unchanged(old: Option<&Row>) -> (&'static str, Vec<(&'static str, Value<'_>)>) {
    let Some(old) = old else { return ("attribute_not_exists(#i)", Vec::new()) };
    let Seen { context, expires, .. } = &old.seen;
    let condition = match (old.rev, context.is_some(), expires.is_some()) {
        // Another client may have changed its attributes and left `rev`.
        (Some(_), _, false) => "rev=:g",
        (Some(_), false, true) => "rev=:g AND #e=:e",
        (Some(_), true, true) => "rev=:g AND #e=:e AND #c=:c",
        (None, true, true) => "attribute_exists(#i) AND attribute_not_exists(rev) AND #c=:c AND #e=:e",
        (None, true, false) => {
            "attribute_exists(#i) AND attribute_not_exists(rev) AND #c=:c AND attribute_not_exists(#e)"
        }
        (None, false, true) => {
            "attribute_exists(#i) AND attribute_not_exists(rev) AND attribute_not_exists(#c) AND #e=:e"
        }
        (None, false, false) => {
            "attribute_exists(#i) AND attribute_not_exists(rev) AND attribute_not_exists(#c) \
             AND attribute_not_exists(#e)"
        }
    };
    let values = [
        (":g", old.rev.map(Value::Number)),
        (":c", context.as_deref().map(Value::Text)),
        (":e", expires.as_deref().map(Value::Digits)),
    ];
    let used = values.into_iter().filter(|(name, _)| condition.contains(name));
    (condition, used.filter_map(|(name, value)| Some((name, value?))).collect())
}
