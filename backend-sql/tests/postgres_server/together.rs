//! Requests that come at the same time, and go in one exchange.

use lockcore_conformance::servers::{Proxy, TestResult, Trial};

use crate::{place::Place, steps::together, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("together::a_crowd_goes_in_few_exchanges", a_crowd_goes_in_few_exchanges),
        test("together::no_request_waits_for_the_row_of_another", no_request_waits_for_the_row_of_another),
        test(
            "together::what_is_given_up_in_time_is_not_asked_for",
            what_is_given_up_in_time_is_not_asked_for,
        ),
    ]
}

async fn a_crowd_goes_in_few_exchanges() -> TestResult {
    let place = Place::new().await?;
    for prepared in [true, false] {
        let proxy = Proxy::start(place.server.address()).await?;
        let builder =
            place.builder().url(place.server.url_through(proxy.address())).listen_url(place.server.url());
        let dao = builder.prepared(prepared).open().await?;
        together::go_in_few_exchanges(&dao, &proxy).await?;
    }
    Ok(())
}

async fn no_request_waits_for_the_row_of_another() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let lock = |id: &str| format!("SELECT FROM lockcore_lock WHERE id = '{id}' FOR SHARE");
    together::no_request_waits_for_the_row_of_another(&dao, place.sql().await?, lock).await
}

async fn what_is_given_up_in_time_is_not_asked_for() -> TestResult {
    let place = Place::new().await?;
    together::what_is_given_up_in_time_is_not_asked_for(&place.open().await?).await
}
