//! The conformance suite on the Postgres backend: one real server, a namespace for each store.

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
    servers::{self, Kind, Server},
};
use lockcore_sql::PostgresLockDao;
use uuid::Uuid;

/// No check takes longer, however slow the server. One is dropped at every stop on its way, of which the hash of a password
/// alone makes 800.
const PATIENCE: Duration = Duration::from_secs(600);

struct Postgres {
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
    async fn open(&self) -> PostgresLockDao<String, Uuid> {
        let builder = PostgresLockDao::builder()
            .url(self.server.url())
            .timeout(servers::ANSWERS)
            .namespace(&*self.name);
        // The checks run at the same time, and open some DAOs each.
        builder.max_connections(4).open().await.expect("the server answers")
    }
}

impl Backend for Postgres {
    type Dao = PostgresLockDao<String, Uuid>;
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
    let contexts = servers::trial(Kind::Postgres, "own::odd_contexts", || async {
        let server = servers::shared(Kind::Postgres).await?;
        let builder =
            PostgresLockDao::<String, String>::builder().url(server.url()).timeout(servers::ANSWERS);
        let dao = builder.namespace(Uuid::new_v4().to_string()).open().await?;
        odd_contexts_are_kept_apart(&dao).await;
        Ok(())
    });
    let checks = all::<Postgres>().into_iter().map(|check| {
        servers::trial(Kind::Postgres, check.name, move || async move {
            let server = servers::shared(Kind::Postgres).await?;
            let backend = Postgres { server, run: Uuid::new_v4(), stores: AtomicUsize::new(0) };
            let store = Store::new(Arc::new(backend)).await;
            tokio::time::timeout(PATIENCE, (check.run)(store)).await?;
            Ok(())
        })
    });
    servers::run(checks.chain([contexts]))
}
