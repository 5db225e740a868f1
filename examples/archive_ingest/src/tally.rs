//! What workers counted.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::store::Stored;

/// How many messages of errors are kept.
const MESSAGES: usize = 10;

/// What the workers of one or more processes counted.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// The keys of the objects written, one for each time.
    pub(crate) written: Vec<String>,
    pub(crate) written_bytes: u64,
    /// The keys of the objects of which only the manifest was missing.
    pub(crate) completed: Vec<String>,
    /// The keys of the objects that another replaced between their writing and reading back.
    pub(crate) replaced: Vec<String>,
    pub(crate) skipped: u64,
    /// How often a worker found an object locked.
    pub(crate) contended: u64,
    /// How long workers waited for locks, all together.
    pub(crate) waited: Duration,
    pub(crate) errors: u64,
    pub(crate) messages: Vec<String>,
    /// From the start of the first worker to the end of the last.
    pub(crate) elapsed: Duration,
}

impl Tally {
    pub(crate) fn count(&mut self, key: &str, stored: Stored) {
        match stored {
            Stored::Written { bytes, replaced } => {
                self.written.push(key.to_owned());
                self.written_bytes += bytes;
                if replaced {
                    self.replaced.push(key.to_owned());
                }
            }
            Stored::Completed => self.completed.push(key.to_owned()),
            Stored::Skipped => self.skipped += 1,
            Stored::Vanished => {} // the audit tells
        }
    }

    pub(crate) fn fail(&mut self, message: String) {
        self.errors += 1;
        if self.messages.len() < MESSAGES {
            self.messages.push(message);
        }
    }

    /// Adds what others counted at the same time.
    pub(crate) fn merge(&mut self, other: Tally) {
        self.written.extend(other.written);
        self.written_bytes += other.written_bytes;
        self.completed.extend(other.completed);
        self.replaced.extend(other.replaced);
        self.skipped += other.skipped;
        self.contended += other.contended;
        self.waited += other.waited;
        self.errors += other.errors;
        self.messages.extend(other.messages);
        self.messages.truncate(MESSAGES);
        self.elapsed = self.elapsed.max(other.elapsed);
    }
}
