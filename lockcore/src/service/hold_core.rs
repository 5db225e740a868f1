//! The state of a held set.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::Notify;

use super::lease::Lease;
use crate::{ContextId, Grant, Ident, LossReason, LostLock, process};

/// The state of a held set, shared by the call, its handles and its renewal.
#[derive(Debug)]
pub(crate) struct HoldCore<I, C> {
    pub(crate) grant: Grant<I, C>,
    /// `None` if the locks last until they are released.
    pub(crate) lease: Option<Box<Lease>>,
    /// The process that holds it; `None` if that is any that asks.
    pub(super) process: Option<u32>,
    pub(super) released: AtomicBool,
    /// Notifies [`Held::lost`](crate::Held::lost) and [`Held::confirmed`](crate::Held::confirmed).
    pub(crate) news: Notify,
}

impl<I: Ident, C: ContextId> HoldCore<I, C> {
    /// Returns whether this is a forked child's copy. Its parent goes on holding the locks; the mutexes that are copied
    /// with it may have been held by a thread that the child does not have.
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_some_and(|process| process != process::current())
    }

    /// Returns whether any of it was lost while it was held, also if only the clock says so; then all handles are
    /// notified. Nothing of it is held by a forked child.
    pub(crate) fn is_lost(&self) -> bool {
        if self.is_forked() {
            return true;
        }
        let (is_lost, is_news) = self.lease.as_ref().map_or((false, false), |lease| lease.look());
        if is_news {
            self.notify();
        }
        is_lost
    }

    /// Returns the held locks that are known to be lost, and why.
    pub(crate) fn known_lost(&self) -> Vec<LostLock<I>> {
        if self.is_forked() {
            return self.grant.locks.iter().map(|lock| lock.lost(LossReason::Forked)).collect();
        }
        self.lease.as_ref().map(|lease| lease.known_lost(&self.grant)).unwrap_or_default()
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Relaxed)
    }

    pub(super) fn notify(&self) {
        if let Some(lease) = &self.lease {
            lease.task.wake();
        }
        self.news.notify_waiters();
    }
}
