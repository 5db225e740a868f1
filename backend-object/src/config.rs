//! The settings of a DAO: plain data, and their bounds.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lockcore::{BackendError, ContextId, Ident};
use lockcore_cell::{CellSettings, ModifiedClock};
use object_store::{ObjectStore, memory::InMemory, path::Path};

use crate::{
    bucket::{Bucket, Clock, Counts},
    seen::Rules,
};

/// The place of the objects.
#[derive(Clone)]
enum Location {
    Unset,
    #[cfg(feature = "s3")]
    S3(String),
    #[cfg(feature = "gcs")]
    Gcs(String),
    #[cfg(feature = "azure")]
    Azure(String),
    Own(Arc<dyn ObjectStore>),
}

/// Settings of an [`ObjectLockDao`](crate::ObjectLockDao), created by [`builder`](crate::ObjectLockDao::builder).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # #[cfg(feature = "s3")] {
/// use lockcore::LockingService;
/// use lockcore_object::ObjectLockDao;
///
/// // A server that speaks the protocol of S3.
/// let dao = ObjectLockDao::<String>::builder()
///     .s3("archive")
///     .prefix("locks")
///     .endpoint("https://minio.internal")
///     .option("region", "us-east-1")
///     .open()
///     .await?;
/// let locks = LockingService::new(dao);
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ObjectBuilder<I, C> {
    pub(crate) settings: Settings,
    types: PhantomData<fn() -> (I, C)>,
}

#[derive(Clone)]
pub(crate) struct Settings {
    place: Location,
    prefix: String,
    pub(crate) namespace: String,
    options: Vec<(String, String)>,
    endpoint: Option<String>,
    pub(crate) timeout: Duration,
    request_timeout: Duration,
    min_lease: Option<Duration>,
    local_clock: bool,
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    own_clock: bool,
    #[cfg(feature = "testing")]
    ahead: Arc<std::sync::atomic::AtomicU64>,
}

impl<I: Ident, C: ContextId> ObjectBuilder<I, C> {
    pub(crate) fn new() -> Self {
        let settings = Settings {
            place: Location::Unset,
            prefix: "lockcore".to_owned(),
            namespace: "default".to_owned(),
            options: Vec::new(),
            endpoint: None,
            timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(5),
            min_lease: None,
            local_clock: false,
            #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
            own_clock: false,
            #[cfg(feature = "testing")]
            ahead: Arc::default(),
        };
        ObjectBuilder { settings, types: PhantomData }
    }

    /// Keeps the locks in a bucket of S3, or of a store that speaks its protocol. Region, credentials and endpoint come from the
    /// usual variables (`AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` and so on), the instance or the container, unless
    /// [`option`](Self::option) says otherwise; profiles are not read. A region is needed, unless there is an endpoint.
    #[cfg(feature = "s3")]
    #[must_use]
    pub fn s3(mut self, bucket: impl Into<String>) -> Self {
        self.settings.place = Location::S3(bucket.into());
        self
    }

    /// Keeps the locks in a bucket of Google Cloud Storage, with credentials of the usual variables or the instance.
    #[cfg(feature = "gcs")]
    #[must_use]
    pub fn gcs(mut self, bucket: impl Into<String>) -> Self {
        self.settings.place = Location::Gcs(bucket.into());
        self
    }

    /// Keeps the locks in a container of Azure Blob Storage, with account and credentials of the usual variables or the
    /// instance.
    #[cfg(feature = "azure")]
    #[must_use]
    pub fn azure(mut self, container: impl Into<String>) -> Self {
        self.settings.place = Location::Azure(container.into());
        self
    }

