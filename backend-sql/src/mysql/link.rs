//! A connection, and the one kind of exchange on it: a routine is called, and answers with text.

use futures_util::TryStreamExt;
use sqlx::{
    AssertSqlSafe, Either, Executor, MySql, MySqlConnection, Row, mysql::MySqlArguments,
    pool::PoolConnection, query::Query,
};

use super::error::failed;
use crate::server::ServerError;

/// A connection of our own, or one lent by the user's pool.
pub(crate) struct Link {
    conn: Connection,
    /// The number of the namespace, once it was read.
    pub(super) namespace: Option<u32>,
    /// It failed after the answer, and is not to be used again.
    pub(super) spoilt: bool,
}

enum Connection {
    Own(Box<MySqlConnection>),
    Lent(PoolConnection<MySql>),
}

/// An argument of a routine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument<'r> {
    Bytes(&'r [u8]),
    /// `NULL` if there is none.
    MaybeBytes(Option<&'r [u8]>),
    Text(&'r str),
    Int(i64),
}

/// The answer of a routine.
#[derive(Default, Debug)]
pub(super) struct Reply {
    pub(super) text: String,
    /// Sessions that the routine could not wake, because it may interrupt only connections of its own user.
    pub(super) to_wake: String,
}

impl Link {
    pub(super) fn own(conn: MySqlConnection) -> Self {
        Link { conn: Connection::Own(Box::new(conn)), namespace: None, spoilt: false }
    }

    pub(super) fn lent(conn: PoolConnection<MySql>) -> Self {
        Link { conn: Connection::Lent(conn), namespace: None, spoilt: false }
    }

    pub(super) fn is_own(&self) -> bool {
        matches!(self.conn, Connection::Own(_))
    }

    pub(super) fn raw(&mut self) -> &mut MySqlConnection {
        match &mut self.conn {
            Connection::Own(conn) => conn,
            Connection::Lent(conn) => conn,
        }
    }

    /// Calls a routine, whose name is quoted; one round trip, once the statement is prepared.
    pub(super) async fn call(
        &mut self,
        routine: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Reply, ServerError> {
        let mut reply = Reply::default();
        let add = |part: Reply| {
            reply.text.push_str(&part.text);
            reply.to_wake.push_str(&part.to_wake);
        };
        self.call_for_parts(routine, arguments, add).await?;
        Ok(reply)
    }

    /// The same; `receive` gets each part of the answer as soon as it is there, also if the routine fails after it.
    pub(super) async fn call_for_parts(
        &mut self,
        routine: &str,
        arguments: &[Argument<'_>],
        mut receive: impl FnMut(Reply),
    ) -> Result<(), ServerError> {
        // sqlx keeps it prepared by its text.
        let call = format!("CALL {routine}({})", vec!["?"; arguments.len()].join(", "));
        let mut query: Query<'_, MySql, MySqlArguments> = sqlx::query(AssertSqlSafe(call));
        for argument in arguments {
            query = match *argument {
                Argument::Bytes(bytes) => query.bind(bytes),
                Argument::MaybeBytes(bytes) => query.bind(bytes),
                Argument::Text(text) => query.bind(text),
                Argument::Int(int) => query.bind(int),
            };
        }
        // All of it, to the end: the routine's own outcome comes after the rows.
        let mut results = self.raw().fetch_many(query);
        let mut part = Reply::default();
        while let Some(result) = results.try_next().await.map_err(failed)? {
            match result {
                Either::Right(row) => {
                    part.text.push_str(row.try_get_unchecked(0).map_err(failed)?);
                    part.to_wake.push_str(row.try_get_unchecked(1).map_err(failed)?);
                }
                // An empty answer is not sent: a row is a message of its own.
                Either::Left(_) if part.text.is_empty() && part.to_wake.is_empty() => {}
                Either::Left(_) => receive(std::mem::take(&mut part)),
            }
        }
        Ok(())
    }

    /// Executes a statement, sent as text, and returns the first column of its first row.
    pub(super) async fn text(&mut self, statement: &str) -> Result<Option<String>, ServerError> {
        let rows = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(self.raw()).await.map_err(failed)?;
        match rows.first() {
            Some(row) => row.try_get_unchecked(0).map_err(failed),
            None => Ok(None),
        }
    }
}
