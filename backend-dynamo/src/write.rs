//! Conditional writes: what each of them changes, and under which condition.

use std::{borrow::Cow, fmt::Write as _};

use lockcore::Mode;

use crate::{
    clock::Now,
    decide::Asker,
    item::{self, SECOND, up},
    row::{Entry, Row, Seen},
    spelling::{Fixed, Spelling, Update},
    value::Value,
};

/// One conditional write of one item. It is spelled out anew for every try, always the same.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    key: Cow<'a, str>,
    /// What makes this write known again; 0 for items without.
    rev: u64,
    what: What<'a>,
}

/// A lock as its holder knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder<'a> {
    pub(crate) context: &'a str,
    pub(crate) fence: u64,
    pub(crate) exclusive: bool,
}

impl<'a> Holder<'a> {
    /// The context that other clients see while this lasts. A client that changes items in place leaves `holders` as they
    /// were: only here it shows that it took the id over.
    fn seen(self) -> &'a str {
        if self.exclusive { self.context } else { item::MANY }
    }
}

#[derive(Debug)]
enum What<'a> {
    Take { asker: Asker<'a>, entry: Entry, now: Now },
    Join { asker: Asker<'a>, entry: Entry, later_end: bool, has_slots: bool },
    Mark { context: &'a str, attempt: u64, until: u64, later_end: Option<String> },
    Renew { holder: Holder<'a>, lease: u64, within: bool, now: Now },
    Free { holder: Holder<'a>, now: Now },
    Leave { holder: Holder<'a>, permits: String, change: String, now: Now },
    Replace { old: Option<Box<Row>>, new: Box<Row>, now: Now },
    Fence(u64),
}

impl<'a> Write<'a> {
    fn new(key: impl Into<Cow<'a, str>>, what: What<'a>) -> Self {
        Write { key: key.into(), rev: fastrand::u64(1..), what }
    }

    /// Takes an id that nobody holds, without having read it: free, or with a lease that is over, not frozen, no attempt
    /// withdrawn of late, under a fence above the last one.
    pub(crate) fn take(key: &'a str, asker: Asker<'a>, entry: Entry, now: Now) -> Self {
        Write::new(key, What::Take { asker, entry, now })
    }

    /// Joins those who hold an id together, whoever comes and goes meanwhile: of slots the permits must still be free, and
    /// no more taken than leave room for them.
    pub(crate) fn join(key: &'a str, old: &Row, asker: Asker<'a>, entry: Entry) -> Self {
        let later_end = old.seen_until().is_some_and(|seen| seen > up(entry.until));
        Write::new(key, What::Join { asker, entry, later_end, has_slots: old.has_slots })
    }

    /// Adds a withdrawn attempt of a context to those that an item remembers, whatever others write meanwhile. `None` if only
    /// a replacement will do: the item remembers none yet, or mostly such as are over; it shows another client's lock; the
    /// context holds it.
    pub(crate) fn mark(
        key: &'a str,
        old: &Row,
        context: &'a str,
        attempt: u64,
        until: u64,
        now: Now,
    ) -> Option<Self> {
        let over = old.marks.iter().filter(|(_, until)| *until < now.lo).count();
        if 2 * over >= old.marks.len() || old.foreign.is_some() || old.holder(context).is_some() {
            return None;
        }
        // Invariant T1.
        let later_end = match (old.seen_until()?, &old.seen.context) {
            (end, _) if end == item::UNCOLLECTED || end >= up(until) => None,
            (_, Some(seen)) => Some(seen.clone()),
            (_, None) => return None,
        };
        Some(Write::new(key, What::Mark { context, attempt, until, later_end }))
    }

    /// Extends what a context certainly still holds under a fence, whoever else does, if nobody's end is later.
    pub(crate) fn renew(key: &'a str, holder: Holder<'a>, lease: u64, now: Now) -> Self {
        Write::new(key, What::Renew { holder, lease, within: false, now })
    }

    /// Extends what a context certainly still holds under a fence where somebody's end, or a freeze, is later anyway.
    pub(crate) fn renew_within(key: &'a str, holder: Holder<'a>, lease: u64, now: Now) -> Self {
        Write::new(key, What::Renew { holder, lease, within: true, now })
    }

    /// Frees what a context holds alone under a fence - which an exclusive lock does - ; the item stays for its fence, to be
    /// collected some day: it must remember no withdrawn attempt.
    pub(crate) fn free(key: &'a str, holder: Holder<'a>, now: Now) -> Self {
        Write::new(key, What::Free { holder, now })
    }

    /// Leaves an id, and the permits that were had, to those who hold it too, whoever comes and goes meanwhile. Others may
    /// see it held until what was the last end so far.
    pub(crate) fn leave(key: &'a str, holder: Holder<'a>, permits: &[u32], now: Now) -> Self {
        let mut change = "SET rev=:r REMOVE holders.#h".to_owned();
        for permit in permits {
            let _ = write!(change, ",slots.{}", item::permit(*permit));
        }
        let permits = if permits.is_empty() { String::new() } else { item::listed(permits) };
        Write::new(key, What::Leave { holder, permits, change, now })
    }

    /// Puts `new` where `old` was read, if that still stands there.
    pub(crate) fn replace(key: &'a str, old: Option<&Row>, new: Row, now: Now) -> Self {
        Write::new(key, What::Replace { old: old.cloned().map(Box::new), new: Box::new(new), now })
    }

    /// Notes a fence in the item that is for nothing else.
    pub(crate) fn fence(key: String, fence: u64) -> Self {
        Write { key: key.into(), rev: 0, what: What::Fence(fence) }
    }

    pub(crate) fn rev(&self) -> u64 {
        self.rev
    }

    /// The write in the service's words.
    pub(crate) fn spelled<'w>(&'w self, spelling: &'w Spelling) -> Update<'w> {
        let rev = (":r", Value::Number(self.rev));
        match &self.what {
            What::Take { asker, entry, now } => {
                let context = match entry.mode {
                    Mode::Exclusive => asker.context,
                    _ => item::MANY,
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
            What::Mark { context, attempt, until, later_end } => {
                let mark = item::mark(*attempt);
                let mut change = format!("SET marks.{mark}=:u,rev=:r");
                let mut condition = "attribute_exists(marks) AND attribute_not_exists(holders.#h)".to_owned();
                let mut values = vec![(":u", Value::Number(*until)), (":m", Value::Number(up(*until))), rev];
                match later_end {
                    None => {
                        condition += " AND (#e=:z OR #e>=:m)";
                        values.push((":z", Value::Number(item::UNCOLLECTED)));
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
                    (":e", Value::Number(item::free_since(*now))),
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
                // Under the same fence there may be other ones, if an attempt to have more was withdrawn.
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
        condition += &item::mark(asker.attempt);
        // No end that others see ever moves to an earlier time but where all is known.
        if later_end {
            condition += ") AND #e>=:e";
        } else {
            change += ",#e=:e";
            condition += ") AND #e<=:e";
        }
        let mut values = vec![
            (":c", Value::Text(item::MANY)),
            (":h", Value::Entry(entry)),
            (":f", Value::Number(entry.fence)),
            (":r", Value::Number(self.rev)),
            (":e", Value::Number(up(entry.until))),
        ];
        match entry.mode {
            Mode::Slots { permits, limit } if has_slots => {
                for permit in &entry.permits {
                    let permit = item::permit(*permit);
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

/// What the new attributes of an item are called, beside the old ones of the condition.
const NEW: [&str; 10] = [":0", ":1", ":2", ":3", ":4", ":5", ":6", ":7", ":8", ":9"];

/// The condition that an item stands there as it was read, and its values.
fn unchanged(old: Option<&Row>) -> (&'static str, Vec<(&'static str, Value<'_>)>) {
    let Some(old) = old else { return ("attribute_not_exists(#i)", Vec::new()) };
    let Seen { context, expires, .. } = &old.seen;
    let condition = match (old.rev, context.is_some(), expires.is_some()) {
        // Another client may have changed what it knows and left the rest.
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
