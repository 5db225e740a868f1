//! The conformance suite on the SQLite backend.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore_conformance::{
    Backend,
    checks::{contexts::odd_contexts_are_kept_apart, histories::every_short_history_agrees_with_the_model},
    conformance,
};
use lockcore_sql::{SqliteBuilder, SqliteLockDao};
use tempfile::TempDir;
use uuid::Uuid;

/// One file for all the stores of a check, in a namespace each; another process would open the same file.
#[derive(Default)]
struct Sqlite {
    folder: OnceLock<Arc<TempDir>>,
    stores: AtomicUsize,
}

/// A namespace of the file.
struct Namespace {
    folder: Arc<TempDir>,
    name: String,
}

impl Namespace {
    fn builder(&self) -> SqliteBuilder<String, Uuid> {
        SqliteLockDao::builder().path(self.folder.path().join("locks.db")).namespace(&*self.name)
    }

    async fn open(&self) -> SqliteLockDao<String, Uuid> {
        self.builder().open().await.expect("the file can be opened")
    }
}

impl Backend for Sqlite {
    type Dao = SqliteLockDao<String, Uuid>;
    type Guard = Namespace;

    async fn build(&self) -> (Namespace, Self::Dao) {
        let folder = self.folder.get_or_init(|| Arc::new(tempfile::tempdir().expect("a temporary folder")));
        let number = self.stores.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace { folder: folder.clone(), name: format!("store {number}") };
        let dao = namespace.open().await;
        (namespace, dao)
    }

    async fn reopen(&self, namespace: &Namespace) -> Option<Self::Dao> {
        Some(namespace.open().await)
    }

    async fn reopen_ahead(&self, namespace: &Namespace, ahead: Duration) -> Option<Self::Dao> {
        Some(namespace.builder().pretend_ahead(ahead).open().await.expect("the file can be opened"))
    }
}

conformance!(sqlite, Sqlite::default());

/// 4,096 histories.
#[test]
fn every_order_of_three_steps() {
    lockcore_conformance::run(Sqlite::default(), |store| every_short_history_agrees_with_the_model(store, 3));
}

/// Contexts of any text, which the suite's stores do not have.
#[tokio::test]
async fn odd_contexts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let builder = SqliteLockDao::<String, String>::builder().path(folder.path().join("locks.db"));
    odd_contexts_are_kept_apart(&builder.open().await.expect("the file can be opened")).await;
}
