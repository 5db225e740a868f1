//! The checks of adapters and of DAOs on a folder of this machine.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockcore_conformance::{
    Backend,
    cell::{self, Adapter},
    servers::{Trial, cell_checks, checks},
};
use lockcore_share::{Files, ShareBuilder, ShareLockDao};
use tempfile::TempDir;
use uuid::Uuid;

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    cell_checks("share", async || Ok(Local)).chain(checks("share", async || Ok(Local)))
}

pub(crate) fn costs() -> Trial {
    Trial::on_runtime("costs::a_pair_is_two_writes", async || {
        cell::costs(cell::Cells::new(Local).await).await
    })
    .of_liveness()
}

/// The shortest lease of the tests. The time is known to a second: a lease that is to be renewed has to be longer.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// A folder of its own for each test.
struct Local;

/// The folder, and how far its time was set forward.
type Place = (TempDir, Arc<AtomicU64>);

fn place() -> Place {
    (tempfile::tempdir().expect("a folder for the files"), Arc::default())
}

fn builder((folder, ahead): &Place) -> ShareBuilder<String, Uuid> {
    ShareLockDao::builder().folder(folder.path()).ahead(ahead.clone()).min_lease(LEASE)
}

impl Adapter for Local {
    type Cell = Files;
    type Place = Place;

    const MANY: usize = 300;

    async fn place(&self) -> Place {
        place()
    }

    async fn open(&self, place: &Place) -> Files {
        builder(place).cells().await.expect("a folder of its own can be opened")
    }
}

impl Backend for Local {
    type Dao = ShareLockDao;
    type Guard = Place;

    async fn build(&self) -> (Place, ShareLockDao) {
        let place = place();
        let dao = builder(&place).open().await.expect("a folder of its own can be opened");
        (place, dao)
    }

    async fn reopen(&self, place: &Place) -> Option<ShareLockDao> {
        Some(builder(place).open().await.expect("the folder is still there"))
    }

    async fn reopen_ahead(&self, (folder, ahead): &Place, by: Duration) -> Option<ShareLockDao> {
        let ahead = Arc::new(AtomicU64::new(ahead.load(Relaxed) + micros(by)));
        let builder = ShareLockDao::builder().folder(folder.path()).ahead(ahead).min_lease(LEASE);
        Some(builder.open().await.expect("the folder is still there"))
    }

    async fn advance(&self, (_, ahead): &Place, by: Duration) -> bool {
        ahead.fetch_add(micros(by), Relaxed);
        true
    }
}

/// Returns a duration in microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("no test sets a clock so far")
}
