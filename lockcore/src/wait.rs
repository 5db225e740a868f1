//! The patience of a call: how long and in what manner it waits for locks that others hold.

use std::{fmt, sync::Arc, time::Duration};

/// The patience of a call for locks that others hold. The default is [`Wait::never`].
///
/// A call that waits also outlasts a store that is away, starts, fails over or takes no writes for a while:
/// [`BackendError::is_retryable`](crate::BackendError::is_retryable). Any other failure ends it at once.
///
/// ```
/// use lockcore::{Exponential, LockingService, Wait};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
///
/// // In the queue, served in order of arrival.
/// locks.wait(Wait::up_to(Duration::from_secs(5))).run_locked(["a"], async || ()).await?;
///
/// // Without a place in the queue.
/// let backoff = Exponential { base: Duration::from_millis(50), max: Duration::from_secs(2) };
/// locks.wait(Wait::retries(5, backoff)).run_locked(["a"], async || ()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Wait(pub(crate) Strategy);

#[derive(Clone, Default)]
pub(crate) enum Strategy {
    #[default]
    Never,
    /// In the backend's queue where it has one, else by asking again; `None` is for ever.
    Queue { limit: Option<Duration> },
    /// By asking again, without a place in the queue; `None` is for ever.
    Retry { retries: Option<u32>, backoff: Arc<dyn Backoff> },
}

impl Wait {
    /// Does not wait: a set that is not free is refused at once. Only a request whose connection turns out to have ended, as while
    /// it was idle, is sent again, once.
    pub fn never() -> Self {
        Wait(Strategy::Never)
    }

    /// Waits for at most this long from the call on, in order of arrival where the backend has a queue. Zero is the same
    /// as [`Wait::never`].
    ///
    /// The call may return up to a second later: a waiter whose time is over leaves the queue and waits that long for the
    /// store's answer, which may be that the set is held by now.
    pub fn up_to(limit: Duration) -> Self {
        match limit {
            Duration::ZERO => Wait::never(),
            limit => Wait(Strategy::Queue { limit: Some(limit) }),
        }
    }

    /// Waits until the set is locked, in order of arrival where the backend has a queue.
    pub fn forever() -> Self {
        Wait(Strategy::Queue { limit: None })
    }

    /// Tries once and then at most `retries` times more, without a place in the queue: waiters that have one come first. Zero
    /// retries tries once.
    pub fn retries(retries: u32, backoff: impl Backoff + 'static) -> Self {
        Wait(Strategy::Retry { retries: Some(retries), backoff: Arc::new(backoff) })
    }

    /// Tries until the set is locked, without a place in the queue.
    pub fn retries_forever(backoff: impl Backoff + 'static) -> Self {
        Wait(Strategy::Retry { retries: None, backoff: Arc::new(backoff) })
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Strategy::Never => f.write_str("never"),
            Strategy::Queue { limit: Some(limit) } => write!(f, "up to {limit:?}"),
            Strategy::Queue { limit: None } => f.write_str("for ever"),
            Strategy::Retry { retries: Some(retries), .. } => write!(f, "{retries} retries"),
            Strategy::Retry { retries: None, .. } => f.write_str("retries for ever"),
        }
    }
}

/// The pauses between tries. Any `Fn(u32) -> Duration` is one. It is asked on the thread of the call; on one made for that in
/// a call of the [blocking service](crate::blocking) inside a runtime, without the caller's thread-locals.
pub trait Backoff: Send + Sync {
    /// Returns the pause after the try number `attempt`, which counts from 0.
    fn delay(&self, attempt: u32) -> Duration;
}

impl<F: Fn(u32) -> Duration + Send + Sync> Backoff for F {
    fn delay(&self, attempt: u32) -> Duration {
        self(attempt)
    }
}

/// Pauses of `every` plus a random part of `jitter`: evenly spread over `every ..= every + jitter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// The shortest pause.
    pub every: Duration,
    /// The most that is added to it at random.
    pub jitter: Duration,
}

impl Backoff for Interval {
    fn delay(&self, _attempt: u32) -> Duration {
        self.every.saturating_add(self.jitter.mul_f64(fastrand::f64()))
    }
}

/// Pauses that double from `base` up to `max`, each spread evenly over its upper half ("equal jitter", Marc Brooker,
/// "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exponential {
    /// The first pause at the most.
    pub base: Duration,
    /// Every pause at the most.
    pub max: Duration,
}

impl Backoff for Exponential {
    fn delay(&self, attempt: u32) -> Duration {
        let doubled = self.base.saturating_mul(2_u32.saturating_pow(attempt)).min(self.max);
        doubled.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_within_their_bounds() {
        let (second, max) = (Duration::from_secs(1), Duration::from_secs(60));
        for attempt in (0..40).chain([u32::MAX]) {
            let interval = Interval { every: second, jitter: second }.delay(attempt);
            assert!((second..=2 * second).contains(&interval), "{interval:?}");
            let exponential = Exponential { base: second, max }.delay(attempt);
            let full = second.saturating_mul(2_u32.saturating_pow(attempt)).min(max);
            assert!((full / 2..=full).contains(&exponential), "{exponential:?} at {attempt}");
        }
    }
}
