//! The conformance suite on SQLite.

use std::path::PathBuf;

use lockcore_conformance::{Backend, conformance};
use lockcore_sql::SqliteLockDao;
use tempfile::TempDir;
use uuid::Uuid;

/// A file of its own for each store.
struct Sqlite;

impl Backend for Sqlite {
    type Dao = SqliteLockDao<String, Uuid>;
    type Guard = TempDir;

    async fn build(&self) -> (TempDir, Self::Dao) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dao = SqliteLockDao::open(file(&folder)).await.expect("a new file can be opened");
        (folder, dao)
    }

    async fn reopen(&self, folder: &TempDir) -> Option<Self::Dao> {
        Some(SqliteLockDao::open(file(folder)).await.expect("the file can be opened once more"))
    }
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("locks.db")
}

conformance!(sqlite, Sqlite);
