//! Locks in a folder that several hosts have mounted: NFS, SMB, sshfs, or a local disk.
//!
//! ```no_run
//! use lockcore::LockingService;
//! use lockcore_share::ShareLockDao;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let dao = ShareLockDao::<String>::builder().folder("/mnt/team/locks").open().await?;
//! let locks = LockingService::new(dao);
//! let sum = locks.with_locks(["objects/7"], async || -> std::io::Result<_> { Ok(40 + 2) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! No lock of the file system is used, neither `flock` nor `fcntl`: on shares they are advisory for one host at a time, lost after a
//! restart of the server, or not there at all.
//!
//! # How it works
//! This is [`lockcore_cell`], the engine for stores with a compare-and-set, over files: its page has the protocol. A cell is a folder,
//! `FOLDER/NAMESPACE/table` or `FOLDER/NAMESPACE/session/NAME`, with these files, none of which is ever changed:
//! - `origin.cell`, which exists as long as the cell does. It names the cell's *life*, which no other has.
//! - `LIFE.N` with version N of the content. Version N + 1 is written to a file of another name, synced, and *linked* to its name, which
//!   the server does for one of all writers. The last eight versions are kept.
//!
//! Three rules make that a compare-and-set, whatever a client's caches say:
//! - **S1**: versions are removed in ascending order. So as long as version N is there, N + 1 was never removed.
//! - **S2**: a writer of N + 1 looks for N and for the origin *after* it has linked. If both are there it was the first to link (S1), and the
//!   cell was not removed. Otherwise its write is in doubt, and the engine looks for it.
//! - **S3**: a reader that finds no N + 1 looks for N after that. If it is there N was the newest (S1).
//!
//! A link whose answer was lost is known by reading the file of that name: it says who wrote it.
//!
//! **Time** is the server's: when a file was modified that was just written, an interval that each answer narrows. No wall clock of any
//! client counts, unless the file system takes the client's, as a local one does.
//!
//! # What to know
//! - The folder has to be there: it is not created, so that a mount point without its share is no empty store. Make it *within* the share.
//! - Who may write the folder may use its locks: what is created there gets the folder's permissions, whatever the umask is.
//! - A folder that is replaced while it is in use, or mounted again, is refused until the program opens it again.
//! - A file system without hard links is refused: FAT, and some servers of SMB.
//! - Leases are 10 s at least.
//! - A mount that hangs (`hard`, as is usual for NFS) keeps a thread for each request that was sent to it; after 32 of them all further
//!   ones are refused until it answers.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod cells;
mod config;
mod dao;
mod error;
mod file;
mod folder;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use cells::Files;
pub use config::ShareBuilder;
pub use dao::{CAPABILITIES, ShareLockDao};
