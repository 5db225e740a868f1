//! The settings of a DAO: plain data, and their bounds.

use std::{fmt, marker::PhantomData, path::PathBuf, time::Duration};

use lockcore::{BackendError, ContextId, Ident};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters that are written in another way in the name of a namespace's folder. Capitals, too: to some file systems they are the
/// same as small letters.
const OTHERS: AsciiSet = {
    let mut others = NON_ALPHANUMERIC.remove(b'-').remove(b'_');
    let mut capital = b'A';
    while capital <= b'Z' {
        others = others.add(capital);
        capital += 1;
    }
    others
};

/// The most bytes of a file's name.
const NAME: usize = 255;

/// Settings of a [`ShareLockDao`](crate::ShareLockDao), created by [`builder`](crate::ShareLockDao::builder).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use lockcore::LockingService;
/// use lockcore_share::ShareLockDao;
///
/// let dao = ShareLockDao::<String>::builder().folder("/mnt/team/locks").namespace("billing").open().await?;
/// let locks = LockingService::new(dao);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ShareBuilder<I, C> {
    pub(crate) settings: Settings,
    types: PhantomData<fn() -> (I, C)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) folder: PathBuf,
    namespace: String,
    pub(crate) timeout: Duration,
    pub(crate) request_timeout: Duration,
    #[cfg(feature = "testing")]
    pub(crate) min_lease: Option<Duration>,
    #[cfg(feature = "testing")]
    pub(crate) ahead: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl<I: Ident, C: ContextId> ShareBuilder<I, C> {
    pub(crate) fn new() -> Self {
        let settings = Settings {
            folder: PathBuf::new(),
            namespace: "default".to_owned(),
            timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(5),
            #[cfg(feature = "testing")]
            min_lease: None,
            #[cfg(feature = "testing")]
            ahead: std::sync::Arc::default(),
        };
        ShareBuilder { settings, types: PhantomData }
    }

    /// Sets the folder that all hosts have mounted. It has to be there: make it within the share, so that a mount point without its
    /// share is refused.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.settings.folder = folder.into();
        self
    }

    /// Separates applications and tenants: each namespace has a folder of its own. At least 1 byte, at most 255 when it is
    /// percent-encoded; `"default"` by default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// Limits how long a step is tried, after lost races and while the file system does not answer, before it fails; 1 s to 5 min, 10 s
    /// by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Limits how long the file system may take for one read or write of a cell; 100 ms to 1 min, 5 s by default.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = timeout;
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

    /// For tests: goes by a clock that is so many microseconds ahead of the server's, from moment to moment.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn ahead(mut self, ahead: std::sync::Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.settings.ahead = ahead;
        self
    }
}

impl<I, C> fmt::Debug for ShareBuilder<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShareBuilder").field(&self.settings).finish()
    }
}

impl Settings {
    /// Returns the folder and the namespace, for errors.
    pub(crate) fn place(&self) -> String {
        format!("share: {}: {}", self.folder.display(), self.namespace)
    }

    /// Returns the name of the namespace's folder.
    pub(crate) fn namespace_folder(&self) -> String {
        utf8_percent_encode(&self.namespace, &OTHERS).to_string()
    }

    pub(crate) fn check(&self) -> Result<(), BackendError> {
        let refuse = |key, value: &str, expected| Err(BackendError::bad_setting(key, value, expected));
        if self.folder.as_os_str().is_empty() || self.folder.as_os_str().as_encoded_bytes().contains(&0) {
            return refuse("folder", &self.folder.to_string_lossy(), "it has to be a path");
        }
        let length = self.namespace_folder().len();
        if length == 0 || length > NAME {
            return refuse(
                "namespace",
                &self.namespace,
                "it must have 1 to 255 bytes when it is percent-encoded",
            );
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&self.timeout) {
            return refuse("timeout", &format!("{:?}", self.timeout), "it must be 1 s to 5 min");
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.request_timeout) {
            let value = format!("{:?}", self.request_timeout);
            return refuse("request_timeout", &value, "it must be 100 ms to 1 min");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_namespaces_share_a_folder() {
        let folder = |namespace: &str| {
            let mut settings = ShareBuilder::<String, uuid::Uuid>::new().settings;
            settings.namespace = namespace.to_owned();
            settings.namespace_folder()
        };
        assert_eq!(folder("team_1-a"), "team_1-a");
        let all = ["a", "A", "%41", "a/b", "a%2fb", "a%2Fb", "..", ".", "ä", "a b", "a.b", "2fb"];
        for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
            assert_eq!(folder(one).eq_ignore_ascii_case(&folder(other)), one == other, "{one} {other}");
            assert!(!folder(one).contains(['/', '.']), "{one}");
        }
    }

    #[tokio::test]
    async fn bad_settings_are_refused_by_name() {
        let builder = || ShareBuilder::<String, uuid::Uuid>::new().folder("/tmp");
        let second = Duration::from_secs(1);
        for (builder, named) in [
            (ShareBuilder::new(), "folder: \"\""),
            (builder().folder("a\0b"), "folder: \"a\\0b\""),
            (builder().namespace(""), "namespace: \"\""),
            (builder().namespace("é".repeat(64)), "namespace"),
            (builder().timeout(second / 2), "timeout: \"500ms\""),
            (builder().timeout(301 * second), "timeout: \"301s\""),
            (builder().request_timeout(second / 20), "request_timeout: \"50ms\""),
            (builder().request_timeout(61 * second), "request_timeout: \"61s\""),
        ] {
            let refused = builder.open().await.expect_err(named);
            assert_eq!(refused.kind(), lockcore::BackendErrorKind::BadSetting, "{refused}");
            assert!(refused.to_string().contains(named), "{refused}: {named}");
        }
    }
}
