//! Runs a report at three each night (UTC) on one of the hosts that run this program.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockcore::{LockingService, Once};
use lockcore_any::Config;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let locks = Config::load(None, Config::default())?.service().await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let until_three = Duration::from_secs((27 * 3600 - now % 86400) % 86400);
    every_night(&locks, Instant::now() + until_three, async || {
        println!("the report is written");
        Ok(())
    })
    .await;
    Ok(())
}

// ANCHOR: recipe
const HOUR: Duration = Duration::from_secs(3600);

async fn every_night(locks: &LockingService, first: Instant, report: impl AsyncFn() -> anyhow::Result<()>) {
    let mut nights = interval_at(first, 24 * HOUR);
    nights.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        nights.tick().await;
        match locks.once_per("nightly-report", 24 * HOUR).run(async || report().await).await {
            Ok(Once::Here(ran)) if !ran.confirmed => {
                eprintln!("the report may be made again: the store is away")
            }
            Ok(_) => {} // it ran here, or another host runs it, or has run it
            Err(error) => eprintln!("no report of this host: {error}"),
        }
    }
}
// ANCHOR_END: recipe

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use lockcore::AnyLockDao;
    use lockcore_memory::MemoryLockDao;

    use super::*;

    /// Three hosts whose clocks are up to two seconds apart, three nights, in no time.
    #[tokio::test(start_paused = true)]
    async fn it_runs_once_a_night() {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let locks = LockingService::new(AnyLockDao::new(MemoryLockDao::new()));
        let host = |late: u64| {
            let (locks, first) = (locks.clone(), Instant::now() + 5 * HOUR + Duration::from_secs(late));
            tokio::spawn(async move {
                every_night(&locks, first, async || {
                    RUNS.fetch_add(1, SeqCst);
                    Ok(())
                })
                .await;
            })
        };
        let hosts = [0, 1, 2].map(host);
        for nights in 1..=3 {
            tokio::time::sleep(24 * HOUR).await;
            assert_eq!(RUNS.load(SeqCst), nights);
        }
        assert!(hosts.iter().all(|host| !host.is_finished()));
    }
}
