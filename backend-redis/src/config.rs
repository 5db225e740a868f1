//! How to reach the server, and what to expect of it.

use std::{fmt, marker::PhantomData, time::Duration};

use lockcore::{BackendError, BackendErrorKind, ContextId, Ident, StoreVersion};

use crate::{dao::RedisLockDao, target::Target, version::VERSION};

/// Longer than that, sleeping is better in any case.
const MAX_BUSY_WAIT: Duration = Duration::from_millis(1);

/// Settings of a [`RedisLockDao`]; made by [`RedisLockDao::builder`].
pub struct RedisBuilder<I, C> {
    settings: Settings,
    types: PhantomData<fn() -> (I, C)>,
}

/// The settings once they are off the builder. Its `Debug` shows no secret.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) namespace: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) busy_wait: Duration,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) certificates: Certificates,
    pub(crate) sentinel_user: Option<(String, String)>,
    pub(crate) program: StoreVersion,
}

/// How many replicas have to have a grant before it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

/// What TLS needs beyond the system's root certificates, in PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl<I: Ident, C: ContextId> RedisBuilder<I, C> {
    pub(crate) fn new() -> Self {
        let settings = Settings {
            url: "redis://127.0.0.1/".to_owned(),
            namespace: "lockcore".to_owned(),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(5),
            busy_wait: Duration::from_micros(100),
            replicas: None,
            certificates: Certificates::default(),
            sentinel_user: None,
            program: VERSION,
        };
        RedisBuilder { settings, types: PhantomData }
    }

    /// Where the server is; `redis://127.0.0.1/` by default. See the [crate](crate) for the forms.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.settings.url = url.into();
        self
    }

    /// Keeps this application's locks apart from those of others in the same database, and puts them all in one hash slot
    /// of a cluster; `lockcore` by default. 1 to 128 bytes, no braces: the key of the lock `id` is `{namespace}:id`.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// For how long to try to connect; 5 s by default, at least 10 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// For how long to wait for an answer; 5 s by default, at least 10 ms. A connection that gives none within that time
    /// is given up.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.settings.response_timeout = timeout;
        self
    }

    /// For how long a request that is alone on its connection looks for its answer before its task sleeps; 100 us by default,
    /// at most 1 ms, zero for never. Other tasks of the runtime run in between. It halves the time that a server on the same
    /// machine takes to lock, and ends by itself where answers take longer; the processor is busy meanwhile.
    #[must_use]
    pub fn busy_wait(mut self, limit: Duration) -> Self {
        self.settings.busy_wait = limit;
        self
    }

    /// Counts a grant only once `count` replicas have it, for which it waits for at most `within` (`WAIT`); otherwise it is
    /// withdrawn and the request fails as [`Unavailable`](BackendErrorKind::Unavailable), so that a call with time to wait
    /// tries again. A waiter whose turn comes asks once more and waits for the replicas before it runs. It makes the loss of a
    /// grant at a failover less likely and never impossible; everything else on the connection waits meanwhile. Off by
    /// default.
    #[must_use]
    pub fn replicas(mut self, count: u32, within: Duration) -> Self {
        self.settings.replicas = Some(Replicas { count, within });
        self
    }

    /// Trusts these certificates (PEM) instead of the system's. Only for `rediss` URLs.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.settings.certificates.root = Some(pem.into());
        self
    }

    /// Shows the server this certificate and proves it with its key (both PEM). Only for `rediss` URLs.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.settings.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// The user and password for the sentinels themselves; those in the URL are for the Redis servers.
    #[must_use]
    pub fn sentinel_user(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.settings.sentinel_user = Some((user.into(), password.into()));
        self
    }

    /// For tests: a program of another version.
    #[doc(hidden)]
    #[must_use]
    pub fn program_version(mut self, program: StoreVersion) -> Self {
        self.settings.program = program;
        self
    }

    #[cfg(test)]
    pub(crate) fn into_settings(self) -> Settings {
        self.settings
    }

    /// Connects, and looks whether the server is one that keeps locks: a master, of Redis 6.2 or later, that evicts nothing.
    ///
    /// # Errors
    /// [`BadSetting`](BackendErrorKind::BadSetting) for a setting out of bounds, naming field and value, or a URL that means
    /// nothing; [`Misconfigured`](BackendErrorKind::Misconfigured) for a replica, an evicting or too old server;
    /// [`Denied`](BackendErrorKind::Denied) for credentials; otherwise whatever keeps from connecting.
    pub async fn open(self) -> Result<RedisLockDao<I, C>, BackendError> {
        let target = self.settings.check()?;
        RedisLockDao::start(self.settings, target).await
    }
}

impl Settings {
    fn check(&self) -> Result<Target, BackendError> {
        let namespace = &self.namespace;
        if !(1..=128).contains(&namespace.len()) || namespace.contains(['{', '}']) {
            return Err(bad_setting(format!(
                "namespace: {namespace:?} is not possible, it must have 1 to 128 bytes and no braces"
            )));
        }
        let timeouts =
            [("connect_timeout", self.connect_timeout), ("response_timeout", self.response_timeout)];
        for (field, timeout) in timeouts {
            bounded(field, timeout, Duration::from_millis(10))?;
        }
        if self.busy_wait > MAX_BUSY_WAIT {
            let busy_wait = self.busy_wait;
            return Err(bad_setting(format!(
                "busy_wait: {busy_wait:?} is not possible, it must be at most {MAX_BUSY_WAIT:?}"
            )));
        }
        if let Some(Replicas { count, within }) = self.replicas {
            if count == 0 {
                return Err(bad_setting("replicas: 0 is not possible, it must be at least 1".to_owned()));
            }
            bounded("replicas within", within, Duration::from_millis(1))?;
            if within >= self.response_timeout {
                return Err(bad_setting(format!(
                    "replicas within: {within:?} is not possible, it must be less than the response timeout"
                )));
            }
        }
        Target::read(self)
    }
}

fn bounded(field: &str, value: Duration, least: Duration) -> Result<(), BackendError> {
    let most = Duration::from_secs(600);
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(bad_setting(format!(
            "{field}: {value:?} is not possible, it must be between {least:?} and {most:?}"
        ))),
    }
}

/// A setting that cannot be.
pub(crate) fn bad_setting(message: String) -> BackendError {
    BackendError::new(BackendErrorKind::BadSetting, message)
}

impl<I, C> Clone for RedisBuilder<I, C> {
    fn clone(&self) -> Self {
        RedisBuilder { settings: self.settings.clone(), types: PhantomData }
    }
}

impl<I, C> fmt::Debug for RedisBuilder<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder").field("settings", &self.settings).finish()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("namespace", &self.namespace)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("busy_wait", &self.busy_wait)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
