//! The conformance suite on the memory backend.

use lockcore_conformance::{Backend, checks::contexts::odd_contexts_are_kept_apart, conformance};
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

/// Contexts of any text, which the suite's stores do not have.
#[tokio::test]
async fn odd_contexts() {
    odd_contexts_are_kept_apart(&MemoryLockDao::<String, String>::new()).await;
}
