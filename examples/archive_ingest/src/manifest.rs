//! What is known of an object's content: its length and hash, kept in a manifest beside it.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Length and hash of a content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) length: u64,
    pub(crate) sha256: String,
}

/// What is stored beside an object, last: an object without it is not complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    #[serde(flatten)]
    pub(crate) content: Content,
    /// The version of the object that it describes, as the store named it when it was written.
    pub(crate) version: Option<String>,
    /// Who wrote it.
    pub(crate) writer: String,
}

/// Hashes and counts what goes by.
#[derive(Default)]
pub(crate) struct Meter {
    length: u64,
    hash: Sha256,
}

impl Meter {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.hash.update(bytes);
    }

    pub(crate) fn finish(self) -> Content {
        Content { length: self.length, sha256: hex(&self.hash.finalize()) }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}
