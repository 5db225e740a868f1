//! Fences.

use lockcore::LockDao;
use lockcore_conformance::servers::TestResult;
use uuid::Uuid;

use super::{Error, handed, queue, take};

/// Those in `table` are ahead of the clock, as after it was set back: one id, a set, a set of one and the other, a hand-over.
pub(crate) async fn rise_though_the_clock_does_not(
    dao: &impl LockDao<String, Uuid>,
    mut sql: impl AsyncFnMut(String) -> Result<u64, Error>,
    table: &str,
) -> TestResult {
    const AHEAD: u64 = 1_000_000_000_000;
    let ids = ["a", "b", "c"];
    let held = take(dao, ids).await?;
    dao.release(&held).await?;
    let ahead = format!("UPDATE {table} SET fence = fence + {AHEAD} WHERE id <> 'c'");
    assert_eq!(sql(ahead).await?, 2);
    let mut highest = held.locks[0].granted.fence + AHEAD;
    for ids in [&ids[..1], &ids[..2], &ids[1..2], &ids[..], &ids[1..]] {
        let held = take(dao, ids).await?;
        let waiting = if ids.len() == 1 { Some(queue(dao, ids).await?) } else { None };
        for lock in &held.locks {
            assert!(lock.granted.fence > highest, "{ids:?}: {held:?}");
        }
        highest = held.locks[0].granted.fence;
        assert_eq!(dao.release(&held).await?.lost, []);
        if let Some((request, wakeup)) = waiting {
            let held = handed(dao, &request, wakeup).await?;
            assert!(held.locks[0].granted.fence > highest, "{ids:?}: {held:?}");
            highest = held.locks[0].granted.fence;
            assert_eq!(dao.release(&held).await?.lost, []);
        }
    }
    Ok(())
}
