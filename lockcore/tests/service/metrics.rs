//! What the feature `metrics` counts and times, under which names and labels, and that no identifier is in them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use ::metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use lockcore::{BackendErrorKind, LockDao, StoredContext, Wait};
use tokio::time::sleep;

use super::rigged::{Fault, Rigged, Step};

/// The gauges, which change with almost every step.
const GAUGES: [&str; 2] = ["lockcore_held ", "lockcore_waiting "];

const SECOND: Duration = Duration::from_secs(1);

/// Keeps the sum of every counter, and the values of every histogram, by name and labels.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<BTreeMap<String, Vec<f64>>>>);

struct Entry(Ledger, String);

impl Entry {
    fn add(&self, value: f64) {
        self.0.0.lock().unwrap().entry(self.1.clone()).or_default().push(value);
    }
}

impl CounterFn for Entry {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _value: u64) {}
}

impl GaugeFn for Entry {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _value: f64) {}
}

impl HistogramFn for Entry {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Ledger {
    fn entry(&self, key: &Key) -> Arc<Entry> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Entry(self.clone(), format!("{} {}", key.name(), labels.join(" "))))
    }

    fn describe(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        assert!(unit.is_some() && text.ends_with('.'), "{key:?}: {text}");
        self.0.lock().unwrap().entry(format!("{} described", key.as_str())).or_default();
    }

    fn take(&self) -> BTreeMap<String, Vec<f64>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Recorder for Ledger {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.entry(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.entry(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.entry(key))
    }
}

#[tokio::test(start_paused = true)]
async fn every_outcome_is_counted_under_its_name_and_kind() {
    let ledger = Ledger::default();
    let _here = ::metrics::set_default_local_recorder(&ledger);
    let dao = Rigged::new();
    let locks = dao.service();
    let names = || {
        ledger
            .take()
            .into_keys()
            .filter(|name| !GAUGES.iter().any(|gauge| name.starts_with(gauge)))
            .collect::<Vec<_>>()
    };
    // Before anything happens: each counter with each kind, and a description of everything.
    let first = ledger.take();
    assert_eq!(first.keys().filter(|name| name.ends_with("described")).count(), 14);
    assert!(first.contains_key("lockcore_lost_total backend=rigged kind=vanished"), "{first:?}");
    assert!(first.values().flatten().all(|value| *value == 0.0), "{first:?}");

    locks.run_locked(["secret"], async || sleep(35 * SECOND).await).await.unwrap();
    let counted = ledger.take();
    assert_eq!(
        counted.keys().collect::<Vec<_>>(),
        [
            "lockcore_acquired_total backend=rigged kind=granted",
            "lockcore_held backend=rigged",
            "lockcore_held_seconds backend=rigged",
            "lockcore_renewal_lag_seconds backend=rigged",
            "lockcore_renewed_total backend=rigged kind=renewed",
            "lockcore_wait_seconds backend=rigged",
        ]
    );
    assert_eq!(counted["lockcore_renewed_total backend=rigged kind=renewed"].len(), 3);

    let guard = locks.lock(["secret"]).await.unwrap();
    ledger.take();
    locks.lock(["secret"]).await.unwrap_err();
    assert_eq!(names(), ["lockcore_refused_total backend=rigged kind=contention"]);
    dao.once(Step::Acquire, Fault::Hangs);
    locks.wait(Wait::up_to(SECOND)).lock(["secret"]).await.unwrap_err();
    assert_eq!(names(), ["lockcore_refused_total backend=rigged kind=backend"], "no answer is no contention");

    dao.once(Step::Renew, Fault::Fails(BackendErrorKind::Unavailable));
    sleep(10 * SECOND).await;
    assert_eq!(names()[0], "lockcore_renewal_failed_total backend=rigged kind=backend");
    let StoredContext::Known(context) = dao.memory.current()[0].holders[0].context.clone() else { panic!() };
    dao.memory.release_context(&context).await.unwrap();
    guard.release().await.unwrap_err();
    assert!(names().contains(&"lockcore_lost_total backend=rigged kind=vanished".to_owned()));

    dao.once(Step::Release, Fault::Fails(BackendErrorKind::Busy));
    locks.run_locked(["secret"], async || {}).await.unwrap();
    assert!(names().contains(&"lockcore_release_failed_total backend=rigged kind=backend".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn gauges_show_what_is_held_and_waits() {
    let ledger = Ledger::default();
    let _here = ::metrics::set_default_local_recorder(&ledger);
    let dao = Rigged::new();
    let locks = dao.service();
    let sums = || {
        let kept = ledger.0.lock().unwrap();
        GAUGES.map(|gauge| kept[&format!("{gauge}backend=rigged")].iter().sum::<f64>())
    };
    assert_eq!(sums(), [0.0, 0.0]);
    let guard = locks.lock(["a", "b"]).await.unwrap();
    assert_eq!(sums(), [2.0, 0.0]);
    let waiting = locks.wait(Wait::up_to(SECOND)).lock(["a"]);
    let looking = async {
        sleep(SECOND / 2).await;
        assert_eq!(sums(), [2.0, 1.0]);
    };
    tokio::join!(waiting, looking).0.unwrap_err();
    assert_eq!(sums(), [2.0, 0.0]);
    guard.release().await.unwrap();
    assert_eq!(sums(), [0.0, 0.0]);
}
