//! Cells in memory with latencies, a clock that a test sets, and the faults that the cases need.

use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use lockcore::{BackendError, BackendErrorKind, LockingService, backend::ServiceTime};
use tokio::time::{Instant, sleep};

use super::{Locks, SECOND};
use crate::{
    Cell, CellLockDao, CellPage, CellSettings, Change, Found, Written,
    table::{Table, micros},
};

const READ: Duration = Duration::from_millis(30);
const WRITE: Duration = Duration::from_millis(60);
/// The distance of the bounds of the time from it.
const WIDTH: u64 = 300_000;
const BEGIN: u64 = 1_795_000_000_000_000;

/// A store and its clock.
#[derive(Clone, Debug)]
pub(crate) struct World(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    begun: Instant,
    back: AtomicU64,
    cells: Mutex<BTreeMap<String, Stored>>,
    versions: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    fails: Mutex<String>,
    denied: Mutex<Option<Denied>>,
    /// Writes are done whatever their condition is.
    ignores_conditions: AtomicBool,
}

/// Rights that are taken away from all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Denied {
    Reads,
    Writes,
}

#[derive(Clone, Debug)]
struct Stored {
    version: u64,
    content: Bytes,
    written: u64,
}

/// The store as a process sees it.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    world: World,
    /// Nothing comes back any more, and nothing arrives.
    is_cut: Arc<AtomicBool>,
    /// Reads and writes are done, and their answers are lost.
    pub(crate) loses_answers: Arc<AtomicBool>,
    /// The ways of the next writes.
    pub(crate) next_writes: Arc<Mutex<VecDeque<Way>>>,
    /// The number of cells that are replaced in one step.
    pub(crate) at_once: usize,
    /// The most bytes that it says to replace at once, and the most that are taken.
    pub(crate) bytes: Option<(usize, usize)>,
    /// It is notified of changes.
    pub(crate) is_notified: bool,
}

/// The way of a write that is not usual.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// It arrives, and is answered, so much later.
    Slow(Duration),
    /// It arrives so much later, when its sender has given up.
    Late(Duration),
}

impl World {
    /// No real time passes in the test that makes one, however busy the machine is.
    pub(crate) fn new() -> Self {
        lockcore::simulated::play(1, Duration::ZERO);
        World(Arc::new(Shared {
            begun: Instant::now(),
            back: AtomicU64::new(0),
            cells: Mutex::default(),
            versions: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            fails: Mutex::default(),
            denied: Mutex::default(),
            ignores_conditions: AtomicBool::new(false),
        }))
    }

    pub(crate) fn process(&self) -> Process {
        Process {
            world: self.clone(),
            is_cut: Arc::default(),
            loses_answers: Arc::default(),
            next_writes: Arc::default(),
            at_once: 1,
            bytes: None,
            is_notified: false,
        }
    }

    pub(crate) async fn dao_with(&self, process: Process, timeout: Duration) -> CellLockDao<Process> {
        let settings = CellSettings { timeout, ..CellSettings::new("cells", "cells in memory") };
        CellLockDao::open(process, settings).await.expect("a store in memory can be opened")
    }

    /// A DAO that replaces several cells at once.
    pub(crate) async fn dao_of_several(&self) -> CellLockDao<Process> {
        self.dao_with(Process { at_once: 100, ..self.process() }, Duration::from_secs(10)).await
    }

    /// A service of a process of its own, and its network: true cuts it off.
    pub(crate) async fn service(&self) -> (Locks, Arc<AtomicBool>) {
        let process = self.process();
        let network = process.is_cut.clone();
        (LockingService::new(self.dao_with(process, Duration::from_secs(10)).await), network)
    }

