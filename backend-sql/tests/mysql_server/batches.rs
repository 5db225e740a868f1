//! Requests that come at the same time, and go in one exchange.

use lockcore_conformance::servers::{Kind, Proxy, TestResult, Trial};

use super::{place::Place, steps::batches, test};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "batches::many_requests_go_in_few_exchanges", many_requests_go_in_few_exchanges),
        test(
            kind,
            "batches::no_request_waits_for_the_row_of_another",
            no_request_waits_for_the_row_of_another,
        ),
        test(
            kind,
            "batches::what_is_given_up_in_time_is_not_asked_for",
            what_is_given_up_in_time_is_not_asked_for,
        ),
    ]
}

async fn many_requests_go_in_few_exchanges(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    place.open().await?;
    let proxy = Proxy::start(&place.server.address()).await?;
    let dao = place.builder().url(place.url_through(proxy.address())).listen(false).open().await?;
    batches::go_in_few_exchanges(&dao, &proxy).await
}

async fn no_request_waits_for_the_row_of_another(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut other = place.sql().await?;
    let sql = async |text: String| other.run(text).await;
    batches::no_request_waits_for_the_row_of_another(&dao, sql, locking).await
}

/// Locks the row of an id, and no other.
fn locking(id: &str) -> String {
    format!("SELECT id FROM lockcore_ids WHERE ns = 1 AND id = '{id}' LOCK IN SHARE MODE")
}

async fn what_is_given_up_in_time_is_not_asked_for(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    batches::what_is_given_up_in_time_is_not_asked_for(&place.open().await?).await
}
