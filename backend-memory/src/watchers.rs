//! Watchers of ids: they look again after each step of the backend.

use std::time::Duration;

use futures_util::stream::BoxStream;
use lockcore::{
    BackendError, ContextId, Ident, Inspection, Target,
    backend::{self, Changes, NextChange},
};

use crate::{
    MemoryLockDao,
    sync::{AtomicU64, Ordering::Relaxed},
};

/// The watchers of a backend, of any ids.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// So that a step without watchers takes no lock for them.
    count: AtomicU64,
    steps: Changes<()>,
}

impl Watchers {
    /// Has the watchers look again; to be called after each step that may change what an id is.
    pub(crate) fn notify(&self) {
        // A watcher is counted before it looks, under the lock of a shard. A step that it did not see locked that shard later, which
        // orders the count.
        if self.count.load(Relaxed) > 0 {
            self.steps.any();
        }
    }

    fn enter(&self) -> Watching<'_> {
        self.count.fetch_add(1, Relaxed);
        Watching(self)
    }
}

/// A watcher, counted until it is dropped.
struct Watching<'w>(&'w Watchers);

impl Watching<'_> {
    fn next_step(&self) -> NextChange<()> {
        self.0.steps.subscribe()
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Relaxed);
    }
}

impl<I: Ident, C: ContextId> MemoryLockDao<I, C> {
    pub(crate) fn watch_now<'w>(
        &'w self,
        target: &'w Target<I>,
        every: Duration,
    ) -> BoxStream<'w, Result<Inspection<I, C>, BackendError>> {
        let watching = self.watchers.enter();
        let look = move || {
            let change = watching.next_step();
            std::future::ready(Ok((self.inspect_now(target), change)))
        };
        backend::watch(every, |()| true, look)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{pin::pin, sync::Arc};

    use futures_util::StreamExt;
    use lockcore::{Change, LockingService};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_watcher_sees_a_step_at_once() {
        const NEVER: Duration = Duration::from_secs(24 * 60 * 60);
        let dao = Arc::new(MemoryLockDao::<String>::new());
        let locks = LockingService::new(dao.clone());
        let (admin, target) = (locks.admin(), Target::Id("a".to_owned()));
        let mut changes = pin!(admin.watch(&target, NEVER));
        let mut next = async || {
            let next = timeout(Duration::from_secs(30), changes.next()).await;
            next.expect("it is seen before the next look").expect("it goes on").expect("memory answers")
        };
        let other = locks.lock(["b"]).await.expect("it is free");
        let (guard, first) = tokio::join!(locks.lock(["a"]), next());
        assert!(matches!(first, Change::Acquired(_)));
        let (released, then) = tokio::join!(guard.expect("it is free").release(), next());
        released.expect("it is held");
        assert!(matches!(then, Change::Ended { .. }));
        let (frozen, last) = tokio::join!(admin.freeze(&target, true), next());
        frozen.expect("memory answers");
        assert_eq!((last, dao.watchers.count.load(Relaxed)), (Change::Frozen, 1));
        drop(other);
    }
}
