//! The checks of an adapter and of its DAO, on the adapter that the book shows.

mod sqlite;

use std::{path::PathBuf, process::ExitCode};

use lockcore_cell::CellLockDao;
use lockcore_conformance::{
    Backend,
    cell::Adapter,
    servers::{self, cell_checks, checks},
};
use sqlite::Rows;
use tempfile::TempDir;

fn main() -> ExitCode {
    servers::run(cell_checks("rows", async || Ok(File)).chain(checks("rows", async || Ok(File))))
}

/// A file of its own for each test.
struct File;

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("cells.db")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for the file")
}

impl Adapter for File {
    type Cell = Rows;
    type Place = TempDir;

    const MANY: usize = 1100;

    async fn place(&self) -> TempDir {
        folder()
    }

    async fn open(&self, place: &TempDir) -> Rows {
        Rows::open(&file(place)).expect("a file in an own folder can be opened")
    }
}

impl Backend for File {
    type Dao = CellLockDao<Rows>;
    type Guard = TempDir;

    async fn build(&self) -> (TempDir, CellLockDao<Rows>) {
        let folder = folder();
        let dao = self.reopen(&folder).await.expect("the file outlives it");
        (folder, dao)
    }

    async fn reopen(&self, folder: &TempDir) -> Option<CellLockDao<Rows>> {
        Some(Rows::locks(&file(folder)).await.expect("a file in an own folder can be opened"))
    }
}
