//! The adapter to the crate `object_store`.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use lockcore::{
    BackendError, BackendErrorKind, Finding, Severity,
    backend::{Moment, ServiceTime, shared_runtime, unique_name},
};
use lockcore_cell::{Cell, CellPage, Found, ModifiedClock, Written};
use object_store::{
    Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    UpdateVersion as Version, path::Path,
};
use tokio::time::Instant;

use crate::{
    error,
    seen::{Rules, Seen},
};

/// The most objects of a page.
const PAGE: usize = 1000;

/// The source of the service's time.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The `Date` of each response.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    Dated(Arc<lockcore::backend::ServiceClock>),
    /// The modification time of an object that was just written: for a store of the user's, whose responses are not seen.
    Modified(Box<ModifiedClock>),
    /// This process's: for a store within it. Tests pause and advance it, as it is tokio's.
    Local { started: Instant, since: Duration },
}

/// The numbers of requests sent so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
}

/// The objects of a namespace.
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it"))]
pub struct Bucket {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The address that requests go to, as a number: it may hold what is secret.
    pub(crate) address: u64,
    /// All names begin with it.
    pub(crate) prefix: Path,
    pub(crate) clock: Clock,
    /// The time by which a test sets the service's time forward, in microseconds.
    #[cfg(feature = "testing")]
    pub(crate) ahead: Arc<AtomicU64>,
    pub(crate) is_s3: bool,
    /// For one request.
    pub(crate) timeout: Duration,
    pub(crate) counts: Counts,
    pub(crate) rules: Arc<Rules>,
}

impl Clock {
    pub(crate) fn local() -> Self {
        // In this order, so that it is never behind the clock by which the store dates.
        let started = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock::Local { started, since }
    }
}

impl Bucket {
    fn ahead(&self) -> u64 {
        #[cfg(feature = "testing")]
        return self.ahead.load(Relaxed);
        #[cfg(not(feature = "testing"))]
        0
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    async fn within<T>(
        &self,
        seen: &Seen,
        request: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<object_store::Result<T>, BackendError> {
        match tokio::time::timeout(self.timeout, request).await {
            Ok(result) => Ok(result),
            Err(_) if seen.was_not_sent() => {
                Err(BackendError::new(BackendErrorKind::Timeout, "no answer in time"))
            }
            Err(_) => Err(error::timed_out()),
        }
    }

    fn failed(error: &Error, seen: &Seen) -> BackendError {
        match (seen.was_not_sent(), seen.status(), seen.region()) {
            (true, _, _) => error::not_sent(error),
            (_, Some(301), Some(region)) => error::in_region(error, region),
            (_, status, _) => error::of(error, status),
        }
    }

    /// Writes an object; returns when it was modified, in seconds since 1970, and the moment of the answer.
    async fn ask_time(&self) -> Result<(u64, Moment), BackendError> {
        // In the folder of probes, from which the engine collects what was left behind.
        let path = self.path(&format!("probe/{}", unique_name()));
        let asked = async {
            self.store.put(&path, PutPayload::from_static(b"lockcore")).await?;
            self.store.head(&path).await
        };
        let seen = Seen::default();
        let meta = self.within(&seen, asked).await?.map_err(|error| Self::failed(&error, &seen))?;
        let received = Moment::now();
        self.counts.writes.fetch_add(1, Relaxed);
        self.counts.reads.fetch_add(1, Relaxed);
        // The time is known. What stays is collected.
        let (store, timeout) = (self.store.clone(), self.timeout);
        shared_runtime().spawn(async move { drop(tokio::time::timeout(timeout, store.delete(&path)).await) });
        Ok((u64::try_from(meta.last_modified.timestamp()).unwrap_or(0), received))
    }

    /// Asks for a response: each has the date.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    async fn ask_date(&self) -> Result<(), BackendError> {
        self.counts.reads.fetch_add(1, Relaxed);
        let (path, seen) = (self.path("table"), Seen::default());
        // Without the content.
        let mut options = GetOptions { head: true, ..GetOptions::default() };
        options.extensions.insert(seen.clone());
        match self.within(&seen, self.store.get_opts(&path, options)).await? {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Self::failed(&error, &seen)),
        }
    }

    async fn remove_path(&self, path: &Path) -> Result<(), BackendError> {
        let seen = Seen::default();
        match self.within(&seen, self.store.delete(path)).await? {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Self::failed(&error, &seen)),
        }
    }
}

impl Cell for Bucket {
    type Version = Version;

