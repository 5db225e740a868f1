//! Adaptive spinning: polls for a reply for a moment before the task sleeps. Off unless it was asked for.
//!
//! A server on the same machine replies in half the time that it takes to put a thread to sleep and to wake it again. A request
//! that is alone on its connection therefore spins, and yields to other tasks of its runtime in between (Karlin, Li, Manasse
//! and Owicki, Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor, SOSP 1991: to spin for as long as
//! sleeping would cost is at most twice as expensive as the optimum).

use std::{
    future::poll_fn,
    pin::pin,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    task::Poll,
    time::{Duration, Instant},
};

/// The number of consecutive misses after which spinning is suspended.
const MISSES: u32 = 4;

/// While it is suspended, one request in this many spins, to find out whether replies have become faster.
const PROBE_INTERVAL: u32 = 64;

/// The spinning of one connection's requests. The counters are hints: concurrent requests may disturb them.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    /// Requests without a reply.
    pending: AtomicUsize,
    /// Requests since a reply came while its request was spinning.
    misses: AtomicU32,
}

impl Spin {
    /// Spins for at most `limit`; never if that is zero.
    pub(crate) fn new(limit: Duration) -> Self {
        Spin { limit, pending: AtomicUsize::new(0), misses: AtomicU32::new(0) }
    }

    /// Waits for the reply to a request, which is sent when it is first polled.
    pub(crate) async fn wait_for<T>(&self, reply: impl Future<Output = T>) -> T {
        if self.limit.is_zero() {
            return reply.await;
        }
        let mut reply = pin!(reply);
        let request = Pending::add(self);
        if request.is_alone && self.is_promising() {
            let begun = Instant::now();
            loop {
                if let Poll::Ready(reply) = poll_fn(|cx| Poll::Ready(reply.as_mut().poll(cx))).await {
                    self.misses.store(0, Relaxed);
                    return reply;
                }
                if self.pending.load(Relaxed) > 1 {
                    break; // other requests' tasks need the processor
                }
                if begun.elapsed() >= self.limit {
                    self.misses.fetch_add(1, Relaxed);
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        reply.await
    }

    fn is_promising(&self) -> bool {
        let misses = self.misses.load(Relaxed);
        let promising = misses < MISSES || misses.is_multiple_of(PROBE_INTERVAL);
        if !promising {
            self.misses.fetch_add(1, Relaxed);
        }
        promising
    }
}

/// A request without a reply, until this is dropped.
struct Pending<'e> {
    spin: &'e Spin,
    is_alone: bool,
}

impl<'e> Pending<'e> {
    fn add(spin: &'e Spin) -> Self {
        Pending { is_alone: spin.pending.fetch_add(1, Relaxed) == 0, spin }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.spin.pending.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::Arc,
        task::{Context, Wake, Waker},
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Whether a task without a reply is polled again although it was not woken.
    fn spins(request: impl Future<Output = ()>) -> bool {
        let woken = Arc::new(Woken::default());
        let polled = pin!(request).poll(&mut Context::from_waker(&Waker::from(woken.clone())));
        assert_eq!(polled, Poll::Pending);
        woken.0.load(Relaxed) == 1
    }

    #[test]
    fn a_request_that_is_alone_spins() {
        let spin = Spin::new(LONG);
        assert!(spins(spin.wait_for(pending())));
        let other = Pending::add(&spin);
        assert!(!spins(spin.wait_for(pending())));
        drop(other);
        assert!(spins(spin.wait_for(pending())));
        assert!(!spins(Spin::new(Duration::ZERO).wait_for(pending())));
    }

    #[test]
    fn where_replies_are_late_only_one_request_in_many_spins() {
        let spin = Spin::new(LONG);
        let spins = |spin: &Spin| {
            let spins = spins(spin.wait_for(pending()));
            if spins {
                spin.misses.fetch_add(1, Relaxed); // as at the end of the limit
            }
            spins
        };
        let count = |spin: &Spin| (0..MISSES + 3 * PROBE_INTERVAL).filter(|_| spins(spin)).count();
        assert_eq!(count(&spin), MISSES as usize + 3);
        // One that comes in time.
        spin.misses.store(4 * PROBE_INTERVAL, Relaxed);
        assert!(pin!(spin.wait_for(ready(()))).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(spins(&spin) && spins(&spin));
    }

    #[tokio::test]
    async fn the_limit_ends_it() {
        let spin = Spin::new(Duration::from_nanos(1));
        let mut request = pin!(spin.wait_for(pending::<()>()));
        while spin.misses.load(Relaxed) == 0 {
            let polled = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
            assert_eq!(polled, Poll::Pending);
        }
    }
}
