//! Errors, by the caller's decision: bad requests, and outcomes of a call.

mod backend;

use std::{convert::Infallible, error::Error, fmt, io, time::Duration};

pub use self::backend::{BackendError, BackendErrorKind};

use crate::{
    Conflict, ConflictReason, ContextId, Ident, LostLock, MAX_CONTEXT_BYTES, MAX_ID_BYTES, MAX_OWNER_BYTES,
    Target, Uuid,
};

/// A request that could never be granted, found before anything was sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadRequest {
    /// An id whose stored form is empty.
    #[error("id: is empty, it must have 1 to {MAX_ID_BYTES} bytes")]
    EmptyId,
    /// An id whose stored form is too long.
    #[error("id: has {bytes} bytes, at most {MAX_ID_BYTES} are possible: {start:?}...")]
    IdTooLong {
        /// Its first characters.
        start: String,
        /// Its length in bytes.
        bytes: usize,
    },
    /// A slot claim with a limit of zero.
    #[error("limit: 0 for id {id:?}, it must be at least 1")]
    ZeroLimit {
        /// The id.
        id: String,
    },
    /// A slot claim for no permit.
    #[error("permits: 0 for id {id:?}, it must be at least 1")]
    ZeroPermits {
        /// The id.
        id: String,
    },
    /// A slot claim that could never fit.
    #[error("permits: {permits} for id {id:?}, more than its limit of {limit}")]
    PermitsOverLimit {
        /// The id.
        id: String,
        /// The permits wanted.
        permits: u32,
        /// The limit given.
        limit: u32,
    },
    /// Two different slot claims for one id in one set.
    #[error("ids: two different slot claims for id {id:?} in one set")]
    ContradictingSlots {
        /// The id.
        id: String,
    },
    /// More ids than the backend can take in one atomic step.
    #[error("ids: {count} in one set, the {backend} backend can take at most {max} in one step")]
    TooManyIds {
        /// The number of different ids given.
        count: usize,
        /// The most that are possible.
        max: usize,
        /// The backend's name.
        backend: &'static str,
    },
    /// A lease of zero, or under what the backend can keep.
    #[error("lease: {lease:?}, the {backend} backend needs at least {min:?}")]
    LeaseTooShort {
        /// The lease given.
        lease: Duration,
        /// The shortest that is possible.
        min: Duration,
        /// The backend's name.
        backend: &'static str,
    },
    /// A lease that is too long to be stored.
    #[error("lease: {lease:?}, at most {max:?} are possible")]
    LeaseTooLong {
        /// The lease given.
        lease: Duration,
        /// The longest that is possible.
        max: Duration,
    },
    /// An owner label that is too long.
    #[error("owner: has {bytes} bytes, at most {MAX_OWNER_BYTES} are possible")]
    OwnerTooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// A context whose stored form is empty or too long.
    #[error("context: {context:?} has {} bytes, it must have 1 to {MAX_CONTEXT_BYTES}", .context.len())]
    ContextLength {
        /// The stored form of the context.
        context: String,
    },
    /// A call in a process that was forked after the service was made: its backend and its renewals are the parent's.
    #[error("service: it was made before this process was forked, make another one after the fork")]
    Forked,
    /// Something that the backend does not declare among its capabilities.
    #[error("{what}: the {backend} backend has no such ability")]
    Unsupported {
        /// The field or call.
        what: &'static str,
        /// The backend's name.
        backend: &'static str,
    },
    /// A number or duration outside its bounds.
    #[error("{field}: {value} is not possible, {expected}")]
    OutOfBounds {
        /// The field.
        field: &'static str,
        /// The value given.
        value: String,
        /// The values that are possible.
        expected: &'static str,
    },
}

impl BadRequest {
    pub(crate) fn out_of_bounds(
        field: &'static str,
        value: impl Into<String>,
        expected: &'static str,
    ) -> Self {
        BadRequest::OutOfBounds { field, value: value.into(), expected }
    }

