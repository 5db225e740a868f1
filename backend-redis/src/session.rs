//! One connection with its waiters: what a runtime of this process has of the server.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::try_join;
use lockcore::{BackendError, Moment};
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use tokio::{runtime::Handle, sync::OnceCell};

use crate::{
    config::Settings,
    eager::Eager,
    error::{ends_connection, failure},
    inbox::{Inbox, Pushed},
    link::Link,
    reply::Reply,
    scripts::{Call, Scripts},
    target::Target,
};

/// How often a session with waiters gives a sign of life, which counts for 3 s.
const BEAT: Duration = Duration::from_secs(1);

/// How many ids one look is for at most: others want the server too.
const LOOKED_AT: usize = 128;

/// The least pause between two looks, however many leases end.
const BREATH: Duration = Duration::from_millis(5);

/// A connection, and those of its runtime who wait for something to be pushed to it.
pub(crate) struct Session {
    /// Begins with `s` where messages go through a channel of one slot, else with `p`.
    pub(crate) name: String,
    pub(crate) inbox: Arc<Inbox>,
    link: Link,
    eager: Eager,
    /// Where the connection lives.
    runtime: Handle,
    scripts: Arc<Scripts>,
    /// Since when, if a waiter has needed it.
    listening: OnceCell<Moment>,
    watching: AtomicBool,
}

impl Session {
    /// Connects on the current runtime.
    pub(crate) async fn open(
        target: &Target,
        settings: &Settings,
        scripts: Arc<Scripts>,
    ) -> Result<Arc<Self>, BackendError> {
        let inbox = Arc::new(Inbox::new(settings.replicas.is_some()));
        let pushed = Pushed { inbox: inbox.clone(), goes_on: target.is_cluster() };
        let link = target.connect(settings, pushed).await.map_err(|error| failure(error, false))?;
        let name =
            format!("{}{}", if target.is_cluster() { 's' } else { 'p' }, uuid::Uuid::new_v4().simple());
        Ok(Arc::new(Session {
            name,
            inbox,
            link,
            eager: Eager::new(settings.busy_wait),
            runtime: Handle::current(),
            scripts,
            listening: OnceCell::new(),
            watching: AtomicBool::new(false),
        }))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inbox.is_closed()
    }

    /// Calls the script; sends it along if the server does not know it.
    pub(crate) async fn call(&self, call: &Call) -> Result<Value, BackendError> {
        let answer = self.link.send(&self.runtime, call.by_hash());
        let answer = match self.eager.wait_for(answer).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                // In a box, so that the usual call is no larger for it.
                Box::pin(self.link.send(&self.runtime, &call.by_source())).await
            }
            answer => answer,
        };
        self.checked(answer)
    }

    /// Sends a command of its own.
    pub(crate) async fn command(&self, command: Cmd) -> Result<Value, BackendError> {
        self.checked(self.link.send(&self.runtime, &command).await)
    }

    /// Has messages pushed, before the first waiter of this session takes a place. Also looks at the server's clock, in
    /// the same round trip: an offer may be pushed before the answer to the request is read.
    pub(crate) async fn listen(&self) -> Result<(), BackendError> {
        if self.listening.initialized() {
            return Ok(());
        }
        let listen =
            || async { try_join(self.subscribe(), self.look(&[])).await.map(|((), ())| Moment::now()) };
        Box::pin(self.listening.get_or_try_init(listen)).await.map(drop)
    }

    async fn subscribe(&self) -> Result<(), BackendError> {
        let channel = self.scripts.channel(&self.name);
        self.checked(self.link.subscribe(&self.runtime, channel).await)
    }

    /// For how long messages have been pushed to this connection; tries whether they can be if no waiter has needed it.
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

    /// Sees to it that a task of this runtime gives signs of life and looks after what is waited for.
    pub(crate) fn watch(self: &Arc<Self>) {
        if !self.watching.swap(true, SeqCst) {
            self.runtime.spawn(self.clone().keep_watch());
        }
    }

    async fn keep_watch(self: Arc<Self>) {
        self.inbox.disturbed.store(false, SeqCst);
        let mut counted = Moment::now();
        let mut beaten = Moment::now();
        while !self.is_closed() {
            if counted.elapsed() >= BEAT {
                counted = Moment::now();
                if self.inbox.disturbed.swap(false, SeqCst) {
                    self.inbox.waiters.wake_all();
                }
                if self.inbox.waiters.count() == 0 {
                    self.inbox.forget_looks();
                    self.watching.store(false, SeqCst);
                    // Somebody may have come before it was stored.
                    if self.inbox.waiters.count() == 0 || self.watching.swap(true, SeqCst) {
                        return;
                    }
                }
            }
            let beat = beaten.elapsed() >= BEAT;
            let due = self.inbox.due(LOOKED_AT, beat);
            if beat || !due.is_empty() {
                beaten = Moment::now();
                if let Err(error) = self.look(&due).await {
                    tracing::debug!(%error, "a look after the waiters failed");
                }
            }
            let pause = self.inbox.pause(BEAT.saturating_sub(beaten.elapsed()));
            let _ = tokio::time::timeout(pause.max(BREATH), self.inbox.earlier.notified()).await;
        }
    }

    /// A sign of life, and a look at some ids.
    async fn look(&self, due: &[Box<str>]) -> Result<(), BackendError> {
        let mut call = self.scripts.call_anywhere().arg("look").arg(&self.name);
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
                end => self.inbox.looked(id, u64::try_from(end).ok().map(Duration::from_millis)),
            }
        }
        self.inbox.unknown(&unknown);
        if !known {
            // The places lapsed, or the server lost its data: whoever still waits takes a new one.
            self.inbox.waiters.wake_all();
        }
        Ok(())
    }
}
