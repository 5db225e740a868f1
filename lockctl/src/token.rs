//! Tokens: a grant as one word that a script or another process can keep.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use lockcore::{ContextId, Grant, Granted, Lock, MAX_PERMITS, Mode, Target, Uuid, rules::InUse};
use serde::{Deserialize, Serialize};

/// The beginning of every token. The number is that of the format.
const PREFIX: &str = "lock1_";

#[derive(Serialize, Deserialize)]
struct Content {
    context: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_micros: Option<u64>,
    /// Stored form and fence of each lock; the empty form is the global lock.
    locks: Vec<(String, u64)>,
    /// The modes of the locks that are not exclusive, by their positions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    modes: Vec<(usize, Weaker)>,
}

/// A mode that is not exclusive.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Weaker {
    Shared,
    Slots { permits: Vec<Indexes>, limit: u32 },
}

/// The most permits of a token in all: some bytes of a forged one name many, and each takes memory.
const MOST_PERMITS: usize = 16 * MAX_PERMITS as usize;

/// Indexes of permits: one, or the first and the last of some in a row.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Indexes {
    One(u32),
    Row(u32, u32),
}

impl Indexes {
    fn of(permits: &[u32]) -> Vec<Self> {
        let rows = permits.chunk_by(|one, next| one.checked_add(1) == Some(*next));
        let each = rows.filter_map(|row| {
            let (first, last) = (*row.first()?, *row.last()?);
            Some(if first == last { Indexes::One(first) } else { Indexes::Row(first, last) })
        });
        each.collect()
    }

    /// Reads them back; `None` if they are more than one lock can hold, or than there is `room` for.
    fn read(rows: &[Self], room: &mut usize) -> Option<Vec<u32>> {
        let mut permits = Vec::new();
        for row in rows {
            let (first, last) = match *row {
                Indexes::One(index) => (index, index),
                Indexes::Row(first, last) => (first, last),
            };
            let count = usize::try_from(last.checked_sub(first)?).ok()?;
            if permits.len() + count >= MAX_PERMITS as usize {
                return None;
            }
            *room = room.checked_sub(count + 1)?;
            (first..=last).for_each(|index| permits.push(index));
        }
        Some(permits)
    }
}

/// Writes a grant as a token: text of ASCII letters, digits, `_` and `-`, from which [`read`] reads it in any process.
///
/// It holds no credential of the store; but a process that has it and can reach the store can release the locks. The format is
/// `lock1_` and, in base64url without padding, a JSON object: `context`, `lease_micros` (absent without a lease), `locks` (pairs of
/// stored form and fence), and `modes` of those that are not exclusive, in which permits in a row are a pair, of the first and the
/// last index. Later versions read it too.
pub(crate) fn write(grant: &Grant) -> String {
    let weaker = |(position, lock): (usize, &Lock<String>)| match lock.granted.mode {
        Mode::Exclusive => None,
        Mode::Shared => Some((position, Weaker::Shared)),
        Mode::Slots { limit, .. } => {
            Some((position, Weaker::Slots { permits: Indexes::of(&lock.granted.permits), limit }))
        }
    };
    let fence = |lock: &Lock<String>| (lock.target.stored().into_owned(), lock.granted.fence);
    let content = Content {
        context: grant.context.stored().into_owned(),
        lease_micros: grant.lease.map(|lease| lease.as_micros() as u64),
        locks: grant.locks.iter().map(fence).collect(),
        modes: grant.locks.iter().enumerate().filter_map(weaker).collect(),
    };
    let json = serde_json::to_vec(&content).expect("text and numbers can be written as JSON");
    format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(json))
}