    pub(crate) fn id_too_long(stored: &str) -> Self {
        BadRequest::IdTooLong { start: stored.chars().take(32).collect(), bytes: stored.len() }
    }
}

/// The reason why one id of a set was not locked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failure<I = String, C = Uuid> {
    /// Another holder or waiter is in the way.
    Conflict(Conflict<I, C>),
    /// The backend failed, so that nothing is known of any id.
    Backend(BackendError),
}

impl<I, C> Failure<I, C> {
    /// Returns whether a lease that still runs is in the way.
    fn may_be_a_dead_holder(&self) -> bool {
        let Failure::Conflict(Conflict { reason: ConflictReason::Held { holders, .. }, .. }) = self else {
            return false;
        };
        holders.iter().any(|holder| holder.remaining.is_some_and(|remaining| !remaining.is_zero()))
    }

    /// The nearest kind of a failure of the backend, which is none of contention.
    fn io_kind(&self) -> Option<io::ErrorKind> {
        let Failure::Backend(error) = self else { return None };
        Some(match error.kind() {
            BackendErrorKind::Unavailable => io::ErrorKind::NotConnected,
            BackendErrorKind::Timeout => io::ErrorKind::TimedOut,
            BackendErrorKind::Busy => io::ErrorKind::ResourceBusy,
            BackendErrorKind::Denied => io::ErrorKind::PermissionDenied,
            BackendErrorKind::Corrupt => io::ErrorKind::InvalidData,
            BackendErrorKind::Unsupported => io::ErrorKind::Unsupported,
            BackendErrorKind::BadSetting => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        })
    }
}

impl<I: Ident, C: ContextId> fmt::Display for Failure<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Conflict(conflict) => conflict.fmt(f),
            Failure::Backend(error) if error.kind() == BackendErrorKind::Unavailable => {
                write!(f, "the backend is unavailable, try again: {error}")
            }
            Failure::Backend(error) => write!(f, "the backend failed: {error}"),
        }
    }
}

/// The phase in which a call ran out of time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Phase {
    /// The store had not answered, or had failed when it was asked last.
    Asking,
    /// The locks were held by others, or queued for.
    Waiting,
}

/// The end of a call that ran out of the time it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedOut {
    /// The time it had waited.
    pub after: Duration,
    /// The phase in which its time ran out.
    pub phase: Phase,
    /// The call's own lease, where it is longer than the wait was and the store does not notice by itself that a process died: a
    /// holder with the same lease that crashed keeps its locks for longer than the call waited.
    pub lease_outlasts: Option<Duration>,
}

