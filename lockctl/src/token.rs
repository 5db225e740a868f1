//! Tokens: a grant as one word that a script can keep.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use lockcore::{Grant, Granted, Lock, Mode, Target};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::exit::Failure;

/// What every token begins with; the number is for another format some day.
const PREFIX: &str = "lock1_";

#[derive(Serialize, Deserialize)]
struct Content {
    context: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_micros: Option<u64>,
    /// Stored form and fence of each; the empty one is the global lock.
    locks: Vec<(String, u64)>,
}

/// The token of a grant.
pub(crate) fn write(grant: &Grant<String, Uuid>) -> String {
    let lock = |lock: &Lock<String>| (lock.target.stored().into_owned(), lock.granted.fence);
    let content = Content {
        context: grant.context,
        lease_micros: grant.lease.map(|lease| lease.as_micros() as u64),
        locks: grant.locks.iter().map(lock).collect(),
    };
    let json = serde_json::to_vec(&content).expect("text and numbers can be written as JSON");
    format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(json))
}

/// The grant of a token, as far as release and renewal need it.
pub(crate) fn read(token: &str) -> Result<Grant<String, Uuid>, Failure> {
    let content = token
        .strip_prefix(PREFIX)
        .and_then(|encoded| BASE64_URL_SAFE_NO_PAD.decode(encoded).ok())
        .and_then(|json| serde_json::from_slice::<Content>(&json).ok());
    let Some(Content { context, lease_micros, locks }) = content else {
        let start: String = token.chars().take(20).collect();
        return Err(Failure::usage(format!(
            "TOKEN: {start:?} is not the beginning of what `acquire` printed"
        )));
    };
    let lock = |(stored, fence): (String, u64)| Lock {
        target: if stored.is_empty() { Target::Global } else { Target::Id(stored) },
        granted: Granted { mode: Mode::Exclusive, fence, permits: Default::default(), in_use: 0 },
    };
    Ok(Grant {
        context,
        locks: locks.into_iter().map(lock).collect(),
        lease: lease_micros.map(Duration::from_micros),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_script_passes_is_read_or_refused() {
        let content = r#"{"context":"67e55044-10b1-426f-9247-bb680e5fe0c8","lease_micros":30000000,"locks":[["a",7],["",9]]}"#;
        let encoded = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(content));
        lockcore_conformance::hostile::feed(&[&encoded], |token| drop(read(token)));
        lockcore_conformance::hostile::feed(&[content], |content| {
            drop(read(&format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(content))));
        });
    }

    #[test]
    fn a_token_reads_what_it_was_written_from() {
        let lock = |target, fence| Lock {
            target,
            granted: Granted { mode: Mode::Exclusive, fence, permits: Default::default(), in_use: 0 },
        };
        let grant = Grant {
            context: Uuid::new_v4(),
            locks: [lock(Target::Global, 7), lock(Target::Id("a \"b\" é".to_owned()), u64::MAX)]
                .into_iter()
                .collect(),
            lease: Some(Duration::from_secs(30)),
        };
        let token = write(&grant);
        assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)), "{token}");
        assert_eq!(read(&token).expect("a token"), grant);
        for (broken, shown) in [("", ""), ("lock1_???", "lock1_???"), ("lock1_e30", "lock1_e30")] {
            let message = read(broken).map(drop).expect_err(broken).message;
            let expected = format!("TOKEN: {shown:?} is not the beginning of what `acquire` printed");
            assert_eq!(message, expected);
        }
    }
}