/// Reads a grant from a token; `None` from any other text, and for more than a million permits in all. What others hold beside it is
/// not in the token: [`Granted::in_use`] counts only the grant itself.
pub(crate) fn read(token: &str) -> Option<Grant> {
    let json = BASE64_URL_SAFE_NO_PAD.decode(token.strip_prefix(PREFIX)?).ok()?;
    let Content { context, lease_micros, locks, modes } = serde_json::from_slice(&json).ok()?;
    let mut read = Vec::with_capacity(locks.len());
    for (stored, fence) in &locks {
        let granted = Granted { mode: Mode::Exclusive, fence: *fence, permits: Vec::new(), in_use: 1 };
        read.push(Lock { target: Target::from_stored(stored)?, granted });
    }
    let mut room = MOST_PERMITS;
    for (position, mode) in modes {
        let granted = &mut read.get_mut(position)?.granted;
        granted.mode = match mode {
            Weaker::Shared => Mode::Shared,
            Weaker::Slots { permits, limit } => {
                granted.permits = Indexes::read(&permits, &mut room)?;
                Mode::Slots { permits: granted.permits.len() as u32, limit }
            }
        };
        granted.in_use = InUse::default().plus(granted.mode).units();
    }
    Some(Grant {
        context: Uuid::from_stored(&context)?,
        locks: read,
        lease: lease_micros.map(Duration::from_micros),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> Grant {
        let lock = |target, mode: Mode, fence| Lock {
            target,
            granted: Granted {
                mode,
                fence,
                permits: (0..mode.permits()).collect(),
                in_use: InUse::default().plus(mode).units(),
            },
        };
        Grant {
            context: Uuid::new_v4(),
            locks: [
                lock(Target::Global, Mode::Exclusive, 7),
                lock(Target::Id("a \"b\" é".to_owned()), Mode::Shared, u64::MAX),
                lock(Target::Id("pool".to_owned()), Mode::Slots { permits: 2, limit: 3 }, 9),
            ]
            .into_iter()
            .collect(),
            lease: Some(Duration::from_secs(30)),
        }
    }

    #[test]
    fn a_token_reads_what_it_was_written_from() {
        let grant = grant();
        let token = write(&grant);
        assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)), "{token}");
        assert_eq!(read(&token), Some(grant));
    }

    #[test]
    fn a_token_without_modes_is_exclusive() {
        let json = r#"{"context":"67e55044-10b1-426f-9247-bb680e5fe0c8","lease_micros":30000000,"locks":[["a",7],["",9]]}"#;
        let token = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(json));
        let grant = read(&token).expect("a token");
        assert_eq!(grant.lease, Some(Duration::from_secs(30)));
        assert!(grant.locks.iter().all(|lock| lock.granted.mode == Mode::Exclusive), "{grant:?}");
    }

    #[test]
    fn permits_in_a_row_take_no_room() {
        let mut grant = grant();
        let pool = grant.locks.get_mut(2).expect("the pool");
        let row = 1..30_000;
        pool.granted.permits = [7].into_iter().chain(row.map(|index| index + 10)).collect();
        pool.granted.mode = Mode::Slots { permits: 30_000, limit: 65_000 };
        pool.granted.in_use = InUse::default().plus(pool.granted.mode).units();
        let token = write(&grant);
        assert!(token.len() < 400, "{}", token.len());
        assert_eq!(read(&token), Some(grant));
    }

    #[test]
    fn each_permit_may_be_written_alone_and_no_row_is_endless() {
        let permits = |permits: &str| {
            let slots = format!(r#"[[0,{{"slots":{{"permits":{permits},"limit":9}}}}]]"#);
            let context = "67e55044-10b1-426f-9247-bb680e5fe0c8";
            let json = format!(r#"{{"context":"{context}","locks":[["a",7]],"modes":{slots}}}"#);
            let token = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(json));
            read(&token).map(|grant| grant.locks[0].granted.permits.to_vec())
        };
        assert_eq!(permits("[0,1,[4,6]]"), Some(vec![0, 1, 4, 5, 6]));
        for endless in ["[[0,4294967295]]", "[[1,0]]", "[[0,65535],[0,65535]]"] {
            assert_eq!(permits(endless), None, "{endless}");
        }
    }

    #[test]
    fn any_other_text_is_refused() {
        for token in ["", "lock1_", "lock1_???", "lock1_e30", "lock2_e30"] {
            assert_eq!(read(token), None, "{token}");
        }
    }

    #[test]
    fn mutated_text_is_read_or_refused() {
        let token = write(&grant());
        let json = BASE64_URL_SAFE_NO_PAD.decode(&token[PREFIX.len()..]).expect("just written");
        let json = String::from_utf8(json).expect("JSON");
        lockcore_conformance::hostile::feed(&[&token], |token| drop(read(token)));
        lockcore_conformance::hostile::feed(&[&json], |json| {
            let token = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(json));
            drop(read(&token));
        });
    }
}
