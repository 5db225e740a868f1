//! A bucket of an emulator of S3.

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

use crate::conformance::micros;

pub(crate) const BUCKET: &str = "locks";

/// A namespace of one bucket.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) endpoint: Arc<str>,
    pub(crate) namespace: Arc<str>,
    /// How far its time was set forward, in microseconds.
    pub(crate) ahead: Arc<AtomicU64>,
}

impl Bucket {
    /// A fresh one of the emulator at this endpoint.
    pub(crate) fn at(endpoint: impl Into<Arc<str>>) -> Self {
        let namespace = Uuid::new_v4().simple().to_string().into();
        Bucket { endpoint: endpoint.into(), namespace, ahead: Arc::default() }
    }

    pub(crate) fn builder(&self) -> ObjectBuilder<String, Uuid> {
        let builder = ObjectLockDao::builder().s3(BUCKET).endpoint(&*self.endpoint);
        let credentials = [("region", "us-east-1"), ("access_key_id", "test"), ("secret_access_key", "test")];
        let builder =
            credentials.into_iter().fold(builder, |builder, (key, value)| builder.option(key, value));
        builder
            .namespace(&*self.namespace)
            .ahead(self.ahead.clone())
            .timeout(servers::ANSWERS)
            // The service's time is known to a second: a lease that is to be renewed has to be longer.
            .min_lease(Duration::from_secs(3))
    }
}

impl Backend for Bucket {
    type Dao = ObjectLockDao;
    type Guard = Bucket;

    async fn build(&self) -> (Bucket, ObjectLockDao) {
        let bucket = Bucket::at(self.endpoint.clone());
        let dao = bucket.builder().open().await.expect("the emulator answers");
        (bucket, dao)
    }

    async fn reopen(&self, bucket: &Bucket) -> Option<ObjectLockDao> {
        // As another process, which has to learn the service's time by itself.
        Some(bucket.builder().own_clock().open().await.expect("the emulator answers"))
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
