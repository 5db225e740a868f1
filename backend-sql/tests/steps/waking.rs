//! Turns that no message tells of.

use std::time::{Duration, Instant};

use lockcore::LockDao;
use lockcore_conformance::{PATIENCE, judge::in_time};
use uuid::Uuid;

use super::{Error, handed, queue, take};

const TURNS: u32 = 20;

/// A process without a listener looks for the turns of its waiters after each of its own releases, and not only every
/// 20 ms: at their best they take less than 15 ms each, or on a busy machine less than twice as long as with one.
pub(crate) async fn a_process_looks_after_its_own_releases<D: LockDao<String, Uuid>>(
    listens: &D,
    polls: &D,
) -> Result<(), Error> {
    const ROUNDS: u32 = 6;
    const QUICK: Duration = Duration::from_millis(15).saturating_mul(TURNS);
    let (mut with, mut without, mut rounds) = (Duration::MAX, Duration::MAX, 0);
    let begun = Instant::now();
    while rounds < ROUNDS || without > QUICK.max(with * 2) {
        in_time(begun.elapsed(), PATIENCE);
        with = with.min(turns(listens, "a").await?);
        without = without.min(turns(polls, "b").await?);
        rounds += 1;
    }
    Ok(())
}

/// How long a few take.
async fn turns(dao: &impl LockDao<String, Uuid>, id: &str) -> Result<Duration, Error> {
    let begun = Instant::now();
    let mut held = take(dao, [id]).await?;
    for _ in 0..TURNS {
        let (waits, wakeup) = queue(dao, [id]).await?;
        dao.release(&held).await?;
        held = handed(dao, &waits, wakeup).await?;
    }
    dao.release(&held).await?;
    Ok(begun.elapsed())
}
