//! One operation: a connection, the exchange, and again within the deadline where that helps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockcore::BackendErrorKind;

use super::{Engine, Order, Pool, ServerError, background, reply, together};

/// How long to wait before a transaction is tried again that the server gave up in favour of another, at most.
const PAUSE: Duration = Duration::from_millis(10);

/// Carries out an order within the time that the settings give it.
pub(crate) async fn carry_out<E: Engine>(
    pool: &Arc<Pool<E>>,
    order: &Order<'_>,
) -> Result<String, ServerError> {
    // Hosted: a caller without a runtime is served by ours. Boxed once, so that the callers' futures stay small.
    let timeout = pool.engine.settings().timeout;
    let sent = AtomicBool::new(false);
    let work = Box::pin(until_done(pool, order, &sent));
    let outcome = background::hosted(Box::pin(background::within(timeout, work))).await;
    match outcome {
        Some(outcome) => outcome,
        None if sent.into_inner() => {
            // If its connection fell silent, so probably did those that were not used since. Half of the time, because
            // they may have been used just before that.
            pool.give_up_unused(timeout / 2);
            Err(ServerError::NoAnswer { backend: E::NAME, after: timeout })
        }
        None => {
            let max = pool.engine.settings().max_connections;
            Err(ServerError::NoConnection { backend: E::NAME, after: timeout, max })
        }
    }
}

async fn until_done<E: Engine>(
    pool: &Arc<Pool<E>>,
    order: &Order<'_>,
    sent: &AtomicBool,
) -> Result<String, ServerError> {
    // The first try that may have taken place.
    let mut doubt = None;
    let mut cuts = 0;
    for tried in 0_u32.. {
        let answer = match tried {
            0 => together::once(pool, order, sent).await,
            _ => alone(pool, order, sent).await,
        };
        let error = match (answer, doubt.take()) {
            (Ok(answer), Some(earlier)) => return by_now(E::NAME, order, answer, earlier),
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
        if broke_others(&error) {
            pool.give_up_all();
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

/// Whether connections that were idle for as long are as likely broken: the server, or the way to it, went down, or it is a
/// replica by now. Not what ended this connection alone, as a statement that was killed.
fn broke_others(error: &ServerError) -> bool {
    error.broke_connection()
        && match error.kind() {
            BackendErrorKind::Unavailable | BackendErrorKind::Timeout => error.in_doubt(),
            kind => kind == BackendErrorKind::Misconfigured,
        }
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

/// Carries out an order, once, in an exchange of its own.
pub(super) async fn alone<E: Engine>(
    pool: &Pool<E>,
    order: &Order<'_>,
    sent: &AtomicBool,
) -> Result<String, ServerError> {
    exchange(pool, order.is_urgent(), async |conn| {
        sent.store(true, Ordering::Relaxed);
        pool.engine.carry_out(conn, order).await
    })
    .await
}

/// An exchange on a connection, which is kept unless it broke.
pub(super) async fn exchange<E: Engine, T>(
    pool: &Pool<E>,
    warm: bool,
    work: impl AsyncFnOnce(&mut E::Conn) -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let mut lease = pool.take(warm).await?;
    let answer = work(lease.conn()).await;
    let keep = answer.as_ref().map_or_else(|error| !error.broke_connection(), |_| true);
    if keep && pool.engine.keeps_connections() {
        lease.give_back();
    }
    answer
}
