//! The head of each cell: which programs may read it, and what is kept of those that are newer.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::StoreError;

/// The version of the format. A program refuses a cell of another one, and leaves it as it is.
pub(crate) const FORMAT: u32 = 1;

/// The version of this program. A later one that changes what a field means writes its own number as `oldest_program`, and
/// is then refused by this one; a field that it only adds survives the steps of this one.
const PROGRAM: u32 = 1;

/// The fields of later programs, which a step keeps as they are.
pub(crate) type Rest = Map<String, Value>;

/// The first thing to read of a cell: what follows may have any form.
pub(crate) fn check(bytes: &[u8]) -> Result<(), StoreError> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
        #[serde(default)]
        oldest_program: u32,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|_| StoreError::corrupt("a cell"))?;
    match (head.format, head.oldest_program) {
        (FORMAT, ..=PROGRAM) => Ok(()),
        (FORMAT, found) => Err(StoreError::Program { found, known: PROGRAM }),
        (found, _) => Err(StoreError::Format { found, known: FORMAT }),
    }
}

pub(crate) fn is_none(version: &u32) -> bool {
    *version == 0
}

pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}
