//! Errors of a step, and how they are reported.

use lockcore::{BackendError, BackendErrorKind};

/// An error of a step.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Cell(#[from] BackendError),
    #[error("the attempt was withdrawn before its request arrived")]
    Withdrawn,
    #[error("{what} is not in this library's form: another program wrote it")]
    Corrupt {
        what: &'static str,
        /// Not in the message, as the name of an id may be secret: logs have the messages.
        #[source]
        cell: Option<InCell>,
    },
    #[error(
        "the cell {0:?} cannot be read, another program wrote it: the locks of that session count as held until it is \
         removed"
    )]
    Session(String),
    #[error("a cell has format {found}, this program knows format {known}: use a newer program")]
    Format { found: u32, known: u32 },
    #[error("the namespace is for programs of version {found} on, this one is {known}: use a newer program")]
    Program { found: u32, known: u32 },
    #[error(
        "other processes wrote first at every try until the timeout: use one service for more tasks, or fewer processes"
    )]
    Contended { in_doubt: bool },
    #[error(
        "the write needs room for {bytes} bytes or more, of at most {max}: hold and queue for less, or use more namespaces"
    )]
    Full { bytes: usize, max: usize, in_doubt: bool },
    #[error(
        "the set alone takes {bytes} bytes of a write, at most {max} are possible: lock fewer or shorter ids"
    )]
    TooLarge { bytes: usize, max: usize },
    #[error(
        "the store ignores the condition of a write ({0}): no lock would exclude anything; use a store with conditional writes"
    )]
    Unconditional(&'static str),
    #[error("the runtime of the library ended")]
    Ended,
}

/// The cell that cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("it is in the cell {0:?}")]
pub(crate) struct InCell(String);

impl StoreError {
    /// Says what cannot be read.
    pub(crate) fn corrupt(what: &'static str) -> Self {
        StoreError::Corrupt { what, cell: None }
    }

    fn kind(&self) -> BackendErrorKind {
        match self {
            StoreError::Cell(error) => error.kind(),
            StoreError::Withdrawn => BackendErrorKind::Withdrawn,
            StoreError::Corrupt { .. } | StoreError::Session(_) => BackendErrorKind::Corrupt,
            StoreError::Format { .. } | StoreError::Program { .. } | StoreError::Unconditional(_) => {
                BackendErrorKind::Misconfigured
            }
            StoreError::Contended { .. } | StoreError::Full { .. } => BackendErrorKind::Busy,
            StoreError::TooLarge { .. } => BackendErrorKind::Other,
            StoreError::Ended => BackendErrorKind::Unavailable,
        }
    }

    /// Returns whether the step may have taken place all the same.
    pub(crate) fn in_doubt(&self) -> bool {
        match self {
            StoreError::Cell(error) => error.in_doubt(),
            StoreError::Contended { in_doubt } | StoreError::Full { in_doubt, .. } => *in_doubt,
            StoreError::Ended => true,
            _ => false,
        }
    }

    /// Returns whether a look or a heartbeat will fail again by the same. A session that cannot be read is given up for another one.
    pub(crate) fn is_final(&self) -> bool {
        !self.kind().is_retryable() && !matches!(self, StoreError::Session(_))
    }

    /// Returns whether it is about what a cell contains.
    pub(crate) fn is_of_content(&self) -> bool {
        matches!(self, StoreError::Corrupt { .. } | StoreError::Format { .. } | StoreError::Program { .. })
    }

    /// Returns the same error, with the name of the cell.
    pub(crate) fn of_cell(self, name: &str) -> Self {
        match self {
            StoreError::Corrupt { what, .. } => {
                StoreError::Corrupt { what, cell: Some(InCell(name.to_owned())) }
            }
            other => other,
        }
    }

    /// Returns whether a part of the step may be made where all of it cannot: it is too long for a write, by those who wait for its ids,
    /// or a cell cannot be read.
    pub(crate) fn is_of_some(&self) -> bool {
        matches!(self, StoreError::Full { .. }) || self.is_of_content()
    }

    /// Returns whether the same request may succeed when it is sent again.
    pub(crate) fn again(&self) -> bool {
        matches!(self, StoreError::Cell(error) if error.is_retryable())
    }

    /// Returns the same error, after which an earlier write may have been made.
    pub(crate) fn or_done_before(self, in_doubt: bool) -> Self {
        match self {
            StoreError::Cell(error) if in_doubt => StoreError::Cell(error.possibly_done()),
            StoreError::Contended { .. } => StoreError::Contended { in_doubt },
            StoreError::Full { bytes, max, .. } if in_doubt => StoreError::Full { bytes, max, in_doubt },
            // Only a session is changed where this is met.
            other @ StoreError::Session(_) => other,
            other if in_doubt => {
                let error = BackendError::new(other.kind(), other.to_string());
                StoreError::Cell(error.possibly_done().with_source(other))
            }
            other => other,
        }
    }

    /// Returns the error as it leaves this crate; `place` names the store and the namespace.
    pub(crate) fn report(self, place: &str) -> BackendError {
        let backend = BackendError::new(self.kind(), format!("{place}: {self}"));
        let backend = if self.in_doubt() { backend.possibly_done() } else { backend };
        backend.with_source(self)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn an_error_in_doubt_has_the_name_of_its_cell() {
        let error = StoreError::corrupt("the table").of_cell("id/x61").or_done_before(true);
        let error = error.report("a bucket");
        assert!(error.in_doubt() && !error.to_string().contains("x61"), "{error}");
        let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
        assert!(causes.any(|cause| cause.to_string().contains("id/x61")), "{error:?}");
    }
}
