//! The settings of a DAO: plain data, and their bounds.

use std::{fmt, marker::PhantomData, time::Duration};

use aws_sdk_dynamodb::config::Credentials;
use lockcore::{ContextId, Ident, backend::StoreVersion};

use crate::{error::StoreError, row::VERSION};

/// Settings of a [`DynamoLockDao`](crate::DynamoLockDao), created by [`builder`](crate::DynamoLockDao::builder).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use lockcore::LockingService;
/// use lockcore_dynamo::DynamoLockDao;
///
/// let dao = DynamoLockDao::<String>::builder().region("eu-central-1").table("locks").namespace("billing").open().await?;
/// let locks = LockingService::new(dao);
/// # Ok(())
/// # }
/// ```
pub struct DynamoBuilder<I, C> {
    pub(crate) settings: Settings,
    types: PhantomData<fn() -> (I, C)>,
}

/// The names of the attributes that other clients know, and of the index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Names {
    pub(crate) id: String,
    pub(crate) context: String,
    pub(crate) created: String,
    pub(crate) expires: String,
    pub(crate) index: Option<String>,
}

/// As in the tables of the system that this one succeeds.
impl Default for Names {
    fn default() -> Self {
        Names {
            id: "id".to_owned(),
            context: "contextId".to_owned(),
            created: "created".to_owned(),
            expires: "expires".to_owned(),
            index: None,
        }
    }
}

/// The settings of a builder.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) table: String,
    pub(crate) namespace: String,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) profile: Option<String>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) timeout: Duration,
    pub(crate) attempt_timeout: Duration,
    pub(crate) names: Names,
    pub(crate) strict_fence: bool,
    pub(crate) program: StoreVersion,
    #[cfg(feature = "testing")]
    pub(crate) hooks: crate::testing::Hooks,
}

impl<I: Ident, C: ContextId> DynamoBuilder<I, C> {
    pub(crate) fn new() -> Self {
        let settings = Settings {
            table: "locks".to_owned(),
            namespace: String::new(),
            region: None,
            endpoint: None,
            profile: None,
            credentials: None,
            timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_secs(2),
            names: Names::default(),
            strict_fence: false,
            program: VERSION,
            #[cfg(feature = "testing")]
            hooks: crate::testing::Hooks::default(),
        };
        DynamoBuilder { settings, types: PhantomData }
    }

    /// Sets the table; 3 to 255 of letters, digits, `_`, `-` and `.`, or its ARN; `"locks"` by default.
    #[must_use]
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.settings.table = table.into();
        self
    }

    /// Separates applications and tenants in one table; at most 255 bytes without `#`. Empty, the default, makes every id its own
    /// key: then other clients of the table exclude, and are excluded, on the same ids.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// Sets the region; without one the SDK's usual chain decides.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.settings.region = Some(region.into());
        self
    }

    /// Sets another address than the region's own, `http://` or `https://`: an emulator, or a private endpoint.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.settings.endpoint = Some(endpoint.into());
        self
    }

    /// Sets the profile of the SDK's configuration files.
    #[must_use]
    pub fn profile(mut self, profile: impl Into<String>) -> Self {
        self.settings.profile = Some(profile.into());
        self
    }

    /// Sets fixed credentials instead of the SDK's usual chain. They show in no `Debug`, error or log.
    #[must_use]
    pub fn credentials(
        mut self,
        access_key_id: impl Into<String>,
        secret_access_key: impl Into<String>,
        session_token: Option<String>,
    ) -> Self {
        let credentials = Credentials::new(access_key_id, secret_access_key, session_token, None, "lockcore");
        self.settings.credentials = Some(credentials);
        self
    }

    /// Limits how long an operation retries, after throttling, conflicts and lost responses, before it fails; 100 ms to
    /// 5 min, 5 s by default. The last try may take another [attempt
    /// timeout](Self::attempt_timeout).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Limits how long one request may take; 50 ms to 1 min, 2 s by default.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.settings.attempt_timeout = timeout;
        self
    }

    /// Names the attribute that is the table's hash key; `"id"` by default.
    #[must_use]
    pub fn id_attribute(mut self, name: impl Into<String>) -> Self {
        self.settings.names.id = name.into();
        self
    }

    /// Names the attribute with the holder's context; `"contextId"` by default.
    #[must_use]
    pub fn context_attribute(mut self, name: impl Into<String>) -> Self {
        self.settings.names.context = name.into();
        self
    }

    /// Names the attribute with the start of a lock, in whole seconds; `"created"` by default.
    #[must_use]
    pub fn created_attribute(mut self, name: impl Into<String>) -> Self {
        self.settings.names.created = name.into();
        self
    }

    /// Names the attribute with the end of a lock, in whole seconds, which the table's TTL uses; `"expires"` by default.
    #[must_use]
    pub fn expires_attribute(mut self, name: impl Into<String>) -> Self {
        self.settings.names.expires = name.into();
        self
    }

    /// Names an index over the contexts that `migrate` creates and `doctor` checks; none by default. This library does not read
    /// it: other clients may, as with `context-ids-index`.
    #[must_use]
    pub fn context_index(mut self, name: impl Into<String>) -> Self {
        self.settings.names.index = Some(name.into());
        self
    }

    /// Keeps every id's fence in an item of its own that no other client changes and TTL never collects, written in the same
    /// transaction: fences then never go back whatever other clients do, at twice the writes and at most 50 ids a set.
    /// All programs of a namespace must agree on it.
    #[must_use]
    pub fn strict_fence(mut self, strict: bool) -> Self {
        self.settings.strict_fence = strict;
        self
    }
}

