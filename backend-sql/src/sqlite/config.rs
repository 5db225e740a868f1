//! The settings of a database, as plain data.

use std::{
    fmt,
    marker::PhantomData,
    path::{Path, PathBuf},
    time::Duration,
};

use lockcore::{BackendError, ContextId, Ident, backend::StoreVersion};

use super::{error::StoreError, statements::VERSION};

/// The moment at which a commit has to be on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Synchronous {
    /// At checkpoints. A crash of any process loses nothing; a crash of the host may lose the last
    /// commits, but the reboot voids all locks anyway and fences go on from the wall clock.
    #[default]
    Normal,
    /// At every commit. Only needed if the wall clock may be set back while the host is down.
    Full,
}

/// Settings of a [`SqliteLockDao`](super::SqliteLockDao); made by [`builder`](super::SqliteLockDao::builder).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::time::Duration;
///
/// use lockcore::LockingService;
/// use lockcore_sql::SqliteLockDao;
///
/// let dao = SqliteLockDao::<String>::builder()
///     .path("/var/lib/app/locks.db")
///     .busy_timeout(Duration::from_secs(5))
///     .open()
///     .await?;
/// let locks = LockingService::new(dao);
/// # Ok(())
/// # }
/// ```
pub struct SqliteBuilder<I, C> {
    pub(super) settings: Settings,
    types: PhantomData<fn() -> (I, C)>,
}

/// The settings once they are off the builder.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) path: PathBuf,
    pub(super) namespace: String,
    pub(super) table_prefix: String,
    pub(super) busy_timeout: Duration,
    pub(super) synchronous: Synchronous,
    pub(super) create: bool,
    pub(super) boot: Option<i64>,
    pub(super) ahead: Duration,
    pub(super) rebooted: bool,
    pub(super) program: StoreVersion,
}

impl<I: Ident, C: ContextId> SqliteBuilder<I, C> {
    pub(super) fn new() -> Self {
        let settings = Settings {
            path: PathBuf::new(),
            namespace: "default".to_owned(),
            table_prefix: "lockcore_".to_owned(),
            busy_timeout: Duration::from_secs(5),
            synchronous: Synchronous::Normal,
            create: true,
            boot: None,
            ahead: Duration::ZERO,
            rebooted: false,
            program: VERSION,
        };
        SqliteBuilder { settings, types: PhantomData }
    }

    /// Sets the database file, or `:memory:` for a store that only this DAO sees. Must be given. The file may be the
    /// application's own database. Not a URI.
    ///
    /// A relative path is another file in every folder: programs that are to exclude each other had better give an
    /// absolute one.
    #[must_use]
    pub fn path(mut self, path: impl AsRef<Path>) -> Self {
        path.as_ref().clone_into(&mut self.settings.path);
        self
    }

    /// Keeps applications and tenants in one file apart; 1 to 255 bytes, `"default"` by default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// Sets what the names of all tables begin with; a lower-case word of at most 40 bytes, `"lockcore_"` by default.
    #[must_use]
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.table_prefix = prefix.into();
        self
    }

    /// Sets how long an operation may wait in all for the file's write lock and for the operations before it; afterwards it
    /// fails as [`Busy`](lockcore::BackendErrorKind::Busy). 1 ms to 1 h, 5 s by default.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.settings.busy_timeout = timeout;
        self
    }

    /// Sets when a commit has to be on the disk.
    #[must_use]
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.settings.synchronous = synchronous;
        self
    }

    /// Sets whether to create the file and the tables where they are missing, which is the default. Without, a file that has
    /// no tables of ours is left as it is.
    ///
    /// A new file is readable and writable for its owner only, since ids, owners and contexts stand in it. For programs of
    /// several users create it beforehand, empty, with the group and the permissions that they need.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.settings.create = create;
        self
    }

    /// For tests: has another boot id than the host, as a container may.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn pretend_boot(mut self, boot: i64) -> Self {
        self.settings.boot = Some(boot);
        self
    }

    /// For tests: takes the host to have booted just now, under another boot id.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn pretend_reboot(mut self, boot: i64) -> Self {
        self.settings.rebooted = true;
        self.pretend_boot(boot)
    }

    /// For tests: a clock that is ahead of the host's.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn pretend_ahead(mut self, ahead: Duration) -> Self {
        self.settings.ahead = ahead;
        self
    }

    /// For tests: a program of another version.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn program_version(mut self, program: StoreVersion) -> Self {
        self.settings.program = program;
        self
    }
}

impl<I, C> fmt::Debug for SqliteBuilder<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl Settings {
    pub(super) fn in_memory(&self) -> bool {
        self.path.as_os_str() == ":memory:"
    }

    /// Checks them, and makes the path absolute: the process may change its folder while the file is open.
    pub(super) fn checked(mut self) -> Result<Self, BackendError> {
        self.check()?;
        if !self.in_memory() {
            let absolute = std::path::absolute(&self.path);
            self.path = absolute.map_err(|error| StoreError::File(error).at(&self.path))?;
        }
        Ok(self)
    }

    fn check(&self) -> Result<(), StoreError> {
        let refuse = |key, value: &str, expected| {
            Err(StoreError::Setting { key, value: value.chars().take(64).collect(), expected })
        };
        if self.path.as_os_str().is_empty() {
            return refuse("path", "", "it must name a file or be `:memory:`");
        }
        if self.path.as_os_str().as_encoded_bytes().starts_with(b"file:") {
            let expected =
                "it would be taken for a URI, whose options can turn SQLite's locks off; give a plain path";
            return refuse("path", &self.path.to_string_lossy(), expected);
        }
        if self.namespace.is_empty() || self.namespace.len() > 255 {
            return refuse("namespace", &self.namespace, "it must have 1 to 255 bytes");
        }
        let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let prefix = self.table_prefix.as_bytes();
        if !prefix.first().is_some_and(|first| word(*first) && !first.is_ascii_digit())
            || prefix.len() > 40
            || !prefix.iter().all(|&byte| word(byte))
            || self.table_prefix.starts_with("sqlite_")
        {
            let expected = "it must have 1 to 40 of a-z, 0-9 and _, begin with no digit and not with sqlite_";
            return refuse("table_prefix", &self.table_prefix, expected);
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&self.busy_timeout) {
            return refuse("busy_timeout", &format!("{:?}", self.busy_timeout), "it must be 1 ms to 1 h");
        }
        Ok(())
    }
}
