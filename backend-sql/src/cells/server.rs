//! The questions to a server, and its answers.

use std::collections::HashMap;

use bytes::Bytes;
use lockcore::backend::Moment;

use crate::server::{Server, ServerError};

/// The most names of a page.
pub(crate) const PAGE: usize = 1000;

/// A server that is asked by statements.
pub(crate) trait Statements: Server {
    /// Receives notifications.
    type Listener: Send + 'static;

    /// Reads the store's time in microseconds, and those of these cells that are there: the content unless its version is `known`.
    fn select(
        &self,
        conn: &mut Self::Conn,
        ns: &str,
        names: &[&str],
        known: &[i64],
    ) -> impl Future<Output = Result<Selected, ServerError>> + Send;

    /// Inserts a row, unless there is one; returns whether it did.
    fn insert(
        &self,
        conn: &mut Self::Conn,
        ns: &str,
        row: &Row<'_>,
    ) -> impl Future<Output = Result<bool, ServerError>> + Send;

    /// Updates a row of the version `previous`; returns whether there was one.
    fn update(
        &self,
        conn: &mut Self::Conn,
        ns: &str,
        row: &Row<'_>,
    ) -> impl Future<Output = Result<bool, ServerError>> + Send;

    /// Writes all rows, which are sorted by name, or none; returns whether it did.
    fn write_all(
        &self,
        conn: &mut Self::Conn,
        ns: &str,
        rows: &[Row<'_>],
    ) -> impl Future<Output = Result<bool, ServerError>> + Send;

    /// Deletes a row, if it is of this version.
    fn delete(
        &self,
        conn: &mut Self::Conn,
        ns: &str,
        name: &str,
        version: Option<i64>,
    ) -> impl Future<Output = Result<(), ServerError>> + Send;

    /// Lists at most [`PAGE`] + 1 names between two, without those that are like `inner`, with when they were written.
    fn list(
        &self,
        conn: &mut Self::Conn,
        ns: &str,
        between: [&str; 2],
        inner: &str,
    ) -> impl Future<Output = Result<Vec<(String, u64)>, ServerError>> + Send;

    /// Enters the namespace as one that is locked by statements, and refuses it if it is locked by routines. [`Misconfigured`] if there
    /// is no table.
    ///
    /// [`Misconfigured`]: lockcore::BackendErrorKind::Misconfigured
    fn enter(&self, conn: &mut Self::Conn) -> impl Future<Output = Result<(), ServerError>> + Send;

    /// Creates the tables that are not there.
    fn make(&self, conn: &mut Self::Conn) -> impl Future<Output = Result<(), ServerError>> + Send;

    /// Reads what the server says of its version.
    fn version(&self, conn: &mut Self::Conn) -> impl Future<Output = Result<String, ServerError>> + Send;

    /// Listens for what others [`notify`](Self::notify); `None` where there is nothing to listen to.
    fn listen(&self, ns: &str) -> impl Future<Output = Result<Option<Self::Listener>, ServerError>> + Send;

    /// Waits for the next notification. Cancel safe.
    fn receive(
        &self,
        listener: &mut Self::Listener,
    ) -> impl Future<Output = Result<String, ServerError>> + Send;

    /// Returns once the listener has shown that it still receives.
    fn probe(&self, listener: &mut Self::Listener) -> impl Future<Output = Result<(), ServerError>> + Send;

    /// Notifies all that listen.
    fn notify(
        &self,
        conn: &mut Self::Conn,
        ns: &str,
        text: &str,
    ) -> impl Future<Output = Result<(), ServerError>> + Send;

    /// Reports whether there is something to listen to.
    fn listens(&self) -> bool;

    /// Sends what is asked.
    fn carry_out(
        &self,
        conn: &mut Self::Conn,
        ns: &str,
        ask: &Ask<'_>,
    ) -> impl Future<Output = Result<Answer, ServerError>> + Send {
        async move {
            let nothing = Answer::default();
            Ok(match ask {
                Ask::Select(names, known) => {
                    let sent = Moment::now();
                    let selected = self.select(conn, ns, names, known).await?;
                    Answer { selected, at: Some((sent, Moment::now())), ..nothing }
                }
                Ask::Insert(row) => Answer { done: self.insert(conn, ns, row).await?, ..nothing },
                Ask::Update(row) => Answer { done: self.update(conn, ns, row).await?, ..nothing },
                Ask::WriteAll(rows) => Answer { done: self.write_all(conn, ns, rows).await?, ..nothing },
                Ask::List(between, inner) => {
                    Answer { listed: self.list(conn, ns, *between, inner).await?, ..nothing }
                }
                Ask::Version => Answer { text: self.version(conn).await?, ..nothing },
                Ask::Delete(name, version) => {
                    self.delete(conn, ns, name, *version).await.map(|()| nothing)?
                }
                Ask::Enter => self.enter(conn).await.map(|()| nothing)?,
                Ask::Make => self.make(conn).await.map(|()| nothing)?,
                Ask::Notify(text) => self.notify(conn, ns, text).await.map(|()| nothing)?,
            })
        }
    }
}

/// A question to a server, by the methods of [`Statements`].
#[derive(Debug)]
pub(crate) enum Ask<'r> {
    Select(&'r [&'r str], &'r [i64]),
    Insert(Row<'r>),
    Update(Row<'r>),
    WriteAll(&'r [Row<'r>]),
    Delete(&'r str, Option<i64>),
    List([&'r str; 2], &'r str),
    Enter,
    Make,
    Version,
    Notify(&'r str),
}

impl Ask<'_> {
    /// Reports whether it changes nothing, or nothing that a second one would change again.
    pub(super) fn can_be_repeated(&self) -> bool {
        matches!(
            self,
            Ask::Select(..) | Ask::List(..) | Ask::Enter | Ask::Make | Ask::Version | Ask::Notify(_)
        )
    }
}

/// The answer, of which only that is set which was asked for.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Set if a conditional write was done.
    pub(super) done: bool,
    pub(super) selected: Selected,
    /// The moments at which it was selected: before and after.
    pub(super) at: Option<(Moment, Moment)>,
    pub(super) listed: Vec<(String, u64)>,
    pub(super) text: String,
}

/// The row of a cell, as it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'r> {
    pub(crate) name: &'r str,
    pub(crate) version: i64,
    /// The version that it replaces; 0: there is none.
    pub(crate) previous: i64,
    pub(crate) content: &'r [u8],
}

/// The outcome of a `SELECT`.
#[derive(Debug, Default)]
pub(crate) struct Selected {
    /// The store's time, in microseconds.
    pub(crate) now: u64,
    pub(crate) rows: HashMap<String, (i64, Option<Bytes>)>,
}
