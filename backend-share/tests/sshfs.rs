//! The checks on two mounts of one folder of a server, as two hosts have them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use lockcore::{Finding, LockDao, Severity};
use lockcore_conformance::{
    Backend,
    cell::Adapter,
    servers::{Completion, Mounts, TestResult, Trial, cell_checks, checks},
};
use lockcore_share::{Files, ShareBuilder, ShareLockDao};
use uuid::Uuid;

use crate::conformance::{LEASE, micros};

pub(crate) fn trials() -> Vec<Trial> {
    if let Err(reason) = Mounts::can_be_had() {
        let ignored = move || Ok(Completion::ignored_with(reason));
        return vec![Trial::ignorable_test("sshfs::two_mounts", ignored)];
    }
    let cells = cell_checks("sshfs", async || Ok(Mounts::find().map(|()| TwoMounts)?));
    let daos = checks("sshfs", async || Ok(Mounts::find().map(|()| TwoMounts)?));
    let tried = Trial::on_runtime("sshfs::two_hosts_try_their_mounts", two_hosts_try_their_mounts);
    let tried = std::iter::once(tried.of_liveness());
    cells.chain(daos.map(Trial::thorough)).chain(tried).map(|trial| trial.at_once("sshfs", 2)).collect()
}

/// What two hosts see of each other, and of a third that believes in another time.
async fn two_hosts_try_their_mounts() -> TestResult {
    Mounts::find()?;
    let (share, time) = (TwoMounts.place().await, Duration::from_secs(3));
    let (one, other) = (share.builder().open().await?, share.builder().open().await?);
    let (seen, of_other) = tokio::join!(one.verify(time), other.verify(time));
    for findings in [seen?, of_other?] {
        let is_good = |finding: &Finding| finding.severity == Severity::Ok;
        assert!(findings.iter().all(is_good) && findings[0].detail.contains("of 1 others"), "{findings:?}");
    }
    let ahead = share.builder().ahead(Arc::new(AtomicU64::new(micros(LEASE) * 10))).open().await?;
    let (seen, _) = tokio::join!(one.verify(time), ahead.verify(time));
    let seen = seen?;
    assert!(seen.iter().any(|found| found.check == "time" && found.severity == Severity::Error), "{seen:?}");
    Ok(())
}

/// A folder that is mounted twice, for each test.
struct TwoMounts;

/// The mounts of a test.
pub(crate) struct Share {
    mounts: Mounts,
    /// The number of those who opened it: they take turns with the mounts.
    opened: AtomicUsize,
    /// How far its time was set forward, in microseconds.
    ahead: Arc<AtomicU64>,
}

impl Share {
    fn builder(&self) -> ShareBuilder<String, Uuid> {
        let folder = self.mounts.locks(self.opened.fetch_add(1, Relaxed));
        ShareLockDao::builder().folder(folder).ahead(self.ahead.clone()).min_lease(LEASE)
    }
}

impl Adapter for TwoMounts {
    type Cell = Files;
    type Place = Share;

    async fn place(&self) -> Share {
        let mounts = Mounts::start().expect("the folder is mounted");
        Share { mounts, opened: AtomicUsize::new(0), ahead: Arc::default() }
    }

    async fn open(&self, share: &Share) -> Files {
        share.builder().cells().await.expect("the folder can be opened")
    }
}

impl Backend for TwoMounts {
    type Dao = ShareLockDao;
    type Guard = Share;

    async fn build(&self) -> (Share, ShareLockDao) {
        let share = self.place().await;
        let dao = self.reopen(&share).await.expect("the folder was just mounted");
        (share, dao)
    }

    async fn reopen(&self, share: &Share) -> Option<ShareLockDao> {
        Some(share.builder().open().await.expect("the folder can be opened"))
    }

    async fn advance(&self, share: &Share, by: Duration) -> bool {
        share.ahead.fetch_add(micros(by), Relaxed);
        true
    }
}