#[cfg(feature = "testing")]
#[doc(hidden)]
impl<I, C> DynamoBuilder<I, C> {
    /// Acts as if this machine's wall clock was ahead by this many seconds.
    #[must_use]
    pub fn pretend_ahead(mut self, seconds: i64) -> Self {
        self.settings.hooks.ahead = seconds;
        self
    }

    /// Does not share the estimate of the service's clock with other DAOs of this process.
    #[must_use]
    pub fn own_clock(mut self) -> Self {
        self.settings.hooks.own_clock = true;
        self
    }

    /// Goes by a clock that is so many microseconds ahead of the service's, from moment to moment.
    #[must_use]
    pub fn service_ahead(mut self, ahead: std::sync::Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.settings.hooks.service_ahead = ahead;
        self
    }

    /// Sends all requests by this client instead of the network, and signs them as of `time`.
    #[must_use]
    pub fn simulated(
        mut self,
        service: impl aws_smithy_runtime_api::client::http::HttpClient + 'static,
        time: std::time::SystemTime,
    ) -> Self {
        let service = aws_sdk_dynamodb::config::SharedHttpClient::new(service);
        self.settings.hooks.simulated = Some((service, time));
        self
    }

    /// Acts as a program of another version.
    #[must_use]
    pub fn program_version(mut self, program: StoreVersion) -> Self {
        self.settings.program = program;
        self
    }
}

impl<I, C> fmt::Debug for DynamoBuilder<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoBuilder")
            .field("table", &self.table)
            .field("namespace", &self.namespace)
            .field("region", &self.region)
            .field("endpoint", &self.endpoint)
            .field("profile", &self.profile)
            .field("credentials", &self.credentials.as_ref().map(|_| "[redacted]"))
            .field("timeout", &self.timeout)
            .field("names", &self.names)
            .field("strict_fence", &self.strict_fence)
            .finish_non_exhaustive()
    }
}

/// The most items in one transaction of the service.
pub(crate) const TRANSACTION: usize = 100;

impl Settings {
    /// Returns the most ids of one transaction.
    pub(crate) fn max_ids(&self) -> usize {
        if self.strict_fence { TRANSACTION / 2 } else { TRANSACTION }
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let refuse = |key, value: &str, expected| {
            Err(StoreError::Setting { key, value: value.chars().take(64).collect(), expected })
        };
        let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        let is_name = (3..=255).contains(&self.table.len()) && self.table.bytes().all(word);
        let is_arn = self.table.starts_with("arn:") && self.table.len() <= 1024;
        if !(is_name || is_arn) {
            let expected = "it must have 3 to 255 of letters, digits, _, - and ., or be an ARN";
            return refuse("table", &self.table, expected);
        }
        if self.namespace.len() > 255 || self.namespace.contains('#') {
            return refuse("namespace", &self.namespace, "it must have at most 255 bytes and no #");
        }
        if let Some(endpoint) = &self.endpoint
            && (endpoint.contains('@')
                || !(endpoint.starts_with("http://") || endpoint.starts_with("https://")))
        {
            // Not shown: it may hold anything.
            let expected = "it must begin with http:// or https:// and name no user";
            return refuse("endpoint", "..", expected);
        }
        if self.region.as_ref().is_some_and(|region| {
            region.is_empty() || !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        }) {
            let region = self.region.as_deref().unwrap_or_default();
            return refuse("region", region, "it must be a region's name, such as eu-central-1");
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(300)).contains(&self.timeout) {
            return refuse("timeout", &format!("{:?}", self.timeout), "it must be 100 ms to 5 min");
        }
        if !(Duration::from_millis(50)..=Duration::from_secs(60)).contains(&self.attempt_timeout) {
            let value = format!("{:?}", self.attempt_timeout);
            return refuse("attempt_timeout", &value, "it must be 50 ms to 1 min");
        }
        let Names { id, context, created, expires, index } = &self.names;
        let own = ["rev", "fence", "holders", "slots", "marks", "frozen", "breaks"];
        let all = [
            ("id_attribute", id),
            ("context_attribute", context),
            ("created_attribute", created),
            ("expires_attribute", expires),
        ];
        for (position, (key, name)) in all.iter().enumerate() {
            if name.is_empty() || name.len() > 255 {
                return refuse(key, name, "it must have 1 to 255 bytes");
            }
            if own.contains(&name.as_str()) || all[..position].iter().any(|(_, other)| other == name) {
                return refuse(key, name, "another attribute has that name");
            }
        }
        if let Some(index) = index
            && !((3..=255).contains(&index.len()) && index.bytes().all(word))
        {
            return refuse("context_index", index, "it must have 3 to 255 of letters, digits, _, - and .");
        }
        Ok(())
    }
}
