//! Messages of the gateway, as far as they are used. Numbers of 64 bits are texts in its JSON; what is zero or empty is left out.

use serde::{Deserialize, Deserializer, de};

/// The path of each request.
pub(crate) mod path {
    pub(crate) const AUTHENTICATE: &str = "/v3/auth/authenticate";
    pub(crate) const DELETE: &str = "/v3/kv/deleterange";
    pub(crate) const RANGE: &str = "/v3/kv/range";
    pub(crate) const STATUS: &str = "/v3/maintenance/status";
    pub(crate) const TXN: &str = "/v3/kv/txn";
    pub(crate) const WATCH: &str = "/v3/watch";
}

/// The beginning of each answer. It is required, as nothing else is: without it this is not an answer of etcd.
#[derive(Deserialize, Debug)]
pub(crate) struct Header {
    pub(crate) cluster_id: String,
    #[serde(default, deserialize_with = "number")]
    pub(crate) revision: u64,
}

/// An answer of etcd.
pub(crate) trait Answer: for<'de> Deserialize<'de> {
    /// Set if the member answers only after it has caught up with all that was done before the request.
    const IS_LINEARIZABLE: bool;

    fn header(&self) -> &Header;
}

/// The answer to a range of keys.
#[derive(Deserialize, Debug)]
pub(crate) struct Range {
    pub(crate) header: Header,
    #[serde(default)]
    pub(crate) kvs: Vec<Pair>,
    /// The number of keys in the range, also of those that were not to be sent.
    #[serde(default, deserialize_with = "number")]
    pub(crate) count: u64,
    #[serde(default)]
    pub(crate) more: bool,
}

/// A key with its value, both in base64.
#[derive(Deserialize, Debug)]
pub(crate) struct Pair {
    pub(crate) key: String,
    #[serde(default, deserialize_with = "number")]
    pub(crate) mod_revision: u64,
    #[serde(default)]
    pub(crate) value: String,
}

/// The answer to a transaction.
#[derive(Deserialize, Debug)]
pub(crate) struct Txn {
    pub(crate) header: Header,
    #[serde(default)]
    pub(crate) succeeded: bool,
    #[serde(default)]
    pub(crate) responses: Vec<Response>,
}

/// The answer to a part of a transaction.
#[derive(Deserialize, Debug)]
pub(crate) struct Response {
    pub(crate) response_range: Option<Within>,
}

/// The answer to a range within a transaction.
#[derive(Deserialize, Debug)]
pub(crate) struct Within {
    #[serde(default)]
    pub(crate) kvs: Vec<Pair>,
    #[serde(default, deserialize_with = "number")]
    pub(crate) count: u64,
}

/// The answer to a removal.
#[derive(Deserialize, Debug)]
pub(crate) struct Deleted {
    header: Header,
}

/// The state of a member.
#[derive(Deserialize, Debug)]
pub(crate) struct Status {
    header: Header,
    #[serde(default)]
    pub(crate) version: String,
    /// The alarms, and that there is no leader, in words.
    #[serde(default)]
    pub(crate) errors: Vec<String>,
}

/// The answer to user and password. No `Debug`: it has a token.
#[derive(Deserialize)]
pub(crate) struct Authenticated {
    pub(crate) token: String,
}

/// A refusal: of releases before 3.6 `error` says the same as `message`.
#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(crate) struct Refusal {
    /// The code of gRPC.
    pub(crate) code: u32,
    pub(crate) message: String,
}

/// A line of a watch.
#[derive(Deserialize, Debug)]
pub(crate) struct Line {
    pub(crate) result: Option<Watched>,
}

/// The content of a line of a watch.
#[derive(Deserialize, Debug)]
pub(crate) struct Watched {
    /// Set in the first answer: what comes after it is told.
    #[serde(default)]
    pub(crate) created: bool,
    #[serde(default)]
    pub(crate) canceled: bool,
    #[serde(default)]
    pub(crate) events: Vec<Event>,
}

/// A change of a key.
#[derive(Deserialize, Debug)]
pub(crate) struct Event {
    pub(crate) kv: Changed,
}

/// The version of a key that was changed or removed.
#[derive(Deserialize, Debug)]
pub(crate) struct Changed {
    pub(crate) key: String,
    #[serde(default, deserialize_with = "number")]
    pub(crate) mod_revision: u64,
}

macro_rules! answers {
    ($($answer:ty: $is_linearizable:literal),*) => {
        $(impl Answer for $answer {
            const IS_LINEARIZABLE: bool = $is_linearizable;

            fn header(&self) -> &Header {
                &self.header
            }
        })*
    };
}

answers!(Range: true, Txn: true, Deleted: true, Status: false);

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Text(String),
        Plain(u64),
    }
    match Number::deserialize(deserializer)? {
        Number::Text(text) => text.parse().map_err(de::Error::custom),
        Number::Plain(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_server_answers_is_no_answer() {
        for text in ["{}", "[]", "null", "{\"header\":{}}", "{\"header\":{\"revision\":\"1\"}}", "<html>"] {
            assert!(serde_json::from_str::<Range>(text).is_err(), "{text}");
            assert!(serde_json::from_str::<Txn>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_left_out_is_zero() {
        let txn: Txn = serde_json::from_str("{\"header\":{\"cluster_id\":\"7\"}}").expect("an answer");
        assert_eq!((txn.header.revision, txn.succeeded, txn.responses.len()), (0, false, 0));
        let text = "{\"header\":{\"cluster_id\":\"7\",\"revision\":\"9\"},\"kvs\":[{\"key\":\"YQ==\",\"mod_revision\":8}]}";
        let range: Range = serde_json::from_str(text).expect("an answer");
        assert_eq!((range.header.revision, range.kvs[0].mod_revision), (9, 8), "a number is taken as well");
    }
}
