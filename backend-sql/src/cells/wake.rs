//! Waking: a process that wrote a cell tells those that wait for it, as a hint beside the writes; where there is nothing to listen to,
//! waiters look.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use lockcore::backend::{Moment, shared_runtime};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{Row, Shared, Statements, server::Ask};

/// The most cells of a notification: the text of one may have 8000 bytes.
const MOST: usize = 200;

/// A notification is kept for so long: it may arrive between a look and the wait after it.
const KEPT: Duration = Duration::from_millis(200);

/// A process listens for so long after it waited last: longer than waiters pause between two looks.
const IDLE: Duration = Duration::from_secs(30);

/// The pause between probes of a listener that receives nothing, and the time that one may take.
const QUIET: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(3);

/// The pause before listening is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The pauses between looks where there is nothing to listen to: at first, and at most.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_AT_MOST: Duration = Duration::from_millis(250);

/// All that a process tells, and hears.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    /// The cells that are to be told of, by the hashes of their names.
    telling: Mutex<Telling>,
    /// The versions of cells that were heard of lately, and when. They come in any order.
    heard: Mutex<HashMap<(u64, i64), Moment>>,
    /// Changes with all that is heard.
    count: watch::Sender<u64>,
    /// The moment of the last wait, as long as there is a task that listens.
    waited: Mutex<Option<Moment>>,
    is_listening: AtomicBool,
}

