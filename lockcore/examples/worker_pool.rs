//! A pool with slots: at most three of many workers export at once, and none does while the tariff is updated.

use std::{
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::Duration,
};

use lockcore::{Claim, LockingService, Wait};
use lockcore_memory::MemoryLockDao;
use tokio::{task::JoinSet, time::sleep};

static EXPORTING: AtomicU32 = AtomicU32::new(0);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let locks = LockingService::builder(MemoryLockDao::<String>::new()).wait(Wait::forever()).build()?;
    let mut workers = JoinSet::new();
    for _ in 0..20 {
        let locks = locks.clone();
        workers.spawn(async move {
            // Both in one step: a slot of the pool, and the tariff together with other readers.
            let claims = [Claim::slots("export", 3), Claim::shared("tariff")];
            locks
                .run_locked(claims, async || {
                    assert!(EXPORTING.fetch_add(1, SeqCst) < 3);
                    sleep(Duration::from_millis(5)).await;
                    EXPORTING.fetch_sub(1, SeqCst);
                })
                .await
        });
    }
    locks.run_locked(["tariff"], async || assert_eq!(EXPORTING.load(SeqCst), 0)).await?;
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    println!("20 exports, never more than 3 at once");
    Ok(())
}

#[test]
fn it_runs() {
    main().expect("it runs");
}
