//! What locks cost in the cells of a store: its requests and bytes, counted below the engine. The figures are printed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use lockcore::{BackendError, Finding, backend::ServiceTime};
use lockcore_cell::{Cell, CellLockDao, CellPage, CellSettings, Change, Found, Written};

use super::{Adapter, Cells};
use crate::{Caller, eventually};

/// For how long requests of waiting processes are counted.
const WATCHED: Duration = Duration::from_secs(6);

/// The requests so far, and the bytes that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spent {
    reads: u64,
    writes: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Meter {
    reads: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
}

impl Meter {
    fn read(&self) -> Spent {
        let [reads, writes, bytes] =
            [&self.reads, &self.writes, &self.bytes].map(|count| count.load(Relaxed));
        Spent { reads, writes, bytes }
    }

    /// What a step cost.
    async fn cost<T>(&self, step: impl Future<Output = T>) -> (T, Spent) {
        let before = self.read();
        let done = step.await;
        let after = self.read();
        let spent = Spent {
            reads: after.reads - before.reads,
            writes: after.writes - before.writes,
            bytes: after.bytes - before.bytes,
        };
        (done, spent)
    }

    fn writes<'b>(&self, contents: impl IntoIterator<Item = &'b Bytes>) {
        let bytes: usize = contents.into_iter().map(Bytes::len).sum();
        self.writes.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

/// The cells of a store, counted.
#[derive(Debug)]
struct Counted<L> {
    cell: L,
    meter: Arc<Meter>,
}

impl<L: Cell> Cell for Counted<L> {
    type Version = L::Version;

    async fn read(&self, name: &str, known: Option<&L::Version>) -> Result<Found<L::Version>, BackendError> {
        self.meter.reads.fetch_add(1, Relaxed);
        self.cell.read(name, known).await
    }

    async fn replace(
        &self,
        name: &str,
        at: Option<&L::Version>,
        content: Bytes,
    ) -> Result<Written<L::Version>, BackendError> {
        self.meter.writes([&content]);
        self.cell.replace(name, at, content).await
    }

    fn at_once(&self) -> usize {
        self.cell.at_once()
    }

    fn most_bytes(&self) -> usize {
        self.cell.most_bytes()
    }

    async fn read_all(
        &self,
        cells: &[(String, Option<L::Version>)],
    ) -> Result<Vec<Found<L::Version>>, BackendError> {
        self.meter.reads.fetch_add(1, Relaxed);
        self.cell.read_all(cells).await
    }

    async fn replace_all(
        &self,
        changes: &[Change<L::Version>],
    ) -> Result<Written<Vec<L::Version>>, BackendError> {
        self.meter.writes(changes.iter().map(|change| &change.content));
        self.cell.replace_all(changes).await
    }

    async fn remove_at(&self, name: &str, at: &L::Version) -> Result<(), BackendError> {
        self.meter.writes([]);
        self.cell.remove_at(name, at).await
    }

    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        self.meter.writes([]);
        self.cell.remove(name).await
    }

    async fn list(&self, folder: &str, after: Option<&str>) -> Result<CellPage, BackendError> {
        self.meter.reads.fetch_add(1, Relaxed);
        self.cell.list(folder, after).await
    }

    async fn now(&self) -> Result<ServiceTime, BackendError> {
        // A store that has to be asked for the time remembers it for a while.
        self.cell.now().await
    }

    fn least_fence(&self, now: ServiceTime) -> u64 {
        self.cell.least_fence(now)
    }

    async fn changed(&self, cells: &[(String, Option<L::Version>)]) {
        self.cell.changed(cells).await;
    }

    fn findings(&self) -> Vec<Finding> {
        self.cell.findings()
    }
}

impl<A: Adapter> Cells<A> {
    async fn counted(&self) -> (Arc<CellLockDao<Counted<A::Cell>>>, Arc<Meter>) {
        let meter = Arc::<Meter>::default();
        let cell = Counted { cell: self.open().await, meter: meter.clone() };
        let opened = CellLockDao::open(cell, CellSettings::new("counted", "counted")).await;
        (Arc::new(opened.expect("it keeps the conditions of writes")), meter)
    }
}

fn caller<L: Cell>(dao: &Arc<CellLockDao<L>>) -> Caller<CellLockDao<L>> {
    Caller::new(dao.clone(), Duration::from_secs(60))
}

/// Checks that a pair of acquire and release is two writes, whatever the number of ids, and a renewal one: what a process that has been
/// at work pays while no other interferes. Prints that, the bytes of a lock, and what a process that waits pays.
pub async fn costs<A: Adapter>(cells: Cells<A>) {
    let (dao, meter) = cells.counted().await;
    let one = caller(&dao);
    println!("| step | reads | writes | bytes written |\n| --- | --- | --- | --- |");
    let print = |step: &str, spent: Spent| {
        println!("| {step} | {} | {} | {} |", spent.reads, spent.writes, spent.bytes);
    };
    for count in [1, 10, 100] {
        let ids: Vec<String> = (0..count).map(|number| format!("some/object/{number:03}")).collect();
        // The first time ids may have to be looked for; and now and then a process writes beside, as its heartbeat is.
        let pair = eventually("a pair is two writes", async || {
            let (held, take) = meter.cost(one.take(&ids)).await;
            let ((), free) = meter.cost(one.free(&held)).await;
            print(&format!("take {count}"), take);
            print(&format!("release {count}"), free);
            let requests = (take.reads + free.reads, take.writes + free.writes);
            (requests == (0, 2)).then_some(take)
        })
        .await;
        println!("{} bytes an id of 15 bytes, as it is written", pair.bytes / count);
        let held = one.take(&ids).await;
        // The first one makes the process's cell, and one that would extend nothing is not written.
        let renew = eventually("a renewal is one write", async || {
            let ((), renew) = meter.cost(one.keep(&held)).await;
            (renew.writes == 1 && renew.reads <= 1).then_some(renew)
        })
        .await;
        print(&format!("renew {count}"), renew);
        one.free(&held).await;
    }

    let held = one.take(["a"]).await;
    for waiters in [1, 32_u32] {
        let (other, meter) = cells.counted().await;
        let mut places = Vec::new();
        for _ in 0..waiters {
            places.push(caller(&other).queue(["a"]).await);
        }
        let begun = Instant::now();
        let ((), spent) = meter.cost(tokio::time::sleep(WATCHED)).await;
        let hour = |count: u64| count as f64 / begun.elapsed().as_secs_f64() * 3600.0;
        println!(
            "{waiters} wait for an hour: {:.0} reads, {:.0} writes",
            hour(spent.reads),
            hour(spent.writes)
        );
        // However many they are: each tenth of a second a look at most, and each second a heartbeat.
        let most = |each_second: u64| each_second * (begun.elapsed().as_secs() + 1);
        assert!(spent.reads <= most(10) && spent.writes <= most(2), "{spent:?}");
        for place in places {
            place.leave().await;
        }
    }
    one.free(&held).await;
}
