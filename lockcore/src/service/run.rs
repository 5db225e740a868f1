//! Running a callback while a set is held: stopped when the locks are lost, released on every way out.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Sleep;

use super::{hold::Hold, hold_core::HoldCore, nesting};
use crate::{ContextId, Ident, LockDao, LockError, LockingError, LostLock, clock};

/// The end of a call whose set was locked: with the callback's value even if locks were lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended<T, I> {
    /// The callback's value; `None` if it was stopped because locks were lost.
    pub value: Option<T>,
    /// The locks that were lost while it ran, and why; empty if all went well.
    pub lost: Vec<LostLock<I>>,
}

impl<T, E, I> Ended<Result<T, E>, I> {
    /// The plain result: a loss is an error, whatever the callback gave.
    pub(crate) fn into_result<C>(self) -> Result<T, LockingError<I, C, E>> {
        match self.value {
            Some(Ok(value)) if self.lost.is_empty() => Ok(value),
            Some(Err(error)) if self.lost.is_empty() => Err(LockingError::Callback { error }),
            value => {
                Err(LockingError::Lost { lost: self.lost, callback: value.map(|result| result.map(drop)) })
            }
        }
    }
}

/// The reason why a callback ended.
pub(crate) enum End<T> {
    Done(T),
    /// Locks were lost, so that it was stopped or not begun.
    Lost,
    TooLong(Duration),
    Panicked(Box<dyn Any + Send>),
}

impl<T> End<T> {
    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U) -> End<U> {
        match self {
            End::Done(value) => End::Done(map(value)),
            End::Lost => End::Lost,
            End::TooLong(max_hold) => End::TooLong(max_hold),
            End::Panicked(panic) => End::Panicked(panic),
        }
    }
}

impl<T, E> End<Result<T, E>> {
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, End::Done(Ok(_)))
    }
}

/// The limits at which a callback is stopped, whatever happens to its locks.
pub(crate) struct CallbackLimits {
    tell_when_lost: bool,
    max_hold: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl CallbackLimits {
    /// Both from now on.
    pub(crate) fn new(tell_when_lost: bool, max_hold: Option<Duration>) -> Self {
        let max_hold = max_hold.map(|max_hold| (max_hold, Box::pin(clock::sleep(max_hold))));
        CallbackLimits { tell_when_lost, max_hold }
    }
}

/// Makes the callback's future at the first poll, and polls it, unless it has to be stopped.
pub(crate) fn poll<I: Ident, C: ContextId, D: LockDao<I, C>, F, Fut>(
    hold: &Hold<'_, I, C, D>,
    bounds: &mut CallbackLimits,
    make: &mut Option<F>,
    mut future: Pin<&mut Option<Fut>>,
    cx: &mut Context<'_>,
) -> Poll<End<Fut::Output>>
where
    F: FnOnce(&Arc<HoldCore<I, C>>) -> Fut,
    Fut: Future,
{
    if let Some(lease) = &hold.core.lease
        && !bounds.tell_when_lost
    {
        // Registered before the look, so that a loss in between wakes.
        lease.task.register(cx.waker());
        if hold.core.is_lost() {
            return Poll::Ready(End::Lost);
        }
    }
    if let Some((max_hold, timer)) = &mut bounds.max_hold
        && timer.as_mut().poll(cx).is_ready()
    {
        return Poll::Ready(End::TooLong(*max_hold));
    }
    let polled = inside(hold, || {
        if let Some(make) = make.take() {
            future.set(Some(make(&hold.core)));
        }
        future.as_mut().as_pin_mut().expect("made at the first poll").poll(cx)
    });
    match polled {
        Ok(polled) => polled.map(End::Done),
        Err(panic) => Poll::Ready(End::Panicked(panic)),
    }
}

/// Runs plain code on this thread while the set is held.
pub(crate) fn call_sync<I: Ident, C: ContextId, D: LockDao<I, C>, T>(
    hold: &Hold<'_, I, C, D>,
    callback: impl FnOnce(&Arc<HoldCore<I, C>>) -> T,
) -> End<T> {
    if hold.core.is_lost() {
        return End::Lost;
    }
    match inside(hold, || callback(&hold.core)) {
        Ok(value) => End::Done(value),
        Err(panic) => End::Panicked(panic),
    }
}

/// Releases the set and gives the outcome, or lets the panic go on.
pub(crate) async fn finish<I: Ident, C: ContextId, D: LockDao<I, C>, T>(
    hold: &mut Hold<'_, I, C, D>,
    end: End<T>,
) -> Result<Ended<T, I>, LockError<I, C>> {
    let lost = hold.release().await;
    conclude(end, lost)
}

/// The outcome of what ended so, and was released, or its panic.
pub(crate) fn conclude<I, C, T>(end: End<T>, lost: Vec<LostLock<I>>) -> Result<Ended<T, I>, LockError<I, C>> {
    match end {
        End::Done(value) => Ok(Ended { value: Some(value), lost }),
        End::TooLong(max_hold) if lost.is_empty() => Err(LockingError::HeldTooLong { max_hold }),
        End::Lost | End::TooLong(_) => Ok(Ended { value: None, lost }),
        End::Panicked(panic) => resume_unwind(panic),
    }
}

/// Calls the user's code as inside the hold, and catches its panic so that the set is released before the panic
/// goes on.
fn inside<I: Ident, C: ContextId, D: LockDao<I, C>, T>(
    hold: &Hold<'_, I, C, D>,
    code: impl FnOnce() -> T,
) -> Result<T, Box<dyn Any + Send>> {
    let _span = hold.span.enter();
    // Unwind safe: the panic goes on as soon as the set is released, and nothing of the code is used again.
    let code = || catch_unwind(AssertUnwindSafe(code));
    nesting::inside(hold.service.identity(), &hold.core, code)
}
