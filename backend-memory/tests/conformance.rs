//! The conformance suite on the memory backend.

use std::{panic::catch_unwind, sync::Arc};

use lockcore_conformance::{
    Backend,
    checks::{contexts::odd_contexts_are_kept_apart, histories::every_short_history_agrees_with_the_model},
    conformance,
    fault::{Fault, FaultyDao, Operation},
};
use lockcore_memory::{MemoryLockDao, SimulatedLockDao};
use uuid::Uuid;

/// A table of its own for each store; nothing outlives it.
struct Memory;

impl Backend for Memory {
    type Dao = MemoryLockDao<String, Uuid>;
    type Guard = ();

    const VIRTUAL_TIME: bool = true;

    async fn build(&self) -> ((), Self::Dao) {
        ((), MemoryLockDao::new())
    }

    async fn reopen(&self, (): &()) -> Option<Self::Dao> {
        None
    }
}

conformance!(memory, Memory);

/// The store of unit tests, in which nothing fails.
struct Simulated;

impl Backend for Simulated {
    type Dao = SimulatedLockDao<String, Uuid>;
    type Guard = ();

    async fn build(&self) -> ((), Self::Dao) {
        ((), SimulatedLockDao::new())
    }

    async fn reopen(&self, (): &()) -> Option<Self::Dao> {
        None
    }
}

#[test]
fn the_simulated_store_does_what_it_declares() {
    for check in lockcore_conformance::all::<Simulated>() {
        if ["admin::", "capabilities::"].iter().any(|group| check.name.starts_with(group)) {
            lockcore_conformance::run(Simulated, check.run);
        }
    }
}

/// 65,536 histories.
#[test]
fn every_order_of_four_steps() {
    lockcore_conformance::run(Memory, |store| every_short_history_agrees_with_the_model(store, 4));
}

/// A store that does nothing of one kind, and says that it did.
struct Pretends(Option<Operation>);

impl Backend for Pretends {
    type Dao = FaultyDao<MemoryLockDao>;
    type Guard = ();

    async fn build(&self) -> ((), Self::Dao) {
        let (dao, faults) = FaultyDao::new(Arc::new(MemoryLockDao::new()));
        if let Some(operation) = self.0 {
            faults.set(operation, Fault::Pretends);
        }
        ((), dao)
    }

    async fn reopen(&self, (): &()) -> Option<Self::Dao> {
        None
    }
}

/// The histories of three steps tell it from a store that works.
#[test]
fn a_store_that_pretends_is_found() {
    use Operation::{Acquire, Release, Renew, Withdraw};
    let agrees = |pretends| {
        let play = || {
            lockcore_conformance::run(Pretends(pretends), |store| {
                every_short_history_agrees_with_the_model(store, 3)
            })
        };
        catch_unwind(play).is_ok()
    };
    assert!(agrees(None));
    for operation in [Acquire, Withdraw, Release, Renew] {
        assert!(!agrees(Some(operation)), "{operation:?}");
    }
}

/// Contexts of any text, which the suite's stores do not have.
#[tokio::test]
async fn odd_contexts() {
    odd_contexts_are_kept_apart(&MemoryLockDao::<String, String>::new()).await;
}
