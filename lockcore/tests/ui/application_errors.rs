//! An error that is no `std::error::Error` cannot go through `?`: `try_with_locks` is for it.

use lockcore::LockingService;
use lockcore_memory::MemoryLockDao;

async fn run(locks: &LockingService<String, uuid::Uuid, MemoryLockDao>) -> anyhow::Result<u8> {
    Ok(locks.with_locks(["a"], || async { anyhow::Ok(7) }).await?)
}

fn main() {}
