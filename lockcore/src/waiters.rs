//! The waiters of one process, for backends whose store notifies them.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasherDefault, DefaultHasher, Hash},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{Moment, Wake, WakeSender, Wakeup, protocol::RECHECK};

/// With fewer entries than this, waiters that no longer listen are not looked for.
const FEW: usize = 64;

/// The number of a process' waiters that ask again in a second at most, though nothing woke them.
const RECHECKS: u32 = 20;

/// The waiters of this process, by a key of the backend's choice: one for each attempt; and what the backend notes of
/// them.
///
/// Entries of waiters that are gone - their [`Wakeup`] was dropped - are removed as others are added, so that there are
/// never more than twice as many entries as there were waiters (and 64); adding costs a constant on average.
pub struct Waiters<K, N = ()> {
    entries: Mutex<Entries<K, N>>,
}

struct Entries<K, N> {
    /// In an order that is the same in each run: the keys are our own.
    by_key: HashMap<K, Entry<N>, BuildHasherDefault<DefaultHasher>>,
    /// The number of entries at which those of waiters that are gone are looked for.
    tidy_at: usize,
}

struct Entry<N> {
    sender: WakeSender,
    note: Option<N>,
}

impl<K: Eq + Hash, N> Waiters<K, N> {
    /// Creates a registry without waiters.
    pub fn new() -> Self {
        Waiters { entries: Mutex::new(Entries { by_key: HashMap::default(), tidy_at: FEW }) }
    }

    /// Adds a waiter. One that is there under the same key, because the attempt asked before, is woken to ask again
    /// if it still listens.
    ///
    /// To miss nothing, add it *before* the request is sent that takes a place in the store's queue, and
    /// [`remove`](Self::remove) it if the answer is another.
    pub fn add(&self, key: K) -> Wakeup {
        let (sender, wakeup) = Wakeup::channel();
        let mut entries = self.entries();
        if entries.by_key.len() >= entries.tidy_at {
            entries.tidy();
        }
        let replaced = entries.by_key.insert(key, Entry { sender, note: None });
        drop(entries);
        drop(replaced); // out of the lock: dropping it wakes a task
        wakeup
    }

    /// Wakes one waiter, which is then none any more.
    ///
    /// # Errors
    /// The message itself if no waiter has this key: an offer must then be passed on, or left to the withdrawal
    /// that a vanishing waiter makes.
    pub fn wake(&self, key: &K, wake: Wake) -> Result<(), Wake> {
        let entry = self.entries().by_key.remove(key);
        match entry {
            Some(Entry { sender, .. }) => sender.send(wake),
            None => Err(wake),
        }
    }

    /// Does the same for an offer of which so much is left as of a moment that was taken before that was worked out
    /// ([`WakeSender::send_as_of`]).
    ///
    /// # Errors
    /// The message itself.
    pub fn wake_as_of(&self, key: &K, wake: Wake, as_of: Moment) -> Result<(), Wake> {
        let entry = self.entries().by_key.remove(key);
        match entry {
            Some(Entry { sender, .. }) => sender.send_as_of(wake, as_of),
            None => Err(wake),
        }
    }

    /// Wakes all waiters to ask again: what was pushed meanwhile may have been missed.
    pub fn wake_all(&self) {
        let all =
            std::mem::replace(&mut *self.entries(), Entries { by_key: HashMap::default(), tidy_at: FEW });
        drop(all.by_key); // a sender that is dropped makes its waiter ask again
    }

    /// Removes a waiter; if it still listens it is woken to ask again.
    pub fn remove(&self, key: &K) {
        let removed = self.entries().by_key.remove(key);
        drop(removed);
    }

    /// Attaches a note to a waiter that was not woken yet.
    pub fn note(&self, key: &K, note: N) {
        if let Some(entry) = self.entries().by_key.get_mut(key) {
            entry.note = Some(note);
        }
    }

    /// Returns all who still listen and of whom something is noted. Looks at every waiter.
    pub fn noted(&self) -> Vec<(K, N)>
    where
        K: Clone,
        N: Clone,
    {
        let entries = self.entries();
        let listening = entries.by_key.iter().filter(|(_, entry)| !entry.sender.is_closed());
        listening.filter_map(|(key, entry)| Some((key.clone(), entry.note.clone()?))).collect()
    }

