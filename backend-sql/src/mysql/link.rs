//! A connection, and the one kind of exchange on it: a routine is called, and answers with text.

use std::sync::Arc;

use futures_util::TryStreamExt;
use sqlx::{
    AssertSqlSafe, Either, Executor, MySql, MySqlConnection, Row, mysql::MySqlArguments,
    pool::PoolConnection, query::Query,
};

use super::error::failed;
use crate::server::ServerError;

/// A connection of our own, or one lent by the user's pool.
pub struct Link {
    source: Source,
    /// The number of the namespace, once it was asked for.
    pub(super) namespace: Option<u32>,
    /// It failed after the answer, and is not to be used again.
    pub(super) spoilt: bool,
}

enum Source {
    Own(Box<MySqlConnection>),
    Lent(PoolConnection<MySql>),
}

/// A routine, and how it is called.
#[derive(Clone, Debug)]
pub(super) struct Routine {
    /// Prepared once for each connection.
    call: Arc<str>,
}

/// What is given to a routine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument<'r> {
    Bytes(&'r [u8]),
    /// `NULL` if there is none.
    MaybeBytes(Option<&'r [u8]>),
    Text(&'r str),
    Int(i64),
    /// `NULL` if there is none.
    MaybeInt(Option<i64>),
}

/// What a routine answers with.
#[derive(Default, Debug)]
pub(super) struct Reply {
    pub(super) text: String,
    /// Sessions that it was to wake and had not the right to.
    pub(super) unrung: String,
}

impl Routine {
    /// `name` is quoted.
    pub(super) fn new(name: &str, parameters: usize) -> Self {
        let list = vec!["?"; parameters].join(", ");
        Routine { call: format!("CALL {name}({list})").into() }
    }
}

impl Link {
    pub(super) fn own(conn: MySqlConnection) -> Self {
        Link { source: Source::Own(Box::new(conn)), namespace: None, spoilt: false }
    }

    pub(super) fn lent(conn: PoolConnection<MySql>) -> Self {
        Link { source: Source::Lent(conn), namespace: None, spoilt: false }
    }

    pub(super) fn raw(&mut self) -> &mut MySqlConnection {
        match &mut self.source {
            Source::Own(conn) => conn,
            Source::Lent(conn) => conn,
        }
    }

    /// One round trip, once the statement is prepared.
    pub(super) async fn call(
        &mut self,
        routine: &Routine,
        arguments: &[Argument<'_>],
    ) -> Result<Reply, ServerError> {
        let mut answer = Reply::default();
        let add = |part: Reply| {
            answer.text.push_str(&part.text);
            answer.unrung.push_str(&part.unrung);
        };
        self.call_for_parts(routine, arguments, add).await?;
        Ok(answer)
    }

    /// The same; `hear` gets each part of the answer as soon as it is there, also if the routine fails behind it.
    pub(super) async fn call_for_parts(
        &mut self,
        routine: &Routine,
        arguments: &[Argument<'_>],
        mut hear: impl FnMut(Reply),
    ) -> Result<(), ServerError> {
        let mut query: Query<'_, MySql, MySqlArguments> = sqlx::query(AssertSqlSafe(routine.call.clone()));
        for argument in arguments {
            query = match *argument {
                Argument::Bytes(bytes) => query.bind(bytes),
                Argument::MaybeBytes(bytes) => query.bind(bytes),
                Argument::Text(text) => query.bind(text),
                Argument::Int(int) => query.bind(int),
                Argument::MaybeInt(int) => query.bind(int),
            };
        }
        // All of it, to the end: the routine's own outcome comes behind the rows.
        let mut results = self.raw().fetch_many(query);
        let mut part = Reply::default();
        while let Some(result) = results.try_next().await.map_err(failed)? {
            match result {
                Either::Right(row) => {
                    part.text.push_str(row.try_get_unchecked(0).map_err(failed)?);
                    part.unrung.push_str(row.try_get_unchecked(1).map_err(failed)?);
                }
                // Nothing to tell is not sent: a row is a message of its own.
                Either::Left(_) if part.text.is_empty() && part.unrung.is_empty() => {}
                Either::Left(_) => hear(std::mem::take(&mut part)),
            }
        }
        Ok(())
    }

    /// The first column of the first row with which a statement answers, sent as text.
    pub(super) async fn text(&mut self, statement: &str) -> Result<Option<String>, ServerError> {
        let rows = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(self.raw()).await.map_err(failed)?;
        match rows.first() {
            Some(row) => row.try_get_unchecked(0).map_err(failed),
            None => Ok(None),
        }
    }
}
