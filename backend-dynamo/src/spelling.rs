//! Writes in the service's language of expressions.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::{config::Names, item::Item};

/// A write in the service's words.
pub(crate) struct Spelled {
    pub(crate) change: Change,
    pub(crate) condition: String,
    /// None where there are none: the service refuses what is empty.
    pub(crate) names: Option<HashMap<String, String>>,
    /// Likewise.
    pub(crate) values: Option<HashMap<String, AttributeValue>>,
}

pub(crate) enum Change {
    /// The item's key, and the expression.
    Update(String, String),
    Put(Item),
}

impl Spelled {
    /// `names` and `values` are all that change and condition name, besides the attributes that can be chosen.
    pub(crate) fn new<const N: usize>(
        spelling: &Spelling,
        change: Change,
        condition: String,
        names: [(&str, &str); N],
        values: impl IntoIterator<Item = (&'static str, AttributeValue)>,
    ) -> Self {
        let expression = match &change {
            Change::Update(_, expression) => expression,
            Change::Put(_) => "",
        };
        let chosen = spelling
            .chosen
            .iter()
            .filter(|(placeholder, _)| expression.contains(placeholder) || condition.contains(placeholder));
        let chosen = chosen.map(|(placeholder, name)| (*placeholder, name.as_str()));
        let all: HashMap<_, _> = names
            .into_iter()
            .chain(chosen)
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let values: HashMap<_, _> =
            values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Spelled {
            change,
            condition,
            names: Some(all).filter(|all| !all.is_empty()),
            values: Some(values).filter(|values| !values.is_empty()),
        }
    }
}

/// The expressions that are always the same.
#[derive(Clone, Copy)]
pub(crate) enum Fixed {
    Take,
    TakeShared,
    TakeSlots,
    /// Lacks the mark of the attempt and a parenthesis at its end.
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
     AND attribute_not_exists(marks.",
    "SET holders.#h.ends=:u,holders.#h.lease=:l,#e=:e,rev=:r",
    "holders.#h.fence=:f AND holders.#h.ends>=:n AND #e<=:e AND attribute_not_exists(holders.#h.broken) \
     AND attribute_not_exists(frozen)",
    "SET holders.#h.ends=:u,holders.#h.lease=:l,rev=:r",
    "holders.#h.fence=:f AND holders.#h.ends>=:n AND #e>=:e AND attribute_not_exists(holders.#h.broken)",
    "SET #e=:e,rev=:r REMOVE #c,#t,holders,slots",
    "holders.#h.fence=:f AND holders.#h.ends>=:n AND attribute_not_exists(frozen)",
    "holders.#h.fence=:f AND holders.#h.ends>=:n AND attribute_not_exists(frozen) AND size(holders)=:o",
];

/// How expressions call the attributes whose names can be chosen: by the usual names, which the service takes as they
/// are; by placeholders, where others were chosen, as these may be words that it reserves.
#[derive(Debug)]
pub(crate) struct Spelling {
    /// Placeholders and what they stand for.
    chosen: Vec<(&'static str, String)>,
    /// Placeholders that nothing needs, and what is written in their place.
    usual: Vec<(&'static str, String)>,
    fixed: [String; 11],
}

impl Spelling {
    pub(crate) fn new(names: &Names) -> Self {
        let usual = placeholders(&Names::default());
        let (usual, chosen): (Vec<_>, Vec<_>) =
            placeholders(names).into_iter().partition(|pair| usual.contains(pair));
        let fixed = FIXED.map(|expression| fit(&usual, expression));
        Spelling { chosen, usual, fixed }
    }

    pub(crate) fn fixed(&self, which: Fixed) -> &str {
        &self.fixed[which as usize]
    }

    /// The expression as it is sent.
    pub(crate) fn fit(&self, expression: &str) -> String {
        fit(&self.usual, expression)
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
