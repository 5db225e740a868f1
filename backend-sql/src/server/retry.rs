//! One operation: a connection, the exchange, and again within the deadline where that helps.

use std::time::Duration;

use super::{Engine, Order, Pool, ServerError, background, reply};

/// How long to wait before a transaction is tried again that the server gave up in favour of another, at most.
const PAUSE: Duration = Duration::from_millis(10);

/// Carries out an order within the time that the settings give it.
pub(crate) async fn carry_out<E: Engine>(
    engine: &E,
    pool: &Pool<E::Conn>,
    order: &Order<'_>,
) -> Result<String, ServerError> {
    // Hosted: a caller without a runtime is served by ours. Boxed once, so that the callers' futures stay small.
    let timeout = engine.settings().timeout;
    let mut sent = false;
    let work = Box::pin(until_done(engine, pool, order, &mut sent));
    let outcome = background::hosted(Box::pin(background::within(timeout, work))).await;
    match outcome {
        Some(outcome) => outcome,
        None if sent => Err(ServerError::NoAnswer { backend: E::NAME, after: timeout }),
        None => {
            let max = engine.settings().max_connections;
            Err(ServerError::NoConnection { backend: E::NAME, after: timeout, max })
        }
    }
}

async fn until_done<E: Engine>(
    engine: &E,
    pool: &Pool<E::Conn>,
    order: &Order<'_>,
    sent: &mut bool,
) -> Result<String, ServerError> {
    // The first try that may have taken place.
    let mut doubt = None;
    let mut cuts = 0;
    for tried in 0_u32.. {
        let error = match (try_once(engine, pool, order, sent).await, doubt.take()) {
            (Ok(answer), Some(earlier)) => return by_now(E::NAME, order, answer, earlier),
            (Ok(answer), None) => return Ok(answer),
            (Err(error), earlier) => {
                doubt = earlier;
                error
            }
        };
        let cut = error.broke_connection();
        if cut {
            // What was idle for as long is as likely broken: the server was restarted, or the way to it.
            pool.give_up_all();
            cuts += 1;
        }
        // A connection that was cut once is worth another; after that it is for the caller to decide.
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

/// The answer to an order of which an earlier try may have taken place, and failed with `earlier`. What a release does not
/// find any more, that one may have freed, or somebody else may hold by now: nobody knows, so that it is no loss, and if
/// nothing else is known the release has no answer.
fn by_now(
    backend: &'static str,
    order: &Order<'_>,
    answer: String,
    earlier: ServerError,
) -> Result<String, ServerError> {
    if answer.is_empty() || !matches!(order, Order::Release(_)) {
        return Ok(answer);
    }
    let mut lost: Vec<(usize, i64)> = reply::read(backend, &answer)?;
    lost.retain(|(_, reason)| *reason != reply::VANISHED);
    if lost.is_empty() {
        return Err(earlier);
    }
    let written = serde_json::to_string(&lost);
    written.map_err(|error| ServerError::Answer { backend, what: error.to_string() })
}

async fn try_once<E: Engine>(
    engine: &E,
    pool: &Pool<E::Conn>,
    order: &Order<'_>,
    sent: &mut bool,
) -> Result<String, ServerError> {
    let mut lease = pool.take(engine, matches!(order, Order::Renew(_) | Order::Release(_))).await?;
    *sent = true;
    let answer = engine.carry_out(lease.conn(), order).await;
    let keep = answer.as_ref().map_or_else(|error| !error.broke_connection(), |_| true);
    if keep && engine.keeps_connections() {
        lease.give_back();
    }
    answer
}