/// The outcome of a call that did not end with the callback's value.
///
/// `I` and `C` are the service's identifiers and contexts, `E` the callback's own error.
///
/// ```
/// use lockcore::{ConflictReason, Failure, LockingError, LockingService};
/// use lockcore_memory::MemoryLockDao;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let locks = LockingService::new(MemoryLockDao::<String>::new());
/// # let _other = locks.lock(["report"]).await.unwrap();
/// let written = locks.with_locks(["report"], async || std::fs::write("report", "42")).await;
/// # assert!(matches!(&written, Err(LockingError::NotLocked { failures, .. }) if matches!(failures[..], [Failure::Conflict(_)])));
/// match written {
///     Ok(()) => println!("written"),
///     Err(LockingError::NotLocked { failures, .. }) => match &failures[0] {
///         Failure::Conflict(conflict) if matches!(conflict.reason, ConflictReason::Frozen) => println!("frozen"),
///         Failure::Backend(error) => println!("no answer of the store: {error}"),
///         conflict => println!("not now: {conflict}"),
///     },
///     Err(LockingError::Callback { error }) => println!("locked all the time, and not written: {error}"),
///     Err(LockingError::Lost { lost, .. }) => println!("another holder may have been active: {lost:?}"),
///     Err(other) => println!("nothing was done, or it took too long: {other}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockingError<I = String, C = Uuid, E = Infallible> {
    /// The request could never be granted. Nothing was sent; the callback did not run.
    BadRequest(BadRequest),
    /// The set was not locked, and none of it is. The callback did not run.
    NotLocked {
        /// The reasons, for each id in the way, with what was left of the holders' leases when the call ended. A failure of the backend
        /// stands alone, or behind what was in the way before, if the store no longer answered when the time of a wait was over.
        failures: Vec<Failure<I, C>>,
        /// Set if the call waited until its time was over.
        timed_out: Option<TimedOut>,
    },
    /// The set was locked, the callback ran and failed, and the set was released.
    Callback {
        /// The callback's own error.
        error: E,
    },
    /// Locks were lost while the callback ran: others may have run at the same time.
    ///
    /// A callback that ended while its lease certainly lasted has lost nothing by a release that the store answers only after
    /// the lease: that is a success, and reported as [`Event::ReleasedLate`](crate::Event::ReleasedLate), which says why.
    Lost {
        /// The locks that were lost, and why.
        lost: Vec<LostLock<I>>,
        /// The end of the callback; `None` if it was stopped. Its value is to be had from
        /// [`Call::outcome`](crate::Call::outcome).
        callback: Option<Result<(), E>>,
    },
    /// The callback ran longer than `max_hold` and was stopped; the set was released.
    HeldTooLong {
        /// The bound it passed.
        max_hold: Duration,
    },
    /// An enclosing call of the same task holds this id in a mode beside which it cannot be granted, or holds permits of it and asks
    /// for more: waiting for it may never end. Or a `lockctl run` holds it that this program was started by, and that waits for its
    /// end ([`Builder::enclosed_by`](crate::Builder::enclosed_by)).
    SelfDeadlock {
        /// The id.
        target: Target<I>,
    },
    /// Another call of this service is using the context.
    ContextInUse {
        /// The context.
        context: C,
    },
    /// The service is shutting down.
    ShutDown,
}

/// The outcome of a call whose callback cannot fail.
pub type LockError<I = String, C = Uuid> = LockingError<I, C, Infallible>;

impl<I, C, E> LockingError<I, C, E> {
    /// Maps the callback's error.
    pub fn map_callback<F>(self, map: impl FnOnce(E) -> F) -> LockingError<I, C, F> {
        match self {
            LockingError::BadRequest(bad) => LockingError::BadRequest(bad),
            LockingError::NotLocked { failures, timed_out } => {
                LockingError::NotLocked { failures, timed_out }
            }
            LockingError::Callback { error } => LockingError::Callback { error: map(error) },
            LockingError::Lost { lost, callback } => {
                LockingError::Lost { lost, callback: callback.map(|result| result.map_err(map)) }
            }
            LockingError::HeldTooLong { max_hold } => LockingError::HeldTooLong { max_hold },
            LockingError::SelfDeadlock { target } => LockingError::SelfDeadlock { target },
            LockingError::ContextInUse { context } => LockingError::ContextInUse { context },
            LockingError::ShutDown => LockingError::ShutDown,
        }
    }