    /// Returns how many still listen. Looks at every one and forgets the others.
    pub fn count(&self) -> usize {
        let mut entries = self.entries();
        entries.tidy();
        entries.by_key.len()
    }

    /// Returns after how long a waiter repeats its request though nothing woke it: after [`RECHECK`], or later if more than 20 of
    /// this process would do so in a second.
    pub fn recheck(&self) -> Duration {
        let at_most = u32::try_from(self.entries().by_key.len()).unwrap_or(u32::MAX);
        RECHECK.max(Duration::from_secs(1) * at_most / RECHECKS)
    }

    fn entries(&self) -> MutexGuard<'_, Entries<K, N>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash, N> Default for Waiters<K, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, N> fmt::Debug for Waiters<K, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").finish_non_exhaustive()
    }
}

impl<K: Eq + Hash, N> Entries<K, N> {
    /// Dropping the sender of a waiter that is gone wakes no task, so that it may be done under the lock.
    fn tidy(&mut self) {
        self.by_key.retain(|_, entry| !entry.sender.is_closed());
        self.tidy_at = (self.by_key.len() * 2).max(FEW);
        if self.by_key.capacity() > self.tidy_at * 4 {
            self.by_key.shrink_to(self.tidy_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_recheck(wakeup: &mut Wakeup) -> bool {
        matches!(pollster::block_on(wakeup.recv()), Wake::Recheck)
    }

    #[test]
    fn only_the_one_named_is_woken() {
        let waiters = Waiters::<_>::new();
        let (mut a, mut b) = (waiters.add("a"), waiters.add("b"));
        waiters.wake(&"a", Wake::Recheck).expect("it waits");
        assert!(is_recheck(&mut a));
        waiters.wake(&"a", Wake::Recheck).expect_err("it was woken");
        waiters.wake(&"c", Wake::Recheck).expect_err("it never waited");
        assert_eq!(waiters.count(), 1);
        waiters.wake_all();
        assert!(is_recheck(&mut b));
        assert_eq!(waiters.count(), 0);
    }

    /// Thousands that wait cost the store little.
    #[test]
    fn many_waiters_ask_again_later() {
        let waiters = Waiters::<_>::new();
        let _one = waiters.add(0);
        assert_eq!(waiters.recheck(), RECHECK);
        let _many: Vec<_> = (0..10_000).map(|number| waiters.add(number)).collect();
        assert_eq!(waiters.recheck(), Duration::from_secs(500));
    }

    #[test]
    fn a_repeated_request_is_woken_by_its_last_wakeup() {
        let waiters = Waiters::<_>::new();
        let mut first = waiters.add(7);
        let mut second = waiters.add(7);
        assert!(is_recheck(&mut first));
        waiters.remove(&7);
        assert!(is_recheck(&mut second));
    }

    #[test]
    fn what_is_noted_goes_with_the_waiter() {
        let waiters = Waiters::new();
        let [woken, gone, again, _left] = [1, 2, 3, 4].map(|key| waiters.add(key));
        for key in 1..=5 {
            waiters.note(&key, "noted");
        }
        waiters.wake(&1, Wake::Recheck).expect("it waits");
        drop(gone);
        let _asked = waiters.add(3);
        assert_eq!(waiters.noted(), [(4, "noted")]);
        drop((woken, again));
    }

    #[test]
    fn ten_thousand_waiters_that_went_leave_nothing() {
        let waiters = Waiters::<_>::new();
        let all: Vec<_> = (0..10_000).map(|key| waiters.add(key)).collect();
        assert_eq!(waiters.count(), 10_000);
        drop(all);
        for key in 10_000..110_000 {
            drop(waiters.add(key));
            let entries = waiters.entries();
            assert!(entries.by_key.len() <= 20_001);
        }
        let entries = waiters.entries();
        assert!(entries.by_key.len() <= FEW + 1 && entries.by_key.capacity() <= 8 * FEW);
        drop(entries);
        assert_eq!(waiters.count(), 0);
    }
}
