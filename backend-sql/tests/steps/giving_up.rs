//! Requests that are given up while a table is locked, as by maintenance.

use std::{sync::Arc, time::Duration};

use lockcore::LockDao;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{Error, request};

/// How many ask at once, and how often each gives up.
const ASKERS: usize = 4;
const TIMES: usize = 5;

/// Each request is given up by this process, and by the server with it: else each would leave a session there that waits for
/// the table. `sessions` counts those of this test.
pub(crate) async fn leaves_no_sessions<D: LockDao<String, Uuid> + 'static>(
    dao: &Arc<D>,
    mut sessions: impl AsyncFnMut() -> Result<i64, Error>,
) -> Result<(), Error> {
    let before = sessions().await?;
    let mut askers = JoinSet::new();
    for number in 0..ASKERS {
        let dao = dao.clone();
        askers.spawn(async move {
            for round in 0..TIMES {
                let ids = [format!("a{number}.{round}"), format!("b{number}.{round}")];
                let error = dao.acquire(&request(ids)).await.expect_err("the table is locked");
                assert!(error.is_retryable(), "{error:?}");
            }
        });
    }
    let mut most = before;
    while !askers.is_empty() {
        most = most.max(sessions().await?);
        let ended = tokio::time::timeout(Duration::from_millis(50), askers.join_next()).await;
        if let Ok(Some(ended)) = ended {
            ended?;
        }
    }
    // One that works on a request, and one that the server has not given up yet.
    let bound = before + 2 * ASKERS as i64;
    assert!(most <= bound, "{most} sessions, and there were {before} before");
    Ok(())
}
