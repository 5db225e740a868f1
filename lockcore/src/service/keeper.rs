//! The keeper of leases: one timer for all of them, on a runtime that callbacks do not block.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::Instant,
};

use crate::{
    background,
    clock::Moment,
    process::{self, PerProcess},
};

/// The next look after one that panicked.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// The longest sleep while there is something to look at: timers do not count the time for which the machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The most that the two clocks may differ from look to look without a suspend.
const NO_SUSPEND: Duration = Duration::from_millis(100);

/// After so many looks others have their turn, however many more are due.
const LOOKS_AT_ONCE: usize = 64;

/// Something that has to be looked at from time to time.
pub(crate) trait Tick: Send + Sync {
    /// Does what is due, without blocking, on the keeper's runtime; gives the pause until the next look,
    /// or `None` when there is nothing more to look at.
    fn tick(self: Arc<Self>) -> Option<Duration>;
}

/// Looks at many things, each at its own time.
pub(crate) struct Keeper {
    next_key: AtomicU64,
    entries: Mutex<Timers>,
    /// Something is due earlier than the keeper sleeps.
    earlier: Notify,
}

#[derive(Default)]
struct Timers {
    /// The time of the keeper's next look; `None` while it sleeps for ever. May be earlier than anything is due: what
    /// it was to look at may be gone, and waking it for that would cost more than its waking in vain.
    wakes_at: Option<Instant>,
    by_key: HashMap<u64, (Instant, Arc<dyn Tick>)>,
    by_time: BTreeSet<(Instant, u64)>,
}

/// The keeper on the library's own thread.
static OWN: PerProcess<Arc<Keeper>> = PerProcess::new();

