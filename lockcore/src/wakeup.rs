//! Wakeups, by which a backend notifies a waiter of its turn.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use crate::{Offer, clock::Moment};

/// The message that a waiter is woken with.
#[derive(Debug)]
pub enum Wake {
    /// The set was granted to it: it holds the locks as of now.
    Offer(Offer),
    /// Something may have changed: ask again with the same attempt.
    Recheck,
}

/// The backend's end: notifies one waiter, once. Dropping it makes the waiter ask again.
#[derive(Debug)]
pub struct WakeSender(oneshot::Sender<(Wake, Option<Moment>)>);

impl WakeSender {
    /// Wakes the waiter. What is left of an offer counts from here: if time may have passed since it was worked
    /// out, use [`send_as_of`](Self::send_as_of).
    ///
    /// Gives the message back if the waiter is gone: an offer must then be passed on, or left to the withdrawal that
    /// a vanishing waiter makes.
    ///
    /// # Errors
    /// The message itself.
    pub fn send(self, wake: Wake) -> Result<(), Wake> {
        // A message without a limit needs no look at the clock.
        let is_limited = matches!(wake, Wake::Offer(Offer { remaining: Some(_), .. }));
        self.0.send((wake, is_limited.then(Moment::now))).map_err(|(wake, _)| wake)
    }

    /// Does the same for an offer of which [`remaining`](Offer::remaining) was left at the moment `as_of`. Take that moment
    /// before the store's time is read from which you work out what is left: a process that is stopped anywhere between the
    /// two, or before the waiter looks, then believes the offer to end too early, and never too late.
    ///
    /// # Errors
    /// The message itself.
    pub fn send_as_of(self, wake: Wake, as_of: Moment) -> Result<(), Wake> {
        self.0.send((wake, Some(as_of))).map_err(|(wake, _)| wake)
    }

    /// Returns whether the waiter no longer listens.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// The waiter's end. Dropping it does not give up the place in the queue: that is
/// [`LockDao::withdraw`](crate::LockDao::withdraw).
#[derive(Debug)]
pub struct Wakeup(Option<oneshot::Receiver<(Wake, Option<Moment>)>>);

impl Wakeup {
    /// Creates a pair of ends.
    pub fn channel() -> (WakeSender, Wakeup) {
        let (sender, receiver) = oneshot::channel();
        (WakeSender(sender), Wakeup(Some(receiver)))
    }

    /// Creates one that never wakes: the waiter has to ask again by itself.
    pub fn never() -> Self {
        Wakeup(None)
    }

    /// Waits for the message. A sender that was dropped counts as [`Wake::Recheck`]; after the message
    /// it waits for ever. The time that has passed since the message was sent is deducted from what is left of an offer.
    ///
    /// # Cancel safety
    /// Safe: a message that was not returned is returned by the next call.
    pub async fn recv(&mut self) -> Wake {
        let (mut wake, as_of) = self.recv_as_of().await;
        if let (Wake::Offer(Offer { remaining: Some(remaining), .. }), Some(as_of)) = (&mut wake, as_of) {
            *remaining = as_of.left_of(*remaining);
        }
        wake
    }

    /// Waits for the message. Returns it with what is left as the backend said it, and the moment from which that
    /// counts: a deadline made of these two is never too late, however much later it is made. An offer of which
    /// something is left has one.
    pub(crate) async fn recv_as_of(&mut self) -> (Wake, Option<Moment>) {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<(Wake, Option<Moment>)> {
        let Some(receiver) = &mut self.0 else {
            return Poll::Pending;
        };
        let answer = std::task::ready!(Future::poll(Pin::new(receiver), cx));
        self.0 = None;
        Poll::Ready(answer.unwrap_or((Wake::Recheck, None)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::stops;

    #[tokio::test]
    async fn what_is_left_of_an_offer_counts_from_before_it_was_worked_out() {
        let (sender, mut wakeup) = Wakeup::channel();
        let as_of = Moment::now();
        stops::after_each_look(Duration::from_secs(3));
        let worked_out_at = Moment::now();
        let remaining = Some(Duration::from_secs(10));
        let offer = Offer { granted: Vec::new(), remaining };
        sender.send_as_of(Wake::Offer(offer), as_of).expect("it listens");
        let Wake::Offer(offer) = wakeup.recv().await else { panic!("it is an offer") };
        assert!(offer.remaining <= Some(Duration::from_secs(7)), "{offer:?} as of {worked_out_at:?}");
    }
}