#[derive(Debug, Default)]
struct Telling {
    cells: Vec<(u64, i64)>,
    /// Set while there is a task that tells.
    runs: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hashes a name, in the same way in all programs (FNV-1a). Two names with one hash wake each other's waiters for nothing.
pub(crate) fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl<S: Statements> Shared<S> {
    /// Tells other processes of these writes. Never waits: what cannot be told is found by those who look.
    pub(super) fn tell(self: &Arc<Self>, rows: &[Row<'_>]) {
        if !self.pool.engine.listens() {
            return;
        }
        let mut telling = lock(&self.wakes.telling);
        let waited_for = rows.iter().filter(|row| row.name == "table" || row.name.starts_with("id/"));
        telling.cells.extend(waited_for.map(|row| (hash(row.name), row.version)));
        if !telling.cells.is_empty() && !std::mem::replace(&mut telling.runs, true) {
            shared_runtime().spawn(Tells(Arc::downgrade(self)).run());
        }
    }

    /// Ends when one of these cells has another version than is known, as far as that is heard of.
    pub(super) async fn changed(self: &Arc<Self>, cells: &[(String, Option<i64>)]) {
        let wakes = &self.wakes;
        let mut count = wakes.count.subscribe();
        self.listen();
        let hashes: Vec<_> = cells.iter().map(|(name, known)| (hash(name), known.unwrap_or(0))).collect();
        let mut pause = LOOK;
        loop {
            if wakes.take_heard(&hashes) {
                return;
            }
            if wakes.is_listening.load(Relaxed) {
                // Then it may listen no more.
                let _ = timeout(AGAIN, count.changed()).await;
                continue;
            }
            sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            pause = (pause * 3 / 2).min(LOOK_AT_MOST);
            // By itself, as the caller gives up often, and with it the connection.
            let (shared, cells) = (self.clone(), cells.to_vec());
            let looked = shared_runtime().spawn(async move { shared.has_changed(&cells).await });
            if looked.await.unwrap_or(false) {
                return;
            }
        }
    }

    /// Returns whether one of these cells has another version than is known.
    async fn has_changed(&self, cells: &[(String, Option<i64>)]) -> bool {
        let names: Vec<&str> = cells.iter().map(|(name, _)| &**name).collect();
        let known: Vec<i64> = cells.iter().filter_map(|(_, known)| *known).collect();
        let Ok(selected) = self.select(&names, &known).await else { return false };
        let version = |name| selected.rows.get(name).map(|(version, _)| *version);
        cells.iter().any(|(name, known)| version(name) != *known)
    }

    /// Notes that this process waits, and has a task listen for it.
    fn listen(self: &Arc<Self>) {
        if self.pool.engine.listens() && lock(&self.wakes.waited).replace(Moment::now()).is_none() {
            shared_runtime().spawn(Listens(Arc::downgrade(self)).run());
        }
    }
}

impl Wakes {
    /// Returns whether one of these cells was heard to have another version, lately; each is told once, as the look that follows sees it,
    /// or a newer one.
    fn take_heard(&self, cells: &[(u64, i64)]) -> bool {
        let mut heard = lock(&self.heard);
        let before = heard.len();
        heard.retain(|(hash, version), at| {
            let is_other = |(cell, known): &(u64, i64)| cell == hash && known != version;
            at.elapsed() >= KEPT || !cells.iter().any(is_other)
        });
        heard.len() < before
    }

    /// Notes a notification.
    fn hear(&self, text: &str) {
        let now = Moment::now();
        let mut heard = lock(&self.heard);
        heard.retain(|_, at| at.elapsed() < KEPT);
        for word in text.split(' ') {
            let read = |digits| u64::from_str_radix(digits, 16).ok();
            let Some((hash, version)) = word.split_once('.') else { continue };
            if let (Some(hash), Some(version)) = (read(hash), read(version)) {
                heard.insert((hash, version.cast_signed()), now);
            }
        }
        drop(heard);
        self.count.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// The task that tells.
struct Tells<S: Statements>(Weak<Shared<S>>);

impl<S: Statements> Tells<S> {
    async fn run(self) {
        while let Some(shared) = self.0.upgrade() {
            let text = {
                let mut telling = lock(&shared.wakes.telling);
                let some = telling.cells.len().min(MOST);
                if some == 0 {
                    telling.runs = false;
                    return;
                }
                let words =
                    telling.cells.drain(..some).map(|(hash, version)| format!("{hash:x}.{version:x}"));
                words.collect::<Vec<_>>().join(" ")
            };
            if let Err(error) = shared.ask_within(shared.limit, &Ask::Notify(&text)).await {
                tracing::debug!(backend = S::NAME, %error, "could not notify other processes");
            }
        }
    }
}

/// The task that listens, as long as this process waits.
struct Listens<S: Statements>(Weak<Shared<S>>);

impl<S: Statements> Listens<S> {
    async fn run(self) {
        while let Some(shared) = self.used() {
            let listened = timeout(shared.limit, shared.pool.engine.listen(&shared.ns)).await;
            drop(shared);
            // Once this process does not wait any more, the next wait has a task of its own.
            if let Ok(Ok(Some(listener))) = listened
                && !self.hear(listener).await
            {
                return;
            }
            sleep(AGAIN).await;
        }
    }

    /// Returns what it listens for, if this process has waited lately; else this task has ended.
    fn used(&self) -> Option<Arc<Shared<S>>> {
        let shared = self.0.upgrade()?;
        let mut waited = lock(&shared.wakes.waited);
        if waited.is_none_or(|waited| waited.elapsed() >= IDLE) {
            *waited = None;
            return None;
        }
        drop(waited);
        Some(shared)
    }

    /// Hears until the listener is lost; returns whether this process may still wait.
    async fn hear(&self, mut listener: S::Listener) -> bool {
        while let Some(shared) = self.used() {
            shared.wakes.is_listening.store(true, Relaxed);
            let server = &shared.pool.engine;
            let is_well = match timeout(QUIET, server.receive(&mut listener)).await {
                Ok(Ok(text)) => {
                    shared.wakes.hear(&text);
                    true
                }
                Ok(Err(_)) => false,
                Err(_) => matches!(timeout(PROBE, server.probe(&mut listener)).await, Ok(Ok(()))),
            };
            if !is_well {
                shared.wakes.is_listening.store(false, Relaxed);
                return true;
            }
        }
        if let Some(shared) = self.0.upgrade() {
            shared.wakes.is_listening.store(false, Relaxed);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_version_wakes_and_once() {
        let wakes = Wakes::default();
        let (table, other) = (hash("table"), hash("id/61"));
        wakes.hear(&format!("{table:x}.7 not.a word {other:x}.ffffffffffffffff"));
        assert!(!wakes.take_heard(&[(table, 7)]));
        assert!(wakes.take_heard(&[(table, 6)]));
        assert!(!wakes.take_heard(&[(table, 6)]));
        assert!(!wakes.take_heard(&[(hash("id/62"), 1)]));
        assert!(wakes.take_heard(&[(hash("id/62"), 1), (other, 1)]));
    }

    /// The notification of an own write may come after that of a newer one.
    #[test]
    fn a_late_notification_hides_none() {
        let (wakes, table) = (Wakes::default(), hash("table"));
        wakes.hear(&format!("{table:x}.7"));
        wakes.hear(&format!("{table:x}.6"));
        assert!(wakes.take_heard(&[(table, 6)]));
    }
}
