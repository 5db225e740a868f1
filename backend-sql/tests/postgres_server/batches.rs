//! Requests that come at the same time, and go in one exchange.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lockcore::LockDao;
use lockcore_conformance::servers::{Proxy, TestResult, Trial};

use super::{
    place::{Place, queue, take},
    steps::batches,
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("batches::many_requests_go_in_few_exchanges", many_requests_go_in_few_exchanges),
        test("batches::no_request_waits_for_the_row_of_another", no_request_waits_for_the_row_of_another),
        test("batches::no_connection_waits_for_another_of_ours", no_connection_waits_for_another_of_ours),
        test("batches::what_is_given_up_in_time_is_not_asked_for", what_is_given_up_in_time_is_not_asked_for),
    ]
}

async fn many_requests_go_in_few_exchanges() -> TestResult {
    let place = Place::new().await?;
    for prepared in [true, false] {
        let proxy = Proxy::start(place.server.address()).await?;
        let builder =
            place.builder().url(place.server.url_through(proxy.address())).listen_url(place.server.url());
        let dao = builder.prepared(prepared).open().await?;
        batches::go_in_few_exchanges(&dao, &proxy).await?;
    }
    Ok(())
}

async fn no_request_waits_for_the_row_of_another() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let lock = |id: &str| format!("SELECT FROM lockcore_lock WHERE id = '{id}' FOR SHARE");
    let mut other = place.sql().await?;
    let sql = async |text: String| other.run(text).await;
    batches::no_request_waits_for_the_row_of_another(&dao, sql, lock).await
}

/// What many want of one id goes on one connection at a time, unless that seems to be stuck: on others it would wait for the
/// row.
async fn no_connection_waits_for_another_of_ours() -> TestResult {
    /// Longer than a request is patient, and shorter than what is stuck.
    const WATCHED: Duration = Duration::from_millis(50);
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let held = take(&dao, ["a"]).await?;
    sql.run("BEGIN").await?;
    sql.run("SELECT FROM lockcore_lock FOR SHARE").await?;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                   AND query LIKE '%' || current_schema || '%'";
    let begun = Instant::now();
    let look = async {
        loop {
            let waiting = sql.number(waiting).await?;
            if begun.elapsed() > WATCHED {
                break sql.run("ROLLBACK").await;
            }
            assert!(waiting <= 1, "{waiting} connections wait");
        }
    };
    let (queued, looked) = tokio::join!(try_join_all((0..20).map(|_| queue(&dao, ["a"]))), look);
    looked?;
    assert_eq!(queued?.len(), 20);
    dao.release(&held).await?;
    Ok(())
}

async fn what_is_given_up_in_time_is_not_asked_for() -> TestResult {
    let place = Place::new().await?;
    batches::what_is_given_up_in_time_is_not_asked_for(&place.open().await?).await
}
