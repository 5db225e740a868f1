//! The metrics of a service. Nothing is recorded without the feature `metrics`.

use std::time::Duration;

/// The counters, with the values of their label `kind`.
#[cfg(feature = "metrics")]
const COUNTERS: [(&str, &[&str], &str); 9] = [
    ("lockcore_acquired_total", &["granted"], "Sets that were locked."),
    (
        "lockcore_refused_total",
        &["contention", "backend"],
        "Sets that were not locked, because of other holders or a failure of the backend.",
    ),
    ("lockcore_renewed_total", &["renewed"], "Renewals that extended a lease."),
    ("lockcore_renewal_failed_total", &["backend"], "Renewals that failed, each of which is tried again."),
    (
        "lockcore_lost_total",
        &["expired", "broken", "vanished", "unreachable", "released", "forked"],
        "Locks that were lost while they were held.",
    ),
    ("lockcore_released_late_total", &["expired"], "Releases after the lease had ended."),
    ("lockcore_release_failed_total", &["backend"], "Releases that failed, each of which is tried again."),
    ("lockcore_withdraw_failed_total", &["backend"], "Requests in doubt that could not be withdrawn."),
    ("lockcore_sweep_failed_total", &["backend"], "Sweeps that failed."),
];

#[cfg(feature = "metrics")]
const HISTOGRAMS: [(&str, &str); 3] = [
    ("lockcore_wait_seconds", "Time from the call until the set was locked."),
    ("lockcore_held_seconds", "Time from the grant until the set was released."),
    ("lockcore_renewal_lag_seconds", "How much later than planned a renewal was done."),
];

/// The locks that this process holds.
pub(crate) const HELD: &str = "lockcore_held";

/// The calls of this process that wait.
pub(crate) const WAITING: &str = "lockcore_waiting";

#[cfg(feature = "metrics")]
const GAUGES: [(&str, &str); 2] =
    [(HELD, "Locks that this process holds."), (WAITING, "Calls of this process that wait for locks.")];

/// Describes all metrics and registers those of a backend, so that each is there from the first scrape on.
pub(crate) fn register(backend: &'static str) {
    #[cfg(feature = "metrics")]
    {
        for (name, kinds, help) in COUNTERS {
            metrics::describe_counter!(name, metrics::Unit::Count, help);
            for kind in kinds {
                metrics::counter!(name, "backend" => backend, "kind" => *kind).increment(0);
            }
        }
        for (name, help) in HISTOGRAMS {
            metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
        }
        for (name, help) in GAUGES {
            metrics::describe_gauge!(name, metrics::Unit::Count, help);
            metrics::gauge!(name, "backend" => backend).increment(0.0);
        }
    }
    #[cfg(not(feature = "metrics"))]
    let _ = backend;
}

/// Adds one to a counter.
pub(crate) fn count(name: &'static str, backend: &'static str, kind: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(name, "backend" => backend, "kind" => kind).increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (name, backend, kind);
}

/// Records a duration, in seconds, in a histogram.
pub(crate) fn time(name: &'static str, backend: &'static str, duration: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(name, "backend" => backend).record(duration.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _ = (name, backend, duration);
}

/// Keeps a gauge raised until it is dropped.
pub(crate) struct Raised {
    #[cfg(feature = "metrics")]
    gauge: (&'static str, &'static str, f64),
}

impl Raised {
    pub(crate) fn by(count: usize, name: &'static str, backend: &'static str) -> Self {
        #[cfg(feature = "metrics")]
        metrics::gauge!(name, "backend" => backend).increment(count as f64);
        #[cfg(not(feature = "metrics"))]
        let _ = (count, name, backend);
        Raised {
            #[cfg(feature = "metrics")]
            gauge: (name, backend, count as f64),
        }
    }
}

#[cfg(feature = "metrics")]
impl Drop for Raised {
    fn drop(&mut self) {
        let (name, backend, count) = self.gauge;
        metrics::gauge!(name, "backend" => backend).decrement(count);
    }
}

/// Measures a span of time where metrics are wanted, and costs nothing elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch {
    #[cfg(feature = "metrics")]
    started: std::time::Instant,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Stopwatch {
            #[cfg(feature = "metrics")]
            started: std::time::Instant::now(),
        }
    }

    /// Records the time since the start in a histogram.
    pub(crate) fn record(self, name: &'static str, backend: &'static str) {
        #[cfg(feature = "metrics")]
        time(name, backend, self.started.elapsed());
        #[cfg(not(feature = "metrics"))]
        let _ = (name, backend);
    }
}
