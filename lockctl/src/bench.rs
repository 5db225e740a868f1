//! `lockctl bench`: how long the user's own store takes.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use lockcore::LockingService;
use serde_json::json;
use uuid::Uuid;

use crate::{
    args::{Bench, Global},
    exit::Failure,
    output::Output,
    session,
};

/// The longest time that the histogram distinguishes.
const LONGEST: Duration = Duration::from_secs(600);

/// Locks and releases sets of new ids until the time is over, and writes how long a pair took.
pub(crate) async fn bench(global: &Global, args: &Bench, output: Output) -> Result<u8, Failure> {
    let (locks, _) = session::open(global, None, None, std::process::id()).await?;
    let (run, begun) = (Uuid::new_v4(), Instant::now());
    let progress = ProgressBar::new(args.time.as_millis() as u64)
        .with_style(ProgressStyle::with_template("{wide_bar} {msg}").expect("a template"));
    let pairs = AtomicU64::new(0);
    let task = async |task: u32| {
        let mut took = Histogram::<u64>::new_with_max(LONGEST.as_micros() as u64, 3).expect("within bounds");
        while begun.elapsed() < args.time {
            let number = pairs.fetch_add(1, Relaxed);
            let ids: Vec<String> =
                (0..args.ids).map(|id| format!("lockctl-bench/{run}/{task}/{number}/{id}")).collect();
            took.saturating_record(pair(&locks, &ids).await?.as_micros() as u64);
            progress.set_position(begun.elapsed().as_millis() as u64);
            progress.set_message(format!("{number} pairs"));
        }
        Ok::<_, Failure>(took)
    };
    let done = try_join_all((0..args.tasks).map(task)).await;
    let elapsed = begun.elapsed();
    progress.finish_and_clear();
    locks.shutdown(session::GRACE).await;
    let mut all = Histogram::<u64>::new_with_max(LONGEST.as_micros() as u64, 3).expect("within bounds");
    for took in done? {
        all.add(took).expect("the same bounds");
    }
    let (p50, p99) = (all.value_at_quantile(0.5), all.value_at_quantile(0.99));
    let rate = all.len() as f64 / elapsed.as_secs_f64();
    let human = || {
        let (p50, p99) = (Duration::from_micros(p50), Duration::from_micros(p99));
        format!(
            "{} pairs of {} ids by {} tasks: p50 {p50:?}, p99 {p99:?}, {rate:.0} a second",
            all.len(),
            args.ids,
            args.tasks
        )
    };
    let machine = || {
        json!({
            "pairs": all.len(), "ids": args.ids, "tasks": args.tasks, "p50_us": p50, "p99_us": p99, "pairs_per_second": rate,
        })
    };
    output.result(human, machine).map(|()| 0)
}

/// Locks and releases; returns how long both took.
async fn pair(locks: &LockingService, ids: &[String]) -> Result<Duration, Failure> {
    let begun = Instant::now();
    locks.lock(ids).await?.release().await?;
    Ok(begun.elapsed())
}
