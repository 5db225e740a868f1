//! A connection, and the exchanges on it: a routine is called, and answers with text; a statement is executed.

use std::fmt::Write;

use futures_util::TryStreamExt;
use sqlx::{
    AssertSqlSafe, Either, Executor, MySql, MySqlConnection, Row,
    mysql::{MySqlArguments, MySqlRow},
    pool::PoolConnection,
    query::Query,
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

    /// Calls a routine. `receive` gets each part of the answer as soon as it is there, also if the routine fails later.
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

/// Statements about so many things are prepared, one for each number; those about more are sent as text. The driver keeps a hundred on
/// a connection.
const PREPARED: usize = 16;

/// A statement with a `?` for each value, or with the values in it.
pub(super) struct Statement<'r> {
    sql: String,
    /// `None` if the values stand in the text.
    values: Option<Vec<Value<'r>>>,
}

/// A value of a statement.
enum Value<'r> {
    Int(i64),
    Bytes(&'r [u8]),
}

impl<'r> Statement<'r> {
    /// Begins a statement about so many things.
    pub(super) fn about(things: usize) -> Self {
        Statement { sql: String::new(), values: (things <= PREPARED).then(Vec::new) }
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.sql.push_str(text);
        self
    }

    pub(super) fn int(&mut self, int: i64) -> &mut Self {
        match &mut self.values {
            Some(values) => {
                values.push(Value::Int(int));
                self.sql.push('?');
            }
            None => drop(write!(self.sql, "{int}")),
        }
        self
    }

    /// In hexadecimal where it is text, so that no quoting depends on the session.
    pub(super) fn bytes(&mut self, bytes: &'r [u8]) -> &mut Self {
        match &mut self.values {
            Some(values) => {
                values.push(Value::Bytes(bytes));
                self.sql.push('?');
            }
            None => {
                self.sql.push_str("X'");
                for byte in bytes {
                    let _ = write!(self.sql, "{byte:02X}");
                }
                self.sql.push('\'');
            }
        }
        self
    }

    fn bound(&self, values: &[Value<'r>]) -> Query<'r, MySql, MySqlArguments> {
        let query = sqlx::query(AssertSqlSafe(self.sql.clone()));
        values.iter().fold(query, |query, value| match value {
            Value::Int(int) => query.bind(*int),
            Value::Bytes(bytes) => query.bind(*bytes),
        })
    }

    pub(super) async fn rows(&self, link: &mut Link) -> Result<Vec<MySqlRow>, ServerError> {
        let rows = match &self.values {
            Some(values) => self.bound(values).fetch_all(link.raw()).await,
            None => sqlx::raw_sql(AssertSqlSafe(self.sql.clone())).fetch_all(link.raw()).await,
        };
        rows.map_err(failed)
    }

    pub(super) async fn execute(&self, link: &mut Link) -> Result<u64, ServerError> {
        let done = match &self.values {
            Some(values) => self.bound(values).execute(link.raw()).await,
            None => sqlx::raw_sql(AssertSqlSafe(self.sql.clone())).execute(link.raw()).await,
        };
        done.map(|done| done.rows_affected()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_about_much_are_sent_as_text() {
        for (things, sql) in [(1, "a ? b ?"), (PREPARED + 1, "a -7 b X'00FF27'")] {
            let mut statement = Statement::about(things);
            statement.text("a ").int(-7).text(" b ").bytes(&[0, 0xff, b'\'']);
            assert_eq!(statement.sql, sql);
        }
    }
}
