//! What the processes of a run record: one line for each stage of an operation.

use serde::{Deserialize, Serialize};

/// One recorded stage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The moment, in nanoseconds by a clock that all processes of the run share.
    pub at: u64,
    /// The operation, a number of its process; 0 for what concerns the process itself.
    pub op: u64,
    /// What happened.
    #[serde(flatten)]
    pub stage: Stage,
}

/// The stages of an operation, in order. A killed process leaves a beginning of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum Stage {
    /// The set was requested.
    Asked {
        /// The set.
        claims: Vec<Claim>,
        /// By a holder of other locks, which passes the queue.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        nested: bool,
    },
    /// The request was seen in the queue of the store.
    Queued,
    /// The callback began, and the locks were still held after the moment of this line was read.
    Entered {
        /// The fences, in the order of the claims.
        fences: Vec<u64>,
    },
    /// The locks were still held after the moment of this line was read.
    Inside,
    /// A guarded write.
    Wrote {
        /// The id.
        id: String,
        /// The fence of the write.
        fence: u64,
        /// The guard of the resource admitted it.
        admitted: bool,
    },
    /// The callback ended.
    Left,
    /// The call returned, or was dropped.
    Ended {
        /// With what.
        outcome: Outcome,
    },
    /// The process ended all of its operations.
    Finished,
    /// A fault began, as the driver caused it.
    Fault {
        /// Its kind.
        kind: String,
        /// How long it lasted, in milliseconds.
        millis: u64,
        /// The process that was disturbed; `None` for the store or the line to it.
        worker: Option<String>,
        /// The store may have forgotten or ended grants.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        loses_grants: bool,
    },
}

/// One id of a set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// The id.
    pub id: String,
    /// How it was claimed.
    pub mode: Mode,
}

/// A mode of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Excludes all others.
    Exclusive,
    /// Excludes all but shared ones.
    Shared,
    /// Permits of a limit.
    Slots {
        /// How many were claimed.
        permits: u32,
        /// How many may be held at once, as this claim saw it.
        limit: u32,
    },
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The callback's value was returned: nothing was lost.
    Done,
    /// The set was not locked, because of other holders.
    Refused,
    /// The set was not locked, because the store failed.
    Failed,
    /// Locks were lost.
    Lost,
    /// The call was dropped.
    Cancelled,
    /// The call returned a mistake of the caller, which no worker makes.
    Mistaken,
    /// The call panicked.
    Panicked,
}
