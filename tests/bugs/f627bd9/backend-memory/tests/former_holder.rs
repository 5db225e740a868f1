//! `a_former_holder_is_refused_and_shared_holders_are_not_ordered`, with what there was before the repair.

use lockcore::{Claim, FenceGuard, LockingService};
use lockcore_memory::MemoryLockDao;

#[tokio::test]
async fn a_former_holder_is_refused() {
    let locks = LockingService::<String, uuid::Uuid, _>::new(MemoryLockDao::new());
    let mut resource = FenceGuard::new();
    let former = locks.lock(["a"]).await.unwrap();
    let former_fence = former.exclusive_fence("a").unwrap();
    former.release().await.unwrap();
    let later = locks.lock([Claim::shared("a".to_owned())]).await.unwrap();
    resource.admit_shared(later.shared_fence("a").unwrap()).unwrap();
    resource.admit_exclusive(former_fence).expect_err("a later holder was here");
}
