//! Requests that come at the same time, and go in one exchange.

use std::{pin::pin, task::Poll};

use futures_util::{future::try_join_all, poll, try_join};
use lockcore::{Grant, LockDao};
use lockcore_conformance::servers::{Kind, Proxy, TestResult, Trial};
use uuid::Uuid;

use crate::{
    place::{Error, Place},
    steps::{granted, request, together},
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "together::a_crowd_goes_in_few_exchanges", a_crowd_goes_in_few_exchanges),
        test(kind, "together::takes_and_releases_go_together", takes_and_releases_go_together),
        test(kind, "together::nobody_waits_for_anothers_row", nobody_waits_for_anothers_row),
        test(
            kind,
            "together::what_is_given_up_in_time_is_not_asked_for",
            what_is_given_up_in_time_is_not_asked_for,
        ),
    ]
}

async fn a_crowd_goes_in_few_exchanges(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    place.open().await?;
    let proxy = Proxy::start(&place.server.address()).await?;
    let dao = place.builder().url(place.url_through(proxy.address())).listen(false).connect().await?;
    together::go_in_few_exchanges(&dao, &proxy).await
}

/// While those who went alone wait for rows that a transaction of the user's has locked: in one message, once the connection
/// on which it goes has prepared it. Apart it would be one for the takes, and three for the releases. What is freed in it can
/// be taken in it.
async fn takes_and_releases_go_together(kind: Kind) -> TestResult {
    const ROUNDS: usize = 20;
    let place = Place::new(kind).await?;
    let proxy = Proxy::start(&place.server.address()).await?;
    let dao = place.builder().url(place.url_through(proxy.address())).listen(false).connect().await?;
    let asks = |ids: [&str; 3]| ids.map(|id| request([id])).to_vec();
    let take = async |requests: &[_]| try_join_all(requests.iter().map(|one| granted(&dao, one))).await;
    let free = async |grants: &[Grant<String, Uuid>]| {
        for released in try_join_all(grants.iter().map(|grant| dao.release(grant))).await? {
            assert_eq!(released.lost, []);
        }
        Ok::<_, Error>(())
    };
    let mut sql = place.sql().await?;
    let mut messages = Vec::new();
    while messages.len() < ROUNDS && messages.last() != Some(&3) {
        let (stuck, new) = (asks(["a", "b", "c"]), asks(["d", "e", "g"]));
        for requests in [&stuck, &new] {
            free(&take(requests).await?).await?;
        }
        let held = take(&asks(["g", "h", "i"])).await?;
        sql.run("BEGIN").await?;
        for id in ["a", "b"] {
            sql.run(locking(id)).await?;
        }
        let before = proxy.counts().requests;
        let mut stuck = pin!(take(&stuck[..2]));
        while proxy.counts().requests < before + 2 {
            assert!(matches!(poll!(&mut stuck), Poll::Pending));
            tokio::task::yield_now().await;
        }
        let (taken, ()) = try_join!(take(&new), free(&held))?;
        messages.push(proxy.counts().requests - before);
        sql.run("ROLLBACK").await?;
        free(&stuck.await?).await?;
        free(&taken).await?;
    }
    assert_eq!(messages.last(), Some(&3), "{messages:?}");
    Ok(())
}

async fn nobody_waits_for_anothers_row(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    together::nobody_waits_for_anothers_row(&dao, place.sql().await?, locking).await
}

/// Locks the row of an id, and no other.
fn locking(id: &str) -> String {
    format!("SELECT id FROM lockcore_ids WHERE ns = 1 AND id = '{id}' LOCK IN SHARE MODE")
}

async fn what_is_given_up_in_time_is_not_asked_for(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    together::what_is_given_up_in_time_is_not_asked_for(&place.open().await?).await
}
