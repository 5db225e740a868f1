//! Which contexts a service has open, counted so that threads do not disturb each other.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
};

use slab::Slab;
use tokio::sync::Notify;

const STRIPES: usize = 16;

/// The contexts of the open holds; can be closed and then waited for.
///
/// Invariant G1: `enter` looks at `closing` under the lock of its stripe, and `close` sets it before anybody counts. So
/// whoever entered without being refused is in every later count, and once it is closed the count only falls.
///
/// Invariant G2: a context that may repeat is looked for in all stripes under `given`. Fresh ones need no look: they
/// are unlike any other.
#[derive(Debug)]
pub(crate) struct Gauge<C> {
    stripes: [Stripe<C>; STRIPES],
    given: Mutex<()>,
    closing: AtomicBool,
    left: Notify,
}

/// One part of the contexts, alone on its cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Stripe<C>(Mutex<Slab<C>>);

/// Where an open context is remembered.
#[derive(Debug)]
pub(crate) struct Ticket {
    stripe: u32,
    key: u32,
}

/// Why a context was not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    Closed,
    InUse,
}

impl<C: Clone + PartialEq> Gauge<C> {
    pub(crate) fn new() -> Self {
        Gauge {
            stripes: std::array::from_fn(|_| Stripe(Mutex::new(Slab::new()))),
            given: Mutex::new(()),
            closing: AtomicBool::new(false),
            left: Notify::new(),
        }
    }

    /// Remembers one more open context, unless it is closed or, if `may_repeat`, the context is there already.
    pub(crate) fn enter(&self, context: &C, may_repeat: bool) -> Result<Ticket, Refused> {
        let _alone = may_repeat.then(|| lock(&self.given));
        // G2
        if may_repeat
            && self.stripes.iter().any(|stripe| lock(&stripe.0).iter().any(|(_, open)| open == context))
        {
            return Err(Refused::InUse);
        }
        let stripe = mine();
        let mut open = lock(&self.stripes[stripe].0);
        // G1
        if self.closing.load(SeqCst) {
            return Err(Refused::Closed);
        }
        let key = u32::try_from(open.insert(context.clone())).expect("fewer open contexts than addresses");
        Ok(Ticket { stripe: stripe as u32, key })
    }

    /// Forgets it.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let context = lock(&self.stripes[ticket.stripe as usize].0).remove(ticket.key as usize);
        // Out of the lock: it is the user's type.
        drop(context);
        if self.closing.load(SeqCst) {
            self.left.notify_waiters();
        }
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, SeqCst);
    }

    /// How many are open; exact once the gauge is closed and at rest.
    pub(crate) fn count(&self) -> usize {
        self.stripes.iter().map(|stripe| lock(&stripe.0).len()).sum()
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stripe of this thread.
fn mine() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Relaxed) % STRIPES;
    }
    // A thread that is ending has no locals any more; any stripe is right.
    MINE.try_with(|mine| *mine).unwrap_or(0)
}
