//! The callback's view of the locks that it runs under.

use std::{borrow::Borrow, fmt, sync::Arc, time::Duration};

use super::hold_core::HoldCore;
use crate::{
    ContextId, ExclusiveFence, Grant, Ident, Lock, LockLost, LossReason, LostLock, Mode, SharedFence, Uuid,
};

/// The locks that a callback runs under. Cheap to clone; may outlive the locks, and then knows that.
pub struct Held<I: Ident = String, C: ContextId = Uuid>(pub(crate) Arc<HoldCore<I, C>>);

impl<I: Ident, C: ContextId> Held<I, C> {
    /// Returns the context that holds them.
    pub fn context(&self) -> &C {
        &self.0.grant.context
    }

    /// Returns the grant, by which another process can release, renew or check what is held; see
    /// [`Admin`](crate::Admin).
    pub fn grant(&self) -> &Grant<I, C> {
        &self.0.grant
    }

    /// Returns the locks, ordered by the bytes of their ids.
    pub fn locks(&self) -> &[Lock<I>] {
        &self.0.grant.locks
    }

    /// Returns the fence of one id: strictly greater than that of every earlier grant of the id. For a guarded write see
    /// [`exclusive_fence`](Self::exclusive_fence) and [`FenceGuard`](crate::FenceGuard).
    ///
    /// # Panics
    /// For an id that is not of the set.
    pub fn fence<Q: ?Sized + Eq>(&self, id: &Q) -> u64
    where
        I: Borrow<Q>,
    {
        match self.lock(id) {
            Some(lock) => lock.granted.fence,
            None => panic!("fence of an id that is not of the set; held are {:?}", self.locks()),
        }
    }

    /// Returns one lock, or `None` for an id that is not of the set.
    pub fn lock<Q: ?Sized + Eq>(&self, id: &Q) -> Option<&Lock<I>>
    where
        I: Borrow<Q>,
    {
        self.locks().iter().find(|lock| lock.target.id().is_some_and(|held| held.borrow() == id))
    }

    /// Returns the fence of an id that is held exclusively; `None` for any other, and in a forked child, which holds nothing.
    pub fn exclusive_fence<Q: ?Sized + Eq>(&self, id: &Q) -> Option<ExclusiveFence>
    where
        I: Borrow<Q>,
    {
        let lock = self.lock(id).filter(|_| !self.0.is_forked())?;
        (lock.granted.mode == Mode::Exclusive).then_some(ExclusiveFence(lock.granted.fence))
    }

    /// Returns the fence of an id that is held shared or as slots; `None` for any other, and in a forked child.
    pub fn shared_fence<Q: ?Sized + Eq>(&self, id: &Q) -> Option<SharedFence>
    where
        I: Borrow<Q>,
    {
        let lock = self.lock(id).filter(|_| !self.0.is_forked())?;
        (lock.granted.mode != Mode::Exclusive).then_some(SharedFence(lock.granted.fence))
    }

    /// Returns the indexes of the permits held of an id, from 0; empty unless it is held as slots.
    pub fn permits<Q: ?Sized + Eq>(&self, id: &Q) -> &[u32]
    where
        I: Borrow<Q>,
    {
        self.lock(id).map(|lock| &lock.granted.permits[..]).unwrap_or_default()
    }

    /// Returns how long the locks certainly last without another renewal, less the margin; `None` is until they are released.
    pub fn time_left(&self) -> Option<Duration> {
        match &self.0.lease {
            _ if self.0.is_released() || self.0.is_lost() => Some(Duration::ZERO),
            lease => lease.as_ref().map(|lease| lease.left_to_run()),
        }
    }

    /// Checks whether the locks are still held, as far as can be known here without asking the store. In a forked child they are
    /// not ([`LossReason::Forked`]).
    ///
    /// # Errors
    /// [`LockLost`] with what was lost, and why.
    pub fn check(&self) -> Result<(), LockLost<I>> {
        match self.gone() {
            lost if lost.is_empty() => Ok(()),
            lost => Err(LockLost { lost }),
        }
    }

    /// Waits until the lease has its whole length.
    ///
    /// A lock that was waited for may be handed over with a short lease ([`OFFER`](crate::protocol::OFFER)), which a renewal
    /// extends some 20 ms later, or as soon as this is called. Await it before work that must not be stopped after so short a
    /// time because the store did not answer. Returns at once for a lock that was granted without waiting.
    ///
    /// # Errors
    /// [`LockLost`] if locks were lost or released before.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn confirmed(&self) -> Result<(), LockLost<I>> {
        loop {
            let news = self.0.news.notified();
            let mut news = std::pin::pin!(news);
            news.as_mut().enable();
            self.check()?;
            let Some(lease) = self.0.lease.as_ref().filter(|lease| !lease.is_whole()) else { return Ok(()) };
            if let Some((keeper, key)) = lease.confirms.get() {
                keeper.hasten(*key, Duration::ZERO);
            }
            news.await;
        }
    }

    /// Waits until locks are lost, or released; for ever if that does not happen. For callbacks that are notified instead of stopped,
    /// see [`Call::tell_when_lost`](crate::Call::tell_when_lost).
    ///
    /// If only a part of the set is lost, the rest goes on being renewed, until it is released or lost too. A lease that
    /// ended while the machine was suspended is reported within about a second after it resumes.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> Vec<LostLock<I>> {
        loop {
            let news = self.0.news.notified();
            let mut news = std::pin::pin!(news);
            news.as_mut().enable();
            match self.gone() {
                lost if lost.is_empty() => news.await,
                lost => return lost,
            }
        }
    }

    fn gone(&self) -> Vec<LostLock<I>> {
        // Once released, the clock shows no loss any more.
        let is_released = self.0.is_released();
        if !is_released && !self.0.is_lost() {
            return Vec::new();
        }
        match self.0.known_lost() {
            lost if lost.is_empty() => {
                self.locks().iter().map(|lock| lock.lost(LossReason::Released)).collect()
            }
            lost => lost,
        }
    }
}

impl<I: Ident, C: ContextId> Clone for Held<I, C> {
    fn clone(&self) -> Self {
        Held(self.0.clone())
    }
}

impl<I: Ident, C: ContextId> fmt::Debug for Held<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("context", self.context())
            .field("locks", &self.locks())
            .field("time_left", &self.time_left())
            .finish()
    }
}
