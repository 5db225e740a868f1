//! A connection, and the exchanges on it: a [`Call`] of a routine, which answers with text, and a plain [`Statement`].

use std::{fmt::Write, time::Duration};

use sqlx::{
    AssertSqlSafe, PgConnection, Row,
    pool::PoolConnection,
    postgres::{PgArguments, PgRow},
    query::{Query, QueryScalar},
};

use super::error::failed;
use crate::server::ServerError;

/// A connection of our own, or one lent by the user's pool.
pub(crate) struct Link {
    conn: Connection,
    /// The time for which a call may wait for locks of rows and tables, where nothing is set in the session.
    pub(super) limit: Option<Duration>,
}

enum Connection {
    Own(Box<PgConnection>),
    Lent(PoolConnection<sqlx::Postgres>),
}

/// A call of a routine.
#[derive(Debug)]
pub(super) struct Call<'r> {
    /// The routine's name, quoted.
    pub(super) routine: String,
    /// Called, rather than selected from: it commits by itself, and its last parameter, empty at first, is the answer.
    pub(super) is_procedure: bool,
    pub(super) arguments: &'r [Argument<'r>],
}

/// An argument of a routine. Only these types, so that no statement needs a look at the catalogue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument<'r> {
    Bytes(&'r [u8]),
    Int(i64),
    ManyBytes(&'r [Vec<u8>]),
    EachBytes(&'r [&'r [u8]]),
    ManyInts(Option<&'r [i64]>),
    /// A text of ASCII without a quote or a backslash.
    Plain(&'r str),
    /// Several such texts.
    EachPlain(&'r [&'r str]),
}

impl Call<'_> {
    /// The statement with `$1`, `$2` and so on, by which sqlx keeps it prepared.
    fn prepared(&self, limit: Option<Duration>) -> String {
        self.statement(limit, |text, position| {
            let _ = write!(text, "${}", position + 1);
        })
    }

    /// The statement as text, for the simple protocol: one round trip without anything prepared.
    fn spelt_out(&self, limit: Option<Duration>) -> String {
        self.statement(limit, |text, position| self.arguments[position].spell_out(text))
    }

    /// A limit is set by the statement itself, before the routine begins, and for its transaction.
    fn statement(&self, limit: Option<Duration>, argument: impl Fn(&mut String, usize)) -> String {
        let limit = limit
            .map(|limit| format!("pg_catalog.set_config('lock_timeout', '{}', true)", limit.as_millis()));
        let (verb, answer) = match (self.is_procedure, limit) {
            (true, None) => ("CALL", ", '')".to_owned()),
            (true, Some(limit)) => ("CALL", format!(", pg_catalog.left({limit}, 0))")),
            (false, None) => ("SELECT", ")".to_owned()),
            (false, Some(limit)) => ("SELECT", format!(") FROM {limit}")),
        };
        let mut text = format!("{verb} {}(", self.routine);
        for position in 0..self.arguments.len() {
            if position > 0 {
                text.push_str(", ");
            }
            argument(&mut text, position);
        }
        text.push_str(&answer);
        text
    }
}

impl Argument<'_> {
    /// Nothing of the user's but digits and hexadecimal gets into the text.
    fn spell_out(&self, text: &mut String) {
        fn bytes(text: &mut String, bytes: &[u8]) {
            // `E''`, because without it a backslash means what standard_conforming_strings says.
            text.push_str("E'\\\\x");
            for byte in bytes {
                let _ = write!(text, "{byte:02x}");
            }
            text.push_str("'::bytea");
        }
        fn list<T>(text: &mut String, items: &[T], kind: &str, mut item: impl FnMut(&mut String, &T)) {
            text.push_str("ARRAY[");
            for (position, one) in items.iter().enumerate() {
                if position > 0 {
                    text.push(',');
                }
                item(text, one);
            }
            let _ = write!(text, "]::{kind}[]");
        }
        match self {
            Argument::Bytes(one) => bytes(text, one),
            Argument::Int(one) => {
                let _ = write!(text, "{one}::int8");
            }
            Argument::ManyBytes(many) => list(text, many, "bytea", |text, one| bytes(text, one)),
            Argument::EachBytes(many) => list(text, many, "bytea", |text, one| bytes(text, one)),
            Argument::ManyInts(Some(many)) => list(text, many, "int8", |text, one| {
                let _ = write!(text, "{one}");
            }),
            Argument::ManyInts(None) => text.push_str("NULL::int8[]"),
            Argument::Plain(one) => {
                let _ = write!(text, "'{one}'::text");
            }
            Argument::EachPlain(many) => list(text, many, "text", |text, one| {
                let _ = write!(text, "'{one}'");
            }),
        }
    }
}

impl Link {
    pub(super) fn own(conn: PgConnection) -> Self {
        Link { conn: Connection::Own(Box::new(conn)), limit: None }
    }

    pub(super) fn lent(conn: PoolConnection<sqlx::Postgres>) -> Self {
        Link { conn: Connection::Lent(conn), limit: None }
    }

