//! How the figures are measured: ours and the others in turn, in the same run, so that a machine whose speed drifts
//! changes all of them alike; what counts is the ratio.

use std::time::{Duration, Instant};

use comfy_table::Table;
use hdrhistogram::Histogram;

/// The times of one candidate, in nanoseconds.
#[derive(Debug)]
pub struct Times {
    name: String,
    histogram: Histogram<u64>,
}

impl Times {
    /// Nothing measured yet.
    pub fn new(name: impl Into<String>) -> Self {
        let histogram = Histogram::new(3).expect("three digits are possible");
        Times { name: name.into(), histogram }
    }

    /// Adds the mean time of one operation out of `operations` that took `elapsed` together.
    pub fn add(&mut self, elapsed: Duration, operations: u32) {
        let each = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX) / u64::from(operations);
        self.histogram.record(each.max(1)).expect("the histogram grows with its values");
    }

    /// The time that `share` of the measurements, 0 to 1, are not above, in nanoseconds.
    pub fn quantile(&self, share: f64) -> u64 {
        self.histogram.value_at_quantile(share)
    }
}

/// The figures of one case: the first candidate is ours, the others are what it is compared with.
#[derive(Debug)]
pub struct Case {
    name: String,
    candidates: Vec<Times>,
}

impl Case {
    /// A case and the names of its candidates, ours first.
    pub fn new(name: impl Into<String>, candidates: &[&str]) -> Self {
        Case { name: name.into(), candidates: candidates.iter().map(|&name| Times::new(name)).collect() }
    }

    /// The times of one candidate.
    pub fn times(&mut self, candidate: usize) -> &mut Times {
        &mut self.candidates[candidate]
    }

    /// The time that `share` of the measurements of one candidate are not above, in nanoseconds.
    pub fn quantile(&self, candidate: usize, share: f64) -> u64 {
        self.candidates[candidate].quantile(share)
    }

    /// Measures `operations` calls of a plain function as one batch.
    pub fn batch(&mut self, candidate: usize, operations: u32, mut operation: impl FnMut()) {
        let start = Instant::now();
        for _ in 0..operations {
            operation();
        }
        self.times(candidate).add(start.elapsed(), operations);
    }

    /// Measures one future, which a task may carry out.
    pub async fn once<F: Future>(&mut self, candidate: usize, operation: F) -> F::Output {
        let start = Instant::now();
        let output = operation.await;
        self.times(candidate).add(start.elapsed(), 1);
        output
    }

    /// Measures `operations` awaited calls of an async function as one batch.
    pub async fn batch_async(&mut self, candidate: usize, operations: u32, mut operation: impl AsyncFnMut()) {
        let start = Instant::now();
        for _ in 0..operations {
            operation().await;
        }
        self.times(candidate).add(start.elapsed(), operations);
    }
}

/// Prints the cases as a table: p50 and p99 of each candidate, and our ratio to it at p50.
pub fn report(cases: &[Case]) {
    let mut table = Table::new();
    table.set_header(["case", "what", "p50", "p99", "ours / this at p50"]);
    for case in cases {
        let ours = case.candidates[0].quantile(0.5);
        for (position, times) in case.candidates.iter().enumerate() {
            let name = if position == 0 { case.name.as_str() } else { "" };
            let ratio = if position == 0 {
                "-".to_owned()
            } else {
                format!("{:.2}", ours as f64 / times.quantile(0.5) as f64)
            };
            table.add_row([
                name,
                &times.name,
                &show(times.quantile(0.5)),
                &show(times.quantile(0.99)),
                &ratio,
            ]);
        }
    }
    println!("{table}");
}

fn show(nanoseconds: u64) -> String {
    match nanoseconds {
        0..10_000 => format!("{nanoseconds} ns"),
        10_000..10_000_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
        _ => format!("{:.1} ms", nanoseconds as f64 / 1e6),
    }
}

/// The memory of this process that is in use, in bytes, as the kernel counts it; 0 where that cannot be read.
pub fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
