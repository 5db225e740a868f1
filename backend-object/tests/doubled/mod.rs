//! Writes that reach the store twice: the suite's checks of locking pass as ever.

use lockcore_conformance::{
    Backend, all, run,
    servers::{self, Completion, Copies, Duplicator, Trial},
};
use lockcore_object::ObjectLockDao;

use crate::place::{Bucket, emulator};

/// The groups of checks that run.
const GROUPS: [&str; 5] = ["exclusion", "fences", "release", "renewal", "withdrawal"];

/// Compares two stores, of which each has a proxy here, and so a clock of its own.
const EXCEPT: &str = "fences::fences_grow_across_loss_of_data";

/// Each store is behind a proxy of its own.
struct Doubled(Bucket);

impl Backend for Doubled {
    type Dao = ObjectLockDao;
    type Guard = (Duplicator, Bucket);

    async fn build(&self) -> (Self::Guard, ObjectLockDao) {
        let emulator = self.0.endpoint.trim_start_matches("http://");
        let proxy = Duplicator::start(emulator).await.expect("a port is free");
        proxy.set(Copies::AtOnce);
        let endpoint = format!("http://{}", proxy.address()).into();
        let (bucket, dao) = Bucket { endpoint, ..self.0.clone() }.build().await;
        ((proxy, bucket), dao)
    }

    async fn reopen(&self, (_, bucket): &Self::Guard) -> Option<ObjectLockDao> {
        bucket.reopen(bucket).await
    }
}

pub(crate) fn tests() -> impl Iterator<Item = Trial> {
    let checks = all::<Doubled>().into_iter();
    let chosen = checks.filter(|check| {
        check.name != EXCEPT && GROUPS.contains(&check.name.split("::").next().unwrap_or_default())
    });
    chosen.map(|check| {
        Trial::ignorable_test(format!("s3::faults::doubled::{}", check.name), move || {
            match emulator(servers::Bucket::shared) {
                Ok(emulator) => {
                    let (endpoint, namespace) = (emulator.endpoint().into(), "none".into());
                    run(Doubled(Bucket { endpoint, namespace }), check.run);
                    Ok(Completion::Completed)
                }
                Err(missing) => servers::outcome(Err(missing.into())),
            }
        })
    })
}
