//! Watches: one stream for each key that this process waits for, as long as it does.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::backend::{Moment, shared_runtime};
use reqwest::Response;
use serde_json::json;
use tokio::{sync::watch, time::timeout};

use crate::{
    client::Client,
    message::{Line, path},
};

/// A stream ends that was not asked for within this time: longer than waiters pause between two looks.
const IDLE: Duration = Duration::from_secs(10);

/// The time after which a stream is opened again: one that a router has forgotten tells nothing, as one of a key that does not change.
const LONGEST: Duration = Duration::from_secs(60);

/// The pause between looks at what a stream depends on, and after one that ended.
const TICK: Duration = Duration::from_secs(1);

/// The most bytes of a line: twice what the largest cell takes in base64.
const LINE: usize = 12 << 20;

/// The watches of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watches(Arc<Mutex<HashMap<String, Watch>>>);

/// The watch of a key.
#[derive(Debug)]
struct Watch {
    told: watch::Sender<Told>,
    /// The moment at which it was asked for last.
    used: Moment,
}

/// All that a watch has told so far.
#[derive(Clone, Copy, Default, Debug)]
struct Told {
    /// The last version of the key.
    revision: u64,
    /// The number of times that changes may have been missed.
    gaps: u64,
}

impl Watches {
    /// Ends when a key may have another version than `known`.
    pub(crate) async fn changed(&self, client: &Arc<Client>, key: String, known: Option<u64>) {
        let mut told = self.of(client, key, known);
        let at = *told.borrow();
        let before = known.unwrap_or(at.revision);
        if told.wait_for(|told| told.revision > before || told.gaps > at.gaps).await.is_err() {
            // The watch has ended. Waiters look by themselves.
            std::future::pending().await
        }
    }

    fn of(&self, client: &Arc<Client>, key: String, known: Option<u64>) -> watch::Receiver<Told> {
        let mut all = self.all();
        if let Some(watch) = all.get_mut(&key) {
            watch.used = Moment::now();
            return watch.told.subscribe();
        }
        let (told, receiver) = watch::channel(Told::default());
        all.insert(key.clone(), Watch { told, used: Moment::now() });
        let from = known.map_or(0, |known| known + 1);
        let follow = Follow { watches: self.clone(), client: client.clone(), key, from };
        shared_runtime().spawn(follow.run());
        receiver
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Watch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that follows a key.
struct Follow {
    watches: Watches,
    client: Arc<Client>,
    key: String,
    /// The first revision that is to be told.
    from: u64,
}

impl Follow {
    async fn run(mut self) {
        while self.is_used() {
            let request =
                json!({ "create_request": { "key": self.key, "start_revision": self.from.to_string() } });
            if let Ok((stream, member)) = self.client.open(path::WATCH, &request).await {
                self.follow(stream, member).await;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Returns whether the watch is still asked for; removes it if it is not.
    fn is_used(&self) -> bool {
        let mut all = self.watches.all();
        let is_used = all.get(&self.key).is_some_and(|watch| watch.used.elapsed() < IDLE);
        if !is_used {
            all.remove(&self.key);
        }
        is_used
    }

    /// Passes on what a stream of a member tells, until it ends or is to be opened again.
    async fn follow(&mut self, mut stream: Response, member: usize) {
        let opened = Moment::now();
        let mut buffer: Vec<u8> = Vec::new();
        while opened.elapsed() < LONGEST && self.client.current() == member && self.is_used() {
            match timeout(TICK, stream.chunk()).await {
                Ok(Ok(Some(chunk))) => buffer.extend_from_slice(&chunk),
                Ok(_) => return,
                Err(_) => {}
            }
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                if !self.tell(&line) {
                    return;
                }
            }
            if buffer.len() > LINE {
                return self.told(|told| told.gaps += 1);
            }
        }
    }

    /// Passes on a line; returns whether others may follow.
    fn tell(&mut self, line: &[u8]) -> bool {
        let Ok(Line { result: Some(watched) }) = serde_json::from_slice(line) else { return false };
        let revisions = watched.events.iter().map(|event| event.kv.mod_revision);
        if let Some(last) = revisions.max() {
            self.from = last + 1;
            self.told(|told| told.revision = told.revision.max(last));
        }
        if watched.canceled {
            // The next changes may be compacted, and are not told any more.
            self.from = self.from.max(watched.compact_revision);
            self.told(|told| told.gaps += 1);
        }
        !watched.canceled
    }

    fn told(&self, tell: impl FnOnce(&mut Told)) {
        if let Some(watch) = self.watches.all().get(&self.key) {
            watch.told.send_modify(tell);
        }
    }
}
