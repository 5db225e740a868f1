//! The clock of a store that tells no time but when something was written.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{
    BackendError,
    backend::{Moment, ServiceClock, ServiceTime},
};

/// The store is asked again after this time: a step of its clock is then known well within the shortest lease, also where the answer
/// takes long.
const FRESH: Duration = Duration::from_secs(3);

/// The time of a store by the modification times of what a process writes there: an interval, narrowed by each answer. For an adapter
/// whose store says nothing else of the time.
#[derive(Debug, Default)]
pub struct ModifiedClock {
    clock: ServiceClock,
    /// The moment of the last question.
    asked: Mutex<Option<Moment>>,
}

impl ModifiedClock {
    /// Returns the store's time by the answers so far; `None` before the first one.
    pub fn known(&self) -> Option<ServiceTime> {
        self.clock.now()
    }

    /// Returns the store's time; asks for it if that was not done within the last three seconds, or if the bounds are wide. `ask` writes
    /// something and returns when that was modified, in seconds since 1970, rounded down, and the moment at which it knew that. One
    /// caller asks, and others go on with what is known.
    ///
    /// # Errors
    /// Those of `ask`.
    ///
    /// # Panics
    /// Never: there is a time after an answer.
    pub async fn now<F>(&self, ask: impl FnOnce() -> F) -> Result<ServiceTime, BackendError>
    where
        F: Future<Output = Result<(u64, Moment), BackendError>>,
    {
        let before = {
            let mut asked = self.asked();
            let is_fresh = asked.is_some_and(|asked| Moment::now().since(&asked) < FRESH);
            if let Some(now) = self.known().filter(|now| is_fresh && !now.is_wide()) {
                return Ok(now);
            }
            asked.replace(Moment::now())
        };
        let sent = Moment::now();
        match ask().await {
            Ok((modified, received)) => self.clock.sample(sent, received, modified),
            Err(error) => {
                *self.asked() = before;
                return Err(error);
            }
        }
        Ok(self.known().expect("there was an answer"))
    }

    /// Returns a fence that is at least the store's time, and above every other of this process.
    pub fn fence(&self, now: ServiceTime) -> u64 {
        self.clock.fence(now, 0)
    }

    fn asked(&self) -> MutexGuard<'_, Option<Moment>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