    fn cells(&self) -> MutexGuard<'_, BTreeMap<String, Stored>> {
        self.0.cells.lock().expect("no panic")
    }

    pub(crate) fn now(&self) -> u64 {
        BEGIN + micros(self.0.begun.elapsed()) - self.0.back.load(Relaxed)
    }

    pub(crate) fn set_back(&self, by: Duration) {
        self.0.back.fetch_add(micros(by), Relaxed);
    }

    pub(crate) fn table(&self) -> Table {
        Table::read(&self.cells()["table"].content).expect("our own form")
    }

    pub(crate) fn put(&self, name: &str, content: Vec<u8>) {
        let (version, written) = (self.version(), self.now());
        self.cells().insert(name.to_owned(), Stored { version, content: content.into(), written });
    }

    pub(crate) fn content(&self, name: &str) -> serde_json::Value {
        serde_json::from_slice(&self.cells()[name].content).expect("it is JSON")
    }

    /// The bytes of a cell.
    pub(crate) fn size(&self, name: &str) -> usize {
        self.cells()[name].content.len()
    }

    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        self.cells().keys().filter(|name| name.starts_with(folder)).cloned().collect()
    }

    pub(crate) fn remove_folder(&self, folder: &str) {
        self.cells().retain(|name, _| !name.starts_with(folder));
    }

    /// Reads of this cell time out.
    pub(crate) fn fail_reads_of(&self, name: &str) {
        *self.0.fails.lock().expect("no panic") = name.to_owned();
    }

    pub(crate) fn deny(&self, denied: Denied) {
        *self.0.denied.lock().expect("no panic") = Some(denied);
    }

    pub(crate) fn ignore_conditions(&self) {
        self.0.ignores_conditions.store(true, Relaxed);
    }

    fn check_right(&self, to: Denied) -> Result<(), BackendError> {
        match *self.0.denied.lock().expect("no panic") == Some(to) {
            true => Err(BackendError::new(BackendErrorKind::Denied, "the right was taken away")),
            false => Ok(()),
        }
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.0.reads.load(Relaxed), self.0.writes.load(Relaxed))
    }

    /// Adds holders of which each had a session, renewed once, and died an hour ago.
    pub(crate) fn add_dead_holders(&self, count: u64) {
        let mut table = serde_json::from_slice::<serde_json::Value>(&self.cells()["table"].content)
            .expect("our own form");
        let (high, over) = (table["high"].as_u64().expect("a number"), self.now() - 3_600_000_000);
        for number in 1..=count {
            let (fence, session) = ((high + number).to_string(), format!("{number:032x}"));
            table["grants"][&fence] = serde_json::json!(
                { "context": format!("of {number}"), "attempt": number, "session": &session, "since": over }
            );
            let held = serde_json::json!(
                { "fence": high + number, "mode": "exclusive", "in_use": 1, "lease": 10_000_000, "until": over }
            );
            table["ids"][format!("dead {number}")] = serde_json::json!({ "held": [held] });
            let renewals = serde_json::json!({ &fence: { "until": over, "lease": 10_000_000 } });
            let stamp = serde_json::json!({ "session": &session, "number": 1 });
            let content = serde_json::json!({ "format": 1, "stamp": stamp, "renewals": renewals });
            self.put(&format!("session/{session}"), content.to_string().into_bytes());
        }
        table["high"] = (high + count).into();
        self.put("table", serde_json::to_vec(&table).expect("it is JSON"));
    }

    /// Replaces cells that are of their versions; returns the new ones.
    fn replace(&self, changes: &[Change<u64>]) -> Option<Vec<u64>> {
        let (written, mut cells) = (self.now(), self.cells());
        let is_met = |change: &Change<u64>| cells.get(&change.name).map(|cell| cell.version) == change.at;
        if !changes.iter().all(is_met) && !self.0.ignores_conditions.load(Relaxed) {
            return None;
        }
        let write = |change: &Change<u64>| {
            let (version, content) = (self.version(), change.content.clone());
            cells.insert(change.name.clone(), Stored { version, content, written });
            version
        };
        Some(changes.iter().map(write).collect())
    }

    fn version(&self) -> u64 {
        self.0.versions.fetch_add(1, Relaxed) + 1
    }
}

impl Process {
    async fn travel(&self, time: Duration) {
        sleep(time / 2).await;
        if self.is_cut.load(Relaxed) {
            pending::<()>().await;
        }
    }

    async fn answer(&self) -> Result<(), BackendError> {
        if self.loses_answers.load(Relaxed) { self.no_answer().await } else { Ok(()) }
    }

    async fn no_answer<T>(&self) -> Result<T, BackendError> {
        sleep(Duration::from_secs(5)).await;
        Err(BackendError::new(BackendErrorKind::Timeout, "no answer in time").possibly_done())
    }
}

impl Cell for Process {
    type Version = u64;

    async fn read(&self, name: &str, known: Option<&u64>) -> Result<Found<u64>, BackendError> {
        self.world.0.reads.fetch_add(1, Relaxed);
        self.travel(READ).await;
        if *self.world.0.fails.lock().expect("no panic") == name {
            return self.no_answer().await;
        }
        self.world.check_right(Denied::Reads)?;
        let found = self.world.cells().get(name).cloned();
        self.travel(READ).await;
        self.answer().await?;
        Ok(match found {
            None => Found::Absent,
            Some(cell) if known == Some(&cell.version) => Found::Unchanged,
            Some(cell) => Found::Changed(cell.version, cell.content),
        })
    }

