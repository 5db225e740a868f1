//! Looking for an answer for a moment before going to sleep.
//!
//! A server on the same machine answers in half the time that it takes to put a thread to sleep and to wake it again, which
//! costs about as much of the processor as looking does. So whoever is alone on a connection looks a few times, and lets
//! other tasks of its runtime run in between; a mutex that spins before it sleeps does the same (Karlin, Li, Manasse and
//! Owicki, Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor, SOSP 1991: looking for as long as
//! the sleep would cost is never twice as bad as knowing).

use std::{
    future::poll_fn,
    pin::pin,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    task::Poll,
    time::{Duration, Instant},
};

/// After so many looks in vain in a row the server is too far away,
const FEW: u32 = 4;

/// and only one request of so many looks whether it still is.
const SELDOM: u32 = 64;

/// What is known of one connection's answers. Only a hint: requests may count each other wrongly.
#[derive(Debug)]
pub(crate) struct Eager {
    limit: Duration,
    /// Requests without an answer.
    under_way: AtomicUsize,
    /// Requests since an answer came while it was looked for.
    in_vain: AtomicU32,
}

impl Eager {
    /// Looks for `limit` at most; not at all if that is zero.
    pub(crate) fn new(limit: Duration) -> Self {
        Eager { limit, under_way: AtomicUsize::new(0), in_vain: AtomicU32::new(0) }
    }

    /// The answer to a request, which is sent when it is first polled.
    pub(crate) async fn wait_for<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        let request = UnderWay::add(self);
        if request.is_alone && self.is_promising() {
            let begun = Instant::now();
            loop {
                if let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await {
                    self.in_vain.store(0, Relaxed);
                    return answer;
                }
                if self.under_way.load(Relaxed) > 1 {
                    break; // the others' looks would cost time of ours
                }
                if begun.elapsed() >= self.limit {
                    self.in_vain.fetch_add(1, Relaxed);
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        answer.await
    }

    fn is_promising(&self) -> bool {
        if self.limit.is_zero() {
            return false;
        }
        let in_vain = self.in_vain.load(Relaxed);
        let promising = in_vain < FEW || in_vain.is_multiple_of(SELDOM);
        if !promising {
            self.in_vain.fetch_add(1, Relaxed);
        }
        promising
    }
}

/// A request that is under way until this is dropped.
struct UnderWay<'e> {
    eager: &'e Eager,
    is_alone: bool,
}

impl<'e> UnderWay<'e> {
    fn add(eager: &'e Eager) -> Self {
        UnderWay { is_alone: eager.under_way.fetch_add(1, Relaxed) == 0, eager }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.eager.under_way.fetch_sub(1, Relaxed);
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

    /// Whether a task that has asked and got no answer yet looks again though nobody wakes it.
    fn looks_again(request: impl Future<Output = ()>) -> bool {
        let woken = Arc::new(Woken::default());
        let polled = pin!(request).poll(&mut Context::from_waker(&Waker::from(woken.clone())));
        assert_eq!(polled, Poll::Pending);
        woken.0.load(Relaxed) == 1
    }

    #[test]
    fn who_is_alone_looks_again() {
        let eager = Eager::new(LONG);
        assert!(looks_again(eager.wait_for(pending())));
        let other = UnderWay::add(&eager);
        assert!(!looks_again(eager.wait_for(pending())));
        drop(other);
        assert!(looks_again(eager.wait_for(pending())));
        assert!(!looks_again(Eager::new(Duration::ZERO).wait_for(pending())));
    }

    #[test]
    fn where_answers_come_late_only_one_in_many_looks() {
        let eager = Eager::new(LONG);
        let looks = |eager: &Eager| {
            let looks = looks_again(eager.wait_for(pending()));
            if looks {
                eager.in_vain.fetch_add(1, Relaxed); // as at the end of the limit
            }
            looks
        };
        let count = |eager: &Eager| (0..FEW + 3 * SELDOM).filter(|_| looks(eager)).count();
        assert_eq!(count(&eager), FEW as usize + 3);
        // One that comes in time.
        eager.in_vain.store(4 * SELDOM, Relaxed);
        assert!(pin!(eager.wait_for(ready(()))).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(looks(&eager) && looks(&eager));
    }

    #[tokio::test]
    async fn the_limit_ends_it() {
        let eager = Eager::new(Duration::from_nanos(1));
        let mut request = pin!(eager.wait_for(pending::<()>()));
        while eager.in_vain.load(Relaxed) == 0 {
            let polled = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
            assert_eq!(polled, Poll::Pending);
        }
    }
}
