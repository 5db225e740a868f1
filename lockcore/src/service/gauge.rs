//! How many locks a service has open, counted so that threads do not disturb each other.

use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::SeqCst};

use tokio::sync::Notify;

const STRIPES: usize = 16;

/// A count of open holds that can be closed and then waited for.
///
/// Invariant G1: `enter` counts before it looks at `closing`, `close` sets `closing` before anybody sums
/// (both sequentially consistent). So whoever entered without being refused is in every later sum.
///
/// Invariant G2: once `closing` is set, the true count only falls but for entries that are refused and
/// taken back on the same stripe; a sum of stripes read one after the other is then never too low.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    stripes: [Stripe; STRIPES],
    closing: AtomicBool,
    left: Notify,
}

/// One part of the count, alone on its cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicIsize);

impl Gauge {
    /// Counts one more; `false`, and nothing counted, once it is closed.
    pub(crate) fn enter(&self) -> bool {
        self.stripe().fetch_add(1, SeqCst);
        let open = !self.closing.load(SeqCst);
        if !open {
            self.leave();
        }
        open
    }

    /// Counts one less.
    pub(crate) fn leave(&self) {
        self.stripe().fetch_sub(1, SeqCst);
        if self.closing.load(SeqCst) {
            self.left.notify_waiters();
        }
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, SeqCst);
    }

    /// How many are open; exact once the gauge is closed and at rest.
    pub(crate) fn count(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.0.load(SeqCst)).sum::<isize>().max(0).unsigned_abs()
    }

    /// Waits until a closed gauge is empty.
    pub(crate) async fn emptied(&self) {
        loop {
            let left = self.left.notified();
            let mut left = std::pin::pin!(left);
            left.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            left.await;
        }
    }

    fn stripe(&self) -> &AtomicIsize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, SeqCst) % STRIPES;
        }
        // A thread that is ending has no locals any more; any stripe is right.
        &self.stripes[MINE.try_with(|mine| *mine).unwrap_or(0)].0
    }
}
