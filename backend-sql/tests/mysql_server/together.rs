//! Requests that come at the same time, and go in one exchange.

use futures_util::{future::try_join_all, try_join};
use lockcore::{Grant, LockDao};
use lockcore_conformance::servers::{Kind, Proxy, TestResult, Trial};
use uuid::Uuid;

use crate::{
    place::Place,
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

/// Two exchanges: who comes first goes alone, all others together; apart, both kinds would take two. A machine that stalls may
/// make it more now and then.
async fn takes_and_releases_go_together(kind: Kind) -> TestResult {
    const ROUNDS: usize = 50;
    const HALF: usize = 16;
    let place = Place::new(kind).await?;
    place.open().await?;
    let proxy = Proxy::start(&place.server.address()).await?;
    let dao = place.builder().url(place.url_through(proxy.address())).listen(false).connect().await?;
    let ask = |parity: usize| -> Vec<_> {
        (0..HALF).map(|number| request([format!("crowd {:02}", 2 * number + parity)])).collect()
    };
    let mut held: Vec<Grant<String, Uuid>> = Vec::new();
    let mut fewest = u64::MAX;
    for round in 0..ROUNDS {
        let before = proxy.counts().requests;
        let requests = ask(round % 2);
        let take = try_join_all(requests.iter().map(|request| granted(&dao, request)));
        let free = try_join_all(held.iter().map(|grant| dao.release(grant)));
        let (taken, freed) = try_join!(take, async { Ok(free.await?) })?;
        assert!(freed.iter().all(|freed| freed.lost.is_empty()));
        held = taken;
        if round > 0 {
            // At first connections are opened and rows made, and nothing is freed.
            fewest = fewest.min(proxy.counts().requests - before);
        }
        if fewest < 4 {
            return Ok(());
        }
    }
    panic!("{fewest} messages at least to take and release {HALF} each");
}

async fn nobody_waits_for_anothers_row(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let lock =
        |id: &str| format!("SELECT id FROM lockcore_ids WHERE ns = 1 AND id = '{id}' LOCK IN SHARE MODE");
    together::nobody_waits_for_anothers_row(&dao, place.sql().await?, lock).await
}

async fn what_is_given_up_in_time_is_not_asked_for(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    together::what_is_given_up_in_time_is_not_asked_for(&place.open().await?).await
}
