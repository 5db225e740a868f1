//! Watching by polling: one poll of an id for all its watchers, as long as there are any.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use futures_util::future::select;
use tokio::{sync::watch, time::Instant};

use super::Inner;
use crate::{
    BackendError, BackendErrorKind, Backoff, ContextId, Ident, Interval, LockDao, Target, background, clock,
    watch::Look,
};

/// The polls of a service, by the stored forms of their ids.
pub(crate) struct Polls<I, C>(Mutex<HashMap<String, Weak<Poll<I, C>>>>);

/// The poll of one id, which ends with its last watcher.
struct Poll<I, C> {
    wanted: watch::Sender<Wanted>,
    looks: watch::Receiver<Option<Seen<I, C>>>,
}

/// The watchers of an id.
#[derive(Default)]
struct Wanted {
    /// The number of those that have come so far.
    watchers: u64,
    /// The intervals of those that are there.
    intervals: Vec<Duration>,
}

/// A look, and the number of watchers that had come when it began.
struct Seen<I, C> {
    watchers: u64,
    look: Result<Look<I, C>, BackendError>,
}

/// A watcher of an id.
pub(super) struct Watcher<I, C> {
    poll: Arc<Poll<I, C>>,
    looks: watch::Receiver<Option<Seen<I, C>>>,
    number: u64,
    every: Duration,
}

impl<I: Ident, C: ContextId> Watcher<I, C> {
    /// Waits for the next look that began after this watcher had come.
    pub(super) async fn next(&mut self) -> Result<Look<I, C>, BackendError> {
        while self.looks.changed().await.is_ok() {
            if let Some(seen) = &*self.looks.borrow_and_update()
                && seen.watchers >= self.number
            {
                return seen.look.clone();
            }
        }
        Err(BackendError::new(BackendErrorKind::Unavailable, "the runtime of the poll has ended"))
    }
}

impl<I, C> Drop for Watcher<I, C> {
    fn drop(&mut self) {
        self.poll.wanted.send_if_modified(|Wanted { intervals, .. }| {
            let own = intervals.iter().position(|every| *every == self.every);
            intervals.swap_remove(own.expect("it was added with the watcher"));
            // The poll goes on as it was planned.
            false
        });
    }
}

impl<I, C> Default for Polls<I, C> {
    fn default() -> Self {
        Polls(Mutex::default())
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    /// Watches an id: looks at once, and then after `every` at the latest.
    pub(super) fn watch(self: &Arc<Self>, target: &Target<I>, every: Duration) -> Watcher<I, C> {
        let mut polls = self.polls.0.lock().unwrap_or_else(PoisonError::into_inner);
        let running = polls.get(&*target.stored()).and_then(Weak::upgrade);
        // One whose runtime has ended looks no more.
        let poll = running.filter(|poll| poll.looks.has_changed().is_ok()).unwrap_or_else(|| {
            polls.retain(|_, poll| poll.strong_count() > 0);
            let poll = self.poll(target.clone());
            polls.insert(target.stored().into_owned(), Arc::downgrade(&poll));
            poll
        });
        drop(polls);
        let mut number = 0;
        poll.wanted.send_modify(|wanted| {
            wanted.watchers += 1;
            wanted.intervals.push(every);
            number = wanted.watchers;
        });
        Watcher { looks: poll.looks.clone(), poll, number, every }
    }

    fn poll(self: &Arc<Self>, target: Target<I>) -> Arc<Poll<I, C>> {
        let (wanted, mut of) = watch::channel(Wanted::default());
        let (seen, looks) = watch::channel(None);
        let service = Arc::downgrade(self);
        // A watcher's own runtime may end before others stop to watch, and a watcher that is not polled must keep none of them.
        background::shared().spawn(async move {
            let polling = pin!(keep_looking(service, target, &mut of, &seen));
            select(polling, pin!(seen.closed())).await;
        });
        Arc::new(Poll { wanted, looks })
    }
}

/// Looks at an id for each watcher that comes, and after the shortest of their intervals.
async fn keep_looking<I: Ident, C: ContextId, D: LockDao<I, C>>(
    service: Weak<Inner<I, C, D>>,
    target: Target<I>,
    wanted: &mut watch::Receiver<Wanted>,
    looks: &watch::Sender<Option<Seen<I, C>>>,
) {
    let mut pause = Duration::MAX;
    while !matches!(clock::within(pause, wanted.changed()).await, Some(Err(_no_watcher))) {
        let watchers = wanted.borrow_and_update().watchers;
        let Some(service) = service.upgrade() else { return };
        let mut look = look_at(&service, &target).await;
        if look.as_ref().is_err_and(|error| error.kind() == BackendErrorKind::Unavailable) {
            // The connection may have been lost while nothing was asked for.
            look = look_at(&service, &target).await;
        }
        drop(service);
        looks.send_replace(Some(Seen { watchers, look }));
        let every = wanted.borrow().intervals.iter().min().copied().unwrap_or(Duration::MAX);
        // Spread, so that processes started together do not ask together.
        pause = Interval { every: every.mul_f64(0.75), jitter: every / 4 }.delay(0);
    }
}

async fn look_at<I: Ident, C: ContextId, D: LockDao<I, C>>(
    service: &Inner<I, C, D>,
    target: &Target<I>,
) -> Result<Look<I, C>, BackendError> {
    let asked = Instant::now();
    service.dao()?.inspect(target).await.map(|seen| Look::new(seen, asked))
}
