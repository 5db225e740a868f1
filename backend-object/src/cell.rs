//! The seam between the engine and a store: cells that are read, and replaced on condition.
//!
//! An adapter of another store with conditional writes - a key of NATS, an object of Kubernetes - implements [`Cell`], and all
//! else of this crate stays as it is.

use bytes::Bytes;
use lockcore::backend::ServiceTime;
use object_store::UpdateVersion;

use crate::{error::StoreError, seen::Rules};

/// The version of a cell, as the store names it.
pub(crate) type Version = UpdateVersion;

/// What reading a cell found.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// The version that is known already.
    Unchanged,
    /// No cell.
    Absent,
    /// Another version, with its content.
    Changed(Version, Bytes),
}

/// What became of a write.
#[derive(Clone, Debug)]
pub(crate) enum Written {
    /// It is the newest version.
    Done(Version),
    /// Another version was there: nothing was written, or, where the write was sent again on its way, it was this write itself.
    Lost,
}

/// A store of cells.
pub(crate) trait Cell: std::fmt::Debug + Send + Sync + 'static {
    /// Reads a cell unless it is of the `known` version still.
    fn read(
        &self,
        name: &str,
        known: Option<&Version>,
    ) -> impl Future<Output = Result<Found, StoreError>> + Send;

    /// Replaces a cell if it is of the version `at`; `None`: if there is none. An error that is not in doubt says that
    /// nothing was written.
    fn replace(
        &self,
        name: &str,
        at: Option<&Version>,
        content: Bytes,
    ) -> impl Future<Output = Result<Written, StoreError>> + Send;

    /// Removes a cell; does nothing if there is none.
    fn remove(&self, name: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the names of all cells in a folder, without its subfolders, and when each was written, in microseconds since 1970.
    fn list(&self, folder: &str) -> impl Future<Output = Result<Vec<(String, u64)>, StoreError>> + Send;

    /// Returns the service's time, by the responses so far; asks for it if there was none for long.
    fn now(&self) -> impl Future<Output = Result<ServiceTime, StoreError>> + Send;

    /// Returns the rules that the store was seen to apply to cells.
    fn rules(&self) -> &Rules;

    /// Returns the least fence at a time: at least the service's clock, and above every other of this process, also of
    /// another namespace.
    fn least_fence(&self, now: ServiceTime) -> u64;
}
