//! How many connections a program has that takes one set of locks, as `lockctl` does.

use std::time::{Duration, Instant};

use lockcore::{LockDao, LockingService, Wait};
use lockcore_conformance::PATIENCE;
use uuid::Uuid;

use super::Error;

/// How long each holds its lock: long enough for renewals and heartbeats.
const HELD: Duration = Duration::from_secs(3);

/// One program holds a lock and listens to nothing, another waits for it and then holds it. Returns the most connections that each had at any time, and
/// as many are left at the end. `sessions` counts those of the first and the second.
pub(crate) async fn connections<D: LockDao<String, Uuid> + 'static>(
    [holds, waits]: [D; 2],
    mut sessions: impl AsyncFnMut() -> Result<[i64; 2], Error>,
) -> Result<[i64; 2], Error> {
    let service =
        |dao| LockingService::builder(dao).lease(Duration::from_secs(2)).wait(Wait::up_to(PATIENCE)).build();
    let (holds, waits) = (service(holds)?, service(waits)?);
    let mut most = sessions().await?;
    let mut watch = async || {
        let begun = Instant::now();
        while begun.elapsed() < HELD {
            let now = sessions().await?;
            most = [most[0].max(now[0]), most[1].max(now[1])];
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok::<_, Error>(())
    };
    let guard = holds.lock(["a"]).await.map_err(|error| format!("{error:?}"))?;
    let waiting = tokio::spawn(async move { waits.lock(["a"]).await });
    watch().await?;
    guard.release().await.map_err(|error| format!("{error:?}"))?;
    let guard = waiting.await?.map_err(|error| format!("{error:?}"))?;
    watch().await?;
    guard.release().await.map_err(|error| format!("{error:?}"))?;
    Ok(most)
}