    /// Returns whether trying the same call again later may help: contention, a timeout, or a failure of the backend that may
    /// pass.
    pub fn is_retryable(&self) -> bool {
        match self {
            LockingError::NotLocked { failures, .. } => failures.iter().all(|failure| match failure {
                Failure::Conflict(_) => true,
                Failure::Backend(error) => error.is_retryable(),
            }),
            LockingError::ContextInUse { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the set was not locked because others were in the way, as opposed to a failure.
    pub fn is_contention(&self) -> bool {
        match self {
            LockingError::NotLocked { failures, .. } => {
                failures.iter().all(|failure| matches!(failure, Failure::Conflict(_)))
            }
            _ => false,
        }
    }
}

impl<I, C, E: From<LockError<I, C>>> LockingError<I, C, E> {
    /// Returns the callback's own error, or a [`LockError`] converted into its type: for callbacks that return `anyhow::Result`,
    /// a boxed error, or an enum of yours that is made from a [`LockError`]. Of a loss during which the callback failed only the
    /// loss stays.
    ///
    /// ```
    /// use lockcore::{LockingError, LockingService};
    ///
    /// async fn store_balance(locks: &LockingService, balance: u64) -> anyhow::Result<u64> {
    ///     let fence = locks
    ///         .with_held_locks(["account/7"], |held| async move {
    ///             let fence = held.exclusive_fence("account/7").expect("held exclusively").number();
    ///             // UPDATE account SET balance = ?, fence = ? WHERE id = 7 AND fence <= ?
    ///             anyhow::ensure!(balance < 1_000_000, "too much");
    ///             Ok(fence)
    ///         })
    ///         .await
    ///         .map_err(LockingError::flatten)?;
    ///     Ok(fence)
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let dao = lockcore::AnyLockDao::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// # let locks = LockingService::new(dao);
    /// # assert!(store_balance(&locks, 5).await.is_ok_and(|fence| fence > 0));
    /// # assert_eq!(store_balance(&locks, 2_000_000).await.unwrap_err().to_string(), "too much");
    /// # let _other = locks.lock(["account/7"]).await.unwrap();
    /// # let refused = store_balance(&locks, 5).await.unwrap_err();
    /// # assert!(refused.downcast::<lockcore::LockError>().unwrap().is_contention());
    /// # }
    /// ```
    pub fn flatten(self) -> E {
        self.into_callback_error().unwrap_or_else(E::from)
    }
}

impl<I, C, E> LockingError<I, C, E> {
    /// Returns the callback's own error, or else what went wrong with the locks. Of a loss during which the callback failed
    /// only the loss stays.
    ///
    /// ```
    /// use lockcore::{LockError, LockingError};
    ///
    /// # #[derive(Debug)]
    /// enum AppError {
    ///     Storage(std::io::Error),
    ///     Locks(LockError),
    /// }
    ///
    /// fn to_app_error(error: LockingError<String, lockcore::Uuid, std::io::Error>) -> AppError {
    ///     error.into_callback_error().map_or_else(AppError::Locks, AppError::Storage)
    /// }
    /// # let error = LockingError::Callback { error: std::io::ErrorKind::NotFound.into() };
    /// # assert!(matches!(to_app_error(error), AppError::Storage(_)));
    /// # assert!(matches!(to_app_error(LockingError::ShutDown), AppError::Locks(_)));
    /// ```
    pub fn into_callback_error(self) -> Result<E, LockError<I, C>> {
        match self {
            LockingError::Callback { error } => Ok(error),
            LockingError::Lost { lost, callback } => {
                let callback = callback.and_then(Result::ok).map(Ok);
                Err(LockingError::Lost { lost, callback })
            }
            other => Err(other.map_callback(|_| unreachable!("only the two variants above hold one"))),
        }
    }
}

impl<I: Ident, C: ContextId, E: fmt::Display> fmt::Display for LockingError<I, C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockingError::BadRequest(bad) => write!(f, "bad request: {bad}"),
            LockingError::NotLocked { failures, timed_out } => {
                f.write_str("not locked")?;
                if let Some(TimedOut { after, phase, .. }) = timed_out {
                    let waited_for = match phase {
                        Phase::Asking => "for the store to answer",
                        Phase::Waiting => "for others to release",
                    };
                    write!(f, " after {after:.1?} of waiting {waited_for}")?;
                }
                let mut separator = ": ";
                for failure in failures {
                    write!(f, "{separator}{failure}")?;
                    separator = "; ";
                }
                match timed_out {
                    Some(TimedOut { phase: Phase::Waiting, lease_outlasts: Some(lease), .. })
                        if failures.iter().any(Failure::may_be_a_dead_holder) =>
                    {
                        write!(
                            f,
                            "; a wait that is shorter than the lease of {lease:?} does not outlast a holder that crashed"
                        )
                    }
                    _ => Ok(()),
                }
            }
            LockingError::Callback { error } => error.fmt(f),
            LockingError::Lost { lost, callback } => {
                f.write_str(match callback {
                    None => "stopped because locks were lost: ",
                    Some(Ok(())) => "done, but locks were lost meanwhile: ",
                    Some(Err(_)) => "failed, and locks were lost meanwhile: ",
                })?;
                write_lost(f, lost)
            }
            LockingError::HeldTooLong { max_hold } => {
                write!(f, "stopped because the locks were held for longer than {max_hold:?}")
            }
            LockingError::SelfDeadlock { target } => {
                write!(
                    f,
                    "{target} is held by an enclosing call of the same task, or by the lockctl that runs this program"
                )
            }
            LockingError::ContextInUse { context } => {
                write!(f, "the context {} is in use by another call", context.stored().escape_debug())
            }
            LockingError::ShutDown => f.write_str("the locking service is shutting down"),
        }
    }
}

