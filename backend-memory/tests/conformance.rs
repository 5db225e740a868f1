//! The conformance suite on the memory backend.

use lockcore_conformance::{
    Backend,
    checks::{contexts::odd_contexts_are_kept_apart, histories::every_short_history_agrees_with_the_model},
    conformance,
};
use lockcore_memory::MemoryLockDao;
use uuid::Uuid;

/// A table of its own for each store; nothing outlives it.
struct Memory;

impl Backend for Memory {
    type Dao = MemoryLockDao<String, Uuid>;
    type Guard = ();

    async fn build(&self) -> ((), Self::Dao) {
        ((), MemoryLockDao::new())
    }

    async fn reopen(&self, (): &()) -> Option<Self::Dao> {
        None
    }
}

conformance!(memory, Memory);

/// 65,536 histories.
#[test]
fn every_order_of_four_steps() {
    lockcore_conformance::run(Memory, |store| every_short_history_agrees_with_the_model(store, 4));
}

/// Contexts of any text, which the suite's stores do not have.
#[tokio::test]
async fn odd_contexts() {
    odd_contexts_are_kept_apart(&MemoryLockDao::<String, String>::new()).await;
}
