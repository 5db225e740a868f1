//! Watching: one poll of an id for all its watchers.

use std::{pin::pin, task::Poll, time::Duration};

use futures_util::{FutureExt, StreamExt, future::join_all};
use lockcore::{BackendErrorKind, Change, Target};
use tokio::time::sleep;

use super::rigged::{Fault, Rigged, Step, poll_once};

const SECOND: Duration = Duration::from_secs(1);

fn id(id: &str) -> Target<String> {
    Target::Id(id.to_owned())
}

#[tokio::test(start_paused = true)]
async fn all_watchers_of_an_id_share_one_poll() {
    let rigged = Rigged::new();
    let locks = rigged.service();
    let (admin, a) = (locks.admin(), id("a"));
    let _guard = locks.shared().lock(["a"]).await.unwrap();
    let looks = || rigged.count(Step::Inspect);
    let intervals = [SECOND, 2 * SECOND, 3600 * SECOND].into_iter().cycle().take(30);
    let mut watchers: Vec<_> = intervals.map(|every| Box::pin(admin.watch(&a, every))).collect();
    let first = join_all(watchers.iter_mut().map(|watcher| watcher.next())).await;
    assert!(first.iter().all(|change| matches!(change, Some(Ok(Change::Acquired(_))))), "{first:?}");

    // By the shortest of their intervals, or by three quarters of it.
    let before = looks();
    sleep(60 * SECOND).await;
    assert!((59..=81).contains(&(looks() - before)), "{}", looks() - before);

    // What one sees all see, those with a longer interval too.
    let _second = locks.shared().lock(["a"]).await.unwrap();
    let begun = tokio::time::Instant::now();
    let second = join_all(watchers.iter_mut().map(|watcher| watcher.next())).await;
    assert!(second.iter().all(|change| matches!(change, Some(Ok(Change::Acquired(_))))), "{second:?}");
    assert!(begun.elapsed() <= SECOND, "{:?}", begun.elapsed());

    // Those with longer intervals are left: the plan that was made for the shorter one is the last.
    let mut number = 0;
    watchers.retain(|_| {
        number += 1;
        number % 3 != 1
    });
    sleep(SECOND).await;
    let before = looks();
    sleep(60 * SECOND).await;
    assert!((29..=41).contains(&(looks() - before)), "{}", looks() - before);

    drop(watchers);
    let before = looks();
    sleep(7200 * SECOND).await;
    assert_eq!(looks(), before, "it ends with the last watcher");
}

/// Who asks sees nothing of before.
#[tokio::test(start_paused = true)]
async fn a_new_watcher_gets_a_look_of_its_own() {
    let rigged = Rigged::new();
    let locks = rigged.service();
    let (admin, a) = (locks.admin(), id("a"));
    let mut watcher = pin!(admin.watch(&a, 3600 * SECOND));
    assert!(watcher.next().now_or_never().is_none());
    sleep(SECOND).await;
    assert_eq!(rigged.count(Step::Inspect), 1, "it was seen to be free");
    let guard = locks.lock(["a"]).await.unwrap();
    let mut free = pin!(admin.until_free(["a"], SECOND));
    assert!(poll_once(free.as_mut()).is_pending());
    // A watcher is told what another's look has found, before its own interval.
    assert!(matches!(watcher.next().await, Some(Ok(Change::Acquired(_)))));
    assert!(poll_once(free.as_mut()).is_pending(), "it is held");
    guard.release().await.unwrap();
    free.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_is_not_polled_keeps_no_other() {
    let rigged = Rigged::with(3, |_| {});
    let locks = rigged.service();
    let (admin, a) = (locks.admin(), id("a"));
    let _guard = locks.lock(["a"]).await.unwrap();
    let mut rests = pin!(admin.watch(&a, SECOND));
    assert!(matches!(poll_once(pin!(rests.next()).as_mut()), Poll::Pending));
    let mut other = pin!(admin.watch(&a, SECOND));
    assert!(matches!(other.next().await, Some(Ok(Change::Acquired(_)))));
}

#[tokio::test(start_paused = true)]
async fn a_look_over_a_lost_connection_is_repeated_once() {
    let rigged = Rigged::new();
    let locks = rigged.service();
    let (admin, a) = (locks.admin(), id("a"));
    let _guard = locks.lock(["a"]).await.unwrap();
    let lost = Fault::Fails(BackendErrorKind::Unavailable);
    rigged.once(Step::Inspect, lost);
    let mut watcher = pin!(admin.watch(&a, SECOND));
    assert!(matches!(watcher.next().await, Some(Ok(Change::Acquired(_)))));
    rigged.once(Step::Inspect, lost);
    rigged.once(Step::Inspect, lost);
    assert!(matches!(watcher.next().await, Some(Err(error)) if error.is_retryable()));
    assert!(watcher.next().await.is_none());
}
