//! Cells in memory as a process sees them: what it requests travels to the store and back. `store` is what a store answers, and
//! `content` what the engine writes.

mod content;
mod store;

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use lockcore::{BackendError, BackendErrorKind, backend::ServiceTime};
use lockcore_cell::{Cell, CellPage, Change, Found, Written};
use tokio::sync::oneshot;

use crate::{
    faults::Kind,
    net::{Answer, Net, START, Store},
    plan::{Plan, World},
};

/// A client waits so long for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Cells that are not ours. The engine must leave them, though they were written long ago.
const FOREIGN: [&str; 3] = ["session/readme", "session/0123/table", "other/table"];

const GARBAGE: &[u8] = b"{\"format\":4242}";

/// The cells of a store.
pub(crate) struct Cells {
    cells: BTreeMap<String, Stored>,
    /// What was removed, with when it was written and when it was removed.
    removed: BTreeMap<String, (u64, u64)>,
    versions: u64,
    /// The number of cells that are replaced in one step.
    at_once: usize,
    /// Versions go by the content.
    by_content: bool,
    /// Whether the store tells of changes.
    tells: bool,
    /// Whether the time is known without a request.
    knows_time: bool,
    /// Half the width of the interval in which the time is known.
    unsure: u64,
    /// Lists are so late.
    late_list: u64,
    /// Whether cells of others are there.
    has_foreign: bool,
    /// Writes that were done and whose answer was lost: by cell and process, the version.
    unanswered: BTreeMap<(String, u32), u64>,
    watchers: Vec<(Watched, oneshot::Sender<()>)>,
}

/// Cells that are watched, with the versions that are known.
type Watched = Vec<(String, Option<u64>)>;

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

pub(crate) enum Event {
    Changed(oneshot::Sender<()>),
    /// A broken store forgets a write.
    Undone(String, u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Read {
        cells: Vec<(String, Option<u64>)>,
    },
    Replace {
        changes: Vec<Change<u64>>,
    },
    /// With a version, only if the cell is of that.
    Remove {
        name: String,
        at: Option<u64>,
    },
    List {
        folder: String,
        after: Option<String>,
    },
    Now,
}

#[derive(Debug)]
pub(crate) enum Reply {
    Found(Vec<Found<u64>>),
    Written(Written<Vec<u64>>),
    Removed,
    Page(CellPage),
    Time(ServiceTime),
}

impl Cells {
    /// The store of a run, and the way to it.
    pub(crate) fn net(plan: &Plan) -> Net<Cells> {
        let mut rng = Rng::with_seed(plan.seed ^ 0xce11);
        let late_list = match plan.kinds.contains(&Kind::LateList) {
            true => rng.u64(0..10_000_000),
            false => 0,
        };
        let by_content = rng.bool();
        let (tells, knows_time) = (rng.bool(), rng.bool());
        let unsure = *rng.choice(&[0, 1_000, 50_000, 500_000]).unwrap_or(&0);
        let has_foreign = plan.kinds.contains(&Kind::Foreign);
        let mut cells = BTreeMap::new();
        for name in FOREIGN.into_iter().filter(|_| has_foreign) {
            let content = Bytes::from_static(b"not ours");
            // A week ago.
            let written = START - 7 * 86_400 * 1_000_000;
            let stored = Stored { version: 1, content, written, created: 0, owner: 0, before: None };
            cells.insert(name.to_owned(), stored);
        }
        let store = Cells {
            cells,
            removed: BTreeMap::new(),
            versions: 0,
            at_once: if plan.world == World::Cells { 64 } else { 1 },
            by_content,
            tells,
            knows_time,
            unsure,
            late_list,
            has_foreign,
            unanswered: BTreeMap::new(),
            watchers: Vec::new(),
        };
        Net::new(plan, rng, store)
    }
}

/// The cells as one process sees them.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedCell {
    net: Arc<Net<Cells>>,
    process: u32,
}

impl SimulatedCell {
    pub(crate) fn new(net: &Arc<Net<Cells>>, process: u32) -> Self {
        SimulatedCell { net: net.clone(), process }
    }

    async fn ask(&self, request: Request) -> Answer<Cells> {
        let writes = Cells::writes(&request);
        let answered = self.net.ask(self.process, request);
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
        let mut found = self.read_all(&[(name.to_owned(), known.copied())]).await?;
        Ok(found.pop().unwrap_or(Found::Absent))
    }

    async fn replace(
        &self,
        name: &str,
        at: Option<&u64>,
        content: Bytes,
    ) -> Result<Written<u64>, BackendError> {
        Ok(match self.replace_all(&[Change { name: name.to_owned(), at: at.copied(), content }]).await? {
            Written::Done(versions) => Written::Done(versions[0]),
            Written::Refused => Written::Refused,
        })
    }

    fn at_once(&self) -> usize {
        self.net.state().store.at_once
    }

    async fn read_all(&self, cells: &[(String, Option<u64>)]) -> Result<Vec<Found<u64>>, BackendError> {
        match self.ask(Request::Read { cells: cells.to_vec() }).await? {
            Reply::Found(found) => Ok(found),
            other => unexpected(&other),
        }
    }

    async fn replace_all(&self, changes: &[Change<u64>]) -> Result<Written<Vec<u64>>, BackendError> {
        match self.ask(Request::Replace { changes: changes.to_vec() }).await? {
            Reply::Written(written) => Ok(written),
            other => unexpected(&other),
        }
    }

    async fn remove_at(&self, name: &str, at: &u64) -> Result<(), BackendError> {
        self.ask(Request::Remove { name: name.to_owned(), at: Some(*at) }).await.map(drop)
    }

    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        self.ask(Request::Remove { name: name.to_owned(), at: None }).await.map(drop)
    }

    async fn list(&self, folder: &str, after: Option<&str>) -> Result<CellPage, BackendError> {
        let request = Request::List { folder: folder.to_owned(), after: after.map(str::to_owned) };
        match self.ask(request).await? {
            Reply::Page(page) => Ok(page),
            other => unexpected(&other),
        }
    }

    async fn now(&self) -> Result<ServiceTime, BackendError> {
        if self.net.state().store.knows_time {
            return Ok(self.net.state().service_time(self.process));
        }
        match self.ask(Request::Now).await? {
            Reply::Time(time) => Ok(time),
            other => unexpected(&other),
        }
    }

    async fn changed(&self, cells: &[(String, Option<u64>)]) {
        let (to, changed) = oneshot::channel();
        if !self.net.state().store.tells {
            return pending().await;
        }
        self.net.state().store.watchers.push((cells.to_vec(), to));
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
