//! The conformance suite on MySQL and on MariaDB: a real server of each, a namespace for each store.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore_conformance::{
    Backend, Store, all,
    checks::contexts::odd_contexts_are_kept_apart,
    servers::{self, Kind, Server, Trial},
};
use lockcore_sql::MysqlLockDao;
use uuid::Uuid;

/// No check takes longer, however slow the server.
const PATIENCE: Duration = Duration::from_secs(180);

struct Mysql {
    server: Arc<Server>,
    /// Other tests, and other runs of this one, may use the same server.
    run: Uuid,
    stores: AtomicUsize,
}

/// A namespace of the server.
struct Namespace {
    server: Arc<Server>,
    name: String,
}

impl Namespace {
    async fn open(&self) -> MysqlLockDao<String, Uuid> {
        let builder = MysqlLockDao::builder().url(self.server.url()).timeout(servers::ANSWERS);
        builder.namespace(&*self.name).open().await.expect("the server answers")
    }
}

impl Backend for Mysql {
    type Dao = MysqlLockDao<String, Uuid>;
    type Guard = Namespace;

    async fn build(&self) -> (Namespace, Self::Dao) {
        let number = self.stores.fetch_add(1, Ordering::Relaxed);
        let name = format!("{} store {number}", self.run);
        let namespace = Namespace { server: self.server.clone(), name };
        let dao = namespace.open().await;
        (namespace, dao)
    }

    async fn reopen(&self, namespace: &Namespace) -> Option<Self::Dao> {
        Some(namespace.open().await)
    }
}

fn main() -> ExitCode {
    servers::run([Kind::MySql, Kind::MariaDb].into_iter().flat_map(suite))
}

fn suite(kind: Kind) -> impl Iterator<Item = Trial> {
    let contexts = servers::trial(kind, "own::odd_contexts", move || async move {
        let server = servers::shared(kind).await?;
        let builder = MysqlLockDao::<String, String>::builder().url(server.url()).timeout(servers::ANSWERS);
        let dao = builder.namespace(Uuid::new_v4().to_string()).open().await?;
        odd_contexts_are_kept_apart(&dao).await;
        Ok(())
    });
    let checks = all::<Mysql>().into_iter().map(move |check| {
        servers::trial(kind, check.name, move || async move {
            let server = servers::shared(kind).await?;
            let backend = Mysql { server, run: Uuid::new_v4(), stores: AtomicUsize::new(0) };
            let store = Store::new(Arc::new(backend)).await;
            tokio::time::timeout(PATIENCE, (check.run)(store)).await?;
            Ok(())
        })
    });
    checks.chain([contexts])
}
