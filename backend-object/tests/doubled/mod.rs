//! Writes that reach the store twice: the suite's checks of locking pass as ever.

use std::time::Duration;

use lockcore_conformance::{
    Backend,
    servers::{Copies, Duplicator, Trial, checks_of},
};
use lockcore_object::ObjectLockDao;

use crate::place::{Bucket, ministack};

/// The groups of checks that run.
const GROUPS: [&str; 5] = ["exclusion", "fences", "release", "renewal", "withdrawal"];

/// Compares two stores, of which each has a proxy here, and so a clock of its own.
const EXCEPT: &str = "fences::fences_grow_across_loss_of_data";

pub(crate) fn tests() -> impl Iterator<Item = Trial> {
    let is_one = |check: &str| check.split("::").next().is_some_and(|group| GROUPS.contains(&group));
    let runs = move |check: &str| is_one(check) && check != EXCEPT;
    checks_of("s3::faults::doubled", runs, || async { Ok(Doubled(Bucket::at(ministack().await?))) })
}

/// Each store is behind a proxy of its own.
struct Doubled(Bucket);

impl Backend for Doubled {
    type Dao = ObjectLockDao;
    type Guard = (Duplicator, Bucket);

    async fn build(&self) -> (Self::Guard, ObjectLockDao) {
        let emulator = self.0.endpoint.trim_start_matches("http://");
        let proxy = Duplicator::start(emulator).await.expect("a port is free");
        proxy.set(Copies::AtOnce);
        let (bucket, dao) = Bucket::at(format!("http://{}", proxy.address())).build().await;
        ((proxy, bucket), dao)
    }

    async fn reopen(&self, (_, bucket): &Self::Guard) -> Option<ObjectLockDao> {
        bucket.reopen(bucket).await
    }

    async fn advance(&self, (_, bucket): &Self::Guard, by: Duration) -> bool {
        bucket.advance(bucket, by).await
    }
}
