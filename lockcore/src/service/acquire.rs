//! Taking a set: one request if it is free, and waiting otherwise.

use tracing::Instrument;

use super::{attempt::Attempt, hold::Hold, waiting};
use crate::{Acquired, ContextId, Ident, LockDao, LockError, wait::Strategy};

/// Takes the set in the manner of `wait`.
pub(crate) async fn acquire<'s, I: Ident, C: ContextId, D: LockDao<I, C>>(
    attempt: &mut Attempt<'s, I, C, D>,
    wait: &Strategy,
) -> Result<Hold<'s, I, C, D>, LockError<I, C>> {
    if attempt.request().claims.is_empty() {
        return Ok(attempt.hold_nothing());
    }
    let answer = match wait {
        Strategy::Queue { limit: Some(limit) } => Box::pin(attempt.ask_within(*limit)).await,
        _ => {
            // Not by `ask`, whose future would make that of most calls larger.
            attempt.asking();
            match attempt.dao()?.acquire(attempt.request()).await {
                Ok(Acquired::Granted(granted)) if granted.len() == attempt.request().claims.len() => {
                    return Ok(attempt.hold(granted));
                }
                answer => attempt.answered(answer),
            }
        }
    };
    match answer {
        Ok(Acquired::Granted(granted)) => Ok(attempt.hold(granted)),
        // Boxed to keep the uncontended future small.
        answer => {
            let span = attempt.span.handle();
            Box::pin(waiting::wait(attempt, answer, wait).instrument(span)).await
        }
    }
}
