//! The settings of a DAO: plain data, and their bounds.

use std::{fmt, marker::PhantomData, time::Duration};

use lockcore::{BackendError, ContextId, Ident, backend::StoreVersion};

use crate::{
    error::bad_setting,
    scripts::{Scripts, VERSION},
};

/// Settings of a [`RedisLockDao`](crate::RedisLockDao), created by [`builder`](crate::RedisLockDao::builder).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::time::Duration;
///
/// use lockcore::LockingService;
/// use lockcore_redis::RedisLockDao;
///
/// let dao = RedisLockDao::<String>::builder()
///     .url("redis://locks.internal/")
///     .namespace("billing")
///     .response_timeout(Duration::from_secs(2))
///     .open()
///     .await?;
/// let locks = LockingService::new(dao);
/// # Ok(())
/// # }
/// ```
pub struct RedisBuilder<I, C> {
    pub(crate) settings: Settings,
    types: PhantomData<fn() -> (I, C)>,
}

/// The settings of a builder. Their `Debug` shows no secret.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) namespace: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) certificates: Certificates,
    pub(crate) tls_verify: TlsVerify,
    pub(crate) sentinel_user: Option<(String, String)>,
    pub(crate) program: StoreVersion,
    /// A clock that tests set, ahead of the server's by so much.
    #[cfg(feature = "testing")]
    pub(crate) test_clock: Option<Duration>,
}

/// The number of replicas that must have a grant before it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

/// The verification of a server's certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TlsVerify {
    /// A trusted authority has to have issued it, for the host of the URL.
    #[default]
    Full,
    /// A trusted authority has to have issued it, for any name: for nodes of a cluster that announce addresses, and
    /// providers whose certificates have other names. Give the authority as
    /// [`root_certificate`](RedisBuilder::root_certificate): any certificate of a public one is accepted otherwise. Not with sentinels.
    Ca,
    /// Nothing: any server may be the one that answers, and read the password. For providers with self-signed certificates.
    None,
}

/// The certificates and keys that TLS needs beyond the system's root certificates, in PEM.
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
            replicas: None,
            certificates: Certificates::default(),
            tls_verify: TlsVerify::Full,
            sentinel_user: None,
            program: VERSION,
            #[cfg(feature = "testing")]
            test_clock: None,
        };
        RedisBuilder { settings, types: PhantomData }
    }

    /// Sets the server's URL; `redis://127.0.0.1/` by default. See the [crate](crate) for its forms.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.settings.url = url.into();
        self
    }

    /// Separates this application's locks from those of others in the same database, and puts them all in one hash slot of a
    /// cluster; `lockcore` by default. 1 to 128 bytes, no braces: the key of the lock `id` is `{namespace}:id`.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// Limits how long connecting may take; 5 s by default, at least 10 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// Limits how long a reply may take; 5 s by default, at least 10 ms. A connection without a reply within that time is
    /// replaced.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.settings.response_timeout = timeout;
        self
    }

    /// Confirms a grant only once `count` replicas have it, and waits for them for at most `within` (`WAIT`). Otherwise the grant is
    /// withdrawn and the request fails as [`Unavailable`](lockcore::BackendErrorKind::Unavailable), so that a call with time to
    /// wait tries again. A waiter that is offered its locks repeats its request and waits for the replicas before it runs. This
    /// makes the loss of a grant at a failover less likely but never impossible; other requests of the connection are delayed
    /// meanwhile. A renewal waits for them as well, and fails without them: with too few replicas for as long as a lease all holders
    /// are stopped. Off by default.
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

    /// Sets what of the server's certificate is verified; all of it by default. Only for `rediss` URLs.
    #[must_use]
    pub fn tls_verify(mut self, verify: TlsVerify) -> Self {
        self.settings.tls_verify = verify;
        self
    }

    /// Authenticates to the server with this certificate and its key (both PEM). Only for `rediss` URLs.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.settings.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// Sets user and password for the sentinels themselves; those in the URL are for the Redis servers.
    #[must_use]
    pub fn sentinel_user(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.settings.sentinel_user = Some((user.into(), password.into()));
        self
    }

    /// For tests: acts as a program of another version.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn program_version(mut self, program: StoreVersion) -> Self {
        self.settings.program = program;
        self
    }

    /// For tests: reads a clock that is ahead of the server's by so much, and that
    /// [`advance`](crate::RedisLockDao::advance) sets for all that do.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn test_clock(mut self, ahead: Duration) -> Self {
        self.settings.test_clock = Some(ahead);
        self
    }
}

impl Settings {
    /// Returns the script that keeps the namespace.
    pub(crate) fn scripts(&self) -> Scripts {
        #[cfg(feature = "testing")]
        if let Some(ahead) = self.test_clock {
            return Scripts::by_test_clock(ahead, &self.namespace);
        }
        Scripts::new(&self.namespace)
    }

    /// Checks all but the URL.
    pub(crate) fn check(&self) -> Result<(), BackendError> {
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
        Ok(())
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
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
