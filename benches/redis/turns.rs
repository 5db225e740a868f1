//! The floor under contention: the same scripts with the same queue and hand-off, called by the bare client.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use lockcore::Wait;
use redis::{
    AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisResult, Value,
    aio::{AsyncPushSender, MultiplexedConnection, SendError},
};
use tokio::sync::oneshot;

use crate::{
    Locks,
    bare::{client, sent},
};

/// What a program needs to wait for its turn by our scripts, and nothing more: one connection, a channel on it, and for
/// each waiter a `oneshot` by its name. No call of a service around it: no leases to be kept, nothing cleaned up if a task goes
/// away, no client that looks after the waiters.
#[derive(Clone)]
pub(crate) struct Turns {
    connection: MultiplexedConnection,
    waiting: Waiting,
    session: String,
    script: Arc<Script>,
    attempts: Arc<AtomicU64>,
}

/// What is the same in every call.
struct Script {
    hash: Vec<u8>,
    fence_key: Vec<u8>,
    base: String,
    lease: Vec<u8>,
    ms: Vec<u8>,
}

#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashMap<String, oneshot::Sender<String>>>>);

/// A turn: what the release names.
pub(crate) struct Turn {
    key: String,
    head: String,
}

impl Turns {
    /// Has the server tell how `locks` calls the scripts.
    pub(crate) async fn new(url: &str, locks: &Locks) -> Self {
        let ([take, free], _) = sent(url, locks, Wait::forever(), &["an id".to_owned()]).await;
        // EVALSHA hash 4 fence-key tombstone-key main-key line-key acquire value ms options; EVALSHA hash 1 main-key release head lease
        assert_eq!((take.len(), free.len()), (11, 7), "{take:?} {free:?}");
        let base = String::from_utf8(take[5].clone()).expect("text").replace("an id", "");
        let channel = base.replace(':', "/o:");
        let session = format!("p{}", uuid::Uuid::new_v4().simple());
        let waiting = Waiting::default();
        let config = AsyncConnectionConfig::new().set_push_sender(waiting.clone());
        let mut connection =
            client(url).get_multiplexed_async_connection_with_config(&config).await.expect("an answer");
        connection.subscribe(format!("{channel}{session}")).await.expect("an answer");
        let script = Script {
            hash: take[1].clone(),
            fence_key: take[3].clone(),
            base,
            lease: free[6].clone(),
            ms: take[9].clone(),
        };
        Turns { connection, waiting, session, script: Arc::new(script), attempts: Arc::default() }
    }

    /// Takes the id, or waits for its turn.
    pub(crate) async fn take(&mut self, id: &str) -> Turn {
        let (context, attempt) = (uuid::Uuid::new_v4(), self.attempts.fetch_add(1, Ordering::Relaxed));
        let (script, name) = (&self.script, format!("{attempt:016x}{context}"));
        let (sender, turn) = oneshot::channel();
        self.waiting.lock().insert(name.clone(), sender);
        let lease = String::from_utf8_lossy(&script.lease);
        let key = format!("{}{id}", script.base);
        let mut command = Cmd::new();
        let (tombstone, lines) = (key_of(&script.base, "x", &name), key_of(&script.base, "n", id));
        command
            .arg("EVALSHA")
            .arg(&script.hash)
            .arg(4)
            .arg(&script.fence_key)
            .arg(tombstone)
            .arg(&key)
            .arg(lines);
        command.arg("acquire").arg(format!("|36:{context}|||{lease}|x|{attempt:016x}|0:")).arg(&script.ms);
        command.arg(format!("q {}", self.session));
        let reply: Value = command.query_async(&mut self.connection).await.expect("an answer");
        let fence = match reply {
            Value::BulkString(fence) => {
                self.waiting.lock().remove(&name);
                String::from_utf8(fence).expect("digits")
            }
            _ => turn.await.expect("its turn comes"),
        };
        Turn { key, head: format!("lc2|{fence}|36:{context}||") }
    }

    /// Gives it on.
    pub(crate) async fn free(&mut self, turn: Turn) {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.script.hash).arg(1).arg(turn.key);
        command.arg("release").arg(turn.head).arg(&self.script.lease);
        let reply: RedisResult<Value> = command.query_async(&mut self.connection).await;
        let lost_nothing = match &reply {
            Ok(Value::Array(lost)) => lost.is_empty(),
            other => *other == Ok(Value::Int(0)),
        };
        assert!(lost_nothing, "it was held: {reply:?}");
    }
}

/// One of the namespace's keys, by the beginning of its main keys.
fn key_of(base: &str, kind: &str, name: &str) -> String {
    format!("{}/{kind}:{name}", base.trim_end_matches(':'))
}

impl Waiting {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, oneshot::Sender<String>>> {
        self.0.lock().expect("no panic")
    }

    /// `5:offer`, name, when it was made, how long it lasts, one claim: its mode, fence, and how many hold it.
    fn receive(&self, message: &str) {
        let (mut rest, mut fields) = (message, Vec::with_capacity(8));
        while let Some((length, behind)) = rest.split_once(':') {
            let (field, behind) = behind.split_at(length.parse().expect("a length"));
            fields.push(field);
            rest = behind;
        }
        for offer in fields.chunks(8) {
            let waiter = self.lock().remove(offer[1]).expect("it waits");
            waiter.send(offer[6].to_owned()).expect("it waits");
        }
    }
}

impl AsyncPushSender for Waiting {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        if let (PushKind::Message, Some(Value::BulkString(message))) = (info.kind, info.data.get(1)) {
            self.receive(std::str::from_utf8(message).expect("text"));
        }
        Ok(())
    }
}
