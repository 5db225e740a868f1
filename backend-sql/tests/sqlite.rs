//! The conformance suite on the SQLite backend.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore_conformance::{
    Backend, PATIENCE,
    checks::{contexts::odd_contexts_are_kept_apart, histories::every_short_history_agrees_with_the_model},
    servers::{self, Trial},
};
use lockcore_sql::{SqliteBuilder, SqliteLockDao};
use rusqlite::Connection;
use tempfile::TempDir;
use uuid::Uuid;

/// By how much the clock of every DAO is ahead: what is made older must not be from before the boot.
const AHEAD: Duration = Duration::from_secs(24 * 3600);

/// What lets time pass for a namespace: all that its rows say of time is so much older, as if the host's clock had gone on.
/// Heartbeats are not, which the processes that are alive send by the clock.
const OLDER: [&str; 4] = [
    "UPDATE lockcore_claims SET renewed = renewed - ?2, since = since - ?2",
    "UPDATE lockcore_withdrawn SET until = until - ?2",
    "UPDATE lockcore_breaks SET at = at - ?2",
    "UPDATE lockcore_namespaces SET swept_at = swept_at - ?2",
];

/// What no program of ours writes into the row of a holder.
const UNREADABLE: [&str; 4] = ["lease = -1", "since = -1", "renewed = -1", "mode = 1, permits = -1"];

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
        SqliteLockDao::builder().path(self.file()).namespace(&*self.name).pretend_ahead(AHEAD)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("locks.db")
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
        Some(namespace.builder().pretend_ahead(AHEAD + ahead).open().await.expect("the file can be opened"))
    }

    async fn advance(&self, namespace: &Namespace, by: Duration) -> bool {
        if by.is_zero() {
            return true;
        }
        let by = i64::try_from(by.as_micros()).expect("a check is not that long");
        let file = Connection::open(namespace.file()).expect("the file can be opened");
        file.busy_timeout(PATIENCE).expect("it can be set");
        file.execute_batch("BEGIN IMMEDIATE").expect("the file is free some time");
        for table in OLDER {
            let of_namespace = "WHERE ns = (SELECT ns FROM lockcore_namespaces WHERE name = ?1)";
            file.execute(&format!("{table} {of_namespace}"), (&namespace.name, by)).expect("a table of ours");
        }
        file.execute_batch("COMMIT").expect("it can be written");
        true
    }

    async fn spoil(&self, namespace: &Namespace, id: &str, way: usize) -> bool {
        let Some(values) = UNREADABLE.get(way) else { return false };
        let file = Connection::open(namespace.file()).expect("the file can be opened");
        file.busy_timeout(PATIENCE).expect("it can be set");
        let of_id = "ns = (SELECT ns FROM lockcore_namespaces WHERE name = ?1) AND id = ?2";
        let spoil = format!("UPDATE lockcore_claims SET {values} WHERE {of_id}");
        file.execute(&spoil, (&namespace.name, id.as_bytes())).expect("a table of ours") == 1
    }
}

pub(crate) fn checks() -> impl Iterator<Item = Trial> {
    servers::checks("sqlite", || async { Ok(Sqlite::default()) })
}

pub(crate) fn trials() -> Vec<Trial> {
    let every_order = || {
        lockcore_conformance::run(Sqlite::default(), |store| {
            every_short_history_agrees_with_the_model(store, 3)
        })
    };
    // 4,096 histories.
    let every_order = Trial::test("sqlite::own::every_order_of_three_steps", move || {
        every_order();
        Ok(())
    });
    let mut own = tests!["own", odd_contexts];
    own.push(every_order);
    own
}

/// Contexts of any text, which the suite's stores do not have.
async fn odd_contexts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let builder = SqliteLockDao::<String, String>::builder().path(folder.path().join("locks.db"));
    odd_contexts_are_kept_apart(&builder.open().await.expect("the file can be opened")).await;
}
