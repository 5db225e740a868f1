//! A unit test of code that locks: the in-memory DAO under tokio's paused clock, where an hour takes no time.

use std::time::Duration;

use lockcore::{LockError, LockingService, Wait};
use lockcore_memory::MemoryLockDao;

/// The code under test, which runs on any backend.
struct Reports {
    locks: LockingService,
}

impl Reports {
    /// Writes a report, unless another writer is active for half an hour.
    async fn write(&self) -> Result<&'static str, LockError> {
        self.locks
            .wait(Wait::up_to(Duration::from_secs(1800)))
            .run_locked(["report"], async || "written")
            .await
    }
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let reports = Reports { locks: LockingService::new(MemoryLockDao::new().into()) };
    println!("{}; the tests: cargo test -p lockcore-memory --test memory unit_test", reports.write().await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_another_writer() {
        let reports = Reports { locks: LockingService::new(MemoryLockDao::new().into()) };
        let other = reports.locks.lock(["report"]).await.expect("it is free");
        let released = async {
            sleep(Duration::from_secs(1200)).await;
            other.release().await.expect("it was held");
        };
        let (written, ()) = tokio::join!(reports.write(), released);
        assert_eq!(written.expect("it waited"), "written");
    }

    #[tokio::test(start_paused = true)]
    async fn it_gives_up_after_half_an_hour() {
        let reports = Reports { locks: LockingService::new(MemoryLockDao::new().into()) };
        let _other = reports.locks.lock(["report"]).await.expect("it is free");
        let begun = Instant::now();
        assert!(matches!(reports.write().await, Err(LockError::NotLocked { .. })));
        assert!(begun.elapsed() >= Duration::from_secs(1800));
    }
}
