//! How a backend tells a waiter that its turn has come.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use crate::{Offer, clock::Moment};

/// What a waiter is told.
#[derive(Debug)]
pub enum Wake {
    /// The set was granted to it: it holds the locks as of now.
    Offer(Offer),
    /// Something may have changed: ask again with the same attempt.
    Recheck,
}

/// The backend's end: tells one waiter, once. Dropping it tells the waiter to ask again.
#[derive(Debug)]
pub struct WakeSender(oneshot::Sender<(Wake, Option<Moment>)>);

impl WakeSender {
    /// Tells the waiter. Gives the message back if the waiter is gone: an offer must then be passed on,
    /// or left to the withdrawal that a vanishing waiter makes.
    ///
    /// # Errors
    /// The message itself.
    pub fn send(self, wake: Wake) -> Result<(), Wake> {
        // What is left of an offer counts from here, however late the waiter looks.
        let sent = match &wake {
            Wake::Offer(Offer { remaining: Some(_), .. }) => Some(Moment::now()),
            _ => None,
        };
        self.0.send((wake, sent)).map_err(|(wake, _)| wake)
    }

    /// Whether the waiter no longer listens.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// The waiter's end. Dropping it does not give up the place in the queue: that is
/// [`LockDao::withdraw`](crate::LockDao::withdraw).
#[derive(Debug)]
pub struct Wakeup(Option<oneshot::Receiver<(Wake, Option<Moment>)>>);

impl Wakeup {
    /// A pair of ends.
    pub fn channel() -> (WakeSender, Wakeup) {
        let (sender, receiver) = oneshot::channel();
        (WakeSender(sender), Wakeup(Some(receiver)))
    }

    /// One that never wakes: the waiter has to ask again by itself.
    pub fn never() -> Self {
        Wakeup(None)
    }

    /// Waits for the message. A sender that was dropped counts as [`Wake::Recheck`]; after the message
    /// it waits for ever.
    ///
    /// # Cancel safety
    /// Safe: a message that was not returned is returned by the next call.
    pub async fn recv(&mut self) -> Wake {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Wake> {
        let Some(receiver) = &mut self.0 else {
            return Poll::Pending;
        };
        let answer = std::task::ready!(Future::poll(Pin::new(receiver), cx));
        self.0 = None;
        Poll::Ready(match answer {
            Ok((Wake::Offer(Offer { granted, remaining: Some(remaining) }), Some(sent))) => {
                Wake::Offer(Offer { granted, remaining: Some(sent.left_of(remaining)) })
            }
            Ok((wake, _)) => wake,
            Err(_dropped) => Wake::Recheck,
        })
    }
}
