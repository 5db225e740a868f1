//! Changes that a store pushes to this process, for backends whose watchers need not poll.

use std::time::Duration;

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::{
    sync::broadcast::{self, Receiver, Sender},
    time::timeout,
};

use crate::{BackendError, Inspection};

/// How many changes a watcher may be behind; a slower one looks again, whatever changed.
const BEHIND: usize = 64;

/// So much later than a lease ends it is certainly over: stores round.
const ROUNDING: Duration = Duration::from_millis(1);

/// The changes that one connection receives, by a key of the backend's choice.
#[derive(Debug)]
pub struct Changes<K>(Sender<Option<K>>);

impl<K: Clone> Changes<K> {
    /// Creates a channel without watchers.
    pub fn new() -> Self {
        Changes(broadcast::channel(BEHIND).0)
    }

    /// Wakes those who watch `key`.
    pub fn changed(&self, key: K) {
        let _no_watchers = self.0.send(Some(key));
    }

    /// Wakes all watchers: changes may have been missed.
    pub fn any(&self) {
        let _no_watchers = self.0.send(None);
    }

    /// Returns what changes from here on. To miss nothing, call it *before* the look that it is to follow.
    pub fn subscribe(&self) -> NextChange<K> {
        NextChange(self.0.subscribe())
    }
}

impl<K: Clone> Default for Changes<K> {
    fn default() -> Self {
        Self::new()
    }
}

/// Watches an id for a backend that pushes changes: looks at once, and again after each change, when the first of the leases
/// seen ends, and after `every` at the latest. That a lease ends is no step of any process, so that no store pushes it.
///
/// `look` inspects the id, and returns its next change with it: subscribed to before, so that none behind the look is missed.
pub fn watch<'w, I, C, K, F>(
    every: Duration,
    is_watched: impl Fn(&K) -> bool + Send + Sync + 'w,
    look: impl Fn() -> F + Send + Sync + 'w,
) -> BoxStream<'w, Result<Inspection<I, C>, BackendError>>
where
    I: Send + 'w,
    C: Send + 'w,
    K: Clone + Send + 'w,
    F: Future<Output = Result<(Inspection<I, C>, NextChange<K>), BackendError>> + Send,
{
    let first: Option<(NextChange<K>, Duration)> = None;
    let looks = stream::try_unfold((look, is_watched, first), move |(look, is_watched, last)| async move {
        if let Some((next, at_most)) = last {
            next.within(at_most, &is_watched).await;
        }
        let (seen, next) = look().await?;
        let ends = seen.holders.iter().filter_map(|holder| holder.remaining);
        let at_most =
            ends.map(|left| left.saturating_add(ROUNDING)).min().map_or(every, |end| end.min(every));
        Ok(Some((seen, (look, is_watched, Some((next, at_most))))))
    });
    looks.boxed()
}

/// The next change that a watcher waits for.
#[derive(Debug)]
pub struct NextChange<K>(Receiver<Option<K>>);

impl<K: Clone> NextChange<K> {
    /// Waits until one of the keys that are `watched` changes, any may have changed, or `at_most` has passed.
    pub async fn within(mut self, at_most: Duration, watched: impl Fn(&K) -> bool) {
        let change = async {
            while let Ok(Some(key)) = self.0.recv().await {
                if watched(&key) {
                    return;
                }
            }
        };
        let _elapsed = timeout(at_most, change).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn a_watcher_sees_its_own_keys_and_what_may_be_any() {
        let changes = Changes::new();
        let next = changes.subscribe();
        changes.changed(1);
        let begun = tokio::time::Instant::now();
        next.within(LONG, |key| *key == 2).await;
        assert_eq!(begun.elapsed(), LONG, "another key");

        let begun = tokio::time::Instant::now();
        let next = changes.subscribe();
        changes.changed(1);
        changes.changed(2);
        next.within(LONG, |key| *key == 2).await;
        let next = changes.subscribe();
        changes.any();
        next.within(LONG, |_| false).await;
        // More than it is kept for a slow watcher.
        let next = changes.subscribe();
        (0..=BEHIND).for_each(|_| changes.changed(1));
        next.within(LONG, |_| false).await;
        assert!(begun.elapsed().is_zero());
    }
}
