//! A bucket of an emulator of S3.

use std::{sync::Arc, time::Duration};

use lockcore_conformance::{
    Backend,
    servers::{self, ServerError},
};
use lockcore_object::{ObjectBuilder, ObjectLockDao};
use uuid::Uuid;

pub(crate) const BUCKET: &str = "locks";

/// Each store is a namespace of one bucket.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) endpoint: Arc<str>,
    pub(crate) namespace: Arc<str>,
}

impl Bucket {
    pub(crate) fn builder(&self) -> ObjectBuilder<String, Uuid> {
        let builder = ObjectLockDao::builder().s3(BUCKET).endpoint(&*self.endpoint);
        let credentials = [("region", "us-east-1"), ("access_key_id", "test"), ("secret_access_key", "test")];
        let builder =
            credentials.into_iter().fold(builder, |builder, (key, value)| builder.option(key, value));
        builder
            .namespace(&*self.namespace)
            .timeout(servers::ANSWERS)
            // The service's time is known to a second: a lease that is to be renewed has to be longer.
            .min_lease(Duration::from_secs(3))
    }
}

impl Backend for Bucket {
    type Dao = ObjectLockDao;
    type Guard = Bucket;

    async fn build(&self) -> (Bucket, ObjectLockDao) {
        let bucket = Bucket { namespace: Uuid::new_v4().simple().to_string().into(), ..self.clone() };
        let dao = bucket.builder().open().await.expect("the emulator answers");
        (bucket, dao)
    }

    async fn reopen(&self, bucket: &Bucket) -> Option<ObjectLockDao> {
        // As another process, which has to learn the service's time by itself.
        Some(bucket.builder().own_clock().open().await.expect("the emulator answers"))
    }
}

/// An emulator that is got by `get`, such as [`servers::Bucket::shared`].
pub(crate) fn emulator<F>(get: impl FnOnce(&'static str) -> F) -> Result<servers::Bucket, ServerError>
where
    F: Future<Output = Result<servers::Bucket, ServerError>>,
{
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be made");
    runtime.block_on(get(BUCKET))
}
