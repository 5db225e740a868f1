//! A callback that needs fences and has an application's errors: `flatten` is for it.

use lockcore::LockingService;
use lockcore_memory::MemoryLockDao;

async fn run(locks: &LockingService<String, uuid::Uuid, MemoryLockDao>) -> anyhow::Result<u64> {
    Ok(locks.with_held_locks(["a"], async |held| anyhow::Ok(held.fence("a"))).await?)
}

fn main() {}
