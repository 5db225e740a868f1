//! What a database does without us: the floors.

use std::{fmt, time::Duration};

use lockcore::LockDao;
use uuid::Uuid;

/// Which commits are on the disk before they are answered, ours and theirs alike.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commits {
    /// Those that have to be: ours by default, and the bare statements in the same way.
    Usual,
    /// None.
    Async,
}

impl fmt::Display for Commits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Commits::Usual => "durable",
            Commits::Async => "all async",
        })
    }
}

/// A database: ours, and the bare side of it.
pub(crate) trait Database {
    type Dao: LockDao<String, Uuid>;
    type Statements: LockDao<String, Uuid>;
    type Bare: Bare;
    type Notifier: Notifier;
    /// What [`Bare::peer`] is.
    const PEER: &'static str;
    /// What [`Notifier::notify`] is.
    const WAKING: &'static str;
    /// What [`Notifier::write_and_notify`] is.
    const WRITING: &'static str;

    /// Ours, in tables of that prefix, with up to 32 connections.
    async fn open(url: &str, commits: Commits, prefix: &str) -> Self::Dao;

    /// Ours by plain statements, likewise. Each commit is on the disk before it is answered, or none.
    async fn open_without_routines(url: &str, commits: Commits, prefix: &str) -> Self::Statements;

    /// One bare client, of a table that all of them share.
    async fn bare(url: &str, commits: Commits) -> Self::Bare;

    /// A client that is woken by another.
    async fn notifier(url: &str, commits: Commits) -> Self::Notifier;

    /// Makes every durable commit take some milliseconds, as a slow disk would, or no more; what it is called, if the
    /// database can do that.
    async fn slow_commits(url: &str, slow: bool) -> Option<&'static str>;

    /// Before many rows are written: memory for them, if it reads past the operating system's cache.
    async fn make_room(url: &str);

    /// After many rows were written: makes it as it would be some time later.
    async fn settle(url: &str);
}

/// A client with a table of ids, holders and when their time is over.
pub(crate) trait Bare {
    /// Takes what is free or over: one statement.
    async fn take(&mut self, names: &[String]);

    /// Removes what it took: one statement.
    async fn free(&mut self, names: &[String]);

    /// Takes what is free or over, in rows that are there already, each with a count of how often it was taken: one statement.
    async fn take_kept(&mut self, names: &[String]);

    /// Frees what it took, and keeps the rows: one statement.
    async fn free_kept(&mut self, names: &[String]);

    /// Locks and unlocks with what the database has: bound to the session, without lease or fence.
    async fn peer(&mut self, name: &str);
}

/// One connection that waits for another.
pub(crate) trait Notifier {
    /// From the call of one to the answer to the other.
    async fn notify(&mut self) -> Duration;

    /// The same, after a row was written that is on the disk (unless nothing has to be) before the other is notified of it.
    async fn write_and_notify(&mut self) -> Duration;
}
