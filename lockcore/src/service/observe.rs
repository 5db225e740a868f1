//! The reports of a service: events for the user's hook, log lines, and counters of them.

use tracing::{Level, Span, field::display, level_filters::LevelFilter, span::Entered};

use super::metrics::count;
use crate::{AcquireRequest, BackendError, ContextId, Failure, Grant, Ident, LostLock, Target, Uuid};

/// Something that a call's outcome does not show, or that happened in the background. Given to the hook of
/// [`Builder::on_event`](crate::Builder::on_event).
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a, I = String, C = Uuid> {
    /// A set was not locked.
    Refused {
        /// The context that asked.
        context: &'a C,
        /// The reasons, for each id in the way.
        failures: &'a [Failure<I, C>],
    },
    /// Locks were lost while they were held.
    Lost {
        /// The grant that was held.
        grant: &'a Grant<I, C>,
        /// The locks of it that were lost.
        lost: &'a [LostLock<I>],
    },
    /// The release came, or was answered, after the lease had ended, and the locks were gone by then. That is no loss: what ran
    /// under them had ended in time, or was stopped.
    ///
    /// What an outage costs is told by when the lease ended by the clock here. If that was while the callback ran, and was noticed - at
    /// each poll of a callback, and whenever a handle is asked -, the locks are [`Lost`](Self::Lost) as [`Unreachable`](crate::LossReason::Unreachable), whatever the release is answered. If the callback had
    /// ended, and the release was without an answer until then, the call is a success and this is the event, for another holder can
    /// only have come after the callback. If the store never answers, [`ReleaseFailed`](Self::ReleaseFailed) is the event. A lock that
    /// an administrator broke is lost in any case: another may have had it before.
    ReleasedLate {
        /// The grant that was held.
        grant: &'a Grant<I, C>,
        /// The locks of it that were gone.
        lost: &'a [LostLock<I>],
    },
    /// A release got no answer, or could not free everything: it is tried again in the background, and the
    /// lease ends it at the latest.
    ReleaseFailed {
        /// The grant that was held.
        grant: &'a Grant<I, C>,
        /// The failure.
        error: &'a BackendError,
    },
    /// A renewal failed: it is tried again until the lease ends.
    RenewalFailed {
        /// The grant that is held.
        grant: &'a Grant<I, C>,
        /// The number of renewals of this hold that have failed in a row. The first is logged as a warning, and so is
        /// the number at the next success.
        failures: u32,
        /// The failure; `None` if there was no answer in time.
        error: Option<&'a BackendError>,
    },
    /// A request whose outcome was in doubt could not be withdrawn: what it may have locked stays so until its
    /// lease ends.
    WithdrawFailed {
        /// The context that asked.
        context: &'a C,
        /// The failure.
        error: &'a BackendError,
    },
    /// A sweep failed; the next one comes at its time.
    SweepFailed {
        /// The failure.
        error: &'a BackendError,
    },
}

/// The most ids that a line of the log names.
const NAMED: usize = 10;

