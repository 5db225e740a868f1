//! The contexts of a service's open holds.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use slab::Slab;
use tokio::sync::Notify;

use crate::ContextId;

/// Threads are spread over so many mutexes, so that they do not wait for each other.
const STRIPES: usize = 16;

/// The contexts of the open holds; can be closed and then waited for.
///
/// Invariant G1: a stripe is closed under its lock. So a context that entered is in every count after [`close`](Self::close),
/// and its leaving notifies.
///
/// Invariant G2: a context that may repeat is looked for in all stripes under `given`. Fresh contexts need no look: they are
/// unlike any other.
#[derive(Debug)]
pub(crate) struct Open<C> {
    stripes: [Aligned<C>; STRIPES],
    given: Mutex<()>,
    left: Notify,
}

/// A stripe with cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Aligned<C>(Mutex<Stripe<C>>);

#[derive(Debug)]
struct Stripe<C> {
    contexts: Slab<C>,
    closed: bool,
}

/// The place where an open context is stored.
#[derive(Debug)]
pub(crate) struct Ticket {
    stripe: usize,
    key: usize,
}

/// The reason why a context was not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    Closed,
    InUse,
}

impl<C: ContextId> Open<C> {
    pub(crate) fn new() -> Self {
        let stripe = |_| Aligned(Mutex::new(Stripe { contexts: Slab::new(), closed: false }));
        Open { stripes: std::array::from_fn(stripe), given: Mutex::new(()), left: Notify::new() }
    }

    /// Adds an open context, unless it is closed or, if `may_repeat`, the context is there already.
    pub(crate) fn enter(&self, context: &C, may_repeat: bool) -> Result<Ticket, Refused> {
        // Cloned outside of the locks, as it is dropped there: it is the user's type.
        let own = context.clone();
        let _alone = may_repeat.then(|| lock(&self.given));
        // G2
        if may_repeat && self.stripes().any(|stripe| stripe.contexts.iter().any(|(_, open)| open == context))
        {
            return Err(Refused::InUse);
        }
        let number = mine();
        let mut stripe = lock(&self.stripes[number].0);
        if stripe.closed {
            drop(stripe);
            return Err(Refused::Closed);
        }
        Ok(Ticket { stripe: number, key: stripe.contexts.insert(own) })
    }

    /// Removes it.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let mut stripe = lock(&self.stripes[ticket.stripe].0);
        let context = stripe.contexts.remove(ticket.key);
        let closed = stripe.closed;
        drop(stripe);
        drop(context);
        if closed {
            self.left.notify_waiters();
        }
    }

    pub(crate) fn close(&self) {
        self.stripes().for_each(|mut stripe| stripe.closed = true);
    }

    /// Returns how many are open.
    pub(crate) fn count(&self) -> usize {
        self.stripes().map(|stripe| stripe.contexts.len()).sum()
    }

    /// Waits until it is empty, after [`close`](Self::close).
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

    fn stripes(&self) -> impl Iterator<Item = MutexGuard<'_, Stripe<C>>> {
        self.stripes.iter().map(|stripe| lock(&stripe.0))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the stripe of this thread.
fn mine() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Relaxed) % STRIPES;
    }
    // A thread that is ending has no locals any more; any stripe is right.
    MINE.try_with(|mine| *mine).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_context_is_refused_until_it_leaves() {
        let open = Open::new();
        let mut tickets: Vec<_> =
            (0..24_u64).map(|context| open.enter(&context, false).expect("open")).collect();
        assert_eq!(open.count(), tickets.len());
        for context in 0..24 {
            assert_eq!(open.enter(&context, true).expect_err("refused"), Refused::InUse);
        }
        while let Some(ticket) = tickets.pop() {
            open.leave(ticket);
            let again = open.enter(&(tickets.len() as u64), true).expect("just left");
            assert_eq!(open.count(), tickets.len() + 1);
            open.leave(again);
        }
        assert_eq!(open.count(), 0);
    }

    #[tokio::test]
    async fn no_context_enters_what_is_closed_and_it_is_empty_once_all_have_left() {
        let open = Open::new();
        let tickets: Vec<_> = (0..24_u64).map(|context| open.enter(&context, false).expect("open")).collect();
        open.close();
        assert_eq!(open.enter(&1000, false).expect_err("refused"), Refused::Closed);
        assert_eq!(open.enter(&1001, true).expect_err("refused"), Refused::Closed);
        let leaving = async { tickets.into_iter().for_each(|ticket| open.leave(ticket)) };
        tokio::join!(open.emptied(), leaving);
        assert_eq!(open.count(), 0);
    }
}