fn write_lost<I: Ident>(f: &mut fmt::Formatter<'_>, lost: &[LostLock<I>]) -> fmt::Result {
    let mut separator = "";
    for LostLock { target, reason, .. } in lost {
        write!(f, "{separator}{target}: {reason}")?;
        separator = "; ";
    }
    Ok(())
}

/// A callback's own error with which [`LockingError`] is an error in turn: any [`std::error::Error`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no `std::error::Error`, so that a `LockingError` with it is none either",
    label = "for `{Self}` use `try_with_locks`, or `.map_err(LockingError::flatten)?` behind any other call"
)]
pub trait CallbackError: Error + 'static {}

#[diagnostic::do_not_recommend]
impl<E: Error + 'static> CallbackError for E {}

impl<I: Ident, C: ContextId, E: CallbackError> Error for LockingError<I, C, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // `Display` shows these errors themselves, so that their causes come next.
            LockingError::BadRequest(bad) => bad.source(),
            LockingError::NotLocked { failures, .. } => failures.iter().find_map(|failure| match failure {
                Failure::Backend(error) => error.source(),
                Failure::Conflict(_) => None,
            }),
            LockingError::Callback { error } => error.source(),
            LockingError::Lost { callback: Some(Err(error)), .. } => Some(error),
            _ => None,
        }
    }
}

impl<I, C, E> From<BadRequest> for LockingError<I, C, E> {
    fn from(bad: BadRequest) -> Self {
        LockingError::BadRequest(bad)
    }
}

impl<I, C, E> From<BackendError> for LockingError<I, C, E> {
    fn from(error: BackendError) -> Self {
        LockingError::NotLocked { failures: vec![Failure::Backend(error)], timed_out: None }
    }
}

impl<I, C> LockError<I, C> {
    /// Returns the outcome as that of a callback with any error.
    pub(crate) fn widen<E>(self) -> LockingError<I, C, E> {
        self.map_callback(|never| match never {})
    }
}

impl<I: Ident, C: ContextId> From<LockError<I, C>> for io::Error {
    fn from(error: LockError<I, C>) -> Self {
        let kind = match &error {
            LockingError::BadRequest(_) => io::ErrorKind::InvalidInput,
            LockingError::NotLocked { timed_out: Some(_), .. } => io::ErrorKind::TimedOut,
            LockingError::NotLocked { failures, .. } => {
                failures.iter().find_map(Failure::io_kind).unwrap_or(io::ErrorKind::WouldBlock)
            }
            LockingError::SelfDeadlock { .. } => io::ErrorKind::Deadlock,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// The loss of locks of a [`Held`](crate::Held).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockLost<I = String> {
    /// The locks that were lost, and why.
    pub lost: Vec<LostLock<I>>,
}

impl<I: Ident> fmt::Display for LockLost<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("locks were lost: ")?;
        write_lost(f, &self.lost)
    }
}

impl<I: Ident> Error for LockLost<I> {}

impl<I: Ident> From<LockLost<I>> for io::Error {
    fn from(lost: LockLost<I>) -> Self {
        io::Error::other(lost)
    }
}
