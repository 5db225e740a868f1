//! Distributed locks in a folder that several hosts have mounted, by NFS, SMB or sshfs, or on a local disk: add `lockcore` and
//! `lockcore-share`, which has no features for users.
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
//! - `LIFE.N` with version N of the content, the name of the write that made it, and that of the write before. It is written to a file of
//!   another name, synced, and *linked* to its name, which the server does for one of all writers. At least the last eight versions are kept.
//!
//! Four rules make that a compare-and-set:
//! - **S1**: versions are removed in ascending order. So as long as version N is there, N + 1 was never removed.
//! - **S2**: a writer of N + 1 looks for N and for the origin *after* it has linked. If both are there it was the first to link (S1), and the
//!   cell was not removed. Otherwise its write is in doubt, and the engine looks for it.
//! - **S3**: a reader that finds no N + 1 looks after that for N, and for the version that N replaced. If they are there N was the newest (S1),
//!   and is none that a late writer has linked to a number that was removed.
//! - **S4**: that there is no cell counts only if a second look finds none either, after a file was made and removed in that folder, which
//!   makes clients forget what they know of its names; and if the folder is the one that was opened, by a file in it. A stale
//!   handle is an error that passes, and not an absence.
//!
//! The rules need of a client that it asks the server when it opens a file, as those of NFS, SMB and sshfs do: what was removed cannot be
//! opened. What it remembers of names, and of their absence, may be old.
//!
//! A link whose answer was lost is known by reading the file of that name: it says who wrote it.
//!
//! **Time** is that by which the file system dates a file that was just written: an interval that each answer narrows. With NFS, SMB and
//! sshfs it is the server's. Cluster file systems date by the hosts that write, as FUSE does with `writeback_cache`: there the clocks
//! of all hosts have to agree to a second. `lockctl doctor` says so.
//!
//! # What to know
//! - The folder has to be there: it is not created, so that a mount point without its share is no empty store. Make it *within* the share.
//! - What is created in the folder gets its permissions, whatever the umask is, and its group where the process may give it: set the bit
//!   for groups (`chmod g+s`) where users share it.
//! - A folder that is replaced while it is in use is refused until the program opens it again.
//! - A file system without hard links is refused: FAT, and some servers of SMB.
//! - Leases are 10 s at least.
//! - A mount that hangs (`hard`, as is usual for NFS) keeps a thread for each request that was sent to it; after 64 of them all further
//!   ones fail until it answers.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod cells;
mod config;
mod dao;
mod disk;
mod error;
mod file;
mod folder;
mod kind;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
#[path = "simulated_tests.rs"]
mod simulated;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use cells::Files;
pub use config::ShareBuilder;
pub use dao::{CAPABILITIES, ShareLockDao};
