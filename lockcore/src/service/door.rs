//! The one way from a service to its backend, which is closed in a forked child.

use std::time::Duration;

use super::Inner;
use crate::{BackendError, BackendErrorKind, BadRequest, ContextId, Ident, LockDao, LockError, process};

/// The error of a forked child of the process that made the service: its connections and threads are the parent's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forked;

/// A backend, for the process that made it.
pub(crate) struct Door<D> {
    dao: D,
    process: u32,
}

impl<D> Door<D> {
    pub(crate) fn new(dao: D) -> Self {
        Door { dao, process: process::current() }
    }

    /// The backend, for what sends nothing.
    pub(crate) fn resting(&self) -> &D {
        &self.dao
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    /// Returns the backend, if this process made the service.
    pub(crate) fn dao(&self) -> Result<&D, Forked> {
        let Door { dao, process } = &self.door;
        if process::current() == *process { Ok(dao) } else { Err(Forked) }
    }

    /// Returns the backend for a step on locks with this lease, if they are this process's.
    pub(crate) fn dao_for(&self, lease: Option<Duration>) -> Result<&D, Forked> {
        match self.owner_of(lease) {
            Some(_) => self.dao(),
            None => Ok(&self.door.dao),
        }
    }

    /// The process that holds locks with this lease. `None`: they are in the memory of each process that asks. Then no copy of
    /// them is of another process, and to ask the kernel would take as long as the step.
    pub(crate) fn owner_of(&self, lease: Option<Duration>) -> Option<u32> {
        (lease.is_some() || self.capabilities.shared_store).then_some(self.door.process)
    }
}

impl From<Forked> for BadRequest {
    fn from(Forked: Forked) -> Self {
        BadRequest::Forked
    }
}

impl<I, C> From<Forked> for LockError<I, C> {
    fn from(forked: Forked) -> Self {
        BadRequest::from(forked).into()
    }
}

impl From<Forked> for BackendError {
    fn from(forked: Forked) -> Self {
        BackendError::new(BackendErrorKind::Other, BadRequest::from(forked).to_string())
    }
}
