//! Futures that are dropped at a poll of one's choice.

use std::{future::poll_fn, pin::pin, task::Poll};

/// Polls the future at most `polls` times, each time when it asks for it, then drops it. `None` if it had
/// not ended by then.
pub(crate) async fn dropped_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
