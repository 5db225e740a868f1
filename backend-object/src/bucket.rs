//! The adapter to the crate `object_store`.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use lockcore::backend::{Moment, ServiceClock, ServiceTime};
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, path::Path,
};
use tokio::time::Instant;

use crate::{
    cell::{Cell, Found, Version, Written},
    error::{Failure, StoreError},
    seen::{Rules, Seen},
    step::micros,
};

/// Where the service's time comes from.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The `Date` of each response.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    Dated(Arc<ServiceClock>),
    /// When an object that was just written was modified: for a store of the user's, whose responses are not seen.
    Modified(ServiceClock),
    /// This process's: for a store within it. Tests pause and advance it, as it is tokio's.
    Local { started: Instant, since: u64 },
}

/// What was sent so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
}

/// The objects of a namespace.
pub(crate) struct Bucket {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// All names begin with it.
    pub(crate) prefix: Path,
    pub(crate) clock: Clock,
    /// By how much a test sets the service's time forward, in microseconds.
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
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock::Local { started: Instant::now(), since: micros(since) }
    }

    fn now(&self) -> Option<ServiceTime> {
        match self {
            #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
            Clock::Dated(clock) => clock.now(),
            Clock::Modified(clock) => clock.now(),
            Clock::Local { started, since } => {
                let now = since + micros(started.elapsed());
                Some(ServiceTime { lo: now, hi: now })
            }
        }
    }
}

impl Bucket {
    /// Returns the service's time by the responses so far.
    fn known_time(&self) -> Option<ServiceTime> {
        let now = self.clock.now()?;
        Some(ServiceTime { lo: now.lo + self.ahead(), hi: now.hi + self.ahead() })
    }

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
    ) -> Result<object_store::Result<T>, StoreError> {
        match tokio::time::timeout(self.timeout, request).await {
            Ok(result) => Ok(result),
            Err(_) if seen.was_not_sent() => {
                Err(StoreError::Request(Failure { in_doubt: false, ..Failure::timed_out() }))
            }
            Err(_) => Err(StoreError::Request(Failure::timed_out())),
        }
    }

    fn failed(error: &Error, seen: &Seen) -> StoreError {
        StoreError::Request(match (seen.was_not_sent(), seen.status(), seen.region()) {
            (true, _, _) => Failure::not_sent(error),
            (_, Some(status @ 301), Some(region)) => Failure::of(error, Some(status)).in_region(region),
            (_, status, _) => Failure::of(error, status),
        })
    }

    /// Writes an object and asks when it was modified.
    async fn ask_time(&self, clock: &ServiceClock) -> Result<(), StoreError> {
        let path = self.path(&format!("time/{}", uuid::Uuid::new_v4().simple()));
        let sent = Moment::now();
        let asked = async {
            self.store.put(&path, PutPayload::from_static(b"lockcore")).await?;
            self.store.head(&path).await
        };
        let seen = Seen::default();
        let meta = self.within(&seen, asked).await?.map_err(|error| Self::failed(&error, &seen))?;
        let received = Moment::now();
        self.counts.writes.fetch_add(1, Relaxed);
        self.counts.reads.fetch_add(1, Relaxed);
        clock.sample(sent, received, u64::try_from(meta.last_modified.timestamp()).unwrap_or(0));
        self.remove_path(&path).await
    }

    async fn remove_path(&self, path: &Path) -> Result<(), StoreError> {
        let seen = Seen::default();
        match self.within(&seen, self.store.delete(path)).await? {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Self::failed(&error, &seen)),
        }
    }
}

impl Cell for Bucket {
    async fn read(&self, name: &str, known: Option<&Version>) -> Result<Found, StoreError> {
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
            Err(Error::NotFound { source, .. }) if !source.to_string().contains("NoSuchBucket") => {
                Ok(Found::Absent)
            }
            Err(error) => Err(match Self::failed(&error, &seen) {
                StoreError::Request(failure) if seen.status() == Some(403) && self.is_s3 => {
                    StoreError::Request(failure.of_a_read())
                }
                failed => failed,
            }),
        }
    }

    async fn replace(&self, name: &str, at: Option<&Version>, content: Bytes) -> Result<Written, StoreError> {
        self.counts.writes.fetch_add(1, Relaxed);
        let (path, seen) = (self.path(name), Seen::default());
        let mode = at.map_or(PutMode::Create, |at| PutMode::Update(at.clone()));
        let mut options = PutOptions::from(mode);
        options.extensions.insert(seen.clone());
        match self.within(&seen, self.store.put_opts(&path, content.into(), options)).await? {
            Ok(done) => Ok(Written::Done(Version { e_tag: done.e_tag, version: done.version })),
            // By the status, where there is one: two writes at once, 409, are none of both for the library.
            Err(error) => match (seen.status(), &error) {
                _ if seen.was_there() && at.is_none() => Ok(Written::Lost),
                (Some(412), _) | (None, Error::Precondition { .. } | Error::AlreadyExists { .. }) => {
                    Ok(Written::Lost)
                }
                (Some(404), _) if at.is_some() && !error.to_string().contains("NoSuchBucket") => {
                    Ok(Written::Lost)
                }
                _ => Err(Self::failed(&error, &seen)),
            },
        }
    }

    async fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.counts.writes.fetch_add(1, Relaxed);
        self.remove_path(&self.path(name)).await
    }

    async fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, StoreError> {
        self.counts.reads.fetch_add(1, Relaxed);
        let (path, seen) = (self.path(folder), Seen::default());
        let found = self.within(&seen, self.store.list_with_delimiter(Some(&path))).await?;
        let found = found.map_err(|error| Self::failed(&error, &seen))?;
        let named = found.objects.iter().filter_map(|meta| {
            let written = u64::try_from(meta.last_modified.timestamp_micros()).unwrap_or(0);
            Some((format!("{folder}/{}", meta.location.filename()?), written))
        });
        Ok(named.collect())
    }

    fn rules(&self) -> &Rules {
        &self.rules
    }

    fn least_fence(&self, now: ServiceTime) -> u64 {
        // The fences of a clock are above each other: those of a namespace whose time is set forward do not count for others.
        let ahead = self.ahead();
        let real = ServiceTime { lo: now.lo.saturating_sub(ahead), hi: now.hi.saturating_sub(ahead) };
        ahead
            + match &self.clock {
                #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
                Clock::Dated(clock) => clock.fence(real, 0),
                Clock::Modified(clock) => clock.fence(real, 0),
                Clock::Local { .. } => real.hi,
            }
    }

    async fn now(&self) -> Result<ServiceTime, StoreError> {
        match (self.known_time(), &self.clock) {
            (Some(now), _) if !now.is_wide() => return Ok(now),
            (_, Clock::Modified(clock)) => self.ask_time(clock).await?,
            // Each response has it.
            _ => drop(self.read("table", None).await?),
        }
        self.known_time().ok_or(StoreError::NoTime)
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
