//! The session of one runtime: a connection, its waiters, and the task that sends heartbeats for them.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::try_join;
use lockcore::{
    BackendError,
    backend::{Moment, unique_name},
    protocol::HEARTBEAT,
};
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use tokio::{runtime::Handle, sync::OnceCell};

use crate::{
    config::Settings,
    error::{ends_connection, failure},
    inbox::{Inbox, Pushed},
    link::Link,
    reply::Reply,
    scripts::{Call, Scripts},
    server::Server,
};

/// The most ids of one poll: other clients need the server too.
const POLL_BATCH: usize = 128;

/// The shortest pause between two polls, however many leases end.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// A connection, and the waiters of its runtime.
pub(crate) struct Session {
    /// Begins with `s` where messages go through a sharded channel, else with `p`.
    pub(crate) name: String,
    pub(crate) inbox: Arc<Inbox>,
    link: Link,
    /// The runtime in which the connection lives.
    runtime: Handle,
    pub(crate) scripts: Arc<Scripts>,
    /// The moment at which the channel was subscribed to, which the first waiter does.
    listening: OnceCell<Moment>,
    /// Set while the task that sends heartbeats runs.
    watching: AtomicBool,
}

impl Session {
    /// Connects on the current runtime.
    pub(crate) async fn open(
        server: &Server,
        settings: &Settings,
        scripts: Arc<Scripts>,
    ) -> Result<Arc<Self>, BackendError> {
        let inbox = Arc::new(Inbox::new(settings.replicas.is_some()));
        let pushed = Pushed { inbox: inbox.clone(), is_cluster: server.is_cluster() };
        let link = server.connect(settings, pushed).await?;
        let name = format!("{}{}", if server.is_cluster() { 's' } else { 'p' }, unique_name());
        Ok(Arc::new(Session {
            name,
            inbox,
            link,
            runtime: Handle::current(),
            scripts,
            listening: OnceCell::new(),
            watching: AtomicBool::new(false),
        }))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inbox.is_closed()
    }

    /// Calls the script, and sends it along if the server does not have it.
    pub(crate) async fn call(&self, call: &Call) -> Result<Value, BackendError> {
        // Boxed: a call is copied with all of its future whenever it is moved.
        let answer = match Box::pin(self.link.send(&self.runtime, call.by_hash())).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                // Boxed to keep the usual future small.
                Box::pin(self.link.send(&self.runtime, &self.scripts.by_source(call))).await
            }
            answer => answer,
        };
        self.checked(answer)
    }

    /// Sends a command other than a call of the script.
    pub(crate) async fn command(&self, command: Cmd) -> Result<Value, BackendError> {
        self.checked(self.link.send(&self.runtime, &command).await)
    }

    /// Subscribes to messages before the first waiter of this session is queued. Also reads the server's clock in the same round
    /// trip: an offer may be pushed before the reply to the request is read.
    pub(crate) async fn listen(&self) -> Result<(), BackendError> {
        if self.listening.initialized() {
            return Ok(());
        }
        let listen =
            || async { try_join(self.subscribe(), self.heartbeat(&[])).await.map(|((), ())| Moment::now()) };
        Box::pin(self.listening.get_or_try_init(listen)).await.map(drop)
    }

    async fn subscribe(&self) -> Result<(), BackendError> {
        let channel = self.scripts.channel(&self.name);
        self.checked(self.link.subscribe(&self.runtime, channel).await)
    }

    /// Returns for how long this connection has been subscribed to messages; subscribes if no waiter has needed it yet.
    pub(crate) async fn listens(&self) -> Result<Duration, BackendError> {
        match self.listening.get() {
            Some(since) => Ok(since.elapsed()),
            None => self.subscribe().await.map(|()| Duration::ZERO),
        }
    }

    fn checked<T>(&self, answer: RedisResult<T>) -> Result<T, BackendError> {
        answer.map_err(|error| {
            if ends_connection(&error) {
                self.inbox.close();
            }
            failure(error, true)
        })
    }

    /// Starts the task that sends heartbeats and polls the ids that are waited for, unless it runs.
    pub(crate) fn watch(self: &Arc<Self>) {
        if !self.watching.swap(true, SeqCst) {
            self.runtime.spawn(self.clone().keep_watch());
        }
    }

    async fn keep_watch(self: Arc<Self>) {
        self.inbox.missed.store(false, SeqCst);
        let mut counted = Moment::now();
        let mut sent = Moment::now();
        while !self.is_closed() {
            if counted.elapsed() >= HEARTBEAT {
                counted = Moment::now();
                if self.inbox.missed.swap(false, SeqCst) {
                    self.inbox.waiters.wake_all();
                }
                if self.inbox.waiters.count() == 0 {
                    self.inbox.clear_polls();
                    self.watching.store(false, SeqCst);
                    // A waiter may have come before it was stored.
                    if self.inbox.waiters.count() == 0 || self.watching.swap(true, SeqCst) {
                        return;
                    }
                }
            }
            let heartbeat = sent.elapsed() >= HEARTBEAT;
            let due = self.inbox.due(POLL_BATCH, heartbeat);
            if heartbeat || !due.is_empty() {
                sent = Moment::now();
                if let Err(error) = self.heartbeat(&due).await {
                    tracing::debug!(%error, "a heartbeat failed");
                    if !error.is_retryable() {
                        // A heartbeat that is refused for good ends the waits that ask again.
                        self.inbox.waiters.wake_all();
                    }
                }
            }
            let pause = self.inbox.pause(HEARTBEAT.saturating_sub(sent.elapsed()));
            let _ = tokio::time::timeout(pause.max(MIN_PAUSE), self.inbox.earlier.notified()).await;
        }
    }

    /// Sends a heartbeat, and polls some ids.
    async fn heartbeat(&self, due: &[Box<str>]) -> Result<(), BackendError> {
        let mut call = self.scripts.call_anywhere().arg("heartbeat").arg(&self.name);
        for id in due {
            call.add(id.as_bytes());
        }
        let sent = Moment::now();
        let mut reply = Reply::of(self.call(&call).await?)?;
        let known = reply.int()? == 1;
        self.inbox.clock.sample(sent, Moment::now(), reply.number()?);
        let mut unknown = HashSet::new();
        for id in due {
            match reply.int()? {
                -2 => _ = unknown.insert(&**id),
                end => self.inbox.polled(id, u64::try_from(end).ok().map(Duration::from_millis)),
            }
        }
        self.inbox.unknown(&unknown);
        if !known {
            // The places lapsed, or the server lost its data: all waiters repeat their requests.
            self.inbox.waiters.wake_all();
        }
        Ok(())
    }
}
