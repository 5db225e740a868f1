//! The settings of a DAO: plain data, and their bounds.

use std::{fmt, marker::PhantomData, time::Duration};

use lockcore::{BackendError, ContextId, Ident};

use crate::address::Address;

/// Settings of an [`EtcdLockDao`](crate::EtcdLockDao), created by [`builder`](crate::EtcdLockDao::builder).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::time::Duration;
///
/// use lockcore::LockingService;
/// use lockcore_etcd::EtcdLockDao;
///
/// let dao = EtcdLockDao::<String>::builder()
///     .url("etcd://a.internal,b.internal,c.internal/locks")
///     .namespace("billing")
///     .clock_difference(Duration::from_millis(500))
///     .open()
///     .await?;
/// let locks = LockingService::new(dao);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EtcdBuilder<I, C> {
    pub(crate) settings: Settings,
    types: PhantomData<fn() -> (I, C)>,
}

#[derive(Clone)]
pub(crate) struct Settings {
    url: String,
    pub(crate) namespace: String,
    pub(crate) timeout: Duration,
    /// As long as `timeout` allows if it is not set.
    request_timeout: Option<Duration>,
    pub(crate) clock_difference: Duration,
    /// In PEM.
    pub(crate) root_certificate: Option<Vec<u8>>,
    /// The certificate and the key, in PEM.
    pub(crate) client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    #[cfg(feature = "testing")]
    pub(crate) min_lease: Option<Duration>,
    #[cfg(feature = "testing")]
    pub(crate) ahead: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl<I: Ident, C: ContextId> EtcdBuilder<I, C> {
    pub(crate) fn new() -> Self {
        let settings = Settings {
            url: "etcd://127.0.0.1".to_owned(),
            namespace: "default".to_owned(),
            timeout: Duration::from_secs(10),
            request_timeout: None,
            clock_difference: Duration::from_secs(1),
            root_certificate: None,
            client_certificate: None,
            #[cfg(feature = "testing")]
            min_lease: None,
            #[cfg(feature = "testing")]
            ahead: std::sync::Arc::default(),
        };
        EtcdBuilder { settings, types: PhantomData }
    }

    /// Sets the members of the cluster, and what all keys begin with: `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]..][/PREFIX]`,
    /// with TLS `etcds://..`. Special characters are percent-encoded. The port is 2379 unless it is named, and the prefix
    /// `lockcore`. All of the members have to be of one cluster. `etcd://127.0.0.1` by default.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.settings.url = url.into();
        self
    }

    /// Separates applications and tenants: each namespace has keys of its own. 1 to 255 bytes without `/`; `"default"` by default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// Limits how long a step is tried, after lost races and while no member answers, before it fails; 1 s to 5 min, 10 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Limits how long etcd may take for one read or write of a key, whatever member it is asked of; 100 ms to 1 min, and at most
    /// [`timeout`](Self::timeout); 3 s by default. A read is then sent to another member once more, and so is all that follows. Let it
    /// be well below a third of the shortest lease in use: a renewal may need several requests.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = Some(timeout);
        self
    }

    /// Sets by how much the clocks of any two members differ at most, as all leases go by them; up to 1 min, 1 s by default. Each lease is
    /// taken over so much later. With a larger difference two processes may hold a lock. All processes must have the same setting. It counts
    /// also for a process that names one member: others may name another.
    #[must_use]
    pub fn clock_difference(mut self, difference: Duration) -> Self {
        self.settings.clock_difference = difference;
        self
    }

    /// Trusts these certificates (PEM) instead of the system's. Only for `etcds` URLs.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.settings.root_certificate = Some(pem.into());
        self
    }

    /// Authenticates to the members with this certificate and its key (both PEM). Only for `etcds` URLs.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.settings.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// For tests: accepts shorter leases.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn min_lease(mut self, lease: Duration) -> Self {
        self.settings.min_lease = Some(lease);
        self
    }

    /// For tests: goes by a clock that is so many microseconds ahead of the members', from moment to moment.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn ahead(mut self, ahead: std::sync::Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.settings.ahead = ahead;
        self
    }
}

