//! The sweep: removes expired entries that no request has replaced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{Inner, observe::Event};
use crate::{BadRequest, ContextId, Ident, LockDao, background};

/// The interval and the size of sweeps, and whether the sweeper runs.
#[derive(Debug)]
pub(crate) struct Sweeper {
    every: Option<Duration>,
    batch: usize,
    started: AtomicBool,
}

impl Default for Sweeper {
    fn default() -> Self {
        Sweeper { every: Some(Duration::from_secs(300)), batch: 100, started: AtomicBool::new(false) }
    }
}

impl Sweeper {
    pub(crate) fn configure(&mut self, every: Option<Duration>, batch: usize) {
        (self.every, self.batch) = (every, batch);
    }

    pub(crate) fn check(&self) -> Result<(), BadRequest> {
        let bad = |field, value: String, expected| Err(BadRequest::out_of_bounds(field, value, expected));
        match self.every {
            Some(every) if !(Duration::from_millis(10)..=super::settings::MAX_LEASE).contains(&every) => {
                bad("sweep.every", format!("{every:?}"), "it must be from 10ms to 365 days")
            }
            Some(_) if self.batch == 0 => bad("sweep.batch", "0".to_owned(), "it must be at least 1"),
            _ => Ok(()),
        }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    /// Starts the background sweeper, once, on the first lock with a lease.
    pub(crate) fn start_sweeper(self: &Arc<Self>) {
        let Some(every) = self.sweeper.every else { return };
        if !self.capabilities.sweeping
            || self.sweeper.started.load(Relaxed)
            || self.sweeper.started.swap(true, Relaxed)
        {
            return;
        }
        let service = Arc::downgrade(self);
        background::lasting().spawn(async move {
            loop {
                // Spread, so that processes started together do not ask together.
                tokio::time::sleep(every.mul_f64(0.9 + fastrand::f64() / 5.0)).await;
                let Some(service) = service.upgrade() else { return };
                service.sweep_all(every).await;
            }
        });
    }

    async fn sweep_all(&self, every: Duration) {
        let mut unless_within = Some(every / 2);
        loop {
            let Ok(dao) = self.dao() else { return };
            match dao.sweep(self.sweeper.batch, unless_within).await {
                Ok(swept) if swept.more => unless_within = None,
                Ok(_) => return,
                Err(error) => return self.observe_owned(error, |error| Event::SweepFailed { error }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_a_hundred_every_five_minutes() {
        let Sweeper { every, batch, .. } = Sweeper::default();
        assert_eq!((every, batch), (Some(Duration::from_secs(5 * 60)), 100));
    }
}
