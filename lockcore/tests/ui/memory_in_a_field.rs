//! A service whose backend is chosen at run time takes that in memory by `.into()`.

use lockcore::LockingService;
use lockcore_memory::MemoryLockDao;

struct Worker {
    locks: LockingService,
}

fn main() {
    let worker = Worker { locks: LockingService::new(MemoryLockDao::new()) };
    drop(worker.locks);
}