impl Settings {
    /// Returns the time for one request.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout.unwrap_or(Duration::from_secs(3).min(self.timeout))
    }

    /// Returns the members and the place of the keys.
    pub(crate) fn address(&self) -> Result<Address, BackendError> {
        let refuse = |key, value: &str, expected| Err(BackendError::bad_setting(key, value, expected));
        let mut address = Address::read(&self.url)?;
        if address.prefix.is_empty() {
            address.prefix = "lockcore".to_owned();
        }
        if address.prefix.len() > 512 {
            return refuse("prefix", &address.prefix, "it must have at most 512 bytes");
        }
        if self.namespace.is_empty() || self.namespace.len() > 255 || self.namespace.contains('/') {
            return refuse("namespace", &self.namespace, "it must have 1 to 255 bytes without /");
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&self.timeout) {
            return refuse("timeout", &format!("{:?}", self.timeout), "it must be 1 s to 5 min");
        }
        let request_timeout = self.request_timeout();
        if !(Duration::from_millis(100)..=Duration::from_secs(60).min(self.timeout))
            .contains(&request_timeout)
        {
            let value = format!("{request_timeout:?}");
            return refuse("request_timeout", &value, "it must be 100 ms to 1 min, and at most timeout");
        }
        if self.clock_difference > Duration::from_secs(60) {
            let value = format!("{:?}", self.clock_difference);
            return refuse("clock_difference", &value, "it must be 1 min at most");
        }
        for (key, is_set) in [
            ("root_certificate", self.root_certificate.is_some()),
            ("client_certificate", self.client_certificate.is_some()),
        ] {
            if is_set && !address.is_tls {
                return refuse(key, "..", "only a URL that begins with etcds uses TLS");
            }
        }
        Ok(address)
    }
}

impl<I, C> fmt::Debug for EtcdBuilder<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdBuilder").field(&self.settings).finish()
    }
}

/// Shows neither the URL, which may hold a password, nor a key.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("namespace", &self.namespace)
            .field("timeout", &self.timeout)
            .field("request_timeout", &self.request_timeout())
            .field("clock_difference", &self.clock_difference)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bad_settings_are_refused_by_name() {
        let builder = || EtcdBuilder::<String, uuid::Uuid>::new().url("etcds://u:hunter2@127.0.0.1:1");
        let second = Duration::from_secs(1);
        assert_eq!(builder().timeout(second).settings.request_timeout(), second);
        for (builder, named) in [
            (builder().url("etcd://"), "url: \"\""),
            (builder().url("redis://a"), "url: "),
            (builder().url(format!("etcd://a/{}", "x".repeat(513))), "prefix: "),
            (builder().namespace(""), "namespace: \"\""),
            (builder().namespace("a/b"), "namespace: \"a/b\""),
            (builder().namespace("x".repeat(256)), "namespace"),
            (builder().timeout(second / 2), "timeout: \"500ms\""),
            (builder().timeout(301 * second), "timeout: \"301s\""),
            (builder().request_timeout(second / 20), "request_timeout: \"50ms\""),
            (builder().request_timeout(61 * second), "request_timeout: \"61s\""),
            (builder().timeout(2 * second).request_timeout(3 * second), "request_timeout: \"3s\""),
            (builder().clock_difference(61 * second), "clock_difference: \"61s\""),
            (builder().url("etcd://a").root_certificate("x"), "root_certificate: "),
            (builder().url("etcd://a").client_certificate("x", "y"), "client_certificate: "),
            (builder().root_certificate("hunter2"), "root_certificate: "),
            (builder().client_certificate("x", "hunter2"), "client_certificate: "),
        ] {
            assert!(!format!("{builder:?}").contains("hunter2"));
            let refused = builder.open().await.expect_err(named);
            assert_eq!(refused.kind(), lockcore::BackendErrorKind::BadSetting, "{refused}");
            assert!(refused.to_string().contains(named), "{refused}: {named}");
            assert!(!format!("{refused:?}").contains("hunter2"), "{refused:?}");
        }
    }
}
