//! A policy of AWS' IAM, as the service applies it: what no statement allows is refused.

use serde_json::Value;

/// The rights of a client.
pub(crate) struct Policy(pub(crate) Value);

impl Policy {
    /// Returns whether an action on an object - or, with an empty key, on the bucket - is allowed. A condition with `IfExists` holds
    /// where the request has no such key.
    pub(crate) fn allows(&self, action: &str, bucket: &str, key: &str, prefix: Option<&str>) -> bool {
        let resource = match key {
            "" => format!("arn:aws:s3:::{bucket}"),
            key => format!("arn:aws:s3:::{bucket}/{key}"),
        };
        let statements = self.0["Statement"].as_array().into_iter().flatten();
        statements.into_iter().any(|statement| {
            let matches =
                |value: &Value, name: &str| value.as_str().is_some_and(|pattern| is_like(pattern, name));
            let one = &statement["Action"];
            let acts = matches(one, action)
                || one.as_array().is_some_and(|all| all.iter().any(|one| matches(one, action)));
            let conditions = statement["Condition"].as_object().into_iter().flatten();
            let met = conditions.into_iter().all(|(operator, values)| match prefix {
                None => operator.ends_with("IfExists"),
                Some(prefix) => matches(&values["s3:prefix"], prefix),
            });
            acts && met && matches(&statement["Resource"], &resource)
        })
    }
}

/// Returns whether a name matches a pattern with `*`, `?`, and `${*}`, `${?}`, `${$}` for these letters themselves.
fn is_like(pattern: &str, name: &str) -> bool {
    for letter in ["*", "?", "$"] {
        if let Some(rest) = pattern.strip_prefix(&format!("${{{letter}}}")) {
            return name.strip_prefix(letter).is_some_and(|name| is_like(rest, name));
        }
    }
    let (mut pattern, mut letters) = (pattern.chars(), name.chars());
    match pattern.next() {
        None => name.is_empty(),
        Some('*') => {
            let starts = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            starts.into_iter().any(|at| is_like(pattern.as_str(), &name[at..]))
        }
        Some(one) => {
            letters.next().is_some_and(|letter| one == '?' || one == letter)
                && is_like(pattern.as_str(), letters.as_str())
        }
    }
}
