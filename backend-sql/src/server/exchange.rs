//! The ordinary way of an order: a connection, one exchange on it, and a retry within the timeout where that helps.

use std::{
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use lockcore::{BackendErrorKind, LossReason};

use super::{Answer, Engine, Order, Server, ServerError, background, pool::Pool};

/// The longest pause before a transaction is retried that the server gave up in favour of another.
const PAUSE: Duration = Duration::from_millis(10);

/// Limits work on an order to the timeout of the settings. `sent` has to be true from when the order may have been sent.
pub(super) async fn in_time<E: Engine>(
    pool: &Pool<E>,
    sent: &AtomicBool,
    work: Pin<Box<dyn Future<Output = Result<Answer, ServerError>> + Send + '_>>,
) -> Result<Answer, ServerError> {
    // Hosted: a caller without a runtime is served by ours.
    let after = pool.engine.settings().timeout;
    let outcome = background::hosted(Box::pin(background::within(after, work))).await;
    match outcome {
        Some(outcome) => outcome,
        None if sent.load(Ordering::Relaxed) => {
            // If its connection fell silent, so probably did those that were not used since. Half of the time, because
            // they may have been used just before that.
            pool.give_up_unused(after / 2);
            Err(ServerError::NoAnswer { backend: E::NAME, after })
        }
        None => {
            let max = pool.engine.settings().max_connections;
            Err(ServerError::NoConnection { backend: E::NAME, after, max })
        }
    }
}

/// Carries out an order, and retries it where that helps. `doubt`: the failure of an earlier try that may have taken place.
pub(super) async fn until_done<E: Engine>(
    pool: &Pool<E>,
    order: &Order<'_>,
    sent: &AtomicBool,
    mut doubt: Option<ServerError>,
) -> Result<Answer, ServerError> {
    let mut cuts = 0;
    for tried in 0_u32.. {
        let answer = exchange(pool, order.is_urgent(), async |conn| {
            sent.store(true, Ordering::Relaxed);
            pool.engine.carry_out(conn, order).await
        });
        let error = match (answer.await, doubt.take()) {
            (Ok(answer), Some(earlier)) => return after_doubt(order, answer, earlier),
            (Ok(answer), None) => return Ok(answer),
            (Err(error), earlier) => {
                doubt = earlier;
                error
            }
        };
        let cut = error.broke_connection();
        if cut {
            cuts += 1;
        }
        // A connection that was cut once is worth another; after that the caller decides.
        let again =
            error.is_transient() || (cut && cuts == 1 && (order.can_be_repeated() || !error.in_doubt()));
        if !again {
            return Err(if doubt.is_some() { error.possibly_done() } else { error });
        }
        if error.in_doubt() {
            doubt.get_or_insert(error);
        }
        let pause = PAUSE.mul_f64(fastrand::f64()).min(Duration::from_micros(500) * 2_u32.pow(tried.min(6)));
        background::sleep(pause).await;
    }
    unreachable!("the loop ends by returning")
}

/// Corrects the answer to an order of which an earlier try may have taken place, and failed with `earlier`. A lock that a
/// release does not find any more may have been freed by that try, or may be another's by now: it is not known to be lost.
/// If nothing else is known, the release has no answer.
fn after_doubt(order: &Order<'_>, answer: Answer, earlier: ServerError) -> Result<Answer, ServerError> {
    match answer {
        Answer::Lost(mut lost) if matches!(order, Order::Release(_)) && !lost.is_empty() => {
            lost.retain(|(_, reason)| *reason != LossReason::Vanished);
            if lost.is_empty() { Err(earlier) } else { Ok(Answer::Lost(lost)) }
        }
        answer => Ok(answer),
    }
}

/// Runs an exchange on a connection, which is kept unless it broke.
pub(crate) async fn exchange<E: Server, T>(
    pool: &Pool<E>,
    urgent: bool,
    work: impl AsyncFnOnce(&mut E::Conn) -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let mut checkout = match pool.take(urgent).await {
        Ok(checkout) => checkout,
        Err(error) => {
            give_up_others(pool, &error);
            return Err(error);
        }
    };
    let answer = work(checkout.conn()).await;
    let keep = answer.as_ref().map_or_else(|error| !error.broke_connection(), |_| true);
    if keep {
        checkout.give_back(&pool.engine);
    }
    if let Err(error) = &answer {
        give_up_others(pool, error);
    }
    answer
}

/// Closes all idle connections if they are as likely broken as the one on which this happened: the server, or the way to
/// it, went down, or the server is a replica by now. Not if only that connection was affected, by a statement that was
/// killed for example.
fn give_up_others<E: Server>(pool: &Pool<E>, error: &ServerError) {
    use BackendErrorKind::{Misconfigured, Timeout, Unavailable};
    if matches!(error.kind(), Unavailable | Timeout | Misconfigured) && error.broke_connection() {
        pool.give_up_all();
    }
}
