//! The checks of adapters: in memory, on emulators, and on each service in its dialect.

use std::sync::Arc;

use lockcore_conformance::{
    cell::{Adapter, Fault as Met},
    servers::{Trial, cell_checks},
};
use lockcore_object::{Bucket as Cells, ObjectLockDao, ObjectStore};
use object_store::memory::InMemory;

use crate::{
    front::{Dialect, Fault, Front},
    place::{BUCKET, Bucket, ministack, moto},
};

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let memory = cell_checks("object", async || Ok(Memory));
    let on_ministack = cell_checks("s3", async || Ok(Emulator(Bucket::at(ministack().await?))));
    let on_moto = cell_checks("moto", async || Ok(Emulator(Bucket::at(moto().await?))));
    let emulated = on_ministack.chain(on_moto).map(Trial::thorough);
    let s3 = cell_checks("dialects::s3", async || Ok(Service { dialect: Dialect::S3, is_own: false }));
    let gcs = cell_checks("dialects::gcs", async || Ok(Service { dialect: Dialect::Gcs, is_own: false }));
    let azure =
        cell_checks("dialects::azure", async || Ok(Service { dialect: Dialect::Azure, is_own: false }));
    let r2 = cell_checks("dialects::r2", async || Ok(Service { dialect: Dialect::R2, is_own: false }));
    let own = cell_checks("dialects::own", async || Ok(Service { dialect: Dialect::S3, is_own: true }));
    memory.chain(emulated).chain(s3).chain(gcs).chain(azure).chain(r2).chain(own)
}

/// A store within the process, which goes by this machine's clock.
struct Memory;

impl Adapter for Memory {
    type Cell = Cells;
    type Place = Arc<InMemory>;

    const MANY: usize = 1100;

    async fn place(&self) -> Arc<InMemory> {
        Arc::default()
    }

    async fn open(&self, place: &Arc<InMemory>) -> Cells {
        let builder = ObjectLockDao::<String>::builder().store(place.clone()).local_clock();
        builder.cell().await.expect("a store in memory can be opened")
    }
}

/// An emulator.
struct Emulator(Bucket);

impl Adapter for Emulator {
    type Cell = Cells;
    type Place = Bucket;

    const VERSIONS_ARE_OF_CONTENTS: bool = true;

    async fn place(&self) -> Bucket {
        Bucket::at(self.0.endpoint.clone())
    }

    async fn open(&self, place: &Bucket) -> Cells {
        place.builder().own_clock().cell().await.expect("the emulator answers")
    }
}

/// A service in its dialect.
struct Service {
    dialect: Dialect,
    /// Set if the program opens the store by itself, so that no response is seen.
    is_own: bool,
}

impl Adapter for Service {
    type Cell = Cells;
    type Place = (Front, Bucket);

    const VERSIONS_ARE_OF_CONTENTS: bool = true;

    async fn place(&self) -> (Front, Bucket) {
        let front = Front::of(self.dialect).await.expect("a port is free");
        let bucket = Bucket::in_dialect(self.dialect, front.url());
        (front, bucket)
    }

    async fn open(&self, (_, bucket): &(Front, Bucket)) -> Cells {
        let builder = match self.is_own {
            true => bucket.builder().store(own(&bucket.endpoint)),
            false => bucket.builder().own_clock(),
        };
        builder.cell().await.expect("the service answers")
    }

    async fn fault(&self, (front, _): &(Front, Bucket), fault: Met) -> bool {
        let fault = match (fault, self.dialect) {
            (Met::LosesResponse, _) => Fault::LoseResponse,
            // Without the status, which a program's own client does not show, it is as one that lost.
            (Met::IsTurnedAway, Dialect::S3) if !self.is_own => {
                Fault::RefuseAs(409, "ConditionalRequestConflict")
            }
            (Met::IsTurnedAway, Dialect::S3) => Fault::RefuseAs(503, "SlowDown"),
            (Met::IsTurnedAway, Dialect::Gcs) => Fault::RefuseAs(429, "SlowDown"),
            (Met::IsTurnedAway, Dialect::R2) => Fault::RefuseAs(429, "TooManyRequests"),
            (Met::IsTurnedAway, Dialect::Azure) => Fault::RefuseAs(503, "ServerBusy"),
        };
        front.next("PUT", fault);
        true
    }

    async fn step(&self, (front, _): &(Front, Bucket), seconds: i64) -> bool {
        front.step_date(seconds);
        true
    }
}

/// A client of S3 that a program makes.
pub(crate) fn own(endpoint: &str) -> Arc<dyn ObjectStore> {
    // Another test may have done so.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = object_store::aws::AmazonS3Builder::new().with_endpoint(endpoint).with_allow_http(true);
    let builder = builder.with_region("us-east-1").with_bucket_name(BUCKET);
    let builder = builder.with_access_key_id("test").with_secret_access_key("test");
    let retries = object_store::RetryConfig { max_retries: 0, ..object_store::RetryConfig::default() };
    Arc::new(builder.with_retry(retries).build().expect("all is set"))
}
