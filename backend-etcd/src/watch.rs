//! The watch of a namespace: one stream for all that a process waits for, as long as it does.

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use lockcore::backend::{Moment, shared_runtime};
use reqwest::Response;
use tokio::{sync::watch, time::timeout};

use crate::{
    client::Client,
    message::{Line, path},
};

/// A stream ends that was not asked for within this time: longer than waiters pause between two looks.
const IDLE: Duration = Duration::from_secs(10);

/// The time after which a stream is opened again: one that a router has forgotten tells nothing, as one of keys that do not change.
const LONGEST: Duration = Duration::from_secs(60);

/// The pause between looks at what a stream depends on, and after one that ended.
const TICK: Duration = Duration::from_secs(1);

/// The most bytes of a line: twice what the largest cell takes in base64.
const LINE: usize = 12 << 20;

/// The most changes that are kept: those from when a waiter looked to when it asks for the next one.
const KEPT: usize = 1024;

/// The watch of a process.
pub(crate) struct Watch {
    client: Arc<Client>,
    /// The request for all keys to follow.
    request: Bytes,
    told: watch::Sender<Told>,
    /// The moment at which it was asked for last; `None` if there is no stream.
    used: Mutex<Option<Moment>>,
}

/// All that the streams have told lately.
#[derive(Default, Debug)]
struct Told {
    /// The last changes: keys and their versions, the newest at the end.
    changes: VecDeque<(String, u64)>,
    /// The number of times that changes before may have been missed.
    gaps: u64,
}

impl Watch {
    /// Makes the watch of the keys that a request names. There is no stream yet.
    pub(crate) fn new(client: Arc<Client>, request: Bytes) -> Self {
        Watch { client, request, told: watch::Sender::default(), used: Mutex::default() }
    }

    /// Ends when one of these keys may have another version than is known. Those of an absent one are told from now on.
    pub(crate) async fn changed(self: &Arc<Self>, known: HashMap<String, Option<u64>>) {
        if known.is_empty() {
            return pending().await;
        }
        let mut told = self.asked();
        let (gaps, newest) = {
            let told = told.borrow();
            (told.gaps, told.changes.iter().map(|change| change.1).max())
        };
        let is_new = |(key, version): &(String, u64)| {
            known.get(key).is_some_and(|known| Some(*version) > known.or(newest))
        };
        // The sender lives as long as this.
        let _ = told.wait_for(|told| told.gaps > gaps || told.changes.iter().any(is_new)).await;
    }

    /// Returns what is told, by a stream from now on.
    fn asked(self: &Arc<Self>) -> watch::Receiver<Told> {
        let mut used = self.used();
        if used.replace(Moment::now()).is_none() {
            shared_runtime().spawn(self.clone().run());
        }
        self.told.subscribe()
    }

    fn used(&self) -> MutexGuard<'_, Option<Moment>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens one stream after the other.
    async fn run(self: Arc<Self>) {
        while !self.ends_unused() {
            if let Ok((stream, member)) = self.client.open(path::WATCH, &self.request).await {
                self.follow(stream, member).await;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Returns whether it is not asked for any more; forgets all that was told then. The next that asks starts another task, so that this
    /// one has to end at once.
    fn ends_unused(&self) -> bool {
        let mut used = self.used();
        let ends = !self.is_used(&mut used);
        if ends {
            *used = None;
            self.told.send_replace(Told::default());
        }
        ends
    }

    /// Returns whether it is still asked for, or was lately.
    fn is_used(&self, used: &mut Option<Moment>) -> bool {
        if self.told.receiver_count() > 0 {
            *used = Some(Moment::now());
        }
        used.is_some_and(|used| used.elapsed() < IDLE)
    }

    /// Passes on what a stream of a member tells, until it ends or is to be opened again.
    async fn follow(&self, mut stream: Response, member: usize) {
        let opened = Moment::now();
        let mut buffer: Vec<u8> = Vec::new();
        let is_used = || self.is_used(&mut self.used());
        while opened.elapsed() < LONGEST && self.client.current() == member && is_used() {
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
                return;
            }
        }
    }

    /// Passes on a line; returns whether others may follow.
    fn tell(&self, line: &[u8]) -> bool {
        let Ok(Line { result: Some(watched) }) = serde_json::from_slice(line) else { return false };
        self.told.send_modify(|told| {
            // A stream tells what comes after it was opened, and nothing of the time since the one before.
            told.gaps += u64::from(watched.created);
            told.changes
                .extend(watched.events.into_iter().map(|event| (event.kv.key, event.kv.mod_revision)));
            let over = told.changes.len().saturating_sub(KEPT);
            told.changes.drain(..over);
        });
        !watched.canceled
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
    };

    use super::*;
    use crate::config::EtcdBuilder;

    /// Serves streams that tell nothing, on a port; returns it.
    fn serve() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                thread::spawn(move || {
                    let (mut buffer, line) = ([0; 65536], "{\"result\":{\"created\":true}}\n");
                    let _ = stream.read(&mut buffer);
                    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                    let _ = write!(stream, "{head}{:x}\r\n{line}\r\n", line.len());
                    while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
                });
            }
        });
        port
    }

    /// One that asks just after a stream was given up is served by one task.
    #[test]
    fn there_is_one_task() {
        let url = format!("etcd://127.0.0.1:{}", serve());
        let settings = EtcdBuilder::<String, uuid::Uuid>::new().url(url).settings;
        let address = settings.address().expect("a valid URL");
        let client = Arc::new(Client::new(&settings, address).expect("it is made"));
        let watch = Arc::new(Watch::new(client, Bytes::from_static(b"{}")));
        let wait = || thread::sleep(Duration::from_millis(5));
        drop(watch.asked());
        while watch.told.borrow().gaps == 0 {
            wait();
        }
        while watch.used().is_some() {
            wait();
        }
        let _told = watch.asked();
        // The other is the test's.
        for _ in 0..2000 {
            match Arc::strong_count(&watch) {
                2 => return,
                _ => wait(),
            }
        }
        panic!("{} tasks", Arc::strong_count(&watch) - 1);
    }
}
