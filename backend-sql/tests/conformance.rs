//! The conformance suite on the SQLite backend.

use lockcore_conformance::{Backend, conformance};
use lockcore_sql::SqliteLockDao;
use tempfile::TempDir;
use uuid::Uuid;

/// A file in a folder of its own for each store; another process would open the same file.
struct Sqlite;

impl Sqlite {
    async fn open(&self, folder: &TempDir) -> SqliteLockDao<String, Uuid> {
        let opened = SqliteLockDao::builder().path(folder.path().join("locks.db")).open().await;
        opened.expect("the file can be opened")
    }
}

impl Backend for Sqlite {
    type Dao = SqliteLockDao<String, Uuid>;
    type Guard = TempDir;

    async fn build(&self) -> (TempDir, Self::Dao) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dao = self.open(&folder).await;
        (folder, dao)
    }

    async fn reopen(&self, folder: &TempDir) -> Option<Self::Dao> {
        Some(self.open(folder).await)
    }
}

conformance!(sqlite, Sqlite);
