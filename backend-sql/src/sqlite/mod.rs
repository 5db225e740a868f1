//! Locks in a SQLite database: the embedded default, for any number of processes of one host.
//!
//! ```
//! use lockcore::LockingService;
//! use lockcore_sql::SqliteLockDao;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("locks.db");
//! let locks = LockingService::new(SqliteLockDao::<String>::open(path).await?);
//! let sum = locks.with_locks(["accounts/7"], async || -> std::io::Result<_> { Ok(40 + 2) }).await?;
//! assert_eq!(sum, 42);
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! - **One step, one transaction.** A step has the file's write lock from its beginning, so that nothing else moves
//!   meanwhile and everything is decided in this process by [`lockcore::engine`].
//! - **In the caller's thread, unless it has to wait.** A step takes some ten microseconds, less than a change of threads.
//!   So it is done in the poll of its future while the connection is not in use and no other process has the write lock.
//!   Otherwise it is sent to a thread of the DAO's own, which may wait; and so are sets of more than 128 ids,
//!   administration, checkpoints, and all steps with [`Synchronous::Full`]. A step takes place though the caller's future
//!   is dropped, and in the order of the calls, so that a withdrawal never overtakes what it withdraws.
//! - **Leases** are stored as boot of the host and time since: setting the wall clock moves none, a
//!   suspended host's time counts, a reboot voids all. A row from the future counts as granted now. Another boot
//!   id alone is no reboot: containers may have boot ids of their own (systemd-nspawn, LXC, Incus). A reboot is
//!   certain only if the time since boot is lower than it was and the wall clock agrees; in doubt a lease of
//!   an earlier boot counts until it ends.
//! - **Fences** come from one number for each namespace, never below the wall clock's microseconds; so
//!   nothing has to be kept of an id that is not held.
//! - **The dead.** Rows name the session that made them and thereby its process. A holder in the way whose
//!   process has ended is taken over at once, unless its lock is detached; a process in another container,
//!   or under another boot id, cannot be seen, and its lease has to end. On Linux a process needs `/proc`: without it
//!   neither its clock nor its process number can be related to those of others, and opening fails.
//! - **Waiting.** A step that frees something grants it to the next waiter in the same transaction, as an offer
//!   of at most 2 s. A session with waiters writes a heartbeat every second, which counts for 3 s.
//! - **Waking.** A waiter of the same process is notified after the commit. For one of another process the
//!   releaser notifies its session, by a datagram without content to an abstract socket; the
//!   session then reads its offers. From the release to the confirmed grant in another process half of
//!   the hand-offs took at most 0.2 ms. Where no datagram arrives - another network namespace,
//!   another system than Linux - the session polls the table every 250 ms. The same poll finds holders that
//!   died or let their lease end.
//!
//! # What to know
//! - A process that is stopped (`SIGSTOP`, a debugger) in the middle of a transaction keeps the write lock:
//!   all others get [`Busy`](lockcore::BackendErrorKind::Busy) after their
//!   [busy timeout](SqliteBuilder::busy_timeout), certain that nothing was done, until it goes on or dies.
//! - The first commit after a checkpoint waits for the disk, once in some hundred commits. The DAO's thread makes it after
//!   its own checkpoints; after that of another process it may be a caller's step.
//! - A reader that keeps a snapshot open - a backup, a forgotten shell with `BEGIN` - lets the log beside the file grow by some
//!   kilobytes with each use of a lock, until it ends; `doctor` looks at its size.
//! - On a full disk everything that writes fails, renewals and releases too, so that holders are stopped in time and their locks end
//!   with their leases. Once there is room nothing has to be repaired.
//! - The file must be on a local file system, and all its users on one host: SQLite's WAL needs memory that
//!   they share. Network file systems are refused; of FUSE, which may be one, [`doctor`](lockcore::LockDao::doctor)
//!   warns. The same holds for sandboxes that keep file locks to themselves, such as gVisor's. Nothing but SQLite may
//!   open the file in these processes: closing any other handle of it drops SQLite's locks.
//! - A new file is readable and writable for its owner only, see [`SqliteBuilder::create`].
//! - Listing and inspecting leave nothing behind: the namespace and the session of a DAO are written by its first step
//!   that writes.
//! - A path is never a URI: `file:` is refused. Give an absolute one, since a relative one is another file in every
//!   folder.
//! - With [`Synchronous::Normal`] a crash of a process loses nothing. A crash of the host may lose the last
//!   commits, but then it voids all locks anyway, and fences go on from the wall clock.
//! - The file has one name: SQLite keeps its log, `-wal` and `-shm`, beside the name under which a program opens it, and
//!   programs with two logs would not see each other's locks. A file that has hard links, or is mounted by itself into a
//!   container, is refused: mount its folder. Symbolic links, and a folder that is mounted several times, are no other names.
//! - A file that is removed or replaced is noticed within a second while anything is held, and the holders learn of it;
//!   until then two processes may hold the same id, one in each file.
//! - A log that is removed while programs have the file open is noticed in the same way, and they put what stood in it into
//!   the file and open it again; a call that finds it out fails as [`Unavailable`](lockcore::BackendErrorKind::Unavailable).
//!   Until then no other program gets to open the file: it waits its busy timeout, and fails as
//!   [`Busy`](lockcore::BackendErrorKind::Busy). A program that holds nothing notices with its next call. Before a backup is
//!   copied back, end all programs that have the file open.
//! - Dropping a DAO waits up to 0.3 s until its session is closed, so that a process which ends right after does not
//!   look like one that died.
//! - A DAO does not survive `fork`: in the child every call fails.
//! - Shared locks are rows: with n holders of one id, asking for that id reads n rows.
//! - Elsewhere than on Linux there is no boot id: leases go by the wall clock, and outlive a reboot.
//!
//! # Layout
//! `dao` (the trait) has stored requests done by `database` (in the caller's thread, or in its own), which lends the
//! `worker`: the `store` (a transaction for each step), the waiters of this session (`watch`), and what is due without a
//! request. A `step` reads and writes rows (`row`) by statements (`statements`); `table` is how [`lockcore::engine`], which
//! decides, sees them: it reads no more of a queue than a decision needs. `acquire` and `release` have the usual cases, which
//! need no decision; beside them are `session`, `sweep` and `admin`. Below are `opened` (the connection), `schema`,
//! `busy` (waiting for the file), `file`, `process`, `clock`, `config` (plain data) and `error`.

mod acquire;
mod admin;
mod busy;
mod clock;
mod config;
mod dao;
mod database;
mod doctor;
mod error;
mod file;
mod opened;
mod process;
mod release;
mod row;
mod schema;
mod session;
mod statements;
mod step;
mod store;
mod sweep;
mod table;
mod watch;
mod worker;

pub use config::{SqliteBuilder, Synchronous};
pub use dao::{SqliteLockDao, capabilities};
pub use schema::schema_sql;
