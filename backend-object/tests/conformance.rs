//! The conformance suite on a store within the process, under virtual time. `emulator.rs` runs it in real time.

use std::{process::ExitCode, sync::Arc, time::Duration};

use lockcore_conformance::{
    Backend, Store,
    servers::{Trial, run},
};
use lockcore_object::{ObjectBuilder, ObjectLockDao, ObjectStore};
use object_store::memory::InMemory;
use tokio::runtime::Builder;
use uuid::Uuid;

/// A store of its own for each test. It goes by this machine's clock, so that leases can be short.
struct Memory;

fn builder(store: &Arc<dyn ObjectStore>) -> ObjectBuilder<String, Uuid> {
    ObjectLockDao::builder().store(store.clone()).local_clock().min_lease(Duration::from_millis(500))
}

impl Backend for Memory {
    type Dao = ObjectLockDao;
    type Guard = Arc<dyn ObjectStore>;

    async fn build(&self) -> (Arc<dyn ObjectStore>, ObjectLockDao) {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let dao = builder(&store).open().await.expect("a store in memory can be opened");
        (store, dao)
    }

    async fn reopen(&self, store: &Arc<dyn ObjectStore>) -> Option<ObjectLockDao> {
        Some(builder(store).open().await.expect("a store in memory can be opened"))
    }
}

/// The checks that run in real time, as groups or single checks. They block a thread for as long as a lease lasts, need
/// a second thread, wait for the library's own thread, which knows no virtual time, or compare what the service counts,
/// the larger of virtual and real time, with virtual time alone.
const IN_REAL_TIME: &[&str] = &[
    "blocking",
    "histories::histories_with_deaths_agree_with_the_model",
    "histories::random_histories_agree_with_the_model",
    "keep_for",
    "keeping::a_blocked_runtime_is_renewed",
    "keeping::a_service_sweeps",
    "keeping::a_slow_hook_costs_no_lock",
    "keeping::blocking_code_is_renewed",
    "losing::a_late_callback_is_not_polled_again",
    "losing::a_stopped_holder_is_taken_over_and_does_nothing_more",
    "losing::plain_code_sees_the_loss",
    "releasing::a_resting_runtime_keeps_no_lock",
    "releasing::clean_up_works_without_a_runtime",
];

fn is_one(check: &str, name: &str) -> bool {
    check == name || check.split_once("::").is_some_and(|(group, _)| group == name)
}

fn main() -> ExitCode {
    let checks = lockcore_conformance::all::<Memory>();
    let unknown = IN_REAL_TIME.iter().find(|name| !checks.iter().any(|check| is_one(check.name, name)));
    assert_eq!(unknown, None, "there is a check of this name");
    run(checks.into_iter().map(|check| {
        Trial::test(format!("object::{}", check.name), move || {
            let runtime = match IN_REAL_TIME.iter().any(|name| is_one(check.name, name)) {
                true => Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
                false => Builder::new_current_thread().enable_all().start_paused(true).build()?,
            };
            runtime.block_on(async { (check.run)(Store::new(Arc::new(Memory)).await).await });
            Ok(())
        })
    }))
}
