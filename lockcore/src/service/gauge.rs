//! Which contexts a service has open, counted so that threads do not disturb each other.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, Release, SeqCst},
        },
    },
    time::Duration,
};

use slab::Slab;
use tokio::sync::Notify;

use crate::{ContextId, clock::within};

const STRIPES: usize = 16;

/// How many contexts of a stripe are kept without a lock: what fits into a cache line.
const SEATS: usize = 8;

/// How long the last one can have left before that is noticed, if it did not tell.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The contexts of the open holds; can be closed and then waited for.
///
/// Invariant G1: `enter` remembers the context before it looks at `closing`, and `close` sets that before anybody counts,
/// both in the one order of `SeqCst`, or under the stripe's lock. So whoever entered without being refused is in every later
/// count; who is refused leaves again, and tells so.
///
/// Invariant G2: a context that may repeat is looked for in all stripes under `given`. Fresh ones need no look: they
/// are unlike any other.
///
/// Invariant G3: a seat is left without a barrier, so that its leaver may miss that the gauge was just closed and tell
/// nobody. Whoever waits for the last one therefore looks again after a moment.
#[derive(Debug)]
pub(crate) struct Gauge<C> {
    stripes: [Stripe<C>; STRIPES],
    given: Mutex<()>,
    closing: AtomicBool,
    left: Notify,
}

/// One part of the contexts, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Stripe<C> {
    /// Marks of contexts, 0 where there is none. Two contexts have the same mark once in 2^64 times: then one that is
    /// given is refused though it is not in use.
    seats: [AtomicU64; SEATS],
    /// Those who found no seat.
    standing: Mutex<Slab<C>>,
}

/// Where an open context is remembered.
#[derive(Debug)]
pub(crate) struct Ticket {
    stripe: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Seat(usize),
    Standing(usize),
}

/// Why a context was not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    Closed,
    InUse,
}

impl<C: ContextId> Gauge<C> {
    pub(crate) fn new() -> Self {
        let stripe = |_| Stripe { seats: Default::default(), standing: Mutex::new(Slab::new()) };
        Gauge {
            stripes: std::array::from_fn(stripe),
            given: Mutex::new(()),
            closing: AtomicBool::new(false),
            left: Notify::new(),
        }
    }

    /// Remembers one more open context, unless it is closed or, if `may_repeat`, the context is there already.
    pub(crate) fn enter(&self, context: &C, may_repeat: bool) -> Result<Ticket, Refused> {
        let mark = context.mark().max(1);
        let _alone = may_repeat.then(|| lock(&self.given));
        // G2
        if may_repeat && self.stripes.iter().any(|stripe| stripe.has(context, mark)) {
            return Err(Refused::InUse);
        }
        let number = mine();
        let stripe = &self.stripes[number];
        let take = |seat: &AtomicU64| {
            seat.load(Relaxed) == 0 && seat.compare_exchange(0, mark, SeqCst, Relaxed).is_ok()
        };
        let place = match stripe.seats.iter().position(take) {
            Some(seat) => Place::Seat(seat),
            None => Place::Standing(lock(&stripe.standing).insert(context.clone())),
        };
        let ticket = Ticket { stripe: number, place };
        // G1
        if self.closing.load(SeqCst) {
            self.leave(ticket);
            return Err(Refused::Closed);
        }
        Ok(ticket)
    }

    /// Forgets it.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let stripe = &self.stripes[ticket.stripe];
        match ticket.place {
            Place::Seat(seat) => stripe.seats[seat].store(0, Release),
            Place::Standing(key) => {
                let context = lock(&stripe.standing).remove(key);
                // Out of the lock: it is the user's type.
                drop(context);
            }
        }
        if self.closing.load(SeqCst) {
            self.left.notify_waiters();
        }
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, SeqCst);
    }

    /// How many are open; exact once the gauge is closed and at rest.
    pub(crate) fn count(&self) -> usize {
        let seated = |stripe: &Stripe<C>| stripe.seats.iter().filter(|seat| seat.load(SeqCst) != 0).count();
        self.stripes.iter().map(|stripe| seated(stripe) + lock(&stripe.standing).len()).sum()
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
            within(LOOK_AGAIN, left).await; // G3
        }
    }
}

impl<C: Eq> Stripe<C> {
    fn has(&self, context: &C, mark: u64) -> bool {
        self.seats.iter().any(|seat| seat.load(SeqCst) == mark)
            || lock(&self.standing).iter().any(|(_, open)| open == context)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_known_wherever_it_is_kept() {
        let gauge = Gauge::new();
        let enter = |context: u64| gauge.enter(&context, false).expect("open");
        let mut tickets: Vec<_> = (0..3 * SEATS as u64).map(enter).collect();
        assert_eq!(gauge.count(), tickets.len());
        for context in 0..3 * SEATS as u64 {
            assert_eq!(gauge.enter(&context, true).expect_err("refused"), Refused::InUse);
        }
        while let Some(ticket) = tickets.pop() {
            gauge.leave(ticket);
            let again = gauge.enter(&(tickets.len() as u64), true).expect("just left");
            assert_eq!(gauge.count(), tickets.len() + 1);
            gauge.leave(again);
        }
        assert_eq!(gauge.count(), 0);
    }

    #[tokio::test]
    async fn nobody_enters_a_closed_gauge_and_it_is_empty_once_all_have_left() {
        let gauge = Gauge::new();
        let tickets: Vec<_> =
            (0..3 * SEATS as u64).map(|context| gauge.enter(&context, false).expect("open")).collect();
        gauge.close();
        assert_eq!(gauge.enter(&1000, false).expect_err("refused"), Refused::Closed);
        assert_eq!(gauge.enter(&1001, true).expect_err("refused"), Refused::Closed);
        let leaving = async { tickets.into_iter().for_each(|ticket| gauge.leave(ticket)) };
        tokio::join!(gauge.emptied(), leaving);
        assert_eq!(gauge.count(), 0);
    }
}
