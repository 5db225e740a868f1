//! Writes in the service's expression language and JSON.

use std::borrow::Cow;

use aws_smithy_json::serialize::JsonObjectWriter;
use smallvec::SmallVec;

use crate::{config::Names, value::Value};

/// A conditional update of one item, in the service's expressions.
pub(crate) struct Update<'a> {
    pub(crate) key: &'a str,
    pub(crate) change: Cow<'a, str>,
    pub(crate) condition: Cow<'a, str>,
    /// The holder that the placeholder `#h` stands for.
    pub(crate) holder: Option<&'a str>,
    /// The values of change and condition.
    pub(crate) values: SmallVec<[(&'static str, Value<'a>); 8]>,
}

/// The constant expressions.
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
    /// For modes that allow other holders.
    FreeAloneIf,
}

/// In the order of [`Fixed`].
const FIXED: [&str; 11] = [
    "SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h",
    // Permits of expired holders would count with those of new ones.
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

/// The expressions of one table.
///
/// Expressions contain the usual names of attributes, which the service accepts, and placeholders for chosen names, which may be
/// reserved words.
#[derive(Debug)]
pub(crate) struct Spelling {
    table: String,
    id: String,
    /// Placeholders of chosen names, and the names.
    chosen: Vec<(&'static str, String)>,
    /// Placeholders that are not needed, and the usual names that replace them.
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

    /// Returns the expression as it is sent.
    pub(crate) fn fit(&self, expression: &str) -> Cow<'_, str> {
        Cow::Owned(fit(&self.usual, expression))
    }

    /// Appends an update, in the form of a single request and of a transaction. If the condition does not hold, the service
    /// returns the item.
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
        // The service refuses empty maps.
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

/// Replaces placeholders by names.
fn fit(names: &[(&'static str, String)], expression: &str) -> String {
    names.iter().fold(expression.to_owned(), |text, (placeholder, name)| text.replace(placeholder, name))
}

fn placeholders(names: &Names) -> Vec<(&'static str, String)> {
    let Names { id, context, created, expires, .. } = names.clone();
    vec![("#i", id), ("#c", context), ("#t", created), ("#e", expires)]
}
