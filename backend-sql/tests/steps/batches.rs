//! Requests that come at the same time.

use std::{future::Future, pin::Pin, task::Poll};

use futures_util::{
    future::{join_all, ready, try_join_all},
    poll,
    stream::{FuturesUnordered, StreamExt},
};
use lockcore::{
    Grant, LockDao,
    backend::{AcquireRequest, Acquired, AttemptId, Withdraw},
};
use lockcore_conformance::{PATIENCE, servers::Proxy};
use uuid::Uuid;

use super::{Error, granted, request};

const CROWD: usize = 32;

/// A crowd goes in a few exchanges, one of which may be what is prepared; `dao` is behind the proxy. Once it is known as a crowd
/// it goes in one, unless this thread is too slow to make all requests in time: then once more.
pub(crate) async fn go_in_few_exchanges(
    dao: &impl LockDao<String, Uuid>,
    proxy: &Proxy,
) -> Result<(), Error> {
    // At first rows are made and connections opened.
    exchanges(dao, proxy).await?;
    let in_one = async {
        loop {
            let (to_take, to_release) = exchanges(dao, proxy).await?;
            assert!(to_take < CROWD as u64 / 2, "{to_take} messages to take");
            assert!(to_release < CROWD as u64 / 2, "{to_release} messages to release");
            if (to_take, to_release) == (1, 1) {
                return Ok(());
            }
        }
    };
    tokio::time::timeout(PATIENCE, in_one).await?
}

/// Takes and releases the ids of a crowd; returns in how many messages.
async fn exchanges(dao: &impl LockDao<String, Uuid>, proxy: &Proxy) -> Result<(u64, u64), Error> {
    let before = proxy.counts().requests;
    let grants = crowd(dao).await?;
    let taken = proxy.counts().requests;
    release(dao, &grants).await?;
    Ok((taken - before, proxy.counts().requests - taken))
}

/// A client that waits for a row that another has locked waits alone: `sql`, by `lock` of the id it is given.
pub(crate) async fn no_request_waits_for_the_row_of_another(
    dao: &impl LockDao<String, Uuid>,
    mut sql: impl AsyncFnMut(String) -> Result<u64, Error>,
    lock: impl FnOnce(&str) -> String,
) -> Result<(), Error> {
    const STUCK: usize = CROWD / 2;
    let grants = crowd(dao).await?;
    sql("BEGIN".to_owned()).await?;
    sql(lock(&name(STUCK))).await?;
    let releases = grants.iter().enumerate();
    let mut releases: FuturesUnordered<_> =
        releases.map(async |(number, grant)| (number, dao.release(grant).await)).collect();
    let all = async {
        let mut left = CROWD;
        while let Some((number, released)) = releases.next().await {
            assert_eq!(released?.lost, []);
            left -= 1;
            assert_eq!(number == STUCK, left == 0, "{number} with {left} left");
            if left == 1 {
                sql("ROLLBACK".to_owned()).await?;
            }
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, all).await?
}

/// What is given up before it was sent is not sent. On a busy machine all may have been sent before: then once more.
pub(crate) async fn what_is_given_up_in_time_is_not_asked_for(
    dao: &impl LockDao<String, Uuid>,
) -> Result<(), Error> {
    tokio::time::timeout(PATIENCE, async {
        while given_up_unsent(dao).await? == 0 {}
        Ok(())
    })
    .await?
}

/// Gives up half of a crowd; returns how many of these were not sent.
async fn given_up_unsent(dao: &impl LockDao<String, Uuid>) -> Result<usize, Error> {
    let requests = requests();
    let mut asked: Vec<Pin<Box<dyn Future<Output = _> + Send>>> = Vec::new();
    for request in &requests {
        let mut ask: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(granted(dao, request));
        asked.push(match poll!(&mut ask) {
            Poll::Pending => ask,
            // The server was quicker than this thread.
            Poll::Ready(done) => Box::pin(ready(done)),
        });
    }
    drop(asked.split_off(CROWD / 2));
    let mut grants = try_join_all(asked).await?;
    let mut unsent = 0;
    for given_up in &requests[CROWD / 2..] {
        let other =
            AcquireRequest { context: Uuid::new_v4(), attempt: AttemptId::fresh(), ..given_up.clone() };
        if let Acquired::Granted(granted) = dao.acquire(&other).await? {
            grants.push(Grant::new(other.context, other.claims.clone(), granted, other.lease));
            unsent += 1;
        } else {
            dao.withdraw(given_up, Withdraw::Undo).await?;
        }
    }
    release(dao, &grants).await?;
    Ok(unsent)
}

async fn crowd(dao: &impl LockDao<String, Uuid>) -> Result<Vec<Grant<String, Uuid>>, Error> {
    let requests = requests();
    try_join_all(requests.iter().map(|request| granted(dao, request))).await
}

async fn release(dao: &impl LockDao<String, Uuid>, grants: &[Grant<String, Uuid>]) -> Result<(), Error> {
    for released in join_all(grants.iter().map(|grant| dao.release(grant))).await {
        assert_eq!(released?.lost, []);
    }
    Ok(())
}

fn requests() -> Vec<AcquireRequest<String, Uuid>> {
    (0..CROWD).map(|number| request([name(number)])).collect()
}

fn name(number: usize) -> String {
    format!("crowd {number:02}")
}
