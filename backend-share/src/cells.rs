//! The adapter: the steps on files, each on a thread that may wait, within a time.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use lockcore::{
    BackendError, BackendErrorKind, Finding,
    backend::{Moment, ServiceTime, shared_runtime},
};
use lockcore_cell::{Cell, CellPage, Found, ModifiedClock, Written};
use tokio::{sync::Semaphore, time::timeout};

use crate::{error::timed_out, file::Version, folder::Folder};

/// The most threads of this process that wait for file systems. One that hangs keeps each until it answers.
static THREADS: Semaphore = Semaphore::const_new(64);

/// The cells of a namespace.
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it"))]
pub struct Files {
    folder: Arc<Folder>,
    clock: ModifiedClock,
    /// For one request.
    timeout: Duration,
    /// The time by which a test sets the server's time forward, in microseconds.
    #[cfg(feature = "testing")]
    ahead: Arc<std::sync::atomic::AtomicU64>,
}

impl Files {
    pub(crate) fn new(folder: Folder, timeout: Duration) -> Self {
        Files {
            folder: Arc::new(folder),
            clock: ModifiedClock::default(),
            timeout,
            #[cfg(feature = "testing")]
            ahead: Arc::default(),
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn ahead_by(self, ahead: Arc<std::sync::atomic::AtomicU64>) -> Self {
        Files { ahead, ..self }
    }

    fn ahead(&self) -> u64 {
        #[cfg(feature = "testing")]
        return self.ahead.load(std::sync::atomic::Ordering::Relaxed);
        #[cfg(not(feature = "testing"))]
        0
    }

    /// Runs a step on a thread of its own. It goes on though the caller is dropped, or has waited for long enough.
    async fn run<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Folder) -> Result<T, BackendError> + Send + 'static,
    ) -> Result<T, BackendError> {
        let folder = self.folder.clone();
        on_a_thread(self.timeout, move || step(&folder)).await
    }
}

/// Runs what may wait for a file system on a thread of its own, for so long at most.
pub(crate) async fn on_a_thread<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, BackendError> + Send + 'static,
) -> Result<T, BackendError> {
    let begun = Instant::now();
    let Ok(Ok(permit)) = timeout(limit, THREADS.acquire()).await else { return Err(timed_out(limit)) };
    let run = shared_runtime().spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    match timeout(limit.saturating_sub(begun.elapsed()), run).await {
        Ok(Ok(done)) => done,
        Ok(Err(ended)) => {
            Err(BackendError::new(BackendErrorKind::Unavailable, format!("{ended}")).possibly_done())
        }
        Err(_) => Err(timed_out(limit).possibly_done()),
    }
}

impl Cell for Files {
    type Version = Version;

    async fn read(&self, name: &str, known: Option<&Version>) -> Result<Found<Version>, BackendError> {
        let (name, known) = (name.to_owned(), known.cloned());
        self.run(move |folder| folder.read(&name, known.as_ref())).await
    }

    async fn replace(
        &self,
        name: &str,
        at: Option<&Version>,
        content: Bytes,
    ) -> Result<Written<Version>, BackendError> {
        let (name, at) = (name.to_owned(), at.cloned());
        let written = self.run(move |folder| folder.replace(&name, at.as_ref(), &content)).await?;
        Ok(written.map_or(Written::Refused, Written::Done))
    }

    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        let name = name.to_owned();
        self.run(move |folder| folder.remove(&name)).await
    }

    async fn list(&self, folder: &str, after: Option<&str>) -> Result<CellPage, BackendError> {
        let (name, after) = (folder.to_owned(), after.map(str::to_owned));
        // By the server's own clock, which dates the files.
        let now = self.now().await?.lo.saturating_sub(self.ahead()) / 1_000_000;
        // With time left for what is under way then.
        let deadline = Instant::now() + self.timeout / 2;
        self.run(move |folder| folder.list(&name, after.as_deref(), now, deadline)).await
    }

    async fn now(&self) -> Result<ServiceTime, BackendError> {
        let ask = || async {
            let modified = self.run(|folder| folder.time().map(|modified| (modified, Moment::now())));
            modified.await
        };
        let now = self.clock.now(ask).await?;
        Ok(ServiceTime { lo: now.lo + self.ahead(), hi: now.hi + self.ahead() })
    }

    fn findings(&self) -> Vec<Finding> {
        self.folder.kind.finding.iter().cloned().collect()
    }

    fn least_fence(&self, now: ServiceTime) -> u64 {
        // The fences of a clock are above each other: those of a namespace whose time is set forward do not count for others.
        let ahead = self.ahead();
        let real = ServiceTime { lo: now.lo.saturating_sub(ahead), hi: now.hi.saturating_sub(ahead) };
        ahead + self.clock.fence(real)
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("folder", &self.folder).finish_non_exhaustive()
    }
}