    /// Keeps the locks in a store that the program has opened. Give it no retries (`RetryConfig { max_retries: 0, .. }`): this
    /// backend has its own, which know how much time a step has left. Responses are not seen, and so not their `Date`: the service's
    /// time is asked for by writing a small object, reading when it was written, and removing it, at most each three seconds while
    /// locks are taken or kept. That is two writes and a read more for a step that comes alone.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn ObjectStore>) -> Self {
        self.settings.place = Location::Own(store);
        self
    }

    /// Keeps the locks in the memory of this process, for tests of programs that use a bucket. Builders with the same name share
    /// a store, which lasts as long as the process.
    #[must_use]
    pub fn in_memory(self, name: impl Into<String>) -> Self {
        static STORES: Mutex<BTreeMap<String, Arc<InMemory>>> = Mutex::new(BTreeMap::new());
        let store = {
            let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
            stores.entry(name.into()).or_default().clone()
        };
        self.store(store)
    }

    /// Sets what the names of all objects begin with; `"lockcore"` by default.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Separates applications and tenants: each namespace has a table of its own, and its own rate of writes. 1 to 255 bytes
    /// without `/`; `"default"` by default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// Sets another address than the service's own: an emulator, or another store with the same protocol.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.settings.endpoint = Some(endpoint.into());
        self
    }

    /// Sets an option of the service as the crate `object_store` names it, such as `region`, `access_key_id`,
    /// `secret_access_key` or `account_name`. Values show in no `Debug`, error or log.
    #[must_use]
    pub fn option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.options.push((key.into(), value.into()));
        self
    }

    /// Limits how long a step is tried, after lost races and lost responses, before it fails; 1 s to 5 min, 10 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Limits how long one request may take; 100 ms to 1 min, 5 s by default.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = timeout;
        self
    }

    /// Returns the policy of AWS' IAM with the rights that a program needs: on the objects of the namespace, and to list them
    /// for a sweep.
    ///
    /// # Errors
    /// [`BadSetting`](lockcore::BackendErrorKind::BadSetting) names the setting and its value; other services than S3 have
    /// policies of another kind.
    #[cfg(feature = "s3")]
    pub fn iam_policy(&self) -> Result<String, BackendError> {
        let place = self.settings.place();
        self.settings.check().map_err(|error| error.at(&place))?;
        let Location::S3(bucket) = &self.settings.place else {
            let expected = "only S3 has such a policy";
            return Err(BackendError::bad_setting("bucket", &place, expected).at(&place));
        };
        let folder = literal(self.settings.folder().as_ref());
        let policy = serde_json::json!({
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"],
                    "Resource": format!("arn:aws:s3:::{bucket}/{folder}/*"),
                },
                {
                    "Effect": "Allow",
                    "Action": "s3:ListBucket",
                    "Resource": format!("arn:aws:s3:::{bucket}"),
                    // A read is no listing and has no prefix; without this right the service answers a read of what is missing
                    // as a forbidden one.
                    "Condition": { "StringLikeIfExists": { "s3:prefix": format!("{folder}/*") } },
                },
            ],
        });
        Ok(format!("{policy:#}\n"))
    }

    /// For tests: accepts shorter leases.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn min_lease(mut self, lease: Duration) -> Self {
        self.settings.min_lease = Some(lease);
        self
    }

    /// For tests: does not share the estimate of the service's clock with other DAOs of this process.
    #[cfg(all(feature = "testing", any(feature = "s3", feature = "gcs", feature = "azure")))]
    #[doc(hidden)]
    #[must_use]
    pub fn own_clock(mut self) -> Self {
        self.settings.own_clock = true;
        self
    }

    /// For tests: goes by this machine's clock.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn local_clock(mut self) -> Self {
        self.settings.local_clock = true;
        self
    }

    /// For tests: goes by a clock that is so many microseconds ahead of the store's, from moment to moment.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn ahead(mut self, ahead: Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.settings.ahead = ahead;
        self
    }
}

