//! Turns that no message tells of.

use std::time::{Duration, Instant};

use lockcore::LockDao;

use super::{handed, queue, take};
use crate::place::{Dao, Error, PATIENCE};

/// A process without a listener looks for the turns of its waiters after each of its own releases, and not only every
/// 20 ms: they take less than twice as long as with one. On a busy machine not at the first try.
pub(crate) async fn a_process_looks_after_its_own_releases(listens: &Dao, polls: &Dao) -> Result<(), Error> {
    let quick = async {
        while turns(polls, "a").await? > turns(listens, "b").await? * 2 {}
        Ok(())
    };
    tokio::time::timeout(PATIENCE, quick).await?
}

/// How long a few take.
async fn turns(dao: &Dao, id: &str) -> Result<Duration, Error> {
    let begun = Instant::now();
    let mut held = take(dao, [id]).await?;
    for _ in 0..20 {
        let (waits, wakeup) = queue(dao, [id]).await?;
        dao.release(&held).await?;
        held = handed(dao, &waits, wakeup).await?;
    }
    dao.release(&held).await?;
    Ok(begun.elapsed())
}
