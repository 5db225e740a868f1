//! A server that is killed in the middle of each step, and started again on what it had written.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::{
    LockDao, LockError, LockingService, Wait,
    backend::{Withdraw, Withdrawn},
};
use tokio::{task::JoinSet, time::timeout};

use super::{Kind, Line, Mode, Remote, STALLED, TestResult, until};
use crate::{PATIENCE, eventually, servers::Counts};

/// When the server is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    /// The request has not reached it.
    Before,
    /// It has answered, and the answer is lost.
    After,
}

impl<R: Remote> Line<R> {
    /// From now on messages get as far as `when` says.
    async fn aim(&self, when: When) -> Counts {
        self.proxy.set(if when == When::Before { STALLED } else { Mode::DropReplies }).await;
        self.proxy.counts()
    }

    /// Kills the server as soon as the next message since `before` is there, and starts it again.
    async fn dies(&self, when: When, before: Counts) -> TestResult {
        self.proxy
            .counted(|now| match when {
                When::Before => now.requests > before.requests,
                When::After => now.replies > before.replies,
            })
            .await;
        self.server.kill().await?;
        self.server.restart().await?;
        self.proxy.redirect(self.server.address());
        self.good.redirect(self.server.address());
        self.proxy.set(Mode::Pass).await;
        // Connections that were not used since are broken, as is noticed at the next use.
        until(when, || async { self.store.dao().list(&lockcore::Page::default()).await.ok() }).await;
        Ok(())
    }
}

pub(super) async fn a_server_is_killed_in_the_middle_of_each_step<R: Remote>(kind: Kind) -> TestResult {
    let line = Line::<R>::to(Arc::new(R::lasting_server(kind).await?)).await?;
    for when in [When::Before, When::After] {
        let dao = line.dao().await?;
        let us = line.store.caller().through(&dao);
        // Other ids for each step: where a release need not be on the disk, the next death may bring a lock back.
        let names = |step: &str| [format!("{step}, {when:?}: a"), format!("{step}, {when:?}: b")];

        let [a, b] = &names("acquire");
        let request = us.request([a, b]);
        let aimed = line.aim(when).await;
        let (answer, died) = tokio::join!(dao.acquire(&request), line.dies(when, aimed));
        died?;
        let error = answer.expect_err("the server was killed");
        assert!(error.in_doubt() && error.is_retryable(), "{when:?}: {error:?}");
        let left = until(when, || async { dao.withdraw(&request, Withdraw::Undo).await.ok() }).await;
        assert_eq!(left, Withdrawn::Left);
        us.refused_as_withdrawn(&request).await;
        assert!(line.store.is_free(&[a, b]).await, "{when:?}");

        let [a, b] = &names("renew");
        let held = us.take([a, b]).await;
        let aimed = line.aim(when).await;
        let (_, died) = tokio::join!(dao.renew(&held), line.dies(when, aimed));
        died?;
        line.store.caller().refused([a]).await;
        let renewed = until(when, || async { dao.renew(&held).await.ok() }).await;
        assert_eq!(renewed.lost, [], "{when:?}: a grant is not forgotten");

        let aimed = line.aim(when).await;
        let (_, died) = tokio::join!(dao.release(&held), line.dies(when, aimed));
        died?;
        until(when, || async { dao.release(&held).await.ok() }).await;
        assert!(line.store.is_free(&[a, b]).await, "{when:?}");

        let [a, _] = &names("hand-off");
        let held = us.take([a]).await;
        let waiter = line.store.caller();
        let mut waiting = waiter.queue([a]).await;
        let aimed = line.aim(when).await;
        let (_, died) = tokio::join!(dao.release(&held), line.dies(when, aimed));
        died?;
        until(when, || async { dao.release(&held).await.ok() }).await;
        let turn = waiting.asking().await;
        assert!(turn.locks[0].granted.fence > held.locks[0].granted.fence, "{when:?}: a fence goes up");
        waiter.free(&turn).await;
        assert!(line.store.is_free(&[a]).await, "{when:?}");
    }
    Ok(())
}

/// Programs that want the same id all the time, while the server is killed again and again: never two inside, every
/// outcome typed, and all go on once it is back.
pub(super) async fn contenders_exclude_each_other_over_restarts<R: Remote>(kind: Kind) -> TestResult {
    const CONTENDERS: usize = 4;
    let line = Line::<R>::to(Arc::new(R::lasting_server(kind).await?)).await?;
    let inside = Arc::new(AtomicU32::new(0));
    let (done, failed, stop) =
        (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let mut contenders = JoinSet::new();
    for _ in 0..CONTENDERS {
        let dao = R::open(&line.bad.route).await?;
        let locks = LockingService::builder(dao).lease(Duration::from_secs(3)).build()?;
        let (inside, done, failed, stop) = (inside.clone(), done.clone(), failed.clone(), stop.clone());
        contenders.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let call = locks.wait(Wait::up_to(Duration::from_secs(5)));
                let outcome = call.run_locked(["hot", "cold"], async || {
                    let alone = Alone::enter(&inside);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    drop(alone);
                });
                match outcome.await {
                    Ok(()) => _ = done.fetch_add(1, Ordering::SeqCst),
                    Err(LockError::NotLocked { .. } | LockError::Lost { .. }) => {
                        failed.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            locks.shutdown(PATIENCE).await
        });
    }
    let more = async |count: &AtomicU32, what: &str| {
        let before = count.load(Ordering::SeqCst);
        eventually(what, || async { (count.load(Ordering::SeqCst) > before + 5).then_some(()) }).await;
    };
    for _ in 0..3 {
        more(&done, "they get on").await;
        line.server.kill().await?;
        more(&failed, "they notice").await;
        line.server.restart().await?;
        line.proxy.redirect(line.server.address());
        line.good.redirect(line.server.address());
    }
    more(&done, "they get on").await;
    stop.store(true, Ordering::SeqCst);
    let left = timeout(PATIENCE * 2, contenders.join_all()).await.expect("they end");
    assert_eq!(left, [0; CONTENDERS], "nothing is left to clean up");
    until("the end", || async { line.store.dao().list(&lockcore::Page::default()).await.ok() }).await;
    line.store.becomes_free(&["hot", "cold"]).await;
    Ok(())
}

/// One client that is inside, and no other.
struct Alone<'c>(&'c AtomicU32);

impl<'c> Alone<'c> {
    fn enter(count: &'c AtomicU32) -> Self {
        assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
        Alone(count)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
