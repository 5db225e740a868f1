//! Running a callback while a set is held: stopped when the locks are lost, released on every way out.

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::hold::{Hold, HoldCore};
use crate::{ContextId, Ident, LockDao, LockError, LockingError, LostLock, clock};

/// How a call ended whose set was locked: with the callback's value even if locks were lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended<T, I> {
    /// What the callback gave; `None` if it was stopped because locks were lost.
    pub value: Option<T>,
    /// What was lost while it ran, and why; empty if all went well.
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

/// What ended a callback.
enum End<T> {
    Done(T),
    Lost,
    TooLong(Duration),
    Panicked(Box<dyn Any + Send>),
}

/// Makes the callback's future and polls it while the set is held, then releases.
pub(crate) async fn run<I: Ident, C: ContextId, D: LockDao<I, C>, Fut: Future>(
    hold: Hold<'_, I, C, D>,
    tell_when_lost: bool,
    max_hold: Option<Duration>,
    make: impl FnOnce(&Arc<HoldCore<I, C>>) -> Fut,
) -> Result<Ended<Fut::Output, I>, LockError<I, C>> {
    let end = 'run: {
        if !tell_when_lost && is_lost(&hold) {
            break 'run End::Lost;
        }
        let future = match inside(&hold, || make(&hold.core)) {
            Ok(future) => future,
            Err(panic) => break 'run End::Panicked(panic),
        };
        let mut future = pin!(future);
        let mut too_long = max_hold.map(|max_hold| Box::pin(clock::sleep(max_hold)));
        poll_fn(|cx| {
            if let Some(lease) = &hold.core.lease
                && !tell_when_lost
            {
                // Registered before the look, so that a loss in between wakes.
                lease.task.register(cx.waker());
                if lease.is_lost() {
                    return Poll::Ready(End::Lost);
                }
            }
            if let (Some(timer), Some(max_hold)) = (&mut too_long, max_hold)
                && timer.as_mut().poll(cx).is_ready()
            {
                return Poll::Ready(End::TooLong(max_hold));
            }
            match inside(&hold, || future.as_mut().poll(cx)) {
                Ok(polled) => polled.map(End::Done),
                Err(panic) => Poll::Ready(End::Panicked(panic)),
            }
        })
        .await
    };
    finish(hold, end).await
}

/// Runs plain code on this thread while the set is held, then releases.
pub(crate) async fn run_sync<I: Ident, C: ContextId, D: LockDao<I, C>, T>(
    hold: Hold<'_, I, C, D>,
    callback: impl FnOnce(&Arc<HoldCore<I, C>>) -> T,
) -> Result<Ended<T, I>, LockError<I, C>> {
    let end = call_sync(&hold, callback);
    finish(hold, end.0).await
}

/// What plain code gave that ran while a set was held.
pub(crate) struct SyncEnd<T>(End<T>);

/// Runs plain code on this thread while the set is held, and does not release yet.
pub(crate) fn call_sync<I: Ident, C: ContextId, D: LockDao<I, C>, T>(
    hold: &Hold<'_, I, C, D>,
    callback: impl FnOnce(&Arc<HoldCore<I, C>>) -> T,
) -> SyncEnd<T> {
    SyncEnd(match is_lost(hold) {
        true => End::Lost,
        false => match inside(hold, || callback(&hold.core)) {
            Ok(value) => End::Done(value),
            Err(panic) => End::Panicked(panic),
        },
    })
}

/// Releases what [`call_sync`] ran under.
pub(crate) async fn finish_sync<I: Ident, C: ContextId, D: LockDao<I, C>, T>(
    hold: Hold<'_, I, C, D>,
    end: SyncEnd<T>,
) -> Result<Ended<T, I>, LockError<I, C>> {
    finish(hold, end.0).await
}

async fn finish<I: Ident, C: ContextId, D: LockDao<I, C>, T>(
    hold: Hold<'_, I, C, D>,
    end: End<T>,
) -> Result<Ended<T, I>, LockError<I, C>> {
    // Known by the clock alone if the callback was stopped before the keeper looked.
    let lost_by_now = if matches!(end, End::Lost) { hold.core.lost() } else { Vec::new() };
    let lost = hold.release().await.lost;
    let lost = if lost.is_empty() { lost_by_now } else { lost };
    match end {
        End::Done(value) => Ok(Ended { value: Some(value), lost }),
        End::Lost => Ok(Ended { value: None, lost }),
        End::TooLong(max_hold) => Err(LockingError::HeldTooLong { max_hold }),
        End::Panicked(panic) => resume_unwind(panic),
    }
}

fn is_lost<I: Ident, C: ContextId, D: LockDao<I, C>>(hold: &Hold<'_, I, C, D>) -> bool {
    hold.core.lease.as_ref().is_some_and(|lease| lease.is_lost())
}

/// Calls the user's code as inside the hold, and catches its panic so that the set is released before the panic
/// goes on.
fn inside<I: Ident, C: ContextId, D: LockDao<I, C>, T>(
    hold: &Hold<'_, I, C, D>,
    code: impl FnOnce() -> T,
) -> Result<T, Box<dyn Any + Send>> {
    let _entered = hold.entered();
    // Unwind safe: the panic goes on as soon as the set is released, and nothing of the code is used again.
    catch_unwind(AssertUnwindSafe(code))
}
