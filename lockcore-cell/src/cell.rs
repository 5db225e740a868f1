//! The seam between the engine and a store: cells that are read, and replaced on condition.

use std::{fmt, future::pending};

use bytes::Bytes;
use lockcore::{BackendError, BackendErrorKind, Finding, backend::ServiceTime};

/// The outcome of reading a cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found<V> {
    /// The cell has the version that is known already.
    Unchanged,
    /// There is no such cell.
    Absent,
    /// Another version, with its content.
    Changed(V, Bytes),
}

/// The outcome of a conditional write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Written<V> {
    /// The cell has this version now.
    Done(V),
    /// The cell had another version. Nothing was written - or, where the write was sent twice on its way, this is the answer to
    /// the second, and the first was done. The engine tells the two apart by the content.
    Refused,
}

/// One of the cells that are replaced in one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change<V> {
    /// The name of the cell.
    pub name: String,
    /// The version that it is replaced at; `None`: there is no cell.
    pub at: Option<V>,
    /// The new content.
    pub content: Bytes,
}

/// A page of the cells in a folder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CellPage {
    /// The names, with when each was written last: in microseconds since 1970, by the clock that [`Cell::now`] reports.
    pub cells: Vec<(String, u64)>,
    /// Set if there are cells behind the last one.
    pub more: bool,
}

/// A store of cells: small contents under names, each replaced only if it is still the version that was read.
///
/// This is all that the engine asks of a store, and the shortest way to write a backend: implement it, run
/// [the checks](https://docs.rs/lockcore-conformance) over it, and open a [`CellLockDao`](crate::CellLockDao).
///
/// # What every method has to keep
/// - **Conditions.** Of two writes that name the same version at most one succeeds, whatever its path: [`replace`](Self::replace)
///   is linearizable. A version never comes back: where the store derives it from the content, that is enough, as no two contents
///   of the engine are equal.
/// - **Lost answers.** An error that is not [in doubt](BackendError::in_doubt) promises that nothing was written and that nothing
///   will be. What timed out, or was cut off after it was sent, is in doubt. A client below must not repeat a write by itself and
///   report the second answer as an error: `Refused` is right for it.
/// - **Bounds.** Each call ends within a time that the adapter chooses (a few seconds); the engine waits for
///   it, and reads and closes before a step for its own `timeout` at most. It repeats what [may pass by itself](BackendError::is_retryable) within its own `timeout`.
/// - **Dropping.** A future may be dropped at any point. A write that was sent by then may still be done.
///
/// Names consist of ASCII letters, digits and `/`. A request makes no cell longer than 1 MiB, or than
/// [`most_bytes`](Self::most_bytes) if that is less, and the cell of a session has about 1 MiB at most. Tombstones and
/// records of breaks, which other steps add, may take some hundred KiB more.
pub trait Cell: fmt::Debug + Send + Sync + 'static {
    /// The version of a cell, as the store names it.
    type Version: Clone + fmt::Debug + Send + Sync + 'static;

    /// Reads a cell, unless it is still of the `known` version: then the content need not travel. The answer is the newest version
    /// at some time between the call and its end; a cached one is wrong.
    fn read(
        &self,
        name: &str,
        known: Option<&Self::Version>,
    ) -> impl Future<Output = Result<Found<Self::Version>, BackendError>> + Send;

    /// Replaces a cell that is of the version `at`; with `None` creates it, if there is none.
    fn replace(
        &self,
        name: &str,
        at: Option<&Self::Version>,
        content: Bytes,
    ) -> impl Future<Output = Result<Written<Self::Version>, BackendError>> + Send;

    /// Returns how many cells [`replace_all`](Self::replace_all) replaces in one step at most. By default one: then all that is locked
    /// is kept in one cell. With more, each id has a cell of its own, and sets that share no id never meet; no set has more ids.
    fn at_once(&self) -> usize {
        1
    }

    /// Returns the most bytes of all cells that are replaced in one step. By default there is no limit but those of single cells.
    fn most_bytes(&self) -> usize {
        usize::MAX
    }

    /// Reads several cells, each as [`read`](Self::read) does, at one time: all answers are of the same moment. Only called where
    /// several can be replaced [at once](Self::at_once), but with any number of them.
    fn read_all(
        &self,
        cells: &[(String, Option<Self::Version>)],
    ) -> impl Future<Output = Result<Vec<Found<Self::Version>>, BackendError>> + Send {
        async move {
            match cells {
                [(name, known)] => Ok(vec![self.read(name, known.as_ref()).await?]),
                _ => Err(one_at_a_time()),
            }
        }
    }

    /// Replaces all of these cells, of which no two have the same name, or none: if one is not of its version, the outcome is
    /// [`Refused`](Written::Refused). Returns the new versions in the same order.
    fn replace_all(
        &self,
        changes: &[Change<Self::Version>],
    ) -> impl Future<Output = Result<Written<Vec<Self::Version>>, BackendError>> + Send {
        async move {
            let [Change { name, at, content }] = changes else { return Err(one_at_a_time()) };
            Ok(match self.replace(name, at.as_ref(), content.clone()).await? {
                Written::Done(version) => Written::Done(vec![version]),
                Written::Refused => Written::Refused,
            })
        }
    }

    /// Removes a cell that is of the version `at`, and does nothing if it has another. Only called where several cells can be replaced
    /// [at once](Self::at_once): there the cells of ids are removed that were not used for long.
    fn remove_at(
        &self,
        _name: &str,
        _at: &Self::Version,
    ) -> impl Future<Output = Result<(), BackendError>> + Send {
        async { Err(one_at_a_time()) }
    }

    /// Removes a cell; does nothing if there is none.
    fn remove(&self, name: &str) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Lists the cells of a folder in the order of their names, from behind `after`, without those of its subfolders: some page of
    /// them, of at least one if there is any. The list may be late, where one cell is replaced in a step: there it decides nothing but
    /// what is looked at for removal. Where several are, it has all cells that were written before the call.
    fn list(
        &self,
        folder: &str,
        after: Option<&str>,
    ) -> impl Future<Output = Result<CellPage, BackendError>> + Send;

    /// Returns the store's time: an interval that it is certainly within, at some time during the call. All leases go by it. Wide
    /// bounds delay a take-over and never hasten one; wrong ones let two processes hold a lock. A store without a clock of its own
    /// can take the time at which it wrote something.
    ///
    /// It may step, forwards or backwards, and the estimate has to follow within the shortest lease that the DAO allows.
    fn now(&self) -> impl Future<Output = Result<ServiceTime, BackendError>> + Send;

    /// Returns the least fence at a time. By default that is its upper bound, so that fences go on rising though the table is lost.
    fn least_fence(&self, now: ServiceTime) -> u64 {
        now.hi
    }

    /// Ends when one of these cells may have another version than is known. By default it never ends, and waiters look by themselves,
    /// each half second to two. It may end too often, and may miss a change.
    fn changed(&self, _cells: &[(String, Option<Self::Version>)]) -> impl Future<Output = ()> + Send {
        pending()
    }

    /// Returns what the adapter has seen of the store that weakens a promise or costs more than it need, for
    /// [`doctor`](lockcore::LockDao::doctor).
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
}

/// The answer of a store that replaces one cell in a step to a request for several, which the engine does not make.
fn one_at_a_time() -> BackendError {
    BackendError::new(BackendErrorKind::Unsupported, "the store replaces one cell at a time")
}
