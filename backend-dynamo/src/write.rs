//! Conditional writes: what each of them changes, and under which condition.

use std::{borrow::Cow, collections::HashMap, fmt::Write as _};

use aws_sdk_dynamodb::types::AttributeValue;
use lockcore::Mode;

use crate::{
    clock::Now,
    config::Names,
    decide::Asker,
    item::{self, fraction, n, up},
    row::{Entry, Row},
    spelling::{Change, Fixed, Spelled, Spelling},
};

/// One conditional write of one item. It is spelled out anew for every try, always the same.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    key: Cow<'a, str>,
    /// What makes this write known again; 0 for items without.
    rev: u64,
    what: What<'a>,
}

#[derive(Debug)]
enum What<'a> {
    Take { asker: Asker<'a>, entry: Entry, now: Now },
    Join { asker: Asker<'a>, entry: Entry, later_end: bool, has_slots: bool },
    Renew { context: &'a str, fence: u64, lease: u64, within: bool, now: Now },
    Free { context: &'a str, fence: u64, alone: bool, now: Now },
    Leave { context: &'a str, own: Entry },
    Replace { old: Option<Box<Row>>, new: Box<Row>, now: Now },
    Fence(u64),
}

impl<'a> Write<'a> {
    fn new(key: impl Into<Cow<'a, str>>, what: What<'a>) -> Self {
        Write { key: key.into(), rev: fastrand::u64(1..), what }
    }

    /// Takes an id that nobody holds, without having read it: free, or with a lease that is over, neither frozen nor the
    /// attempt withdrawn, under a fence above the last one.
    pub(crate) fn take(key: &'a str, asker: Asker<'a>, entry: Entry, now: Now) -> Self {
        Write::new(key, What::Take { asker, entry, now })
    }

    /// Joins those who hold an id together, whoever comes and goes meanwhile: of slots the permits must still be free, and
    /// no more taken than leave room for them.
    pub(crate) fn join(key: &'a str, old: &Row, asker: Asker<'a>, entry: Entry) -> Self {
        let later_end = old.seen_until().is_some_and(|seen| seen > up(entry.until));
        Write::new(key, What::Join { asker, entry, later_end, has_slots: old.has_slots })
    }

    /// Extends what a context certainly still holds under a fence, whoever else does, if nobody's end is later.
    pub(crate) fn renew(key: &'a str, context: &'a str, fence: u64, lease: u64, now: Now) -> Self {
        Write::new(key, What::Renew { context, fence, lease, within: false, now })
    }

    /// Extends what a context certainly still holds under a fence where somebody's end, or a freeze, is later anyway.
    pub(crate) fn renew_within(key: &'a str, context: &'a str, fence: u64, lease: u64, now: Now) -> Self {
        Write::new(key, What::Renew { context, fence, lease, within: true, now })
    }

    /// Frees what a context holds alone under a fence - which an exclusive lock does - ; the item stays for its fence.
    pub(crate) fn free(key: &'a str, context: &'a str, fence: u64, alone: bool, now: Now) -> Self {
        Write::new(key, What::Free { context, fence, alone, now })
    }

    /// Leaves an id to those who hold it too, whoever comes and goes meanwhile. Others may see it held until what was
    /// the last end so far.
    pub(crate) fn leave(key: &'a str, context: &'a str, own: Entry) -> Self {
        Write::new(key, What::Leave { context, own })
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
    pub(crate) fn spelled(&self, spelling: &Spelling, names: &Names) -> Spelled {
        let rev = n(self.rev);
        match &self.what {
            What::Take { asker, entry, now } => {
                let context = match entry.mode {
                    Mode::Exclusive => asker.context,
                    _ => item::MANY,
                };
                let (change, slots) = match entry.mode {
                    Mode::Exclusive => (Fixed::Take, None),
                    Mode::Shared => (Fixed::TakeShared, None),
                    Mode::Slots { .. } => (Fixed::TakeSlots, Some((":s", item::slots(&entry.permits)))),
                };
                let mark = item::mark(asker.attempt);
                let condition = [spelling.fixed(Fixed::TakeIf), &mark, ")"].concat();
                let holders = HashMap::from([(asker.context.to_owned(), entry.write())]);
                let values = [
                    (":c", AttributeValue::S(context.to_owned())),
                    (":t", n(entry.since / 1_000_000)),
                    (":e", n(up(entry.until))),
                    (":f", n(entry.fence)),
                    (":r", rev),
                    (":h", AttributeValue::M(holders)),
                    (":n", fraction(now.lo)),
                ];
                let change = spelling.fixed(change).to_owned();
                self.update(spelling, change, condition, [], values.into_iter().chain(slots))
            }
            What::Join { asker, entry, later_end, has_slots } => {
                self.join_spelled(spelling, *asker, entry, *later_end, *has_slots)
            }
            What::Renew { context, fence, lease, within, now } => {
                let until = now.hi.saturating_add(*lease);
                let (change, condition) = match within {
                    false => (Fixed::Renew, Fixed::RenewIf),
                    true => (Fixed::RenewWithin, Fixed::RenewWithinIf),
                };
                let (change, condition) = (spelling.fixed(change), spelling.fixed(condition));
                let values = [
                    (":u", n(until)),
                    (":l", n(*lease)),
                    (":e", n(up(until))),
                    (":r", rev),
                    (":f", n(*fence)),
                    (":n", n(now.hi)),
                ];
                self.update(spelling, change.to_owned(), condition.to_owned(), [("#h", context)], values)
            }
            What::Free { context, fence, alone, now } => {
                let condition = if *alone { Fixed::FreeIf } else { Fixed::FreeAloneIf };
                let (change, condition) = (spelling.fixed(Fixed::Free), spelling.fixed(condition));
                let values =
                    [(":e", n(item::free_since(*now))), (":r", rev), (":f", n(*fence)), (":n", n(now.lo))];
                let one = (!alone).then(|| (":o", n(1)));
                let values = values.into_iter().chain(one);
                self.update(spelling, change.to_owned(), condition.to_owned(), [("#h", context)], values)
            }
            What::Leave { context, own } => {
                let mut change = "SET rev=:r REMOVE holders.#h".to_owned();
                for permit in &own.permits {
                    let _ = write!(change, ",slots.{}", item::permit(*permit));
                }
                let condition = "holders.#h.fence=:f AND size(holders)>:o".to_owned();
                let values = [(":r", rev), (":f", n(own.fence)), (":o", n(1))];
                self.update(spelling, change, condition, [("#h", context)], values)
            }
            What::Replace { old, new, now } => {
                let (condition, values) = unchanged(old.as_deref());
                let condition = spelling.fit(condition);
                let change = Change::Put(new.write(&self.key, names, self.rev, *now));
                Spelled::new(spelling, change, condition, [], values)
            }
            What::Fence(fence) => {
                let condition = "attribute_not_exists(fence) OR fence<:f".to_owned();
                self.update(spelling, "SET fence=:f".to_owned(), condition, [], [(":f", n(*fence))])
            }
        }
    }

    fn join_spelled(
        &self,
        spelling: &Spelling,
        asker: Asker<'_>,
        entry: &Entry,
        later_end: bool,
        has_slots: bool,
    ) -> Spelled {
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
            (":c", AttributeValue::S(item::MANY.to_owned())),
            (":h", entry.write()),
            (":f", n(entry.fence)),
            (":r", n(self.rev)),
            (":e", n(up(entry.until))),
        ];
        match entry.mode {
            Mode::Slots { permits, limit } if has_slots => {
                for permit in &entry.permits {
                    let permit = item::permit(*permit);
                    let _ = write!(change, ",slots.{permit}=:p");
                    let _ = write!(condition, " AND attribute_not_exists(slots.{permit})");
                }
                condition += " AND size(slots)<=:m";
                values.push((":p", AttributeValue::Bool(true)));
                values.push((":m", n(u64::from(limit - permits))));
            }
            Mode::Slots { .. } => {
                change += ",slots=:p";
                condition += " AND attribute_not_exists(slots)";
                values.push((":p", item::slots(&entry.permits)));
            }
            _ => {}
        }
        let (change, condition) = (spelling.fit(&change), spelling.fit(&condition));
        self.update(spelling, change, condition, [("#h", asker.context)], values)
    }

    fn update<const N: usize>(
        &self,
        spelling: &Spelling,
        change: String,
        condition: String,
        names: [(&str, &str); N],
        values: impl IntoIterator<Item = (&'static str, AttributeValue)>,
    ) -> Spelled {
        let change = Change::Update(self.key.clone().into_owned(), change);
        Spelled::new(spelling, change, condition, names, values)
    }
}

/// The condition that an item stands there as it was read, and its values.
fn unchanged(old: Option<&Row>) -> (&'static str, Vec<(&'static str, AttributeValue)>) {
    let Some(old) = old else { return ("attribute_not_exists(#i)", Vec::new()) };
    let (context, expires) = old.seen();
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
        (":g", old.rev.map(n)),
        (":c", context.map(|context| AttributeValue::S(context.clone()))),
        (":e", expires.cloned()),
    ];
    let used = |(name, value): (&'static str, Option<AttributeValue>)| {
        Some((name, value.filter(|_| condition.contains(name))?))
    };
    (condition, values.into_iter().filter_map(used).collect())
}
