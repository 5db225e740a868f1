//! Cells in memory as a process sees them: what it requests travels to the store and back. `net` is the way, `store` what a store
//! answers, and `content` what the engine writes.

mod content;
mod net;
mod store;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use lockcore::{BackendError, BackendErrorKind, backend::ServiceTime};
use lockcore_cell::{Cell, CellPage, Found, Written};
use tokio::sync::oneshot;

use crate::{
    plan::{Broken, Plan},
    reached::Reached,
};

/// A client waits so long for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time of the store at the begin of a run: in 2023.
const START: u64 = 1_700_000_000_000_000;

/// Cells that are not ours. The engine must leave them, though they were written long ago.
const FOREIGN: [&str; 3] = ["session/readme", "session/0123/table", "other/table"];

const GARBAGE: &[u8] = b"{\"format\":4242}";

/// The store and the way to it, which all processes share.
#[derive(Debug)]
pub(crate) struct Net {
    state: Mutex<State>,
    plan: Plan,
    /// Whether the store tells of changes.
    tells: bool,
    /// Whether the time is known without a request.
    knows_time: bool,
}

struct State {
    /// Microseconds since the begin of the run.
    now: u64,
    seq: u64,
    rng: Rng,
    reached: Reached,
    broken: Option<Broken>,
    way: (u64, u64),
    cells: BTreeMap<String, Stored>,
    /// What was removed, with when it was written and when it was removed.
    removed: BTreeMap<String, (u64, u64)>,
    queue: BTreeMap<(u64, u64), Step>,
    versions: u64,
    /// All writes, as lines of text, if they are asked for.
    trace: Option<String>,
    /// Versions go by the content.
    by_content: bool,
    /// How far the clock of the store was set, in microseconds.
    offset: i64,
    /// Half the width of the interval in which the time is known.
    unsure: u64,
    /// Lists are so late.
    late_list: u64,
    /// The processes whose requests are dropped or refused, until when.
    cut: BTreeMap<u32, (u64, bool)>,
    outage: u64,
    noise: u64,
    slow: u64,
    dead: BTreeSet<u32>,
    /// Writes that were done and whose answer was lost: by cell and process, the version.
    unanswered: BTreeMap<(String, u32), u64>,
    watchers: Vec<(String, Option<u64>, oneshot::Sender<()>)>,
}

#[derive(Clone, Debug)]
struct Stored {
    version: u64,
    content: Bytes,
    /// By the clock of the store.
    written: u64,
    /// By the clock of the run.
    created: u64,
    /// The process that created it.
    owner: u32,
    /// What it was before, and until when.
    before: Option<(u64, Bytes, u64)>,
}

enum Step {
    Arrives(Sent),
    Answered(oneshot::Sender<Answer>, Answer),
    Changed(oneshot::Sender<()>),
    /// A broken store forgets a write.
    Undone(String, u64),
}

struct Sent {
    process: u32,
    request: Request,
    /// `None` for a copy, and where the answer is lost.
    answer: Option<oneshot::Sender<Answer>>,
    is_late: bool,
    loses_answer: bool,
}

#[derive(Clone, Debug)]
enum Request {
    Read { name: String, known: Option<u64> },
    Replace { name: String, at: Option<u64>, content: Bytes },
    Remove { name: String },
    List { folder: String, after: Option<String> },
    Now,
}

impl Request {
    fn writes(&self) -> bool {
        matches!(self, Request::Replace { .. } | Request::Remove { .. })
    }
}

type Answer = Result<Reply, BackendError>;

#[derive(Debug)]
enum Reply {
    Found(Found<u64>),
    Written(Written<u64>),
    Removed,
    Page(CellPage),
    Time(ServiceTime),
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The cells as one process sees them.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedCell {
    net: Arc<Net>,
    process: u32,
}

impl SimulatedCell {
    pub(crate) fn new(net: &Arc<Net>, process: u32) -> Self {
        SimulatedCell { net: net.clone(), process }
    }

    async fn ask(&self, request: Request) -> Answer {
        let (answer, answered) = oneshot::channel();
        let writes = request.writes();
        self.net.state().send(self.process, request, answer)?;
        let answered = async {
            match answered.await {
                Ok(answer) => answer,
                // It was lost on its way.
                Err(_) => pending().await,
            }
        };
        tokio::time::timeout(PATIENCE, answered).await.unwrap_or_else(|_| {
            let error = BackendError::new(BackendErrorKind::Timeout, "simulated: no answer");
            Err(if writes { error.possibly_done() } else { error })
        })
    }
}

fn unexpected<T>(reply: &Reply) -> Result<T, BackendError> {
    Err(BackendError::new(BackendErrorKind::Other, format!("simulated: {reply:?} answers another request")))
}

impl Cell for SimulatedCell {
    type Version = u64;

    async fn read(&self, name: &str, known: Option<&u64>) -> Result<Found<u64>, BackendError> {
        match self.ask(Request::Read { name: name.to_owned(), known: known.copied() }).await? {
            Reply::Found(found) => Ok(found),
            other => unexpected(&other),
        }
    }

    async fn replace(
        &self,
        name: &str,
        at: Option<&u64>,
        content: Bytes,
    ) -> Result<Written<u64>, BackendError> {
        match self.ask(Request::Replace { name: name.to_owned(), at: at.copied(), content }).await? {
            Reply::Written(written) => Ok(written),
            other => unexpected(&other),
        }
    }

    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        self.ask(Request::Remove { name: name.to_owned() }).await.map(drop)
    }

    async fn list(&self, folder: &str, after: Option<&str>) -> Result<CellPage, BackendError> {
        let request = Request::List { folder: folder.to_owned(), after: after.map(str::to_owned) };
        match self.ask(request).await? {
            Reply::Page(page) => Ok(page),
            other => unexpected(&other),
        }
    }

    async fn now(&self) -> Result<ServiceTime, BackendError> {
        if self.net.knows_time {
            return Ok(self.net.state().service_time(self.process));
        }
        match self.ask(Request::Now).await? {
            Reply::Time(time) => Ok(time),
            other => unexpected(&other),
        }
    }

    async fn changed(&self, name: &str, known: Option<&u64>) {
        if !self.net.tells {
            return pending().await;
        }
        let (to, changed) = oneshot::channel();
        self.net.state().watchers.push((name.to_owned(), known.copied(), to));
        // A notice that is lost, as the trait allows, is one that never comes.
        if changed.await.is_err() {
            pending().await
        }
    }
}

fn is_session(name: &str) -> bool {
    let session = name.strip_prefix("session/");
    session.is_some_and(|session| session.len() == 32 && !FOREIGN.contains(&name))
}
