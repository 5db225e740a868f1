//! A bucket of an emulator of S3, or of a service in one of the dialects.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockcore_conformance::{
    Backend,
    servers::{self, ServerError, TestResult, Trial},
};
use lockcore_object::{ObjectBuilder, ObjectLockDao};
use tokio::{runtime::Runtime, sync::OnceCell};
use uuid::Uuid;

use crate::{conformance::micros, front::Dialect};

pub(crate) const BUCKET: &str = "locks";

const KEYS_OF_S3: [(&str, &str); 3] =
    [("region", "us-east-1"), ("access_key_id", "test"), ("secret_access_key", "test")];

/// A key for which no token is asked for.
const KEY_OF_GOOGLE: &str =
    r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;

const R2: &str = "http://account.r2.cloudflarestorage.com";

/// A namespace of one bucket.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) dialect: Dialect,
    pub(crate) endpoint: Arc<str>,
    pub(crate) namespace: Arc<str>,
    /// How far its time was set forward, in microseconds.
    pub(crate) ahead: Arc<AtomicU64>,
}

impl Bucket {
    /// A fresh one of the emulator at this endpoint.
    pub(crate) fn at(endpoint: impl Into<Arc<str>>) -> Self {
        Self::in_dialect(Dialect::S3, endpoint)
    }

    /// A fresh one of the service at this endpoint.
    pub(crate) fn in_dialect(dialect: Dialect, endpoint: impl Into<Arc<str>>) -> Self {
        let namespace = Uuid::new_v4().simple().to_string().into();
        Bucket { dialect, endpoint: endpoint.into(), namespace, ahead: Arc::default() }
    }

    pub(crate) fn builder(&self) -> ObjectBuilder<String, Uuid> {
        // The service's time is known to a second: a lease that is to be renewed has to be longer.
        self.services().min_lease(Duration::from_secs(3))
    }

    /// With the leases of the service.
    pub(crate) fn services(&self) -> ObjectBuilder<String, Uuid> {
        match self.dialect {
            // By its own name, to which the server here is a proxy.
            Dialect::R2 => self.client().endpoint(R2).option("proxy_url", &*self.endpoint),
            _ => self.client().endpoint(&*self.endpoint),
        }
    }

    /// Without an endpoint.
    pub(crate) fn client(&self) -> ObjectBuilder<String, Uuid> {
        let builder = ObjectLockDao::builder();
        let (builder, options): (_, &[_]) = match self.dialect {
            Dialect::S3 | Dialect::R2 => (builder.s3(BUCKET), &KEYS_OF_S3),
            Dialect::Gcs => (builder.gcs(BUCKET), &[("service_account_key", KEY_OF_GOOGLE)]),
            Dialect::Azure => {
                (builder.azure(BUCKET), &[("account_name", "account"), ("account_key", "c2VjcmV0")])
            }
        };
        let builder = options.iter().fold(builder, |builder, (key, value)| builder.option(*key, *value));
        builder.namespace(&*self.namespace).ahead(self.ahead.clone()).timeout(servers::ANSWERS)
    }
}

impl Backend for Bucket {
    type Dao = ObjectLockDao;
    type Guard = Bucket;

    async fn build(&self) -> (Bucket, ObjectLockDao) {
        let bucket = Bucket::in_dialect(self.dialect, self.endpoint.clone());
        let dao = bucket.builder().open().await.expect("the service answers");
        (bucket, dao)
    }

    async fn reopen(&self, bucket: &Bucket) -> Option<ObjectLockDao> {
        // As another process, which has to learn the service's time by itself.
        Some(bucket.builder().own_clock().open().await.expect("the service answers"))
    }

    async fn reopen_ahead(&self, bucket: &Bucket, by: Duration) -> Option<ObjectLockDao> {
        let ahead = Arc::new(AtomicU64::new(bucket.ahead.load(Relaxed) + micros(by)));
        self.reopen(&Bucket { ahead, ..bucket.clone() }).await
    }

    async fn advance(&self, bucket: &Bucket, by: Duration) -> bool {
        bucket.ahead.fetch_add(micros(by), Relaxed);
        true
    }
}

/// The endpoint of the emulator that all tests share.
pub(crate) async fn ministack() -> Result<Arc<str>, ServerError> {
    Ok(servers::Bucket::shared(BUCKET).await?.endpoint().into())
}

/// The endpoint of the other emulator, of which this process has one.
pub(crate) async fn moto() -> Result<Arc<str>, ServerError> {
    static MOTO: OnceCell<servers::Bucket> = OnceCell::const_new();
    Ok(MOTO.get_or_try_init(|| servers::Bucket::moto(BUCKET)).await?.endpoint().into())
}

/// The test `s3::<name>` on a fresh namespace.
pub(crate) fn trial<F>(name: &str, test: impl FnOnce(Bucket) -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    Trial::ignorable_test(format!("s3::{name}"), move || {
        servers::outcome(Runtime::new()?.block_on(async { test(Bucket::at(ministack().await?)).await }))
    })
}
