//! This executable beside a newer program on one store, as while a release is rolled out or rolled back.

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use lockcore::{
    AnyLockDao, BackendError, ClaimSet, Grant, Inspection, LockDao, Mode, Target,
    backend::{AcquireRequest, Acquired, AttemptId, StoreVersion},
};
use lockcore_dynamo::DynamoLockDao;
use lockcore_redis::RedisLockDao;
use lockcore_sql::{MysqlLockDao, PostgresLockDao, SqliteLockDao};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use crate::{
    store::{Ended, Running, Store, until},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[test!(this_executable_works_beside_a_newer_program, Versions)];

/// A later version, with which today's executable can share a store.
const NEXT: StoreVersion = StoreVersion { version: 2, oldest_program: 1 };

/// One with which it cannot.
const INCOMPATIBLE: StoreVersion = StoreVersion { version: 3, oldest_program: 3 };

/// `lockctl` as it is built is the old program. The newer one runs in the test's process: there is no executable of a version
/// that does not exist yet, so its DAO is opened as that of a later version.
fn this_executable_works_beside_a_newer_program(store: &Store) {
    let place = Place::new(store);
    let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let migrated = place.lockctl(&["migrate"]);
    assert_eq!(migrated.code, 0, "{}", migrated.stderr);

    // The old program holds a lock, and others of its kind come and go while the newer one migrates the store.
    let script = "touch inside; while [ ! -e leave ]; do sleep 0.01; done";
    let (lease, lease_text) = store.lease(Duration::from_secs(2));
    let holder = place.start(&["run", "--id", "held", "--lease", &lease_text, "--", "sh", "-c", script]);
    store.until_file("inside");
    let migrating = AtomicBool::new(true);
    let newer = thread::scope(|scope| {
        let turns = scope.spawn(|| {
            let mut turns = 0;
            while migrating.load(Ordering::Relaxed) || turns < 3 {
                let turn = place.lockctl(&["run", "--id", "turn", "--", "true"]);
                assert_eq!(turn.code, 0, "{}", turn.stderr);
                turns += 1;
            }
        });
        let newer = Program::open(&runtime, &place, NEXT).expect("it may migrate the store");
        migrating.store(false, Ordering::Relaxed);
        turns.join().expect("each takes its turn");
        newer
    });

    // They exclude each other, both ways, and the old program goes on renewing.
    assert!(newer.take("held").is_none(), "the old program holds it");
    let before = newer.lease_ends("held");
    // Two looks at one lease differ by how long the answers take.
    until("its lease is renewed", || newer.lease_ends("held") > before + lease / 6);
    fs::write(store.path("leave"), "").expect("written");
    let ended = holder.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let held = newer.take("held").expect("the old program released it");
    let refused = place.lockctl(&["run", "--id", "held", "--", "true"]);
    assert_eq!(refused.code, 120, "the newer program holds it: {}", refused.stderr);

    // Rolled back: an old process starts on the migrated store, waits for the newer program, and gets the lock from it.
    let waiter = place.start(&["run", "--id", "held", "--wait", "1m", "--", "sh", "-c", "touch served"]);
    if store.capabilities.fifo {
        until("it waits", || newer.waiters("held") == 1);
    }
    newer.release(&held);
    let ended = waiter.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    store.until_file("served");
    assert_eq!(place.lockctl(&["migrate"]).code, 0, "there is nothing to do");
    let held = newer.take("held").expect("the old program released it");
    newer.release(&held);

    // Onward, to where it cannot follow.
    let _last = Program::open(&runtime, &place, INCOMPATIBLE).expect("it may migrate the store");
    for args in [&["run", "--id", "held", "--", "true"][..], &["ls"], &["migrate"]] {
        let refused = place.lockctl(args);
        assert_ne!(refused.code, 0, "the store is for newer programs");
        let said = &refused.stderr;
        assert!(said.contains("version 3") && said.contains("newer program"), "{args:?}: {said}");
    }
}

/// A store of the test's own on the server: its version is that of all who use it.
struct Place<'s> {
    store: &'s Store,
    url: String,
    namespace: String,
    /// The table, or what the tables' names begin with.
    name: String,
}

