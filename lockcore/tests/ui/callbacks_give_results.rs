//! A callback that cannot fail is for `run_locked`.

use lockcore::LockingService;
use lockcore_memory::MemoryLockDao;

fn main() {
    let locks = LockingService::new(MemoryLockDao::<String>::new());
    let _ = locks.with_locks(["a"], || async { 7 });
}
