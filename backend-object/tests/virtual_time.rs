//! Leases and waiting over hours, on a store in memory whose time a test sets forward.

use std::{sync::Arc, time::Duration};

use lockcore::{LockingService, Wait};
use lockcore_conformance::servers::Trial;
use lockcore_object::ObjectLockDao;
use object_store::memory::InMemory;
use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};

type Locks = LockingService<String, uuid::Uuid, ObjectLockDao>;

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($name:ident)*) => { vec![$(trial(stringify!($name), $name)),*] };
    }
    trials! {
        a_holder_is_renewed_for_hours
        a_waiter_waits_for_hours_and_is_handed_over_to
        a_lease_that_is_not_renewed_ends
    }
}

fn trial<F: Future<Output = ()> + 'static>(name: &str, test: fn() -> F) -> Trial {
    Trial::test(format!("object::virtual_time::{name}"), move || {
        Builder::new_current_thread().enable_all().start_paused(true).build()?.block_on(test());
        Ok(())
    })
}

/// Two processes on one store, with the leases that a bucket has.
async fn two() -> [Locks; 2] {
    let store = Arc::new(InMemory::new());
    let mut both = Vec::new();
    for _ in 0..2 {
        let builder = ObjectLockDao::builder().store(store.clone()).local_clock();
        both.push(LockingService::new(builder.open().await.expect("a store in memory can be opened")));
    }
    both.try_into().expect("there are two")
}

async fn a_holder_is_renewed_for_hours() {
    let [holder, other] = two().await;
    let held = holder.lock(["a"]).await.expect("it is free");
    sleep(6 * HOUR).await;
    held.check().expect("it is renewed");
    assert!(other.lock(["a"]).await.expect_err("it is held").is_contention());
    held.release().await.expect("it is held");
    other.lock(["a"]).await.expect("it is free").release().await.expect("it is held");
}

async fn a_waiter_waits_for_hours_and_is_handed_over_to() {
    let [holder, other] = two().await;
    let held = holder.lock(["a"]).await.expect("it is free");
    let waiting = tokio::spawn(async move {
        let guard = other.wait(Wait::up_to(4 * HOUR)).lock(["a"]).await.expect("it is released before");
        (Instant::now(), guard)
    });
    sleep(2 * HOUR).await;
    held.release().await.expect("it is held");
    let released = Instant::now();
    let (granted, guard) = waiting.await.expect("no panic");
    assert!(granted - released < Duration::from_secs(1), "{:?}", granted - released);
    guard.release().await.expect("it is held");
}

async fn a_lease_that_is_not_renewed_ends() {
    let [holder, other] = two().await;
    let began = Instant::now();
    let held = holder.lock(["a"]).await.expect("it is free");
    held.leave();
    let guard = other.wait(Wait::up_to(HOUR)).lock(["a"]).await.expect("the lease ends");
    let passed = began.elapsed();
    assert!((60..64).contains(&passed.as_secs()), "{passed:?}");
    guard.release().await.expect("it is held");
}
