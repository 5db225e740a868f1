//! The metrics as a real exporter shows them, and that the dashboard and the alerts ask for no others.

use std::{collections::BTreeSet, fs, path::Path};

use lockcore::LockingService;
use lockcore_memory::MemoryLockDao;
use metrics_exporter_prometheus::PrometheusBuilder;

/// As the crate's documentation recommends.
const BUCKETS: [f64; 9] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0];

/// Installs the exporter, locks once, and returns what it shows before and after that.
fn scrapes() -> (String, String) {
    let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS).expect("buckets").build_recorder();
    let exporter = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let locks = LockingService::new(MemoryLockDao::<String>::new());
        let first = exporter.render();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(locks.run_locked(["a"], async || ())).expect("free");
        (first, exporter.render())
    })
}

#[test]
fn everything_is_described_from_the_first_scrape_on() {
    let (first, later) = scrapes();
    assert!(
        first.contains("# HELP lockcore_lost_total Locks that were lost while they were held."),
        "{first}"
    );
    assert!(first.contains(r#"lockcore_lost_total{backend="memory",kind="vanished"} 0"#), "{first}");
    assert!(first.contains(r#"lockcore_held{backend="memory"} 0"#), "{first}");
    assert!(later.contains(r#"lockcore_acquired_total{backend="memory",kind="granted"} 1"#), "{later}");
    assert!(later.contains(r#"lockcore_held_seconds_bucket{backend="memory",le="0.005"}"#), "{later}");
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_metrics_that_exist() {
    let (_, shown) = scrapes();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating");
    for file in ["grafana-dashboard.json", "prometheus-alerts.yml"] {
        let text = fs::read_to_string(folder.join(file)).expect("a file");
        let asked: BTreeSet<_> = text
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with("lockcore_"))
            .collect();
        assert!(!asked.is_empty());
        for name in asked {
            let family = name.trim_end_matches("_bucket");
            // Of a renewal nothing was measured here.
            let is_known = shown.contains(&format!("{family}{{")) || shown.contains(&format!("{name}{{"));
            assert!(is_known || family == "lockcore_renewal_lag_seconds", "{file}: {name}");
        }
    }
}
