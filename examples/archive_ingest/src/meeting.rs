//! For tests of races: all workers of all processes come to an object before one of them writes it.

use std::{io, path::PathBuf, time::Duration};

use anyhow::ensure;
use object_store::path::Path as Key;
use sha2::{Digest, Sha256};
use tokio::{
    fs,
    time::{Instant, sleep},
};

use crate::manifest::hex;

/// How long to wait for the others: far longer than they need.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder in which each worker leaves a file for each object that it has come to: has found missing, or locked.
pub(crate) struct Meeting {
    pub(crate) folder: PathBuf,
    /// How many are to come.
    pub(crate) workers: usize,
}

impl Meeting {
    /// Lets the others know that this worker has come to the object.
    pub(crate) async fn come(&self, object: &Key, worker: &str) -> io::Result<()> {
        let folder = self.folder_of(object);
        fs::create_dir_all(&folder).await?;
        fs::write(folder.join(worker), "").await
    }

    /// Waits until all have come to it.
    pub(crate) async fn wait_for_all(&self, object: &Key) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut there = 0;
            let mut folder = fs::read_dir(self.folder_of(object)).await?;
            while folder.next_entry().await?.is_some() {
                there += 1;
            }
            if there >= self.workers {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "only {there} of {} workers have come", self.workers);
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn folder_of(&self, object: &Key) -> PathBuf {
        self.folder.join(hex(&Sha256::digest(object.as_ref())))
    }
}
