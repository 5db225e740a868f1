//! The progress of what a process does beside its steps: its poll, a sweep, a collection, and what several callers need at once.

use std::collections::{BTreeSet, VecDeque};

use lockcore::backend::Moment;

use crate::{error::StoreError, order, parts::Part};

/// An operation that several callers need at once. It is done by one of them; when it failed while others waited for it, it has
/// failed for them as well.
#[derive(Debug, Default)]
pub(crate) struct Shared(tokio::sync::Mutex<Option<(u64, StoreError)>>);

impl Shared {
    /// Does it, unless `is_done` by the caller before.
    pub(crate) async fn once<T>(
        &self,
        is_done: impl AsyncFnOnce() -> Result<Option<T>, StoreError>,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let asked = order::next();
        let mut failed = self.0.lock().await;
        if let Some((_, error)) = failed.as_ref().filter(|(ended, _)| *ended > asked) {
            return Err(error.clone());
        }
        if let Some(done) = is_done().await? {
            return Ok(done);
        }
        let outcome = operation.await;
        *failed = outcome.as_ref().err().map(|error| (order::next(), error.clone()));
        outcome
    }
}

/// The poll of a process.
#[derive(Default)]
pub(crate) struct Polling {
    /// Set while it runs.
    pub(crate) runs: bool,
    /// Set if the last heartbeat was refused for good.
    pub(crate) refused: Option<StoreError>,
    /// The parts whose changes it waits for.
    pub(crate) watched: BTreeSet<Part>,
}

/// The state of a sweep that takes several calls.
#[derive(Debug, Default)]
pub(crate) struct Sweeping {
    pub(crate) pages: Pages,
    pub(crate) ids_are_done: bool,
    /// The sessions with a grant or a place in the cells that were looked at.
    pub(crate) used: BTreeSet<String>,
    /// The moment of the first look at them.
    pub(crate) begun: Option<Moment>,
}

/// A walk along the cells of ids.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// The name behind which the next page begins.
    pub(crate) after: Option<String>,
    pub(crate) is_over: bool,
    /// The rest of the last page.
    pub(crate) parts: VecDeque<Part>,
    /// The reason why one of them could not be read, and was passed.
    pub(crate) unreadable: Option<StoreError>,
}

/// Where a collection goes on: the folder, and the last name that was looked at.
pub(crate) type Cursor = (&'static str, Option<String>);