impl<I, C> fmt::Debug for ObjectBuilder<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { prefix, namespace, endpoint, timeout, request_timeout, options, .. } = &self.settings;
        let options: Vec<&str> = options.iter().map(|(key, _)| key.as_str()).collect();
        f.debug_struct("ObjectBuilder")
            .field("place", &self.settings.place())
            .field("prefix", prefix)
            .field("namespace", namespace)
            .field("endpoint", endpoint)
            .field("options", &options)
            .field("timeout", timeout)
            .field("request_timeout", request_timeout)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Returns the scheme of the place's URL.
    pub(crate) fn scheme(&self) -> &'static str {
        match &self.place {
            #[cfg(feature = "gcs")]
            Location::Gcs(_) => "gs",
            #[cfg(feature = "azure")]
            Location::Azure(_) => "az",
            Location::Own(_) => "object",
            _ => "s3",
        }
    }

    /// Returns the bucket and the namespace, for errors.
    pub(crate) fn place(&self) -> String {
        let Settings { prefix, namespace, .. } = self;
        match &self.place {
            Location::Unset => "object store: no store".to_owned(),
            #[cfg(feature = "s3")]
            Location::S3(bucket) => format!("object store: s3://{bucket}/{prefix}/{namespace}"),
            #[cfg(feature = "gcs")]
            Location::Gcs(bucket) => format!("object store: gs://{bucket}/{prefix}/{namespace}"),
            #[cfg(feature = "azure")]
            Location::Azure(container) => format!("object store: az://{container}/{prefix}/{namespace}"),
            Location::Own(store) => format!("object store: {store}: {prefix}/{namespace}"),
        }
    }

    /// Returns what the names of all objects begin with.
    fn folder(&self) -> Path {
        Path::parse(&self.prefix).unwrap_or_default().join(self.namespace.as_str())
    }

    /// Returns the shortest lease: one is renewed several times, by stores of which some take one write a second and object.
    pub(crate) fn min_lease(&self) -> Duration {
        let usual = match &self.place {
            #[cfg(feature = "gcs")]
            Location::Gcs(_) => 30,
            #[cfg(feature = "s3")]
            Location::S3(bucket) if self.is_r2(bucket) => 30,
            _ => 10,
        };
        self.min_lease.unwrap_or(Duration::from_secs(usual)).max(Duration::from_millis(1))
    }

    /// Returns the lease of a call that names none.
    pub(crate) fn default_lease(&self) -> Duration {
        CellSettings::capabilities("s3").default_lease.unwrap_or_default().max(self.min_lease())
    }

    pub(crate) fn check(&self) -> Result<(), BackendError> {
        let refuse = |key, value: &str, expected| Err(BackendError::bad_setting(key, value, expected));
        let is_name = |name: &str| !name.is_empty() && name.len() <= 255 && !name.contains('/');
        let bucket: Option<&String> = match &self.place {
            Location::Unset => return refuse("bucket", "", "one of s3, gcs, azure and store has to be set"),
            Location::Own(_) => None,
            #[cfg(feature = "s3")]
            Location::S3(name) => Some(name),
            #[cfg(feature = "gcs")]
            Location::Gcs(name) => Some(name),
            #[cfg(feature = "azure")]
            Location::Azure(name) => Some(name),
        };
        if let Some(name) = bucket.filter(|name| !is_name(name)) {
            return refuse("bucket", name, "it must have 1 to 255 bytes without /");
        }
        if !is_name(&self.namespace) {
            return refuse("namespace", &self.namespace, "it must have 1 to 255 bytes without /");
        }
        if self.prefix.len() > 512 || Path::parse(&self.prefix).is_err() {
            return refuse(
                "prefix",
                &self.prefix,
                "it must be a path of at most 512 bytes, without empty parts",
            );
        }
        if self.endpoint.as_deref().is_some_and(|endpoint| {
            endpoint.contains('@') || !(endpoint.starts_with("http://") || endpoint.starts_with("https://"))
        }) {
            // Not shown: it may hold anything.
            return refuse("endpoint", "..", "it must begin with http:// or https:// and name no user");
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

    /// Makes the client.
    pub(crate) async fn bucket(&self) -> Result<Bucket, BackendError> {
        let rules = Arc::new(Rules::default());
        // The clock of a service, which all DAOs of a process estimate together: of the address that its client really asks.
        #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
        let dated = |service: [Option<String>; 2]| {
            use lockcore::backend::ServiceClock;
            let address = format!("{} {service:?}", self.scheme());
            let clock = match self.own_clock {
                true => Arc::new(ServiceClock::new()),
                false => ServiceClock::of(&address),
            };
            (crate::dated::Dated { clock, rules: rules.clone() }, address)
        };
        let (store, clock, address): (Arc<dyn ObjectStore>, Clock, String) = match &self.place {
            Location::Own(store) => {
                (store.clone(), Clock::Modified(Box::<ModifiedClock>::default()), store.to_string())
            }
            #[cfg(feature = "s3")]
            Location::S3(bucket) => {
                use object_store::aws::AmazonS3ConfigKey as Key;
                let builder = self.s3(bucket)?;
                crate::aws::check_credentials(&builder).await?;
                let (dated, address) =
                    dated([crate::aws::endpoint(&builder), builder.get_config_value(&Key::Region)]);
                (
                    made(builder.with_http_connector(dated.clone()).build())?,
                    Clock::Dated(dated.clock),
                    address,
                )
            }
            #[cfg(feature = "gcs")]
            Location::Gcs(bucket) => {
                use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey as Key};
                let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
                for (key, value) in &self.options {
                    builder = builder.with_config(option::<Key>(key)?, value);
                }
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_base_url(endpoint);
                }
                let endpoint = builder.get_config_value(&Key::BaseUrl);
                for (key, value) in self.client(endpoint.as_deref()) {
                    builder = builder.with_config(Key::Client(key), value);
                }
                let (dated, address) = dated([endpoint, None]);
                let builder = builder.with_retry(no_retries()).with_http_connector(dated.clone());
                (made(builder.build())?, Clock::Dated(dated.clock), address)
            }
            #[cfg(feature = "azure")]
            Location::Azure(container) => {
                use object_store::azure::{AzureConfigKey as Key, MicrosoftAzureBuilder};
                let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(container);
                for (key, value) in &self.options {
                    builder = builder.with_config(option::<Key>(key)?, value);
                }
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_endpoint(endpoint.clone());
                }
                let endpoint = builder.get_config_value(&Key::Endpoint);
                for (key, value) in self.client(endpoint.as_deref()) {
                    builder = builder.with_config(Key::Client(key), value);
                }
                let (dated, address) = dated([endpoint, builder.get_config_value(&Key::AccountName)]);
                let builder = builder.with_retry(no_retries()).with_http_connector(dated.clone());
                (made(builder.build())?, Clock::Dated(dated.clock), address)
            }
            Location::Unset => {
                return Err(BackendError::bad_setting("bucket", "", "one has to be set"));
            }
        };
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        Ok(Bucket {
            store,
            address: hasher.finish(),
            prefix: self.folder(),
            clock: if self.local_clock { Clock::local() } else { clock },
            #[cfg(feature = "testing")]
            ahead: self.ahead.clone(),
            is_s3: self.scheme() == "s3",
            timeout: self.request_timeout,
            counts: Counts::default(),
            rules,
        })
    }

    /// Returns whether the service is Cloudflare's, by the address that its client really asks.
    #[cfg(feature = "s3")]
    fn is_r2(&self, bucket: &str) -> bool {
        let endpoint = self.s3(bucket).ok().and_then(|builder| crate::aws::endpoint(&builder));
        let host = endpoint.as_deref().and_then(|endpoint| endpoint.split("://").nth(1));
        host.and_then(|host| host.split(['/', ':']).next()).is_some_and(crate::dated::is_r2)
    }

    /// Returns the builder of a client of S3, with all that is known of it.
    #[cfg(feature = "s3")]
    fn s3(&self, bucket: &str) -> Result<object_store::aws::AmazonS3Builder, BackendError> {
        use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key, Checksum};
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        // An endpoint that is set here counts more than `AWS_ENDPOINT_URL_S3`, which counts more than
        // `AWS_ENDPOINT_URL`.
        let endpoint =
            self.endpoint.iter().map(|endpoint| Ok::<_, BackendError>((Key::S3Endpoint, endpoint)));
        for option in self.options.iter().map(|(key, value)| Ok((option::<Key>(key)?, value))).chain(endpoint)
        {
            let (key, value) = option?;
            builder = builder.with_config(if key == Key::Endpoint { Key::S3Endpoint } else { key }, value);
        }
        let endpoint = crate::aws::endpoint(&builder);
        for (key, value) in self.client(endpoint.as_deref()) {
            builder = builder.with_config(Key::Client(key), value);
        }
        // A bucket with object lock takes no write without one, and the signature needs this one anyway.
        if builder.get_config_value(&Key::Checksum).is_none() {
            builder = builder.with_checksum_algorithm(Checksum::SHA256);
        }
        crate::aws::check(&builder)?;
        Ok(builder.with_retry(no_retries()))
    }

    /// Returns what the client of the service is set to, beside its usual variables.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    fn client(&self, endpoint: Option<&str>) -> Vec<(object_store::ClientConfigKey, String)> {
        use object_store::ClientConfigKey;
        // If the program has chosen another one, that stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let timeout = format!("{} ms", self.request_timeout.as_millis());
        let mut options = vec![(ClientConfigKey::Timeout, timeout)];
        if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
            options.push((ClientConfigKey::AllowHttp, "true".to_owned()));
        }
        options
    }
}

/// None: the library would report a write that was done, and whose response was lost, as one that lost.
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
fn no_retries() -> object_store::RetryConfig {
    object_store::RetryConfig { max_retries: 0, ..object_store::RetryConfig::default() }
}

/// Returns a name as a policy of IAM takes it to the letter.
#[cfg(feature = "s3")]
fn literal(name: &str) -> String {
    name.chars().fold(String::new(), |literal, letter| match letter {
        '*' | '?' | '$' => format!("{literal}${{{letter}}}"),
        letter => literal + letter.encode_utf8(&mut [0; 4]),
    })
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
fn option<K: std::str::FromStr>(key: &str) -> Result<K, BackendError> {
    let expected = "it must be an option of the service";
    key.parse().map_err(|_| BackendError::bad_setting("option", key, expected))
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
fn made<S: ObjectStore>(built: object_store::Result<S>) -> Result<Arc<dyn ObjectStore>, BackendError> {
    match built {
        Ok(store) => Ok(Arc::new(store)),
        Err(error) => Err(crate::error::of_settings(&error)),
    }
}
