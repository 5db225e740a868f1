//! A guarded write: the resource refuses a writer whose lock was lost, by the fence.

use std::sync::Mutex;

use lockcore::{BreakMode, ExclusiveFence, FenceGuard, LockingService, StaleFence, Target};
use lockcore_memory::MemoryLockDao;

/// The resource remembers fences beside its value and checks them in the same atomic step as the write.
#[derive(Default)]
struct Account(Mutex<(FenceGuard, i64)>);

impl Account {
    fn set(&self, balance: i64, fence: ExclusiveFence) -> Result<(), StaleFence> {
        let (guard, value) = &mut *self.0.lock().expect("no writer panics");
        guard.admit_exclusive(fence)?;
        *value = balance;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (locks, account) = (LockingService::new(MemoryLockDao::<String>::new()), Account::default());
    let slow = locks.lock(["account/7"]).await?;
    let old = slow.held().exclusive_fence("account/7").expect("held exclusively");

    // The lock is lost while its holder does not notice, and another holder writes.
    let id = Target::Id("account/7".to_owned());
    locks.admin().break_lock(&id, old.number(), BreakMode::Now).await?;
    let next = locks.lock(["account/7"]).await?;
    account.set(100, next.held().exclusive_fence("account/7").expect("held exclusively"))?;

    // The late write of the former holder changes nothing.
    let refused = account.set(7, old).expect_err("another holder wrote since");
    println!("refused: {refused}");
    assert_eq!(account.0.lock().expect("no writer panics").1, 100);
    next.release().await?;
    Ok(())
}

#[test]
fn it_runs() {
    main().expect("it runs");
}