/// Logs an event and counts it. Without `log_ids` only the number of ids is logged: they may be secret.
pub(crate) fn record<I: Ident, C: ContextId>(backend: &'static str, log_ids: bool, event: &Event<'_, I, C>) {
    let names = |lost: &[LostLock<I>]| log_ids.then(|| display(names(lost.iter().map(|lock| &lock.target))));
    match event {
        Event::Refused { context, failures } => {
            let failed = failures.iter().find_map(|failure| match failure {
                Failure::Backend(error) => Some(error),
                Failure::Conflict(_) => None,
            });
            match failed {
                Some(error) => {
                    tracing::warn!(backend, context = %context.stored(), %error, "not locked: the backend failed");
                }
                None => {
                    tracing::debug!(backend, context = %context.stored(), in_the_way = failures.len(), "not locked");
                }
            }
            count("lockcore_refused_total", backend, if failed.is_some() { "backend" } else { "contention" });
        }
        Event::Lost { grant, lost } => {
            tracing::warn!(backend, context = %grant.context.stored(), lost = lost.len(), of = grant.locks.len(), reason = reasons(lost), targets = names(lost), "locks lost");
            for lock in *lost {
                count("lockcore_lost_total", backend, reason(lock));
            }
        }
        Event::ReleasedLate { grant, lost } => {
            tracing::warn!(backend, context = %grant.context.stored(), gone = lost.len(), targets = names(lost), "released after the lease had ended");
            count("lockcore_released_late_total", backend, "expired");
        }
        Event::ReleaseFailed { grant, error } => {
            tracing::warn!(backend, context = %grant.context.stored(), %error, "release failed, tried again in the background");
            count("lockcore_release_failed_total", backend, "backend");
        }
        Event::RenewalFailed { grant, failures, error } => {
            let error = error.map_or_else(|| "no answer in time".to_owned(), ToString::to_string);
            let context = grant.context.stored();
            match failures {
                1 => tracing::warn!(backend, %context, error, "renewal failed, tried again"),
                _ => tracing::debug!(backend, %context, error, failures, "renewal failed again"),
            }
            count("lockcore_renewal_failed_total", backend, "backend");
        }
        Event::WithdrawFailed { context, error } => {
            tracing::warn!(backend, context = %context.stored(), %error, "a request in doubt could not be withdrawn");
            count("lockcore_withdraw_failed_total", backend, "backend");
        }
        Event::SweepFailed { error } => {
            tracing::warn!(backend, %error, "sweep failed");
            count("lockcore_sweep_failed_total", backend, "backend");
        }
    }
}

/// Logs the end of an outage, after so many renewals of one hold that failed.
pub(crate) fn recovered<I, C: ContextId>(backend: &'static str, grant: &Grant<I, C>, failures: u32) {
    tracing::warn!(backend, context = %grant.context.stored(), failures, "renewed again");
}

/// The reasons of losses, each once.
fn reasons<I>(lost: &[LostLock<I>]) -> String {
    let mut reasons = Vec::new();
    for reason in lost.iter().map(|lock| lock.reason.to_string()) {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons.join("; ")
}

/// The first ids of a set, for people to read.
fn names<'a, I: Ident>(targets: impl ExactSizeIterator<Item = &'a Target<I>>) -> String {
    let more = targets.len().saturating_sub(NAMED);
    let named: Vec<_> = targets.take(NAMED).map(ToString::to_string).collect();
    match more {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn reason<I>(lost: &LostLock<I>) -> &'static str {
    match lost.reason {
        crate::LossReason::Expired => "expired",
        crate::LossReason::Broken => "broken",
        crate::LossReason::Vanished => "vanished",
        crate::LossReason::Unreachable => "unreachable",
        crate::LossReason::Released => "released",
        crate::LossReason::Forked => "forked",
    }
}

/// The span of one call, from its first request to its release. Where no subscriber wants it, which is seen at a
/// glance, there is none, and it takes no room.
pub(crate) struct CallSpan(Option<Box<Span>>);

impl CallSpan {
    pub(crate) fn new<I: Ident, C: ContextId>(
        backend: &'static str,
        log_ids: bool,
        request: &AcquireRequest<I, C>,
    ) -> Self {
        if LevelFilter::current() < Level::DEBUG {
            return CallSpan(None);
        }
        let span = tracing::debug_span!(
            "locks",
            backend,
            context = %request.context.stored(),
            owner = %request.owner,
            ids = request.claims.len(),
            targets = log_ids.then(|| display(names(request.claims.iter().map(|claim| &claim.target)))),
            nested = request.nested,
        );
        CallSpan((!span.is_disabled()).then(|| Box::new(span)))
    }

    /// For something that is polled inside it.
    pub(crate) fn handle(&self) -> Span {
        self.0.as_deref().cloned().unwrap_or_else(Span::none)
    }

    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        self.0.as_deref().map(Span::enter)
    }

    pub(crate) fn take(&mut self) -> Self {
        CallSpan(self.0.take())
    }

    pub(crate) fn locked(&self, offered: bool) {
        if let Some(span) = self.0.as_deref() {
            tracing::debug!(parent: span, offered, "locked");
        }
    }

    pub(crate) fn ended(&self, released: bool) {
        if let Some(span) = self.0.as_deref() {
            tracing::debug!(parent: span, released, "no longer held");
        }
    }
}