/// Renews every lease of this process at once, though it is not due yet.
///
/// Backends call this after they find that locks may have been lost; the renewals report which.
pub fn renew_all() {
    if let Some(keeper) = OWN.get(process::seen()) {
        keeper.hasten_all();
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// The keeper for a call that is made here: that of the library's own thread, or of the current
    /// runtime where its clock stands still.
    pub(crate) fn current() -> Arc<Keeper> {
        static PAUSED: Mutex<Vec<(Id, Weak<Keeper>)>> = Mutex::new(Vec::new());
        if !background::is_paused() {
            return OWN.get_or_init(process::seen(), || Keeper::start(background::handle())).clone();
        }
        let here = Handle::current();
        let mut paused = PAUSED.lock().unwrap_or_else(PoisonError::into_inner);
        paused.retain(|(_, keeper)| keeper.strong_count() > 0);
        let known = paused.iter().find(|(id, _)| *id == here.id()).and_then(|(_, keeper)| keeper.upgrade());
        known.unwrap_or_else(|| {
            let keeper = Keeper::start(&here);
            paused.push((here.id(), Arc::downgrade(&keeper)));
            keeper
        })
    }

    fn start(runtime: &Handle) -> Arc<Keeper> {
        let keeper = Arc::new(Keeper {
            next_key: AtomicU64::new(0),
            entries: Mutex::default(),
            earlier: Notify::new(),
        });
        runtime.spawn(keeper.clone().keep());
        keeper
    }

    /// A key for [`add`](Self::add), never given twice.
    pub(crate) fn key(&self) -> u64 {
        self.next_key.fetch_add(1, Relaxed)
    }

    /// Looks at `what` at `due` for the first time, until it is [removed](Self::remove).
    pub(crate) fn add(&self, key: u64, what: Arc<dyn Tick>, due: Instant) {
        self.insert(self.entries(), key, due, what);
    }

    /// Looks at it at the latest after `pause`, if it is still there.
    pub(crate) fn hasten(&self, key: u64, pause: Duration) {
        let due = Instant::now() + pause;
        let mut entries = self.entries();
        if let Some((at, what)) = entries.by_key.remove(&key) {
            entries.by_time.remove(&(at, key));
            self.insert(entries, key, at.min(due), what);
        }
    }

    /// Looks at all there is, now.
    fn hasten_all(&self) {
        let now = Instant::now();
        let mut entries = self.entries();
        entries.by_time = entries.by_key.keys().map(|key| (now, *key)).collect();
        entries.by_key.values_mut().for_each(|(at, _)| *at = now);
        entries.wakes_at = Some(now);
        drop(entries);
        self.earlier.notify_one();
    }

    /// Looks at it no more.
    pub(crate) fn remove(&self, key: u64) {
        let mut entries = self.entries();
        let removed = entries.by_key.remove(&key);
        if let Some((at, _)) = &removed {
            entries.by_time.remove(&(*at, key));
        }
        // Out of the lock: what is removed may run code when it is dropped.
        drop(entries);
    }

    fn insert(&self, mut entries: MutexGuard<'_, Timers>, key: u64, due: Instant, what: Arc<dyn Tick>) {
        let too_late = entries.wakes_at.is_none_or(|wakes_at| due < wakes_at);
        if too_late {
            entries.wakes_at = Some(due);
        }
        entries.by_time.insert((due, key));
        entries.by_key.insert(key, (due, what));
        drop(entries);
        if too_late {
            self.earlier.notify_one();
        }
    }

    async fn keep(self: Arc<Self>) {
        let mut looked = Moment::now();
        loop {
            let now = Moment::now();
            let by_timers = now.instant().saturating_duration_since(looked.instant());
            let suspended = now.since(&looked).saturating_sub(by_timers);
            if suspended > NO_SUSPEND {
                self.bring_forward(suspended);
            }
            looked = now;
            let mut looks = 0_usize;
            while let Some((key, what)) = self.take_due() {
                // Code of others may run here, when a task is woken or a backend dropped: a panic of theirs does not
                // end the keeping of all the rest, nor that of what they are concerned with.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let look = AssertUnwindSafe(|| what.clone().tick());
                    match catch_unwind(look).unwrap_or(Some(AFTER_PANIC)) {
                        Some(pause) => self.put_back(key, pause, what),
                        None => self.remove(key),
                    }
                }));
                looks += 1;
                if looks.is_multiple_of(LOOKS_AT_ONCE) {
                    // The renewals are tasks of the same thread.
                    tokio::task::yield_now().await;
                }
            }
            let next = {
                let mut entries = self.entries();
                entries.wakes_at = entries.by_time.first().map(|(at, _)| *at);
                entries.wakes_at
            };
            match next {
                Some(at) => {
                    let earlier = std::pin::pin!(self.earlier.notified());
                    let at = at.min(Instant::now() + LONGEST_SLEEP);
                    let due = std::pin::pin!(tokio::time::sleep_until(at));
                    futures_util::future::select(earlier, due).await;
                }
                None => self.earlier.notified().await,
            }
        }
    }

    /// Everything is due so much earlier.
    fn bring_forward(&self, by: Duration) {
        let mut entries = self.entries();
        let Timers { by_key, by_time, .. } = &mut *entries;
        for (key, (at, _)) in by_key {
            // An entry that is looked at just now has no time.
            if by_time.remove(&(*at, *key)) {
                *at = at.checked_sub(by).unwrap_or_else(Instant::now);
                by_time.insert((*at, *key));
            }
        }
    }

    /// Returns an entry that is due, left under its key so that it can be removed while it is looked at.
    fn take_due(&self) -> Option<(u64, Arc<dyn Tick>)> {
        let mut entries = self.entries();
        let first = *entries.by_time.first()?;
        if first.0 > Instant::now() {
            return None;
        }
        entries.by_time.remove(&first);
        entries.by_key.get(&first.1).map(|(_, what)| (first.1, what.clone()))
    }

    fn put_back(&self, key: u64, pause: Duration, what: Arc<dyn Tick>) {
        let due = Instant::now() + pause;
        let entries = self.entries();
        // It may have been removed, or hastened, while it was looked at.
        match entries.by_key.get(&key).map(|(at, _)| *at) {
            Some(at) if !entries.by_time.contains(&(at, key)) => self.insert(entries, key, due, what),
            _ => {}
        }
    }

    fn entries(&self) -> MutexGuard<'_, Timers> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Looked(Mutex<Option<Instant>>);

    impl Tick for Looked {
        fn tick(self: Arc<Self>) -> Option<Duration> {
            *self.0.lock().expect("no panic") = Some(Instant::now());
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_machine_is_noticed_within_a_second() {
        let keeper = Keeper::current();
        let looked = Arc::new(Looked(Mutex::new(None)));
        let begin = Instant::now();
        let [second, hour] = [1, 3600].map(Duration::from_secs);
        keeper.add(keeper.key(), looked.clone(), begin + hour);
        tokio::time::sleep(second * 10).await;
        assert_eq!(*looked.0.lock().expect("no panic"), None);
        // The timers of the runtime do not count it.
        crate::clock::stops::once(hour);
        tokio::time::sleep(second * 10).await;
        let at = looked.0.lock().expect("no panic").expect("it was looked at");
        assert!(at - begin <= second * 11, "{:?} late", at - begin - second * 10);
    }
}
