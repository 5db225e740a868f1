//! Ids and contexts of a user's own types, through the service, the file, and back.

use std::borrow::Cow;

use lockcore::{
    ConflictReason, ContextId, Failure, Ident, LockingError, LockingService, Page, StoredContext, Target,
};
use lockcore_conformance::servers::Trial;
use lockcore_sql::SqliteLockDao;

/// An object of a tenant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Object {
    tenant: u32,
    name: String,
}

impl Ident for Object {
    fn stored(&self) -> Cow<'_, str> {
        format!("{}/{}", self.tenant, self.name).into()
    }

    fn from_stored(stored: &str) -> Option<Self> {
        let (tenant, name) = stored.split_once('/')?;
        Some(Object { tenant: tenant.parse().ok()?, name: name.to_owned() })
    }
}

/// One job of a worker.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Job(u16, u64);

impl ContextId for Job {
    fn stored(&self) -> Cow<'_, str> {
        format!("{}-{}", self.0, self.1).into()
    }

    fn from_stored(stored: &str) -> Option<Self> {
        let (worker, number) = stored.split_once('-')?;
        Some(Job(worker.parse().ok()?, number.parse().ok()?))
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    tests!["own_types", ids_and_contexts_of_ones_own_are_stored_and_come_back]
}

async fn ids_and_contexts_of_ones_own_are_stored_and_come_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let object = |name: &str| Object { tenant: 7, name: name.to_owned() };
    let worker = |worker: u16| {
        let (file, mut jobs) = (file.clone(), 0..);
        async move {
            let dao = SqliteLockDao::<Object, Job>::open(file).await.expect("the file can be opened");
            let jobs =
                std::sync::Mutex::new(move || Job(worker, jobs.next().expect("there is always one more")));
            let fresh = move || jobs.lock().expect("no panic")();
            LockingService::builder_with_contexts(dao, fresh).build().expect("the defaults")
        }
    };
    let (one, two) = (worker(1).await, worker(2).await);
    let held = one.lock([object("a"), object("b")]).await.expect("it is free");
    assert_eq!(*held.context(), Job(1, 0));
    assert_eq!(held.locks()[0].target, Target::Id(object("a")));

    let refused = two.lock([object("b"), object("c")]).await.expect_err("it is held");
    let LockingError::NotLocked { failures, .. } = refused else { panic!("{refused:?}") };
    let [Failure::Conflict(conflict)] = &failures[..] else { panic!("{failures:?}") };
    assert_eq!(conflict.target, Target::Id(object("b")));
    let ConflictReason::Held { holders, .. } = &conflict.reason else { panic!("{conflict:?}") };
    assert_eq!(holders[0].context, StoredContext::Known(Job(1, 0)));

    let listed = two.admin().list(&Page::default()).await.expect("an answer").ids;
    let targets: Vec<_> = listed.iter().map(|found| found.target.clone()).collect();
    assert_eq!(targets, [Ok(Target::Id(object("a"))), Ok(Target::Id(object("b")))]);
    assert_eq!(listed[1].holders[0].context, StoredContext::Known(Job(1, 0)));

    held.release().await.expect("it is held");
    let next = two.lock([object("b")]).await.expect("it is free");
    assert_eq!(*next.context(), Job(2, 1), "the one that was refused had another");
}