    /// Returns whether it is not lent by the user's pool.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.conn, Connection::Own(_))
    }

    pub(super) fn raw(&mut self) -> &mut PgConnection {
        match &mut self.conn {
            Connection::Own(conn) => conn,
            Connection::Lent(conn) => conn,
        }
    }

    /// Runs statements that answer nothing.
    pub(super) async fn run(&mut self, sql: impl sqlx::SqlSafeStr) -> Result<(), ServerError> {
        sqlx::raw_sql(sql).execute(self.raw()).await.map(drop).map_err(failed)
    }

    /// One round trip, once the statement is prepared.
    pub(super) async fn call(&mut self, call: &Call<'_>, prepared: bool) -> Result<String, ServerError> {
        if !prepared {
            let text = AssertSqlSafe(call.spelt_out(self.limit));
            let row = sqlx::raw_sql(text).fetch_one(self.raw()).await.map_err(failed)?;
            return row.try_get(0).map_err(failed);
        }
        let mut query: QueryScalar<'_, sqlx::Postgres, String, PgArguments> =
            sqlx::query_scalar(AssertSqlSafe(call.prepared(self.limit)));
        for argument in call.arguments {
            query = match *argument {
                Argument::Bytes(bytes) => query.bind(bytes),
                Argument::Int(int) => query.bind(int),
                Argument::ManyBytes(many) => query.bind(many),
                Argument::EachBytes(many) => query.bind(many),
                Argument::ManyInts(many) => query.bind(many),
                Argument::Plain(text) => query.bind(text),
                Argument::EachPlain(many) => query.bind(many),
            };
        }
        query.fetch_one(self.raw()).await.map_err(failed)
    }
}

/// A statement with `$1` to `$9`, and what they stand for.
#[derive(Debug)]
pub(super) struct Statement<'r> {
    pub(super) sql: String,
    pub(super) arguments: &'r [Argument<'r>],
}

impl Statement<'_> {
    fn bound(&self) -> Query<'_, sqlx::Postgres, PgArguments> {
        let mut query = sqlx::query(AssertSqlSafe(self.sql.clone()));
        for argument in self.arguments {
            query = match *argument {
                Argument::Bytes(bytes) => query.bind(bytes),
                Argument::Int(int) => query.bind(int),
                Argument::ManyBytes(many) => query.bind(many),
                Argument::EachBytes(many) => query.bind(many),
                Argument::ManyInts(many) => query.bind(many),
                Argument::Plain(text) => query.bind(text),
                Argument::EachPlain(many) => query.bind(many),
            };
        }
        query
    }

    /// The statement as text, for the simple protocol.
    fn spelt_out(&self) -> String {
        let (mut text, mut is_name, mut letters) = (String::new(), false, self.sql.chars());
        while let Some(letter) = letters.next() {
            is_name ^= letter == '"';
            // A name may have one, too.
            if letter != '$' || is_name {
                text.push(letter);
                continue;
            }
            let digit =
                letters.next().and_then(|digit| digit.to_digit(10)).expect("a digit is behind each $");
            self.arguments[digit as usize - 1].spell_out(&mut text);
        }
        text
    }

    /// Returns the rows of a statement that reads.
    pub(super) async fn rows(&self, link: &mut Link, prepared: bool) -> Result<Vec<PgRow>, ServerError> {
        if prepared {
            return self.bound().fetch_all(link.raw()).await.map_err(failed);
        }
        // As text, bytes come in the form that the role has chosen.
        let text = format!("SET LOCAL bytea_output = hex; {}", self.spelt_out());
        sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(link.raw()).await.map_err(failed)
    }

    /// Returns how many rows a statement wrote.
    pub(super) async fn execute(&self, link: &mut Link, prepared: bool) -> Result<u64, ServerError> {
        let done = match prepared {
            true => self.bound().execute(link.raw()).await,
            false => sqlx::raw_sql(AssertSqlSafe(self.spelt_out())).execute(link.raw()).await,
        };
        done.map(|done| done.rows_affected()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_can_be_spelt_out() {
        let arguments =
            [Argument::Plain("a/b"), Argument::EachPlain(&["c", "d"]), Argument::ManyInts(Some(&[3]))];
        let sql = "SELECT $2, $1 FROM unnest($3) AS \"a$1\"".to_owned();
        assert_eq!(
            Statement { sql, arguments: &arguments }.spelt_out(),
            "SELECT ARRAY['c','d']::text[], 'a/b'::text FROM unnest(ARRAY[3]::int8[]) AS \"a$1\""
        );
    }

    #[test]
    fn a_call_can_be_spelt_out() {
        let ids = [b"a'\0".to_vec(), Vec::new()];
        let arguments = [
            Argument::Bytes(b"\\"),
            Argument::Int(-7),
            Argument::ManyBytes(&ids),
            Argument::ManyInts(Some(&[1, 2])),
        ];
        let routine = "\"s\".\"f\"".to_owned();
        let call = Call { routine, is_procedure: true, arguments: &arguments };
        assert_eq!(call.prepared(None), "CALL \"s\".\"f\"($1, $2, $3, $4, '')");
        assert_eq!(
            call.spelt_out(None),
            "CALL \"s\".\"f\"(E'\\\\x5c'::bytea, -7::int8, ARRAY[E'\\\\x612700'::bytea,E'\\\\x'::bytea]::bytea[], \
             ARRAY[1,2]::int8[], '')"
        );
        let limit = Some(Duration::from_millis(4500));
        assert_eq!(
            call.prepared(limit),
            "CALL \"s\".\"f\"($1, $2, $3, $4, pg_catalog.left(pg_catalog.set_config('lock_timeout', '4500', true), 0))"
        );
        let function = Call { is_procedure: false, ..call };
        assert_eq!(
            function.prepared(limit),
            "SELECT \"s\".\"f\"($1, $2, $3, $4) FROM pg_catalog.set_config('lock_timeout', '4500', true)"
        );
    }
}