    async fn changed(&self, cells: &[(String, Option<u64>)]) {
        let version = |name: &String| self.world.cells().get(name).map(|cell| cell.version);
        while !self.is_notified || cells.iter().all(|(name, known)| version(name) == *known) {
            sleep(SECOND / 200).await;
        }
    }

    async fn replace(
        &self,
        name: &str,
        at: Option<&u64>,
        content: Bytes,
    ) -> Result<Written<u64>, BackendError> {
        let changes = [Change { name: name.to_owned(), at: at.copied(), content }];
        Ok(match self.replace_all(&changes).await? {
            Written::Done(versions) => Written::Done(versions[0]),
            Written::Refused => Written::Refused,
        })
    }

    fn at_once(&self) -> usize {
        self.at_once
    }

    fn most_bytes(&self) -> usize {
        self.bytes.map_or(usize::MAX, |(most, _)| most)
    }

    async fn read_all(&self, cells: &[(String, Option<u64>)]) -> Result<Vec<Found<u64>>, BackendError> {
        self.world.0.reads.fetch_add(1, Relaxed);
        self.travel(READ).await;
        self.world.check_right(Denied::Reads)?;
        let found = |(name, known): &(String, Option<u64>)| match self.world.cells().get(name) {
            None => Found::Absent,
            Some(cell) if *known == Some(cell.version) => Found::Unchanged,
            Some(cell) => Found::Changed(cell.version, cell.content.clone()),
        };
        let found = cells.iter().map(found).collect();
        self.travel(READ).await;
        self.answer().await?;
        Ok(found)
    }

    async fn remove_at(&self, name: &str, at: &u64) -> Result<(), BackendError> {
        self.world.0.writes.fetch_add(1, Relaxed);
        self.travel(WRITE).await;
        let mut cells = self.world.cells();
        if cells.get(name).is_some_and(|cell| cell.version == *at) {
            cells.remove(name);
        }
        Ok(())
    }

    async fn replace_all(&self, changes: &[Change<u64>]) -> Result<Written<Vec<u64>>, BackendError> {
        self.world.0.writes.fetch_add(1, Relaxed);
        let sent: usize = changes.iter().map(|change| change.content.len()).sum();
        if self.bytes.is_some_and(|(_, max)| sent > max) {
            return Err(BackendError::new(BackendErrorKind::Other, format!("request is too large: {sent}")));
        }
        let way = self.next_writes.lock().expect("no panic").pop_front();
        match way {
            Some(Way::Slow(time)) => sleep(time).await,
            Some(Way::Late(time)) => {
                let (world, changes) = (self.world.clone(), changes.to_vec());
                tokio::spawn(async move {
                    sleep(time).await;
                    world.replace(&changes);
                });
                return self.no_answer().await;
            }
            None => {}
        }
        self.travel(WRITE).await;
        self.world.check_right(Denied::Writes)?;
        let done = self.world.replace(changes);
        self.travel(WRITE).await;
        self.answer().await?;
        Ok(done.map_or(Written::Refused, Written::Done))
    }

    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        self.world.0.writes.fetch_add(1, Relaxed);
        self.travel(WRITE).await;
        self.world.cells().remove(name);
        self.travel(WRITE).await;
        Ok(())
    }

    async fn list(&self, folder: &str, after: Option<&str>) -> Result<CellPage, BackendError> {
        self.world.0.reads.fetch_add(1, Relaxed);
        self.travel(READ).await;
        let in_folder = |name: &&String| name.starts_with(&format!("{folder}/"));
        let behind = |name: &&String| after.is_none_or(|after| name.as_str() > after);
        let cells = self.world.cells();
        let mut found = cells.keys().filter(in_folder).filter(behind);
        let page: Vec<_> =
            found.by_ref().take(1000).map(|name| (name.clone(), cells[name].written)).collect();
        Ok(CellPage { more: found.next().is_some(), cells: page })
    }

    async fn now(&self) -> Result<ServiceTime, BackendError> {
        let now = self.world.now();
        Ok(ServiceTime { lo: now - WIDTH, hi: now + WIDTH })
    }
}
