//! The steps of a DAO as tests of one server take them.

pub(crate) mod batches;
pub(crate) mod disk;
pub(crate) mod fences;
pub(crate) mod giving_up;
pub(crate) mod limit;
pub(crate) mod waking;

use std::time::Duration;

use lockcore::{
    ClaimSet, Grant, Ids, LockDao, LockingService, Mode, Target, Wait,
    backend::{AcquireRequest, Acquired, AttemptId, Wake, Wakeup},
};
use lockcore_conformance::{PATIENCE, eventually};
use uuid::Uuid;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// A request of a fresh context for a minute.
pub(crate) fn request(ids: impl Ids<String>) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new(ids, Mode::Exclusive).expect("valid claims"),
        lease: Some(Duration::from_secs(60)),
        owner: "".into(),
        queue: false,
        nested: false,
        detached: false,
    }
}

/// Takes what has to be free.
pub(crate) async fn take(
    dao: &impl LockDao<String, Uuid>,
    ids: impl Ids<String>,
) -> Result<Grant<String, Uuid>, Error> {
    granted(dao, &request(ids)).await
}

pub(crate) async fn granted(
    dao: &impl LockDao<String, Uuid>,
    request: &AcquireRequest<String, Uuid>,
) -> Result<Grant<String, Uuid>, Error> {
    match dao.acquire(request).await? {
        Acquired::Granted(granted) => {
            Ok(Grant::new(request.context, request.claims.clone(), granted, request.lease))
        }
        other => Err(format!("not granted: {other:?}").into()),
    }
}

/// Takes a place in the queue for what is held.
pub(crate) async fn queue(
    dao: &impl LockDao<String, Uuid>,
    ids: impl Ids<String>,
) -> Result<(AcquireRequest<String, Uuid>, Wakeup), Error> {
    let request = AcquireRequest { queue: true, ..request(ids) };
    match dao.acquire(&request).await? {
        Acquired::Queued { wakeup, .. } => Ok((request, wakeup)),
        other => Err(format!("not queued: {other:?}").into()),
    }
}

/// A service over the application's pool, of which the application then takes every connection: what is held is renewed, and a
/// waiter keeps its place and has its turn, which `other` gives it.
pub(crate) async fn locks_are_kept_without_the_pool<D: LockDao<String, Uuid>, T, F>(
    dao: D,
    other: impl LockDao<String, Uuid>,
    take_all: impl FnOnce() -> F,
) -> Result<(), Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let (locks, other) = (LockingService::new(dao), LockingService::new(other));
    let elsewhere = other.lock(["b"]).await?;
    let lease = Duration::from_secs(3);
    let guard = locks.lease(lease).lock(["a"]).await?;
    let waiter = locks.clone();
    let waiting = tokio::spawn(async move { waiter.wait(Wait::up_to(PATIENCE)).lock(["b"]).await });
    eventually("it waits", || async {
        let seen = other.admin().inspect(&Target::Id("b".to_owned())).await.ok()?;
        (seen.waiters.len() == 1).then_some(())
    })
    .await;
    let taken = take_all().await?;
    // Longer than a lease, and than a waiter is believed to live without heartbeats.
    tokio::time::sleep(2 * lease).await;
    guard.held().check()?;
    elsewhere.release().await?;
    let turn = tokio::time::timeout(PATIENCE, waiting).await???;
    drop(taken);
    turn.release().await?;
    guard.release().await?;
    Ok(())
}

/// Waits to be told to ask again, since something may have been missed, and does; the place is kept.
pub(crate) async fn told_to_ask(
    dao: &impl LockDao<String, Uuid>,
    request: &AcquireRequest<String, Uuid>,
    mut wakeup: Wakeup,
) -> Result<Wakeup, Error> {
    let told = tokio::time::timeout(PATIENCE, wakeup.recv()).await?;
    assert!(matches!(told, Wake::Recheck), "{told:?}");
    match dao.acquire(request).await? {
        Acquired::Queued { wakeup, .. } => Ok(wakeup),
        other => Err(format!("not queued: {other:?}").into()),
    }
}

/// Waits until the set is handed over, asking again when told to, and confirms it.
pub(crate) async fn handed(
    dao: &impl LockDao<String, Uuid>,
    request: &AcquireRequest<String, Uuid>,
    mut wakeup: Wakeup,
) -> Result<Grant<String, Uuid>, Error> {
    let wait = async {
        loop {
            if let Wake::Offer(offer) = wakeup.recv().await {
                let grant = Grant::new(request.context, request.claims.clone(), offer.granted, request.lease);
                // On a busy machine it may be too late for that.
                if dao.renew(&grant).await?.lost.is_empty() {
                    return Ok(grant);
                }
            }
            match dao.acquire(request).await? {
                Acquired::Granted(granted) => {
                    return Ok(Grant::new(request.context, request.claims.clone(), granted, request.lease));
                }
                Acquired::Queued { wakeup: next, .. } => wakeup = next,
                Acquired::Refused(conflicts) => return Err(format!("refused: {conflicts:?}").into()),
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await?
}
