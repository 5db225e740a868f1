//! One id is `["abc"]`; the characters of a text are not three locks.

use lockcore::LockingService;
use lockcore_memory::MemoryLockDao;

fn main() {
    let locks = LockingService::new(MemoryLockDao::<String>::new());
    let _ = locks.lock("abc");
    let _ = locks.lock("abc".chars());
}