    async fn read(&self, name: &str, known: Option<&Version>) -> Result<Found<Version>, BackendError> {
        self.counts.reads.fetch_add(1, Relaxed);
        let (path, seen) = (self.path(name), Seen::default());
        let mut options = GetOptions {
            if_none_match: known.and_then(|known| known.e_tag.clone()),
            ..GetOptions::default()
        };
        options.extensions.insert(seen.clone());
        let request = async {
            let found = self.store.get_opts(&path, options).await?;
            let version = Version { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            Ok((version, found.bytes().await?))
        };
        match self.within(&seen, request).await? {
            Ok((version, content)) => Ok(Found::Changed(version, content)),
            Err(Error::NotModified { .. }) => Ok(Found::Unchanged),
            Err(error @ Error::NotFound { .. }) if !error::is_of_bucket(&error) => Ok(Found::Absent),
            Err(error) => {
                let failed = Self::failed(&error, &seen);
                Err(if seen.status() == Some(403) && self.is_s3 { error::of_a_read(&failed) } else { failed })
            }
        }
    }

    async fn replace(
        &self,
        name: &str,
        at: Option<&Version>,
        content: Bytes,
    ) -> Result<Written<Version>, BackendError> {
        self.counts.writes.fetch_add(1, Relaxed);
        let (path, seen) = (self.path(name), Seen::default());
        let mode = at.map_or(PutMode::Create, |at| PutMode::Update(at.clone()));
        let mut options = PutOptions::from(mode);
        options.extensions.insert(seen.clone());
        match self.within(&seen, self.store.put_opts(&path, content.into(), options)).await? {
            Ok(done) => Ok(Written::Done(Version { e_tag: done.e_tag, version: done.version })),
            // By the status, where there is one: two writes at once, 409, are none of both for the library.
            Err(error) => match (seen.status(), &error) {
                _ if seen.was_there() && at.is_none() => Ok(Written::Refused),
                (Some(412), _) | (None, Error::Precondition { .. } | Error::AlreadyExists { .. }) => {
                    Ok(Written::Refused)
                }
                (Some(404), _) if at.is_some() && !error::is_of_bucket(&error) => Ok(Written::Refused),
                _ => Err(Self::failed(&error, &seen)),
            },
        }
    }

    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        self.counts.writes.fetch_add(1, Relaxed);
        self.remove_path(&self.path(name)).await
    }

    async fn list(&self, folder: &str, after: Option<&str>) -> Result<CellPage, BackendError> {
        self.counts.reads.fetch_add(1, Relaxed);
        let (path, seen) = (self.path(folder), Seen::default());
        let found = match after {
            Some(after) => self.store.list_with_offset(Some(&path), &self.path(after)),
            None => self.store.list(Some(&path)),
        };
        // Objects of subfolders are skipped, however many there are, so that each page has a cell, if there is any.
        let found = found.try_filter_map(|meta| std::future::ready(Ok(cell(folder, &path, &meta))));
        // One more than the page, to see whether there is more.
        let mut cells: Vec<(String, u64)> = self
            .within(&seen, found.take(PAGE + 1).try_collect())
            .await?
            .map_err(|error| Self::failed(&error, &seen))?;
        let more = cells.len() > PAGE;
        cells.truncate(PAGE);
        Ok(CellPage { cells, more })
    }

    fn findings(&self) -> Vec<Finding> {
        let warn = |seen: &AtomicBool, check, detail: &str| {
            let (severity, detail) = (Severity::Warning, detail.to_owned());
            seen.load(Relaxed).then_some(Finding { severity, check, detail })
        };
        let all = [
            warn(
                &self.rules.keep,
                "versions of objects",
                "the bucket keeps each version of the table: a lifecycle rule has to delete noncurrent versions below the prefix",
            ),
            warn(
                &self.rules.expire,
                "lifecycle rules",
                "a rule deletes objects below the prefix: with the table all locks vanish",
            ),
            warn(
                &self.rules.retain,
                "object lock",
                "objects below the prefix are retained: no version of the table can be deleted before its time",
            ),
        ];
        all.into_iter().flatten().collect()
    }

    fn least_fence(&self, now: ServiceTime) -> u64 {
        // The fences of a clock are above each other: those of a namespace whose time is set forward do not count for others.
        let ahead = self.ahead();
        let real = ServiceTime { lo: now.lo.saturating_sub(ahead), hi: now.hi.saturating_sub(ahead) };
        ahead
            + match &self.clock {
                #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
                Clock::Dated(clock) => clock.fence(real, 0),
                Clock::Modified(clock) => clock.fence(real),
                Clock::Local { .. } => real.hi,
            }
    }

    async fn now(&self) -> Result<ServiceTime, BackendError> {
        let now = match &self.clock {
            #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
            Clock::Dated(clock) => match clock.fresh() {
                Some(now) => now,
                None => {
                    let asked = Moment::now();
                    self.ask_date().await?;
                    clock.since(asked).ok_or_else(error::no_time)?
                }
            },
            Clock::Modified(clock) => clock.now(|| self.ask_time()).await?,
            Clock::Local { started, since } => {
                let now = (*since + started.elapsed()).as_micros() as u64;
                ServiceTime { lo: now, hi: now }
            }
        };
        Ok(ServiceTime { lo: now.lo + self.ahead(), hi: now.hi + self.ahead() })
    }
}

/// Returns the name of an object that is directly in a folder, and when it was written.
fn cell(folder: &str, path: &Path, meta: &ObjectMeta) -> Option<(String, u64)> {
    let mut parts = meta.location.prefix_match(path)?;
    let (name, below) = (parts.next()?, parts.next());
    let written = u64::try_from(meta.last_modified.timestamp_micros()).unwrap_or(0);
    below.is_none().then(|| (format!("{folder}/{}", name.as_ref()), written))
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
