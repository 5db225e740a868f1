//! Writes in the service's language of expressions, and in its JSON.

use std::borrow::Cow;

use aws_smithy_json::serialize::JsonObjectWriter;
use smallvec::SmallVec;

use crate::{config::Names, value::Value};

/// A conditional write in the service's words: an update of one item.
pub(crate) struct Update<'a> {
    pub(crate) key: &'a str,
    pub(crate) change: Cow<'a, str>,
    pub(crate) condition: Cow<'a, str>,
    /// What `#h` stands for.
    pub(crate) holder: Option<&'a str>,
    /// All that change and condition name.
    pub(crate) values: SmallVec<[(&'static str, Value<'a>); 8]>,
}

/// The expressions that are always the same.
#[derive(Clone, Copy)]
pub(crate) enum Fixed {
    Take,
    TakeShared,
    TakeSlots,
    TakeIf,
    Renew,
    RenewIf,
    RenewWithin,
    RenewWithinIf,
    Free,
    FreeIf,
    /// Where others might hold it too.
    FreeAloneIf,
}

/// In the order of [`Fixed`].
const FIXED: [&str; 11] = [
    "SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h",
    // Slots that are over would count with those that come.
    "SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h REMOVE slots",
    "SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h,slots=:s",
    "(attribute_not_exists(#c) OR #e<:n) AND (attribute_not_exists(fence) OR fence<:f) AND attribute_not_exists(frozen) \
     AND attribute_not_exists(marks)",
    "SET holders.#h.ends=:u,holders.#h.lease=:l,#e=:e,rev=:r",
    "#c=:c AND holders.#h.fence=:f AND holders.#h.ends>=:n AND #e<=:e AND attribute_not_exists(holders.#h.broken) \
     AND attribute_not_exists(frozen)",
    "SET holders.#h.ends=:u,holders.#h.lease=:l,rev=:r",
    "#c=:c AND holders.#h.fence=:f AND holders.#h.ends>=:n AND #e>=:e AND attribute_not_exists(holders.#h.broken)",
    "SET #e=:e,rev=:r REMOVE #c,#t,holders,slots",
    "#c=:c AND holders.#h.fence=:f AND holders.#h.ends>=:n AND attribute_not_exists(frozen) AND attribute_not_exists(marks)",
    "#c=:c AND holders.#h.fence=:f AND holders.#h.ends>=:n AND attribute_not_exists(frozen) AND attribute_not_exists(marks) \
     AND size(holders)=:o",
];

/// How writes are spelled for one table.
///
/// Expressions call the attributes whose names can be chosen by the usual names, which the service takes as they are; by
/// placeholders, where others were chosen, as these may be words that it reserves.
#[derive(Debug)]
pub(crate) struct Spelling {
    table: String,
    id: String,
    /// Placeholders and what they stand for.
    chosen: Vec<(&'static str, String)>,
    /// Placeholders that nothing needs, and what is written in their place.
    usual: Vec<(&'static str, String)>,
    fixed: [String; 11],
}

impl Spelling {
    pub(crate) fn new(table: &str, names: &Names) -> Self {
        let usual = placeholders(&Names::default());
        let (usual, chosen): (Vec<_>, Vec<_>) =
            placeholders(names).into_iter().partition(|pair| usual.contains(pair));
        let fixed = FIXED.map(|expression| fit(&usual, expression));
        Spelling { table: table.to_owned(), id: names.id.clone(), chosen, usual, fixed }
    }

    pub(crate) fn fixed(&self, which: Fixed) -> Cow<'_, str> {
        Cow::Borrowed(&self.fixed[which as usize])
    }

    /// The expression as it is sent.
    pub(crate) fn fit(&self, expression: &str) -> Cow<'_, str> {
        Cow::Owned(fit(&self.usual, expression))
    }

    /// Appends an update, as a request of its own and a transaction both have it; if the condition does not hold, what
    /// stands there is wanted.
    pub(crate) fn write(&self, update: &Update<'_>, to: &mut JsonObjectWriter<'_>) {
        let Update { key, change, condition, holder, values } = update;
        to.key("TableName").string(&self.table);
        let mut keys = to.key("Key").start_object();
        Value::Text(key).write(keys.key(&self.id));
        keys.finish();
        to.key("UpdateExpression").string(change);
        to.key("ConditionExpression").string(condition);
        let holder = holder.map(|holder| ("#h", holder));
        let used = |placeholder: &str| change.contains(placeholder) || condition.contains(placeholder);
        let chosen = self.chosen.iter().map(|(placeholder, name)| (*placeholder, name.as_str()));
        let mut names =
            holder.into_iter().chain(chosen.filter(|(placeholder, _)| used(placeholder))).peekable();
        // The service refuses what is empty.
        if names.peek().is_some() {
            let mut all = to.key("ExpressionAttributeNames").start_object();
            for (placeholder, name) in names {
                all.key(placeholder).string(name);
            }
            all.finish();
        }
        if !values.is_empty() {
            let mut all = to.key("ExpressionAttributeValues").start_object();
            for (placeholder, value) in values {
                value.write(all.key(placeholder));
            }
            all.finish();
        }
        to.key("ReturnValuesOnConditionCheckFailure").string_unchecked("ALL_OLD");
    }
}

/// The expression with names in the place of placeholders.
fn fit(names: &[(&'static str, String)], expression: &str) -> String {
    names.iter().fold(expression.to_owned(), |text, (placeholder, name)| text.replace(placeholder, name))
}

fn placeholders(names: &Names) -> Vec<(&'static str, String)> {
    let Names { id, context, created, expires, .. } = names.clone();
    vec![("#i", id), ("#c", context), ("#t", created), ("#e", expires)]
}