impl<'s> Place<'s> {
    fn new(store: &'s Store) -> Self {
        let name = format!("v{}_", &Uuid::new_v4().simple().to_string()[..16]);
        let url = match store.capabilities.backend {
            "postgres" | "mysql" => format!("{}&table_prefix={name}", store.url()),
            "dynamodb" => store.url().replace("/lockctl-e2e?", &format!("/{name}?")),
            _ => store.url().to_owned(),
        };
        Place { store, url, namespace: store.namespace("versions"), name }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.store.lockctl(args);
        command.env("LOCKCORE_URL", &self.url).env("LOCKCORE_NAMESPACE", &self.namespace);
        command
    }

    fn lockctl(&self, args: &[&str]) -> Ended {
        Ended::of(self.command(args))
    }

    fn start(&self, args: &[&str]) -> Running {
        Running::of(self.command(args))
    }

    async fn open(&self, version: StoreVersion) -> Result<AnyLockDao<String, String>, BackendError> {
        let server = self.store.url().split('?').next().unwrap_or_default();
        let (name, namespace) = (self.name.as_str(), self.namespace.as_str());
        Ok(match self.store.capabilities.backend {
            "sqlite" => {
                let builder = SqliteLockDao::builder().path(self.store.path("locks.db")).namespace(namespace);
                AnyLockDao::new(builder.program_version(version).open().await?)
            }
            "redis" => {
                let builder = RedisLockDao::builder().url(server).namespace(namespace);
                AnyLockDao::new(builder.program_version(version).open().await?)
            }
            "postgres" => {
                let builder = PostgresLockDao::builder().url(server).namespace(namespace).table_prefix(name);
                AnyLockDao::new(builder.program_version(version).open().await?)
            }
            "mysql" => {
                let builder = MysqlLockDao::builder().url(server).namespace(namespace).table_prefix(name);
                AnyLockDao::new(builder.program_version(version).open().await?)
            }
            "dynamodb" => {
                let (_, endpoint) = self.url.split_once("endpoint=").expect("the tests' server has one");
                let builder = DynamoLockDao::builder()
                    .region("eu-central-1")
                    .credentials("test", "test", None)
                    .endpoint(endpoint.split('&').next().unwrap_or_default())
                    .table(name)
                    .namespace(namespace);
                AnyLockDao::new(builder.program_version(version).open().await?)
            }
            other => unreachable!("{other} has no version in its store"),
        })
    }
}

/// The newer program.
struct Program<'r> {
    runtime: &'r Runtime,
    dao: AnyLockDao<String, String>,
}

impl<'r> Program<'r> {
    fn open(runtime: &'r Runtime, place: &Place<'_>, version: StoreVersion) -> Result<Self, BackendError> {
        let dao = runtime.block_on(async {
            let dao = place.open(version).await?;
            dao.migrate().await?;
            Ok::<_, BackendError>(dao)
        })?;
        Ok(Program { runtime, dao })
    }

    fn take(&self, id: &str) -> Option<Grant<String, String>> {
        let request = AcquireRequest {
            context: Uuid::new_v4().to_string(),
            attempt: AttemptId::fresh(),
            claims: ClaimSet::new([id], Mode::Exclusive).expect("valid claims"),
            lease: Some(Duration::from_secs(60)),
            owner: "".into(),
            queue: false,
            nested: false,
            detached: false,
        };
        match self.runtime.block_on(self.dao.acquire(&request)).expect("it answers") {
            Acquired::Granted(granted) => {
                Some(Grant::new(request.context, request.claims.clone(), granted, request.lease))
            }
            Acquired::Queued { .. } | Acquired::Refused(_) => None,
        }
    }

    fn release(&self, grant: &Grant<String, String>) {
        assert_eq!(self.runtime.block_on(self.dao.release(grant)).expect("it answers").lost, []);
    }

    fn inspect(&self, id: &str) -> Inspection<String, String> {
        self.runtime.block_on(self.dao.inspect(&Target::Id(id.to_owned()))).expect("it answers")
    }

    fn waiters(&self, id: &str) -> usize {
        self.inspect(id).waiters.len()
    }

    /// When the lease of the id's holder ends, on this process's clock.
    fn lease_ends(&self, id: &str) -> Instant {
        let holder = &self.inspect(id).holders[0];
        Instant::now() + holder.remaining.expect("it has a lease")
    }
}
