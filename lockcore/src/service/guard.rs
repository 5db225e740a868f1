//! A held set as a value, for flows that no callback fits.

use std::{fmt, ops::Deref, time::Duration};

use super::{held::Held, hold::Hold};
use crate::{AnyLockDao, ContextId, Grant, Ident, LockDao, LockError, LockingError, Uuid};

/// A held set. Release it with [`release`](Self::release); dropping it releases in the background.
///
/// Derefs to [`Held`]. Nothing stops what is done under a guard when its locks are lost: ask
/// [`check`](Held::check) or wait for [`lost`](Held::lost). A call made while a guard is held does not know of it:
/// give it [`nested`](crate::Call::nested).
#[must_use = "dropping the guard releases the locks"]
pub struct LockGuard<I: Ident = String, C: ContextId = Uuid, D: LockDao<I, C> = AnyLockDao<I, C>> {
    hold: Hold<'static, I, C, D>,
    held: Held<I, C>,
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> LockGuard<I, C, D> {
    pub(crate) fn new(hold: Hold<'static, I, C, D>) -> Self {
        let held = Held(hold.core.clone());
        LockGuard { hold, held }
    }

    /// Returns what is held, as a handle that can be cloned and sent.
    pub fn held(&self) -> &Held<I, C> {
        &self.held
    }

    /// Releases the set. If the store does not answer, that is a success here: it is reported
    /// ([`Event::ReleaseFailed`](crate::Event::ReleaseFailed)) and tried again in the background.
    ///
    /// # Errors
    /// [`LockingError::Lost`] if locks were lost while they were held. A lease that ended before the release and was not noticed, as
    /// the process stood still, is a success though another holds the locks by then, and reported
    /// ([`Event::ReleasedLate`](crate::Event::ReleasedLate)): where that matters, ask [`check`](Held::check) after the work, or guard
    /// what is written with the fence.
    ///
    /// # Cancel safety
    /// Safe: the release is then finished in the background.
    pub async fn release(mut self) -> Result<(), LockError<I, C>> {
        match self.hold.release().await {
            lost if lost.is_empty() => Ok(()),
            lost => Err(LockingError::Lost { lost, callback: Some(Ok(())) }),
        }
    }

    /// Releases the set at once, also if it was taken with [`keep_for`](crate::Call::keep_for): for a job that did not take place.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    /// Safe: the release is then finished in the background.
    pub async fn release_now(self) -> Result<(), LockError<I, C>> {
        self.hold.keep_no_longer();
        self.release().await
    }

    /// Keeps the first lock of the set, and releases the others; see [`Hold::keep_first`].
    pub(crate) async fn keep_first(mut self, keep: Duration) -> Result<bool, LockError<I, C>> {
        let kept = self.hold.keep_first(keep).await;
        kept.map_err(|lost| LockingError::Lost { lost, callback: Some(Ok(())) })
    }

    /// Stops the renewal and leaves the set locked, without giving it up: until its lease ends or the grant is released
    /// ([`Admin::release`](crate::Admin::release)). On a backend that notices dead holders the locks should have been
    /// taken with [`detached`](crate::Call::detached).
    ///
    /// A set that was waited for may have been handed over just now, and then lasts two seconds unless it is renewed: renew the
    /// grant ([`Admin::renew`](crate::Admin::renew)) if [`time_left`](Held::time_left) is less than that.
    ///
    /// If the set was waited for in a queue, and a request got no answer while it had its place, that request may still arrive after
    /// the locks have ended; then the set is locked for one more lease. Without a place a request that got no answer was withdrawn.
    pub fn leave(self) -> Grant<I, C> {
        let LockGuard { hold, held } = self;
        drop(held);
        hold.leave()
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Deref for LockGuard<I, C, D> {
    type Target = Held<I, C>;

    fn deref(&self) -> &Held<I, C> {
        &self.held
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> fmt::Debug for LockGuard<I, C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&self.held).finish()
    }
}
