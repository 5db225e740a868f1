//! A server whose disk is full: what cannot be written is told, nothing is granted twice, and it goes on when there is room.

use std::time::Duration;

use lockcore::{
    BackendError, BackendErrorKind, Grant, LockDao,
    backend::{AcquireRequest, Acquired},
};
use lockcore_conformance::servers::TestResult;
use uuid::Uuid;

use super::{Error, granted, queue, request};

/// So many ids that their rows and index entries do not fit on the pages that are there.
const MANY: usize = 5000;

/// As many of each kind as shows that it is no accident. Servers do not bear a full disk for long: the rest is looked at when
/// there is room.
const FEW: usize = 20;

/// A lease that lasts until a slow disk is full and has room again.
const LASTS: Duration = Duration::from_secs(1800);

/// Two DAOs on one server; `fill` leaves no page free on its disk, `clear` gives that back.
pub(crate) async fn a_full_store_is_reported_and_nothing_is_granted_twice(
    [dao, other]: [&impl LockDao<String, Uuid>; 2],
    fill: impl Future<Output = Result<(), Error>>,
    clear: impl Future<Output = Result<(), Error>>,
) -> TestResult {
    let lasting = |ids: &[String]| AcquireRequest { lease: Some(LASTS), ..request(ids.to_vec()) };
    let held = granted(dao, &lasting(&["held".to_owned()])).await?;
    let both = ["kept 1".to_owned(), "kept 2".to_owned()];
    let kept = granted(dao, &lasting(&both)).await?;
    fill.await?;

    // New ids are granted as long as there are pages for them; then the first fails, and so do all others.
    let mut granted_by_then = Vec::new();
    let mut refused = None;
    for number in 0..MANY {
        let asked = lasting(&[format!("new {number}")]);
        match granted(dao, &asked).await {
            Ok(grant) => granted_by_then.push(grant),
            Err(error) => {
                told(&error)?;
                refused = Some(asked);
                break;
            }
        }
    }
    let refused = refused.ok_or("there was room for all")?;
    for number in 0..FEW {
        let ids = [format!("set {number}"), format!("set {number} too")];
        if let Err(error) = granted(dao, &request(ids)).await {
            told(&error)?;
        }
        if let Err(error) = queue(other, ["held"]).await {
            told(&error)?;
        }
    }
    // Nothing of what is held is granted to others.
    for grant in granted_by_then.iter().take(FEW).chain([&held, &kept]) {
        if let Err(error) = granted_to_nobody_else(other, grant).await {
            is_told(&error)?;
        }
    }
    // A renewal either lasts or fails, and what could not be released is still held.
    match dao.renew(&held).await {
        Ok(renewed) => assert_eq!(renewed.lost, []),
        Err(error) => is_told(&error)?,
    }
    let released = match dao.release(&kept).await {
        Ok(released) => {
            assert_eq!(released.lost, []);
            true
        }
        Err(error) => {
            is_told(&error)?;
            false
        }
    };

    clear.await?;
    assert_eq!(dao.renew(&held).await?.lost, []);
    assert_eq!(dao.release(&kept).await?.lost.is_empty(), !released, "once");
    for grant in &granted_by_then {
        granted_to_nobody_else(other, grant).await?;
        assert_eq!(dao.release(grant).await?.lost, []);
    }
    let now = granted(dao, &refused).await?;
    assert_eq!(dao.release(&now).await?.lost, []);
    granted(other, &lasting(&both)).await?;
    Ok(())
}

/// Panics if it is: no test forgives that, whatever else happened.
async fn granted_to_nobody_else(
    other: &impl LockDao<String, Uuid>,
    held: &Grant<String, Uuid>,
) -> Result<(), BackendError> {
    let ids: Vec<String> = held.locks.iter().map(|lock| lock.target.stored().into_owned()).collect();
    match other.acquire(&request(ids)).await? {
        Acquired::Refused(_) => Ok(()),
        granted => panic!("it is held: {granted:?}"),
    }
}

/// That a step failed for want of room, and did nothing.
fn told(error: &Error) -> TestResult {
    match error.downcast_ref() {
        Some(error) => is_told(error),
        None => Err(format!("not a failure of the store: {error}").into()),
    }
}

fn is_told(error: &BackendError) -> TestResult {
    match error.kind() {
        BackendErrorKind::Unavailable if !error.in_doubt() => Ok(()),
        _ => Err(format!("nothing was done, and that is not what is said: {error:?}").into()),
    }
}
